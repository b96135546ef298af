"""What a run refuses before it looks at anything but its evidence, and how a topic's namespace is found."""

from __future__ import annotations

from dataclasses import replace
from types import SimpleNamespace
from typing import Any

import pytest
from pyroaring import BitMap64

from pulsar_lifecycle.errors import Refused
from pulsar_lifecycle.plan.coverage import Epoch
from pulsar_lifecycle.plan.orphans import Context
from pulsar_lifecycle.plan.references import Referenced
from pulsar_lifecycle.spark import runs, sources

HOUR = 3_600_000
EPOCH = Epoch("e1", "c", "fp", 100 * HOUR, 100 * HOUR + 1, (), 1, 1, ())


@pytest.mark.parametrize("now", [99 * HOUR, 124 * HOUR + 1])
def test_a_scan_from_the_future_or_of_long_ago_is_no_evidence(now: int) -> None:
    with pytest.raises(Refused, match="run the job scan again"):
        runs.refuse_old_evidence(EPOCH, now, 24 * HOUR)


def test_a_scan_dated_after_the_stores_own_time_is_no_evidence() -> None:
    runs.refuse_scans_from_the_future(EPOCH, EPOCH.started_at)
    with pytest.raises(Refused, match="dated 1 s after the metadata store's time"):
        runs.refuse_scans_from_the_future(EPOCH, EPOCH.started_at - 1000)


def test_a_scan_of_today_is_evidence() -> None:
    runs.refuse_old_evidence(EPOCH, 124 * HOUR, 24 * HOUR)


@pytest.mark.parametrize(
    ("topic", "namespace"),
    [
        ("persistent://acme/orders/placed", "acme/orders"),
        ("persistent://acme/dc1/orders/placed", "acme/dc1/orders"),
        ("persistent://acme/dc1/orders/placed/by/phone", "acme/dc1/orders"),
    ],
)
def test_a_loaded_topic_is_sought_in_its_own_namespace(topic: str, namespace: str) -> None:
    assert sources._namespace_of("topic", topic) == namespace  # pyright: ignore[reportPrivateUsage]


def scanned(*hours: int) -> list[Epoch]:
    return [replace(EPOCH, epoch_id=f"e{hour}", started_at=hour * HOUR) for hour in hours]


def cluster_with(epochs: list[Epoch], shadowed: dict[str, str]) -> Any:
    """Scans that confirm after a day; ``shadowed``: the one source of a shadow topic that an epoch saw, by its id."""

    def context(epoch_id: str) -> Context:
        sources = frozenset({shadowed[epoch_id]} if epoch_id in shadowed else ())
        return Context(now=0, grace=0, namespaces=frozenset(), shadow_sources=sources)

    lake = SimpleNamespace(epochs=lambda fingerprint="": epochs, context=context)
    settings = SimpleNamespace(
        orphans=SimpleNamespace(confirm_after=86_400), bookkeeper=SimpleNamespace(shared_with=[])
    )
    return SimpleNamespace(lake=lake, settings=settings)


def test_every_scan_between_two_is_asked_covered_or_not() -> None:
    epochs = scanned(60, 70, 80, 90, 100)
    epochs[2] = replace(epochs[2], gaps=("a gap",))
    assert [e.epoch_id for e in runs.since(cluster_with(epochs, {}), epochs[1], epochs[4])] == ["e70", "e80", "e90"]


def test_a_shadow_topic_that_is_away_counts_for_as_long_as_a_confirmation_takes() -> None:
    epochs = scanned(60, 70, 80, 90, 100)
    seen = {"e60": "long ago", "e70": "a day ago", "e80": "since then", "e100": "now"}
    sources = runs.context_of(cluster_with(epochs, seen), epochs[4]).shadow_sources
    assert sources == {"a day ago", "since then", "now"}
    assert runs.context_of(cluster_with(scanned(100), seen), epochs[4]).shadow_sources == {"now"}


def test_a_mark_stands_until_a_scan_refutes_it_however_long_ago_or_a_restore_is_accepted() -> None:
    epochs = scanned(10, 60, 100)
    in_use = {"e10": BitMap64([1, 2, 3, 4]), "e60": BitMap64([2]), "e100": BitMap64([3])}
    cluster = cluster_with(epochs, {})
    cluster.settings.cluster = "c"
    cluster.lake.referenced = lambda epoch_id: Referenced(in_use[epoch_id])
    cluster.lake.set_aside_until = lambda name: {"c": 5 * HOUR}[name]
    marks = {1: ("x", 20 * HOUR), 2: ("y", 20 * HOUR), 3: ("z", 61 * HOUR), 4: ("w", 5 * HOUR)}
    assert runs.standing_marks(cluster, epochs[-1], marks) == {1: marks[1], 3: marks[3]}
    assert runs.standing_marks(cluster, epochs[-1], {}) == {}
