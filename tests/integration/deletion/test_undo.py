"""Undoing deletions on a real cluster: before a bookie's garbage collection, after one bookie's, after all of theirs.

One story, told by the fixture ``story``, in a cluster whose two bookies collect only when they are told to.
"""

from __future__ import annotations

import time
from collections.abc import Sequence
from contextlib import closing
from dataclasses import dataclass, field
from typing import Any

import dagster as dg
import httpx
import pulsar
import pytest

from orchestration.definitions import build_defs
from pulsar_lifecycle.deletion.undo.undo_run import Result, UndoRequest, check_on_executors, undo_deletions
from pulsar_lifecycle.formats import ledger_metadata
from pulsar_lifecycle.formats.ledger_metadata import LedgerMetadata
from pulsar_lifecycle.io.bookkeeper.reader import BookieReader
from pulsar_lifecycle.io.lake.journal import FileJournal
from pulsar_lifecycle.io.zookeeper.store import KazooStore
from pulsar_lifecycle.journal.queries import journal_rows
from pulsar_lifecycle.ports import ReplicaCheck
from pulsar_lifecycle.values.outcomes import Outcome
from sandbox.clients import pulsar_client, wait_for
from sandbox.cluster import Cluster
from sandbox.planting import plant, topics, znodes
from tests.integration import pipeline as driving
from tests.integration.pipeline import Pipeline, existing, new_namespace, wait_unlisted, wait_until_unloaded_counts

pytestmark = pytest.mark.integration

SETTINGS = {"bookkeeper": {"gc_wait": "3s"}, "deletion": driving.PATIENT}


@dataclass
class Story:
    """What was deleted, and what became of each undo."""

    cluster: Cluster
    pipeline: Pipeline
    contents: list[bytes]
    """Every message that was ever published to ``living``."""
    living: str
    dropped: int
    """The ledger that left the list of ``living``."""
    thin: list[int]
    lost: list[int]
    previewed: Result | None = None
    undone: dict[str, Result] = field(default_factory=dict[str, Result])
    checks: dict[str, list[ReplicaCheck]] = field(default_factory=dict[str, list[ReplicaCheck]])

    def collect(self, *which: int) -> None:
        """Force a garbage collection of these bookies, and wait for its end."""
        for number in which:
            bookie = self.cluster.state.of_kind("bookie")[number].http
            httpx.put(f"{bookie}/api/v1/bookie/gc", timeout=120).raise_for_status()
            wait_for(
                f"the collection of {bookie}",
                lambda bookie=bookie: (
                    httpx.get(f"{bookie}/api/v1/bookie/gc", timeout=120).json()["is_in_force_gc"] == "false"
                ),
            )

    def undo(self, ledger_ids: Sequence[int], **options: Any) -> Result:
        request = UndoRequest(ledger_ids=tuple(ledger_ids), dry_run=False, **options)
        return undo_deletions(self.pipeline.where, "undo", request, lambda text: None)

    def metadata(self, ledger_id: int) -> LedgerMetadata:
        return ledger_metadata.decode(self.pipeline.archived(ledger_id)[-1]["data"])

    def check(self, ledger_ids: Sequence[int]) -> list[ReplicaCheck]:
        """Ask the bookies."""
        settings = self.pipeline.where.settings
        with (
            KazooStore(settings.zookeeper, read_only=True) as store,
            closing(BookieReader(store, settings.bookkeeper)) as reader,
        ):
            return reader.check_replicas([(i, self.metadata(i)) for i in ledger_ids])

    def journal_of(self, ledger_id: int) -> list[str]:
        rows = journal_rows(FileJournal(self.pipeline.lake), ledger_id=ledger_id).to_pylist()
        return [row["outcome"] for row in rows if row["phase"] == "undo"]


def outcomes(result: Result | None) -> set[str]:
    assert result is not None
    return {one.outcome for one in result.ledgers}


@pytest.fixture(scope="module")
def story(two_bookies: Cluster, spark: None, tmp_path_factory: pytest.TempPathFactory) -> Story:
    quiet = two_bookies
    driving.drain(quiet)
    namespace = new_namespace(quiet, "undo")
    living, thin, lost = (f"persistent://{namespace}/{name}" for name in ("living", "thin", "lost"))
    planted, _ = plant.orphan_data_of_live_topic(quiet, living)
    told = Story(
        quiet,
        Pipeline(driving.settings_file(quiet, tmp_path_factory.mktemp("undo"), SETTINGS)),
        topics.payloads(130),
        living,
        planted[0].ledger_id,
        [one.ledger_id for one in plant.orphan_data(quiet, thin)],
        [one.ledger_id for one in plant.orphan_data(quiet, lost)],
    )
    wait_unlisted(quiet, [living, thin, lost])
    wait_until_unloaded_counts(time.time())
    planned = told.pipeline.confirmed_plan()
    everything = {told.dropped, *told.thin, *told.lost}
    assert everything <= planned.ids
    told.pipeline.apply(told.pipeline.order(planned))
    told.pipeline.scan_and_delete("deletion")
    assert not existing(quiet, everything)

    told.checks["deleted"] = told.check(sorted(everything))
    told.previewed = undo_deletions(told.pipeline.where, "dry", UndoRequest("deletion"), lambda text: None)
    assert not existing(quiet, everything)
    told.undone["before any collection"] = told.undo([told.dropped])
    told.collect(0)
    told.checks["dropped, after one collection"] = told.check([told.dropped])
    told.undone["after one bookie's"] = told.undo(told.thin)
    told.collect(1)
    told.checks["dropped, after all"] = told.check([told.dropped])
    told.checks["thin, after all"] = told.check(told.thin)
    told.undone["after all"] = told.undo(told.lost)
    return told


def test_entries_outlive_the_z_node(story: Story) -> None:
    assert all(check.held == 2 * check.asked and not check.missing for check in story.checks["deleted"])


def test_a_dry_run_says_what_may_come_back(story: Story) -> None:
    assert story.previewed is not None
    assert outcomes(story.previewed) == {Outcome.RESTORABLE}
    assert {one.ledger_id for one in story.previewed.ledgers} >= {story.dropped, *story.thin, *story.lost}
    rows = journal_rows(FileJournal(story.pipeline.lake), run_id="dry")
    assert rows.num_rows == 0


def test_undone_before_a_collection_every_replica_keeps_it_through_the_next_ones(story: Story) -> None:
    assert outcomes(story.undone["before any collection"]) == {Outcome.RESTORED}
    assert existing(story.cluster, [story.dropped]) == {story.dropped}
    for when in ("dropped, after one collection", "dropped, after all"):
        (check,) = story.checks[when]
        assert (check.held, check.missing, check.unanswered) == (2 * check.entries, {}, {})
    assert story.journal_of(story.dropped) == [Outcome.RECREATING, Outcome.RECREATED, Outcome.RESTORED]


def test_listed_again_the_restored_ledger_is_read_by_a_broker(story: Story) -> None:
    """The broker reads through BookKeeper's own client: the topic gives every message it ever had, in order."""
    metadata = story.metadata(story.dropped)
    with story.cluster.metadata() as zk, znodes.editing(zk, story.living) as info:
        if story.dropped not in [entry.ledgerId for entry in info.ledgerInfo]:
            info.ledgerInfo.add(
                ledgerId=story.dropped,
                entries=metadata.last_entry_id + 1,
                size=metadata.length,
                timestamp=int(time.time() * 1000),
            )
            ordered = sorted(info.ledgerInfo, key=lambda entry: entry.ledgerId)
            copies = [type(entry).FromString(entry.SerializeToString()) for entry in ordered]
            del info.ledgerInfo[:]
            info.ledgerInfo.extend(copies)
    found: list[bytes] = []
    with pulsar_client(story.cluster.service_url) as client:
        reader = client.create_reader(story.living, pulsar.MessageId.earliest)
        while reader.has_message_available():
            found.append(reader.read_next(60_000).data())
    assert found == story.contents


def test_what_one_bookie_collected_comes_back_under_replicated(story: Story) -> None:
    result = story.undone["after one bookie's"]
    assert outcomes(result) == {Outcome.RESTORED}
    first = story.cluster.bookies[0]
    for one in result.ledgers:
        assert one.check is not None
        if one.check.entries:
            assert set(one.check.missing) == {first}
    assert existing(story.cluster, story.thin) == set(story.thin)
    for check in story.checks["thin, after all"]:
        assert (check.held, check.lost) == (check.entries, 0)  # the other copy lives on


def test_collected_everywhere_it_is_past_saving_and_nothing_comes_back(story: Story) -> None:
    result = story.undone["after all"]
    assert {one.outcome for one in result.ledgers if one.metadata and one.metadata.last_entry_id >= 0} == {Outcome.LOST}
    full = [one.ledger_id for one in result.ledgers if one.outcome == Outcome.LOST]
    assert full
    assert not existing(story.cluster, full)
    assert all(story.journal_of(ledger_id) == [Outcome.LOST] for ledger_id in full)


def test_executors_find_the_same_as_the_driver(story: Story) -> None:
    ledgers = [(i, story.metadata(i)) for i in (story.dropped, *story.thin, *story.lost)]
    where = story.pipeline.spark_cluster
    assert check_on_executors(where, ledgers) == story.check([i for i, _ in ledgers])


def test_the_job_shows_what_it_would_do_and_does_it_only_when_told(story: Story) -> None:
    job = build_defs(str(story.pipeline.file)).resolve_job_def("undo_deletions")
    quiet = {"loggers": {"console": {"config": {"log_level": "ERROR"}}}}
    with dg.DagsterInstance.ephemeral() as instance:
        config = {"ops": {"restore_ledgers": {"config": {"run_id": "deletion"}}}}
        done = job.execute_in_process(run_config={**quiet, **config}, instance=instance, raise_on_error=False)
    (event,) = [e for e in done.all_events if e.event_type_value == "STEP_FAILURE"]
    failure = event.step_failure_data.user_failure_data
    assert failure is not None
    assert "lost, no bookie holds their entries any more" in str(failure.description)
    metadata = failure.metadata
    shown = str(metadata["outcomes"].value)
    assert Outcome.PRESENT in shown
    assert Outcome.LOST in shown
    assert metadata["dagster/row_count"].value == 0


def test_a_stopped_bookie_is_no_collected_one(story: Story) -> None:
    """Last: a bookie that is killed may have forgotten what it collected since its last flush when it is back."""
    first = story.cluster.state.of_kind("bookie")[0].name
    story.cluster.kill(first)
    try:
        wait_for("the bookie's z-node to go", lambda: _unregistered(story.cluster))
        result = story.undo(story.lost)
    finally:
        story.cluster.start_server(first)
    without_answer = {one.outcome for one in result.ledgers if one.metadata and one.metadata.last_entry_id >= 0}
    assert without_answer == {Outcome.UNKNOWN}


def _unregistered(cluster: Cluster) -> bool:
    with cluster.metadata() as zk:
        return cluster.bookies[0] not in (zk.get_children("/ledgers/available") or [])
