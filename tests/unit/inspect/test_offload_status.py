"""`offload status`: each state from the topic's z-node, our open attempts and the journal; nothing is loaded."""

from __future__ import annotations

import json
from functools import partial
from pathlib import Path
from typing import Any
from uuid import UUID

import pytest

from pulsar_lifecycle.copies import attempts
from pulsar_lifecycle.copies.attempts import Attempt
from pulsar_lifecycle.formats.managed_ledger import OffloadContext
from pulsar_lifecycle.inspect.offload_status import OffloadState, OffloadStateCode
from pulsar_lifecycle.model import Topic
from pulsar_lifecycle.ports import JournalRow
from pulsar_lifecycle.runs import control
from pulsar_lifecycle.values.outcomes import Action, Outcome, Phase
from tests.kit.command import command_over
from tests.kit.settings import write_settings
from tests.kit.simulated.cluster import SimulatedCluster, data_tags

TOPIC = Topic.parse("persistent://acme/orders/placed")
DONE = OffloadContext(UUID(int=1), True, False, 77, "aws-s3", {"bucket": "b"})
BEGUN = OffloadContext(UUID(int=2), False, False, None, "aws-s3", {"bucket": "b"})


class Scene:
    """A topic of three ledgers, and the command over it."""

    def __init__(self, capsys: pytest.CaptureFixture[str]) -> None:
        self.servers, self.capsys = SimulatedCluster(), capsys
        servers = self.servers
        self.ids = [servers.ledger(data_tags(TOPIC)) for _ in range(3)]
        self.offloaded()
        self.command = partial(
            command_over(
                stores=lambda *_, read_only=False, **__: servers.open_store(read_only=read_only),
                admin=lambda: pytest.fail("a broker was asked"),
                journal_reader=lambda: servers.journal,
            ),
            "offload",
            "status",
        )

    def offloaded(self, *contexts: OffloadContext | None) -> None:
        """Give the oldest ledgers these contexts."""
        named = {ledger: one for ledger, one in zip(self.ids, contexts, strict=False) if one}
        self.servers.topic(TOPIC, self.ids, offloaded=named)

    def begin(self, ledger_id: int) -> None:
        """An open attempt of ours."""
        one = Attempt(ledger_id, str(TOPIC), UUID(int=3), "aws-s3", (("bucket", "b"),), 1 << 20, "run-7", 55)
        attempts.begin(self.servers.open_store(), one)

    def journal(self, outcome: Outcome, at: int, ledger_id: int | None = None, topic: str = str(TOPIC)) -> None:
        row = JournalRow(
            "run-7",
            "test",
            "",
            self.ids[0] if ledger_id is None else ledger_id,
            "",
            topic,
            Action.OFFLOAD,
            Phase.OFFLOAD,
            outcome,
            "S3 says no",
            0,
            "",
            "{}",
            at,
        )
        self.servers.journal.record([row])

    def status(self) -> tuple[OffloadState, OffloadStateCode, dict[str, Any]]:
        code = self.command(str(TOPIC), "--json")
        shown = json.loads(self.capsys.readouterr().out)
        assert code == (shown["status"] == "ERROR")
        assert bool(shown["lastError"]) == (shown["status"] == "ERROR")
        return OffloadState(shown["status"]), OffloadStateCode(shown["code"]), shown


@pytest.fixture
def scene(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]) -> Scene:
    write_settings(tmp_path, monkeypatch)
    return Scene(capsys)


def test_a_topic_of_which_nothing_was_offloaded(scene: Scene) -> None:
    state, code, shown = scene.status()
    assert (state, code) == (OffloadState.NOT_RUN, OffloadStateCode.NOTHING)
    assert (shown["ledgers"], shown["offloaded"]) == (3, 0)
    assert shown["firstUnoffloadedMessage"] == f"{scene.ids[0]}:0"


def test_what_is_offloaded_is_success_up_to_the_first_that_is_not(scene: Scene) -> None:
    scene.offloaded(DONE, DONE)
    state, code, shown = scene.status()
    assert (state, code, shown["at"], shown["offloaded"]) == (OffloadState.SUCCESS, OffloadStateCode.OFFLOADED, 77, 2)
    assert shown["firstUnoffloadedMessage"] == f"{scene.ids[2]}:0"


def test_our_attempt_runs_while_a_run_holds_the_lease_and_is_interrupted_after(scene: Scene) -> None:
    scene.begin(scene.ids[1])
    store = scene.servers.open_store()
    lease = control.take_lease(store, "offload run 7", scene.servers.clock, 0, control.OFFLOAD_LEASE)
    state, code, shown = scene.status()
    assert (state, code, shown["at"]) == (OffloadState.RUNNING, OffloadStateCode.OUR_ATTEMPT, 55)
    assert "run run-7" in shown["detail"]
    control.release_lease(store, lease)
    assert scene.status()[:2] == (OffloadState.ERROR, OffloadStateCode.INTERRUPTED)


def test_a_run_at_other_topics_is_none_at_this_one(scene: Scene) -> None:
    store = scene.servers.open_store()
    control.take_lease(store, "offload run 7", scene.servers.clock, 0, control.OFFLOAD_LEASE)
    assert scene.status()[0] is OffloadState.NOT_RUN


def test_an_attempt_that_cannot_be_read_is_named(scene: Scene) -> None:
    scene.servers.put(attempts.path_of(scene.ids[0]), b"{}")
    state, code, shown = scene.status()
    assert (state, code) == (OffloadState.ERROR, OffloadStateCode.ATTEMPT_UNREAD)
    assert attempts.path_of(scene.ids[0]) in shown["lastError"]


def test_what_a_broker_has_begun_may_be_running(scene: Scene) -> None:
    scene.offloaded(DONE, BEGUN)
    assert scene.status()[:2] == (OffloadState.RUNNING, OffloadStateCode.BROKERS_ATTEMPT)


def test_a_failure_stands_until_the_ledger_is_offloaded(scene: Scene) -> None:
    scene.journal(Outcome.FAILED, 5)
    state, code, shown = scene.status()
    assert (state, code, shown["at"]) == (OffloadState.ERROR, OffloadStateCode.RUN_FAILED, 5)
    assert shown["lastError"] == f"run run-7: ledger {scene.ids[0]}: S3 says no"
    scene.journal(Outcome.OFFLOADED, 6)
    scene.offloaded(DONE)
    assert scene.status()[0] is OffloadState.SUCCESS
    scene.journal(Outcome.FAILED, 7, scene.ids[1])
    assert scene.status()[0] is OffloadState.ERROR


def test_a_failure_of_the_whole_topic_stands_until_a_ledger_of_it_is_offloaded(scene: Scene) -> None:
    scene.journal(Outcome.FAILED, 5, -1)
    assert scene.status()[2]["lastError"] == "run run-7: S3 says no"
    scene.journal(Outcome.OFFLOADED, 6, scene.ids[1])
    assert scene.status()[0] is OffloadState.NOT_RUN  # its topic lists no offload any more


def test_failures_of_other_topics_and_of_trimmed_ledgers_do_not_count(scene: Scene) -> None:
    scene.journal(Outcome.FAILED, 5, topic=f"{TOPIC}-2")
    scene.journal(Outcome.FAILED, 5, 4711)
    assert scene.status()[0] is OffloadState.NOT_RUN


def test_the_page_and_what_is_no_topic(scene: Scene) -> None:
    scene.journal(Outcome.FAILED, 5)
    assert scene.command(str(TOPIC)) == 1
    out = scene.capsys.readouterr().out
    assert "ERROR (run_failed)" in out
    assert "0 of 3 ledgers" in out
    assert scene.command("placed") == 2
    assert scene.command("persistent://acme/orders/none") == 1
    assert "does not exist" in scene.capsys.readouterr().err
