"""Downloads from a local server that breaks off, stalls and lies."""

from __future__ import annotations

import hashlib
import http.server
import re
import threading

import pytest

from lisse.data import download, load_data, mnist
from lisse.data.download import Remote, fetch

CONTENT = bytes(range(256)) * 400  # 102,400 bytes


class Server:
    """Serves ``content`` and misbehaves as told: ``behave`` is a list of moods, one for each request in turn."""

    def __init__(self):
        self.content, self.moods, self.requests = CONTENT, [], []
        self.stalls_before = 0  # a request that begins before this byte stalls, whatever its mood
        self.released = threading.Event()
        self.waited_for = False  # a client had more patience with a stall than this server
        outer = self

        class Handler(http.server.BaseHTTPRequestHandler):
            def do_GET(self):
                outer.serve(self)

            def log_message(self, *_):
                pass

        self.http = http.server.ThreadingHTTPServer(("127.0.0.1", 0), Handler)
        self.http.daemon_threads = True
        threading.Thread(target=self.http.serve_forever, args=(0.01,), daemon=True).start()
        self.url = f"http://127.0.0.1:{self.http.server_port}/file.bin"

    def serve(self, handler):
        asked = handler.headers.get("Range")
        self.requests.append(asked)
        mood = self.moods.pop(0) if self.moods else "honest"
        body, start, status = self.content, 0, 200
        if asked and mood != "ignores range":
            start, status = int(re.findall(r"\d+", asked)[0]), 206
        if mood == "404":
            handler.send_error(404)
            return
        if mood == "416":
            handler.send_error(416)
            return
        body = body[start:]
        mood = "stalls" if start < self.stalls_before else mood
        if mood == "other content":
            body = bytes(255 - byte for byte in body)
        handler.send_response(status)
        if status == 206:
            shown = start + 1 if mood == "wrong part" else start
            handler.send_header("Content-Range", f"bytes {shown}-{len(self.content) - 1}/{len(self.content)}")
        if mood not in ("endless", "no length", "breaks off silently"):
            extra = {"announces more": 10, "announces less": -10}.get(mood, 0)
            handler.send_header("Content-Length", str(len(body) + extra))
        handler.end_headers()
        try:
            if mood in ("breaks off", "breaks off silently"):
                handler.wfile.write(body[: max(1, len(body) // 3)])
            elif mood == "stalls":
                handler.wfile.write(body[: len(body) // 2])
                handler.wfile.flush()
                self.waited_for |= not self.released.wait(60)
            elif mood == "endless":
                for _ in range(10_000):
                    handler.wfile.write(bytes(1 << 16))
            else:
                handler.wfile.write(body)
        except OSError:
            pass
        handler.close_connection = True


@pytest.fixture
def server():
    made = Server()
    yield made
    made.released.set()
    made.http.shutdown()
    made.http.server_close()


def remote(server, content=CONTENT, **more):
    return Remote("file.bin", more.get("urls", (server.url,)), len(content), hashlib.sha256(content).hexdigest())


def got(server, folder, **options):
    """With the patience that a server on a busy machine may need: only one that stalls is to be given up soon."""
    return fetch(remote(server), folder, **{"attempts": 4, "timeout": 30.0, "pause": 0.01, **options})


def visible(folder):
    return sorted(path.name for path in folder.iterdir() if path.suffix != ".lock")


def test_honest_server_and_progress(server, tmp_path):
    events = []
    path = got(server, tmp_path, tell=events.append)
    assert path.read_bytes() == CONTENT
    assert visible(tmp_path) == ["file.bin"]
    assert events[-1].done == events[-1].total == len(CONTENT)
    assert got(server, tmp_path) == path
    assert len(server.requests) == 1, "a file that is there is not asked for again"


def starts(server):
    return [int(re.findall(r"\d+", asked)[0]) if asked else 0 for asked in server.requests]


@pytest.mark.parametrize("how", ["breaks off", "breaks off silently"])
def test_resumes_where_it_broke_off(server, tmp_path, how):
    server.moods = [how, how]
    assert got(server, tmp_path).read_bytes() == CONTENT
    assert starts(server) == sorted(set(starts(server)))
    assert len(starts(server)) == 3
    assert visible(tmp_path) == ["file.bin"]


def test_resumes_where_it_stalled(server, tmp_path):
    """Given up after a second, on a busy machine perhaps before any byte: the server stalls by place, not by turn."""
    server.stalls_before = len(CONTENT) // 2 + 1
    assert got(server, tmp_path, attempts=10, timeout=1.0).read_bytes() == CONTENT
    assert not server.waited_for
    assert starts(server) == sorted(starts(server))
    assert len(set(starts(server))) >= 3
    assert visible(tmp_path) == ["file.bin"]


def test_a_later_call_goes_on(server, tmp_path):
    server.moods = ["breaks off"] + ["404"] * 50
    with pytest.raises(
        ValueError, match=r"file.bin must arrive complete, got 34,133 of 102,400 bytes; HTTP 404.*goes on from there"
    ):
        got(server, tmp_path)
    assert visible(tmp_path) == ["file.bin.part"], "nothing half-written has the file's name"
    server.moods, server.requests = [], []
    assert got(server, tmp_path).read_bytes() == CONTENT
    assert server.requests == ["bytes=34133-"]


@pytest.mark.parametrize("how", ["ignores range", "wrong part", "416", "announces more", "announces less", "no length"])
def test_strange_answers_to_a_resumed_request(server, tmp_path, how):
    server.moods = ["breaks off", how]
    assert got(server, tmp_path).read_bytes() == CONTENT


def test_lies_are_thrown_away_and_refused(server, tmp_path):
    server.moods = ["other content"] * 50
    with pytest.raises(ValueError, match=r"must have sha256 [0-9a-f]{64}, got another content. It was thrown away"):
        got(server, tmp_path)
    assert visible(tmp_path) == []


def test_a_lie_in_the_second_half(server, tmp_path):
    server.moods = ["breaks off", "other content"]
    assert got(server, tmp_path).read_bytes() == CONTENT, "thrown away, then fetched once more from the beginning"


def test_another_address_is_asked(server, tmp_path):
    server.moods = ["other content"]
    dead = "http://127.0.0.1:9/none"
    made = fetch(remote(server, urls=(dead, server.url, server.url)), tmp_path, attempts=2, timeout=30.0, pause=0.01)
    assert made.read_bytes() == CONTENT


def test_an_endless_answer_is_cut(server, tmp_path):
    server.moods = ["endless"] * 50
    with pytest.raises(ValueError, match="got another content"):
        got(server, tmp_path)
    assert visible(tmp_path) == []


@pytest.mark.parametrize("how", ["announces more", "announces less"])
def test_wrong_length(server, tmp_path, how):
    server.moods = [how] * 50
    with pytest.raises(ValueError, match=r"bytes announced instead of 102,400"):
        got(server, tmp_path)
    assert visible(tmp_path) == []


def test_nobody_there(tmp_path):
    nobody = Remote("x", ("http://127.0.0.1:9/x",), 5, "0" * 64)
    with pytest.raises(ValueError, match="must arrive complete, got 0 of 5 bytes"):
        fetch(nobody, tmp_path, attempts=2, timeout=0.5, pause=0.01)


def test_a_damaged_file_in_the_cache_is_replaced(server, tmp_path):
    (tmp_path / "file.bin").write_bytes(CONTENT[:-1])
    assert got(server, tmp_path).read_bytes() == CONTENT


def test_two_at_once(server, tmp_path):
    results = []
    threads = [threading.Thread(target=lambda: results.append(got(server, tmp_path).read_bytes())) for _ in range(3)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert results == [CONTENT] * 3
    assert len(server.requests) == 1


def test_load_data_downloads_only_when_asked(server, tmp_path, monkeypatch):
    import gzip

    import numpy as np

    def packed(array):
        head = bytes([0, 0, 8, array.ndim]) + b"".join(size.to_bytes(4) for size in array.shape)
        return gzip.compress(head + array.tobytes(), mtime=0)

    contents = [packed(np.full((4, 28, 28), 9, "u1")), packed(np.arange(4, dtype="u1"))]
    served = dict(zip(("t10k-images-idx3-ubyte.gz", "t10k-labels-idx1-ubyte.gz"), contents, strict=True))
    base = server.url.rsplit("/", 1)[0]
    files = [
        Remote(name, (f"{base}/{name}",), len(content), hashlib.sha256(content).hexdigest())
        for name, content in served.items()
    ]
    monkeypatch.setitem(mnist.FILES, "mnist", (*files, *files))
    monkeypatch.setitem(mnist.COUNTS, "test", 4)
    serve = server.serve

    def by_name(handler):
        server.content = served[handler.path.strip("/")]
        serve(handler)

    server.serve = by_name
    with pytest.raises(ValueError, match=r"mnist\?download=true"):
        load_data("mnist")
    assert server.requests == []
    assert load_data("mnist?download=true").targets.tolist() == [0, 1, 2, 3]
    assert len(server.requests) == 2
    assert load_data("mnist").targets.tolist() == [0, 1, 2, 3], "now in the cache"
    for file in (tmp_path / "cache" / "data" / "mnist").iterdir():
        file.unlink()
    monkeypatch.setenv("LISSE_DOWNLOAD", "1")
    assert load_data("mnist").targets.tolist() == [0, 1, 2, 3]
    assert len(server.requests) == 4


def test_pinned_checksums_are_whole():
    for remotes in (download.MNIST, download.FASHION_MNIST, download.CIFAR10):
        for item in remotes:
            assert re.fullmatch("[0-9a-f]{64}", item.sha256)
            assert item.size > 1000
            assert all(url.endswith(item.name) for url in item.urls)
