"""Checked downloads: resumed where they broke off, verified against pinned checksums, moved into place at once.

pooch verifies and moves; the part it lacks, going on after an interruption, is :class:`Resuming`. Nothing here is
used unless the person asked for a download.
"""

from __future__ import annotations

import contextlib
import http.client
import os
import time
import urllib.error
import urllib.request
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from lisse.progress import Event, Listener


@dataclass(frozen=True)
class Remote:
    """A published file: where it is, how many bytes it has, what it hashes to."""

    name: str
    urls: tuple[str, ...]
    size: int
    sha256: str


def _idx(bases: tuple[str, ...], rows: Sequence[tuple[str, int, str]]) -> tuple[Remote, ...]:
    return tuple(Remote(name, tuple(base + name for base in bases), size, sha) for name, size, sha in rows)


MNIST = _idx(
    ("https://ossci-datasets.s3.amazonaws.com/mnist/", "https://storage.googleapis.com/cvdf-datasets/mnist/"),
    (
        ("train-images-idx3-ubyte.gz", 9912422, "440fcabf73cc546fa21475e81ea370265605f56be210a4024d2ca8f203523609"),
        ("train-labels-idx1-ubyte.gz", 28881, "3552534a0a558bbed6aed32b30c495cca23d567ec52cac8be1a0730e8010255c"),
        ("t10k-images-idx3-ubyte.gz", 1648877, "8d422c7b0a1c1c79245a5bcf07fe86e33eeafee792b84584aec276f5a2dbc4e6"),
        ("t10k-labels-idx1-ubyte.gz", 4542, "f7ae60f92e00ec6debd23a6088c31dbd2371eca3ffa0defaefb259924204aec6"),
    ),
)
FASHION_MNIST = _idx(
    (
        "http://fashion-mnist.s3-website.eu-central-1.amazonaws.com/",
        "https://raw.githubusercontent.com/zalandoresearch/fashion-mnist/master/data/fashion/",
    ),
    (
        ("train-images-idx3-ubyte.gz", 26421880, "3aede38d61863908ad78613f6a32ed271626dd12800ba2636569512369268a84"),
        ("train-labels-idx1-ubyte.gz", 29515, "a04f17134ac03560a47e3764e11b92fc97de4d1bfaf8ba1a3aa29af54cc90845"),
        ("t10k-images-idx3-ubyte.gz", 4422102, "346e55b948d973a97e58d2351dde16a484bd415d4595297633bb08f03db6a073"),
        ("t10k-labels-idx1-ubyte.gz", 5148, "67da17c76eaffca5446c3361aaab5c3cd6d1c2608764d35dfb1850b086bf8dd5"),
    ),
)
CIFAR10 = (
    Remote(
        "cifar-10-python.tar.gz",
        ("https://www.cs.toronto.edu/~kriz/cifar-10-python.tar.gz",),
        170498071,
        "6d958be074577803d12ecdefd02955f39262c83c16fe9348329d7fe0b5c001ce",
    ),
)


class _Failed(Exception):
    """One attempt did not work; the next may."""


@dataclass(frozen=True)
class Resuming:
    """A downloader for pooch that keeps what has arrived in ``part`` and asks only for the rest.

    ``attempts`` times, with a pause that doubles; a server that says nothing for ``timeout`` seconds counts as broken
    off. Never more than ``size`` bytes are taken from anyone.
    """

    part: Path
    size: int
    attempts: int = 4
    timeout: float = 30.0
    pause: float = 1.0
    tell: Listener | None = None

    def __call__(self, url: str, output_file: Any, pooch: Any = None) -> None:
        """Bring the file to ``output_file``; pooch checks it and moves it on."""
        trouble = ""
        for attempt in range(self.attempts + 1):
            if self._have() == self.size:
                os.replace(self.part, output_file)
                return
            if attempt == self.attempts:
                break
            if attempt:
                time.sleep(self.pause * 2 ** (attempt - 1))
            try:
                self._more(url)
            except (_Failed, urllib.error.URLError, http.client.HTTPException, OSError) as error:
                trouble = f"; {getattr(error, 'reason', None) or error or type(error).__name__}"
        raise ValueError(
            f"download: {url} must arrive complete, got {self._have():,} of {self.size:,} bytes{trouble}. "
            "Try again later: it goes on from there."
        )

    def _have(self) -> int:
        return self.part.stat().st_size if self.part.exists() else 0

    def _more(self, url: str) -> None:
        """Ask for what is missing and append it."""
        have = self._have() if self._have() < self.size else 0
        headers = {"User-Agent": "lisse", "Accept-Encoding": "identity"}
        if have:
            headers["Range"] = f"bytes={have}-"
        try:
            response = urllib.request.urlopen(urllib.request.Request(url, headers=headers), timeout=self.timeout)
        except urllib.error.HTTPError as error:
            error.close()
            if error.code == 416:  # our part is not a beginning of theirs
                self.part.unlink(missing_ok=True)
            raise _Failed(f"HTTP {error.code}") from error
        with response:
            if have and response.status == 206:
                if not response.headers.get("Content-Range", "").startswith(f"bytes {have}-"):
                    raise _Failed(f"another part than asked for ({response.headers.get('Content-Range')})")
            else:
                have = 0  # the server sends it all again
            length = response.headers.get("Content-Length", "")
            if length.isdigit() and have + int(length) != self.size:
                self.part.unlink(missing_ok=True)
                raise _Failed(f"{have + int(length):,} bytes announced instead of {self.size:,}")
            with self.part.open("ab" if have else "wb") as out:
                while have < self.size and (block := response.read1(min(1 << 16, self.size - have))):
                    out.write(block)
                    have += len(block)
                    if self.tell:
                        self.tell(Event(f"download {self.part.stem}", have, self.size, "B"))


def fetch(
    remote: Remote,
    folder: Path,
    *,
    tell: Listener | None = None,
    attempts: int = 4,
    timeout: float = 30.0,
    pause: float = 1.0,
) -> Path:
    """``remote`` in ``folder``: the file that is there if it is the right one, else downloaded.

    A file appears under its name only complete and verified. What a broken download left is kept as ``NAME.part`` and
    continued by the next call, also after this process ended. Content with a wrong checksum is thrown away; then the
    next address is asked, and at last the first again from the beginning.
    """
    import pooch

    folder.mkdir(parents=True, exist_ok=True)
    pooch.get_logger().setLevel("WARNING")
    part = folder / f"{remote.name}.part"
    downloader = Resuming(part, remote.size, attempts, timeout, pause, tell)
    checksum = f"sha256:{remote.sha256}"
    trouble: Exception | None = None
    with _alone(folder / f"{remote.name}.lock"):
        for url in (*remote.urls, remote.urls[0]):
            try:
                return Path(pooch.retrieve(url, checksum, fname=remote.name, path=folder, downloader=downloader))
            except ValueError as error:
                trouble = error
    if str(trouble).startswith("download:"):
        raise ValueError(str(trouble)) from trouble
    raise ValueError(
        f"download: {remote.urls[0]} must have sha256 {remote.sha256}, got another content. "
        "It was thrown away: the source has changed or is not to be trusted."
    ) from trouble


@contextlib.contextmanager
def _alone(lock: Path) -> Iterator[None]:
    """Only one process at a time (where the system has advisory locks)."""
    try:
        import fcntl
    except ImportError:
        yield
        return
    with lock.open("w") as file:
        fcntl.flock(file, fcntl.LOCK_EX)
        yield
