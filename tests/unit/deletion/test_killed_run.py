"""What a deletion run had deleted before it was killed: the next run journals it, with the plan that ordered it."""

from __future__ import annotations

from dataclasses import replace

import pytest

from pulsar_lifecycle.journal.queries import journal_rows
from pulsar_lifecycle.model import Topic
from pulsar_lifecycle.ports import JournalRow
from pulsar_lifecycle.values.codes import Code
from pulsar_lifecycle.values.outcomes import Outcome
from tests.kit.simulated.cluster import SimulatedCluster, data_tags
from tests.kit.simulated.pipeline import apply_plan, delete, plan, scan, two_scans

TOPIC = Topic.parse("persistent://acme/orders/x")


class Killed(Exception):
    """The run's end."""


def test_what_a_killed_run_deleted_is_of_the_plan_that_ordered_it() -> None:
    servers = SimulatedCluster()
    servers.topic(TOPIC, [servers.ledger(data_tags(TOPIC))])
    orphan = servers.ledger(data_tags(TOPIC))
    now, before = two_scans(servers)
    made = plan(servers, now, before)
    assert apply_plan(servers, made).sent == 1
    servers.wait(2)
    later = scan(servers, None, [before, now])

    class Dying:
        def __getattr__(self, name: str) -> object:
            return getattr(servers.journal, name)

        def record(self, rows: list[JournalRow]) -> str:
            raise Killed

    with pytest.raises(Killed):
        delete(servers, later, before, wrap=lambda ports: replace(ports, journal=Dying()), run_id="killed")
    assert orphan not in servers.ledger_ids()
    servers.wait(1)
    (sent,) = [row for row in servers.journal.rows if row.outcome == Outcome.SENT]
    servers.journal.record([replace(sent, plan_id="orphans-later", at=servers.clock.now_ms())])
    delete(servers, later, before, run_id="next")
    (row,) = journal_rows(servers.journal, code=Code.RUN_ENDED).to_pylist()
    assert (row["run_id"], row["outcome"], row["ledger_id"]) == ("killed", Outcome.DELETED, orphan)
    assert row["plan_id"] == made.summary.plan_id
