"""A how-to has one heading: a list of headings beside it would only take its room."""

from __future__ import annotations

from typing import Any


def on_page_markdown(markdown: str, page: Any, **_: object) -> str:
    """MkDocs asks for the Markdown of a page: it is as it was, and a how-to has no table of contents."""
    if page.file.src_uri.startswith("howto/"):
        page.meta["hide"] = ["toc"]
    return markdown
