"""What a scan says of references that it could not read, however much else it has to say."""

from __future__ import annotations

from collections.abc import Callable

from pulsar_lifecycle.spark.findings import unread_references
from tests.integration.pipeline import Pipeline


def test_one_unread_reference_shows_among_thousands_that_are_gone(pipelines: Callable[..., Pipeline]) -> None:
    """Only so many errors are kept; what is gone is no gap and must not crowd out what is."""
    rows = [(f"gone: /topic-{n}: no z-node",) for n in range(3000)] + [("unread: /one: no answer",), (None,)]
    frame = pipelines().where.spark.createDataFrame(rows, "error string").coalesce(1)
    assert unread_references(frame) == ["unread: /one: no answer"]
