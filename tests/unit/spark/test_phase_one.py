"""The rules that a run of phase one is given: those of a deletion run hold, too."""

from __future__ import annotations

from pathlib import Path
from types import SimpleNamespace
from typing import Any, cast

import pytest

from pulsar_lifecycle.io.clock import SystemClock
from pulsar_lifecycle.plan.coverage import Epoch
from pulsar_lifecycle.plan.orphans import Context
from pulsar_lifecycle.settings import Settings
from pulsar_lifecycle.spark import phase_one

BUCKETS = {"buckets": ["tiered", "older"]}


def rules(lake: Path, **sections: Any) -> Context:
    """What phase one goes by, under these settings and a scan of this moment."""
    required = {
        "cluster": "c",
        "zookeeper": {"hosts": "h:2181"},
        "pulsar": {"admin_url": "http://h:8080", "service_url": "pulsar://h:6650"},
        "bookkeeper": {"shared_with": []},
        "lake": {"path": str(lake)},
    }
    now = SystemClock().now_ms()
    epoch = Epoch("e1", "c", "fp", now, now + 1, (), 1, 1, ())
    kept = SimpleNamespace(
        epochs=lambda fingerprint="": [epoch],
        context=lambda epoch_id: Context(now=0, grace=0, namespaces=frozenset(), open_topics=frozenset({"t"})),
    )
    settings = Settings.model_validate(required | sections)
    cluster = SimpleNamespace(lake=kept, settings=settings, roots=lambda: [""])
    return phase_one._context(cast("Any", cluster), "fp")  # pyright: ignore[reportPrivateUsage]


@pytest.mark.parametrize("trimming", [False, True])
@pytest.mark.parametrize("orphans", [False, True])
def test_system_topics_go_where_both_phases_may(tmp_path: Path, trimming: bool, orphans: bool) -> None:
    given = rules(tmp_path, trimming={"system_topics": trimming}, orphans={"system_topics": orphans})
    assert given.system_topics == (trimming and orphans)


def test_offloaded_copies_may_go_where_a_deletion_run_may_delete_them(tmp_path: Path) -> None:
    assert rules(tmp_path, object_store=BUCKETS).offload_buckets == {"tiered", "older"}
    assert rules(tmp_path).offload_buckets == frozenset()


def test_what_the_newest_scan_found_open_is_known(tmp_path: Path) -> None:
    assert rules(tmp_path).open_topics == {"t"}
