"""Job ``offload``: what it says of its run, and its alarm where a copy failed its proof."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from types import SimpleNamespace
from typing import Any

import dagster as dg
import pytest

from assets import tiered as asset
from assets.tiered import CHECK, check_done, named, outcomes_shown
from orchestration import tiered
from pulsar_lifecycle.errors import Refused
from pulsar_lifecycle.ports import JournalRow
from pulsar_lifecycle.tiered.outcome import OffloadOutcome
from pulsar_lifecycle.values.outcomes import Action, Outcome
from resources.lifecycle import LifecycleResource
from tests.kit.builders import some_why
from tests.kit.fakes.clock import FakeClock
from tests.kit.fakes.journal import FakeJournal

NAME = "persistent://acme/orders/placed"
DONE = OffloadOutcome(NAME, 1, Outcome.OFFLOADED, some_why(""), 10)
LEFT = OffloadOutcome(NAME, -1, Outcome.LEFT_TO_BROKER, some_why("19 of its ledgers wait"), 190, ledgers=19)
ALARM = OffloadOutcome(NAME, 2, Outcome.PROOF_FAILED, some_why("one byte is another"), 10)
ROW = JournalRow(
    "r",
    "pulsar",
    "",
    2,
    "",
    NAME,
    Action.COPY_DELETION,
    "bookkeeper-copy-deletion",
    Outcome.PROOF_FAILED,
    "one byte is another",
    10,
    "",
    "{}",
    1,
)


def launched(
    monkeypatch: pytest.MonkeyPatch,
    outcomes: Sequence[OffloadOutcome],
    unproven: Sequence[JournalRow],
    *,
    stopped: bool = False,
    journal: FakeJournal | None = None,
) -> tuple[dg.ExecuteInProcessResult, list[tuple[str, bool]]]:
    """The run, and what its instance has of checks."""
    plan: Any = SimpleNamespace(epoch_id="e")
    where: Any = SimpleNamespace(
        settings=SimpleNamespace(cluster="pulsar"),
        lake=SimpleNamespace(offload_plan=lambda plan_id: (plan, None)),
        clock=FakeClock(),
        journal_reader=journal or FakeJournal(),
    )
    monkeypatch.setattr(LifecycleResource, "cluster", lambda self: where)

    def run(where: Any, run_id: str, *_: Any) -> list[OffloadOutcome]:
        if journal:
            journal.record([replace(row, run_id=run_id, cluster="pulsar", at=where.clock.now_ms()) for row in unproven])
        if stopped:
            raise Refused("paused")
        return list(outcomes)

    monkeypatch.setattr(tiered, "offload_now", run)
    monkeypatch.setattr(asset, "failed_proofs_now", lambda *_: list(unproven))
    config = {"ops": {"offload_ledgers": {"config": {"plan_id": "p", "digest": "d"}}}}
    resources = {"lifecycle": LifecycleResource()}
    with dg.DagsterInstance.ephemeral() as instance:
        result = tiered.offload_job("pulsar").execute_in_process(
            run_config=config, resources=resources, raise_on_error=False, instance=instance
        )
        logs = instance.all_logs(result.run_id, of_type=dg.DagsterEventType.ASSET_CHECK_EVALUATION)
    found = [log.dagster_event.asset_check_evaluation_data for log in logs if log.dagster_event]
    return result, [(f"{one.asset_key.to_user_string()} {one.check_name}", one.passed) for one in found]


def test_a_run_gives_its_ledgers_by_outcome(monkeypatch: pytest.MonkeyPatch) -> None:
    result, checks = launched(monkeypatch, [DONE, LEFT], [])
    assert result.success
    assert result.output_for_node("offload_ledgers") == {Outcome.OFFLOADED: 1, Outcome.LEFT_TO_BROKER: 19}
    assert checks == [(f"pulsar/offload_candidates {CHECK}", True)]


def test_a_copy_that_failed_its_proof_fails_run_and_check(monkeypatch: pytest.MonkeyPatch) -> None:
    result, checks = launched(monkeypatch, [DONE, ALARM], [ROW])
    assert not result.success
    assert checks == [(f"pulsar/offload_candidates {CHECK}", False)]


def test_a_run_that_was_paused_turns_the_check_by_what_it_had_found(monkeypatch: pytest.MonkeyPatch) -> None:
    result, checks = launched(monkeypatch, [], [ROW], stopped=True, journal=FakeJournal())
    assert not result.success
    assert checks == [(f"pulsar/offload_candidates {CHECK}", False)]


def test_a_run_that_was_refused_leaves_the_check_alone(monkeypatch: pytest.MonkeyPatch) -> None:
    """Its plan may be of an old scan, which does not name what is offloaded by now."""
    result, checks = launched(monkeypatch, [], [ROW], stopped=True)
    assert (result.success, checks) == (False, [])


def test_what_was_left_to_brokers_counts_ledgers() -> None:
    shown = outcomes_shown([DONE, LEFT])
    assert (shown["offloaded"], shown["left to brokers"]) == (1, 19)
    assert "| left-to-broker | 19 |" in shown["outcomes"].md_str


@pytest.mark.parametrize(
    ("one", "text"),
    [
        (OffloadOutcome(NAME, 44, Outcome.FAILED, some_why("S3 says no")), f"{NAME}, ledger 44: S3 says no"),
        (
            OffloadOutcome(NAME, -1, Outcome.FAILED, some_why("an unload of it is pending: x")),
            f"{NAME}: an unload of it is pending: x",
        ),
        (
            OffloadOutcome(NAME, -1, Outcome.FAILED, some_why("ledger 44 was offloaded")),
            f"{NAME}: ledger 44 was offloaded",
        ),
        (
            OffloadOutcome("", -1, Outcome.FAILED, some_why("/pulsar-lifecycle/x: no JSON")),
            "/pulsar-lifecycle/x: no JSON",
        ),
    ],
)
def test_topic_and_ledger_are_named(one: OffloadOutcome, text: str) -> None:
    assert named(one) == text
    with pytest.raises(dg.Failure) as raised:
        check_done([OffloadOutcome(NAME, 1, Outcome.OFFLOADED, some_why("")), one], {})
    assert raised.value.description == f"1 ledgers or topics failed, the first: {text}; what was done stays done"
