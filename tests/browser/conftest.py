"""Debian's Chromium, driven by Playwright: pages are opened from disk, and everything they ask for is written down."""

from __future__ import annotations

import os
import shutil
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import pytest

SIZES = {"desktop": (1280, 900), "phone": (390, 844)}
CHROMIUM = os.environ.get("CHROMIUM") or shutil.which("chromium") or shutil.which("chromium-browser")


@dataclass
class Opened:
    """A page, what it asked for besides itself, and what it wrote to the console."""

    page: Any
    requests: list[str] = field(default_factory=list)
    console: list[str] = field(default_factory=list)


@pytest.fixture(scope="session")
def browser() -> Iterator[Any]:
    if CHROMIUM is None:
        pytest.fail("Chromium must be installed for the browser tests (Debian: apt-get install chromium), got none.")
    playwright = pytest.importorskip("playwright.sync_api")
    with playwright.sync_playwright() as running:
        made = running.chromium.launch(executable_path=CHROMIUM, args=["--no-sandbox"])
        yield made
        made.close()


@pytest.fixture
def opened(browser: Any) -> Iterator[Callable[..., Opened]]:
    """Open a file at a size (``desktop``, ``phone``), light or dark."""
    contexts = []

    def open_(path: Path, size: str = "desktop", *, dark: bool = False, script: bool = True) -> Opened:
        width, height = SIZES[size]
        context = browser.new_context(
            viewport={"width": width, "height": height}, color_scheme="dark" if dark else "light",
            java_script_enabled=script, accept_downloads=True, has_touch=size == "phone",
        )  # fmt: skip
        context.set_default_timeout(120_000)  # ms: a picture of a long page takes a busy machine more than 30 s
        contexts.append(context)
        page = context.new_page()
        found = Opened(page)
        page.on("request", lambda request: found.requests.append(request.url))
        page.on("console", lambda message: found.console.append(message.text))
        page.on("pageerror", lambda error: found.console.append(str(error)))
        page.goto(path.as_uri())
        return found

    yield open_
    for context in contexts:
        context.close()


@pytest.fixture(scope="session")
def screenshots(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A folder for a person to look at: LISSE_SCREENSHOTS, or a temporary one."""
    given = os.environ.get("LISSE_SCREENSHOTS")
    folder = Path(given) if given else tmp_path_factory.mktemp("screenshots")
    folder.mkdir(parents=True, exist_ok=True)
    return folder
