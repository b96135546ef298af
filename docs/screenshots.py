# /// script
# requires-python = ">=3.11"
# dependencies = ["pillow", "playwright"]
# ///
"""Take the pictures of the Dagster UI in docs/images again, from a demo's cluster.

``make demo``, then ``.venv/bin/uv run docs/screenshots.py [URL]``. Needs Chromium on the PATH (``CHROMIUM`` names
another one) and downloads none. Run it once more when scans have stopped for longer than ``catalog.scan_fresh_for``: by
then health is red.
"""

from __future__ import annotations

import io
import json
import os
import shutil
import sys
from pathlib import Path
from typing import Any
from urllib.request import Request, urlopen

from PIL import Image
from playwright.sync_api import Page, ViewportSize, sync_playwright

UI = sys.argv[1] if len(sys.argv) > 1 else "http://127.0.0.1:3000"
IMAGES = Path(__file__).parent / "images"
CLUSTER = "sandbox"
WINDOW: ViewportSize = {"width": 1640, "height": 1200}
LONG = 180_000
"""Milliseconds: a page takes its time on a busy machine."""


def main() -> None:
    """All pictures."""
    browser_path = os.environ.get("CHROMIUM") or shutil.which("chromium") or shutil.which("google-chrome")
    if not browser_path:
        sys.exit("screenshots: no Chromium on the PATH; name one in CHROMIUM")
    with sync_playwright() as playwright:
        browser = playwright.chromium.launch(executable_path=browser_path, args=["--no-sandbox"])
        page = browser.new_page(viewport=WINDOW, color_scheme="light")
        page.set_viewport_size({"width": 1700, "height": 1240})
        opened(page, f"/assets/{CLUSTER}/deletion_plan?view=lineage&lineageScope=upstream&lineageDepth=4", "zookeeper")
        take(page, "lineage")
        page.set_viewport_size(WINDOW)
        opened(page, f"/assets/{CLUSTER}/deletion_plan?view=events&time={largest_plan()}", "how to apply")
        page.evaluate(
            "document.querySelectorAll('tr').forEach(r => r.innerText.startsWith('dagster/uri') && r.remove())"
        )
        take(page, "deletion-plan")
        opened(page, f"/assets/{CLUSTER}/ledger_deletion_topic?view=events", "all of it")
        take(page, "what-a-run-did")
        opened(page, f"/assets/{CLUSTER}/ledger_deletions?view=events", "messages acknowledged")
        take(page, "ledger-deletions")
        page.set_viewport_size({"width": 1640, "height": 560})
        opened(page, f"/assets/{CLUSTER}/deletion_plan?view=overview", "Freshness policy")
        take(page, "health-red" if page.get_by_text("Failed", exact=True).count() else "health-green")
        browser.close()


def opened(page: Page, path: str, shown: str = "") -> None:
    """Go to a page of the UI, and wait until its parts, which load one after another, are there; ``shown`` is one."""
    page.goto(UI + path, wait_until="domcontentloaded")
    if shown:
        page.get_by_text(shown).first.wait_for(timeout=LONG)
    page.wait_for_load_state("networkidle", timeout=LONG)
    page.wait_for_timeout(8000)


def take(page: Page, name: str) -> None:
    """One picture, in 128 colours, which is enough for a user interface."""
    file = IMAGES / f"{name}.png"
    Image.open(io.BytesIO(page.screenshot())).convert("RGB").quantize(128).save(file, optimize=True)
    print(f"{file.name}: {file.stat().st_size // 1024} KiB")


def largest_plan() -> str:
    """When (ms) the deletion plan with the most rows was made, of those that can be applied."""
    made = asked(
        f'{{assetOrError(assetKey: {{path: ["{CLUSTER}", "deletion_plan"]}}) {{... on Asset {{assetMaterializations '
        "{timestamp metadataEntries {label ... on IntMetadataEntry {intValue} ... on BoolMetadataEntry {boolValue}}}}}}"
    )["assetOrError"]["assetMaterializations"]
    plans: dict[str, int] = {}
    for one in made:
        shown = {entry["label"]: entry.get("intValue", entry.get("boolValue")) for entry in one["metadataEntries"]}
        if shown["actionable"]:
            plans[one["timestamp"]] = shown["dagster/row_count"]
    return max(plans, key=lambda timestamp: plans[timestamp])


def asked(query: str) -> dict[str, Any]:
    """The UI's answer to a GraphQL query."""
    body, headers = json.dumps({"query": query}).encode(), {"Content-Type": "application/json"}
    with urlopen(Request(f"{UI}/graphql", body, headers)) as answer:  # noqa: S310 - the UI that the caller named
        return json.load(answer)["data"]


if __name__ == "__main__":
    main()
