"""The jobs that trim: dry by default, a topic's ledgers named one way, refusals shown first."""

from __future__ import annotations

from dataclasses import replace

import dagster as dg
import pytest

from orchestration.trimming import DeleteTopicsConfig, TrimConfig, TrimmedTopic, finish, shown
from pulsar_lifecycle.errors import Paused, UsageError
from pulsar_lifecycle.model import Topic
from pulsar_lifecycle.topics.first_phase import LedgerOutcome, Report
from pulsar_lifecycle.trimming.trim import TrimOrder
from pulsar_lifecycle.values.outcomes import Outcome
from tests.kit.builders import some_why

NAME = "persistent://acme/orders/placed"


def test_both_jobs_are_dry_runs_unless_told_otherwise() -> None:
    assert TrimConfig(topics=[]).dry_run
    assert DeleteTopicsConfig(topics=[]).dry_run
    assert not DeleteTopicsConfig(topics=[]).force


def test_a_topic_with_its_ledgers_is_an_order() -> None:
    topic = Topic.parse(NAME)
    assert TrimmedTopic(topic=NAME, ledgers=[3, 1]).order() == TrimOrder(topic, frozenset({1, 3}))
    assert TrimmedTopic(topic=NAME, up_to_ledger=0).order() == TrimOrder(topic, up_to=0)


@pytest.mark.parametrize(
    "given",
    [{"ledgers": [1, -2]}, {"ledgers": [2**63]}, {"up_to_ledger": -2}, {"ledgers": [1], "up_to_ledger": -7}],
)
def test_what_is_no_ledger_id_is_refused(given: dict[str, object]) -> None:
    with pytest.raises(UsageError, match=rf"{NAME}: .* is no ledger id"):
        TrimmedTopic.model_validate({"topic": NAME, **given}).order()


@pytest.mark.parametrize("given", [{}, {"ledgers": [1], "up_to_ledger": 2}])
def test_ledgers_are_named_in_one_way(given: dict[str, object]) -> None:
    with pytest.raises(UsageError, match=NAME):
        TrimmedTopic.model_validate({"topic": NAME, **given}).order()


def test_a_topic_needs_its_full_name() -> None:
    with pytest.raises(UsageError):
        TrimmedTopic(topic="placed", ledgers=[1]).order()


def test_what_needs_an_eye_comes_first() -> None:
    rows = [
        LedgerOutcome(NAME, 1, Outcome.REMOVED, some_why("taken off"), 10, "Managed-Ledger"),
        LedgerOutcome(NAME, 2, Outcome.REFUSED, some_why("cursor s stands at 2:0"), 20, "Managed-Ledger"),
        LedgerOutcome(f"{NAME}-2", -1, Outcome.FAILED, some_why("no answer")),
        LedgerOutcome(
            f"{NAME}-3", 3, Outcome.LEFT_TO_BROKER, some_why("its topic counts as loaded"), 30, "Managed-Ledger"
        ),
    ]
    metadata = shown(rows, dry_run=False)
    sample = metadata["sample"]
    assert isinstance(sample, dg.TableMetadataValue)
    assert [record.data["outcome"] for record in sample.records] == [
        Outcome.FAILED,
        Outcome.REFUSED,
        Outcome.REMOVED,
        Outcome.LEFT_TO_BROKER,
    ]
    assert metadata["ledgers"] == 3
    assert f"| {NAME}-3 | left-to-broker | server_failed | 1 | its topic" in metadata["topics"].md_str
    assert "cursor s stands at 2:0" in metadata["topics"].md_str
    assert "| removed | 1 | 10 B |" in metadata["outcomes"].md_str


def test_what_is_said_of_topics_comes_before_what_is_said_of_their_ledgers() -> None:
    rows = [
        LedgerOutcome(name, ledger, Outcome.GOES, some_why("why"), 10, "Managed-Ledger")
        for name in (NAME, f"{NAME}-2")
        for ledger in (1, -1)
    ]
    sample = shown(rows, dry_run=True)["sample"]
    assert isinstance(sample, dg.TableMetadataValue)
    assert [record.data["ledger_id"] for record in sample.records] == [-1, -1, 1, 1]


def test_a_run_that_is_stopped_shows_what_it_did_before() -> None:
    def work(report: Report) -> list[LedgerOutcome]:
        report([LedgerOutcome(NAME, 1, Outcome.REMOVED, some_why("taken off"), 10, "Managed-Ledger")])
        raise Paused("paused: why")

    with pytest.raises(dg.Failure, match="paused: why") as failure:
        finish(False, work)
    assert failure.value.metadata["ledgers"].value == 1


NO_TOPIC = LedgerOutcome(NAME, -1, Outcome.REFUSED, some_why("it is no topic"))
HELD = LedgerOutcome(f"{NAME}-2", 1, Outcome.REFUSED, some_why("a legal hold"), 10, "Managed-Ledger")


def test_a_run_that_was_refused_everything_fails() -> None:
    rows = [NO_TOPIC, HELD, replace(HELD, ledger_id=2)]
    with pytest.raises(dg.Failure, match=f"nothing was done, 2 topics refused, the first: {NAME}: it is no topic") as e:
        finish(False, lambda report: rows)
    assert e.value.metadata["ledgers"].value == 2
    said: list[str] = []
    assert finish(True, lambda report: rows, said.append)["ledgers"] == 2
    assert len(said) == 2
    assert said[0].startswith(f"dry run: {NAME}: refused (")
    assert said[0].endswith("1 rows: it is no topic")


@pytest.mark.parametrize("outcome", [Outcome.REMOVED, Outcome.LEFT_TO_BROKER])
def test_a_run_that_was_refused_some_does_not_fail(outcome: str) -> None:
    assert finish(False, lambda report: [NO_TOPIC, HELD, replace(HELD, ledger_id=2, outcome=outcome)])["ledgers"] == 2
    assert finish(False, lambda report: [])["ledgers"] == 0


def test_nothing_left_to_do_is_no_failure_and_hides_none() -> None:
    done = replace(HELD, outcome=Outcome.NOTHING)
    assert finish(False, lambda report: [done])["ledgers"] == 1
    with pytest.raises(dg.Failure, match="nothing was done, 1 topic refused"):
        finish(False, lambda report: [done, NO_TOPIC])


def test_failed_topics_are_counted_once() -> None:
    rows = [replace(one, topic=NAME, outcome=Outcome.FAILED) for one in (NO_TOPIC, HELD)]
    with pytest.raises(dg.Failure, match=r"^1 topic failed, the first: "):
        finish(False, lambda report: rows)


def test_a_run_that_is_stopped_before_it_did_anything_says_only_why() -> None:
    def work(report: Report) -> list[LedgerOutcome]:
        raise Paused("paused: why")

    with pytest.raises(Paused):
        finish(False, work)
