"""Headless Chromium, where there is one: what a page of the UI shows a person.

Belongs here: opening a page and reading its words. Not here: which words must stand there.
"""

from __future__ import annotations

import os
import shutil
import subprocess
from html.parser import HTMLParser
from pathlib import Path

CHROMIUM = os.environ.get("CHROMIUM") or shutil.which("chromium") or shutil.which("google-chrome")
NONE = "no Chromium on the PATH, and CHROMIUM names none"
SETTLED = 30_000
"""Milliseconds of the page's own clock, which goes on only while nothing is being loaded."""


def words(url: str, profile: Path) -> list[str]:
    """The texts of a page once it has settled, in their order; ``profile`` is a folder for the browser.

    Empty where it did not settle in time, or the browser failed: it is to be asked again.
    """
    assert CHROMIUM, NONE
    browser = [CHROMIUM, "--headless", "--no-sandbox", "--disable-gpu", f"--user-data-dir={profile}"]
    asked = [*browser, f"--virtual-time-budget={SETTLED}", "--window-size=1640,1200", "--dump-dom", url]
    try:
        page = subprocess.run(asked, capture_output=True, text=True, timeout=180, check=True).stdout
    except (subprocess.TimeoutExpired, subprocess.CalledProcessError):
        return []
    parser = _Texts()
    parser.feed(page)
    return parser.found


class _Texts(HTMLParser):
    def __init__(self) -> None:
        super().__init__()
        self.found: list[str] = []
        self._within = ""

    def handle_starttag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        self._within = tag

    def handle_endtag(self, tag: str) -> None:
        self._within = ""

    def handle_data(self, data: str) -> None:
        if data.strip() and self._within not in ("script", "style"):
            self.found.append(data.strip())
