"""Everything that refers to a ledger, and every kind of leak, once through the whole pipeline.

One story, told by the fixture ``story``: plant, scan twice, plan, apply, forge messages about all that must stay,
delete, and do it all again. The tests look at what came out of it.
"""

from __future__ import annotations

import json
import time
from collections import Counter
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any
from uuid import uuid4

import pytest

from pulsar_lifecycle.deletion import deletion_run
from pulsar_lifecycle.deletion.workers import OutcomeCount
from pulsar_lifecycle.errors import LifecycleError
from pulsar_lifecycle.topics.protection import Protection
from pulsar_lifecycle.values.codes import Code
from pulsar_lifecycle.values.findings import Finding
from sandbox.cluster import Cluster
from sandbox.planting import plant, verify, znodes
from tests.integration.deletion import forgery
from tests.integration.pipeline import (
    PATIENT,
    Pipeline,
    Planned,
    at_rest,
    emptied,
    existing,
    send,
    transactions,
    wait_unlisted,
    wait_until_unloaded_counts,
    waiting,
)
from tests.integration.scan.planted import World, ids_of, plant_world
from tests.kit.fakes.cutting_proxy import CuttingProxy

pytestmark = pytest.mark.integration

READS = {-11: "close", 3: "exists", 4: "getData", 8: "getChildren", 9: "sync", 11: "ping", 12: "getChildren2",
         22: "multiRead", 100: "auth", 101: "setWatches"}  # fmt: skip
"""ZooDefs.OpCode, 3.9: what neither writes nor watches anything new."""


@dataclass
class Story:
    """What happened."""

    world: World
    pipeline: Pipeline
    planned: Planned
    findings: dict[int, dict[str, Any]]
    opcodes: Counter[int]
    changed_by_planning: dict[str, Any]
    alive_after_planning: set[int]
    young: set[int]
    young_rows: list[dict[str, Any]]
    direct: list[OutcomeCount]
    alive_after_direct: set[int]
    sent: int
    forged: dict[int, Any]
    malformed: dict[str, bytes]
    outcomes: list[OutcomeCount]
    emptied: bool
    alive: set[int]
    read_back: list[str]
    again_planned: Planned
    again_outcomes: list[OutcomeCount]


# ------------------------------------------------------------------------------------------------------------- story


@pytest.fixture(scope="module")
def story(sandbox: Cluster, pipelines: Callable[..., Pipeline]) -> Story:
    neighbour_root = f"/neighbour-{uuid4().hex[:6]}"
    with sandbox.metadata() as zk:
        for path in ("/managed-ledgers", "/schemas", "/admin/policies"):
            zk.create(f"{neighbour_root}{path}", makepath=True)
    world = plant_world(sandbox, neighbour_root)
    planted_at = time.time()
    rules = {
        "bookkeeper": {"shared_with": [{"name": "neighbour", "hosts": f"{sandbox.zookeeper}{neighbour_root}"}]},
        "orphans": {"legal_holds": [world.held.removeprefix("persistent://")]},
        "deletion": PATIENT,
    }
    pipeline = pipelines(rules, on_spark=True)
    pipeline.scan()  # the brokers forget the unloaded topics meanwhile
    wait_until_unloaded_counts(planted_at)
    wait_unlisted(sandbox, world.resting)

    with CuttingProxy(sandbox.zookeeper) as proxy, sandbox.metadata() as zk:
        through = {**rules["bookkeeper"]["shared_with"][0], "hosts": f"127.0.0.1:{proxy.port}{neighbour_root}"}
        watched = pipelines(
            {
                **rules,
                "zookeeper": {"hosts": f"127.0.0.1:{proxy.port}"},
                "bookkeeper": {"shared_with": [through]},
            },
            lake=pipeline.lake,
            on_spark=True,
        )
        roots = ("/managed-ledgers", "/schemas", "/ledgers", "/admin", neighbour_root)
        young = ids_of(plant.young(sandbox, f"persistent://{world.namespace}/young"))
        send(sandbox, forgery.forged(sandbox, young))
        waiting(sandbox)  # the last of ours to touch a broker before the scan
        before = at_rest(zk, roots)
        watched.scan()
        epoch = watched.scan()
        planned = watched.plan(epoch)
        after = transactions(zk, roots)
    changed = {
        path: (before.get(path), after.get(path))
        for path in before.keys() | after.keys()
        if before.get(path) != after.get(path) and not path.startswith("/ledgers/idgen")
    }
    findings = pipeline.findings(epoch)
    alive_after_planning = existing(sandbox, world.kept_ids | world.orphan_ids | world.direct | young)

    patience = {**rules, "orphans": {**rules["orphans"], "grace_period": "1h"}}
    cautious = pipelines(patience, lake=pipeline.lake, on_spark=True)
    cautious.delete_pending("cautious")
    young_rows = [row for ledger in young for row in pipeline.journal(ledger)]

    pipeline.scan()  # younger than the plan
    assert world.direct <= planned.ids, {
        "gaps": planned.summary.gaps,
        "found": {i: (findings.get(i, {}).get("finding"), findings.get(i, {}).get("reason")) for i in world.direct},
    }
    rank = max(index for index, row in enumerate(planned.rows) if row["ledger_id"] in world.direct) + 1
    direct = deletion_run.apply_directly(pipeline.where, "direct", pipeline.order(planned, limit=rank))
    alive_after_direct = existing(sandbox, world.direct)

    applied = pipeline.apply(pipeline.order(planned))
    forged = {info.ledger_id: info for info in forgery.forged(sandbox, world.kept_ids)}
    send(sandbox, list(forged.values()))
    target = min(world.orphans["data"])
    malformed = forgery.malformed(target, f"persistent://{world.namespace}/leaked ~data")
    forgery.send_raw(sandbox, malformed.values())
    outcomes = pipeline.scan_and_delete("queue")
    left = emptied(sandbox)
    alive = existing(sandbox, world.kept_ids | world.orphan_ids)
    again = pipeline.plan(pipeline.scan())
    again_outcomes = pipeline.delete_pending("again")
    with sandbox.metadata() as zk:
        zk.delete(neighbour_root, recursive=True)
    return Story(
        world=world,
        pipeline=pipeline,
        planned=planned,
        findings=findings,
        opcodes=proxy.opcodes,
        changed_by_planning=changed,
        alive_after_planning=alive_after_planning,
        young=young,
        young_rows=young_rows,
        direct=direct,
        alive_after_direct=alive_after_direct,
        sent=applied.sent,
        forged=forged,
        malformed=malformed,
        outcomes=outcomes,
        emptied=left,
        alive=alive,
        read_back=verify.read_back(sandbox, world.live),
        again_planned=again,
        again_outcomes=again_outcomes,
    )


REFERENCES = [f"{kind} {state}" for kind in ("R1", "R2", "R3", "R4", "R5") for state in ("loaded", "unloaded")]
KEPT = [
    *REFERENCES,
    "R5 only in an entry",
    "R8 listed by a shadow",
    "R8 source of a shadow",
    "R11 of a declared cluster",
    "R11 of a namespace two clusters have",
    "R11 of an undeclared cluster",
    "R13 open",
    "R16 untagged",
    "beside an open one",
    "empty z-node",
    "undecodable",
    "unknown component",
    "no owner",
    "another application",
    "legal hold",
    "system topic",
    "transaction",
    "own queue",
    "offload leftover",
    "beside a dangling one",
]
ORPHANS = ["data", "cursor", "schema", "compacted", "bucket", "half-listed"]


@pytest.mark.parametrize("kind", KEPT)
def test_what_must_stay_is_not_planned(story: Story, kind: str) -> None:
    ids = story.world.kept[kind]
    assert ids, f"nothing of kind {kind} was planted"
    aborting = {i: story.findings[i]["reason"] for i in ids & story.planned.ids}
    assert not aborting
    assert Finding.ORPHAN not in {story.findings[i]["finding"] for i in ids if i in story.findings}


@pytest.mark.parametrize("kind", KEPT)
def test_a_forged_message_about_what_must_stay_deletes_nothing(story: Story, kind: str) -> None:
    ids = story.world.kept[kind]
    assert ids <= story.alive, f"deleted: {sorted(ids - story.alive)}"
    for ledger in ids:
        rows = story.pipeline.journal(ledger)
        assert rows, f"nothing in the journal about ledger {ledger}"
        assert {row["outcome"] for row in rows} <= {"kept", "refused"}, rows
        assert all(row["reason"] for row in rows), rows


EXPECTED = {
    "R11 of an undeclared cluster": (Finding.FOREIGN, Protection.UNKNOWN_NAMESPACE),
    "R13 open": (Finding.OPEN_ORPHAN, Finding.OPEN_ORPHAN),
    "R16 untagged": (Finding.FOREIGN, Code.NOT_TAGGED),
    "another application": (Finding.FOREIGN, Code.NOT_TAGGED),
    "empty z-node": (Finding.EMPTY_ZNODE, Finding.EMPTY_ZNODE),
    "undecodable": (Finding.UNDECODABLE, Finding.UNDECODABLE),
    "offload leftover": (Finding.OFFLOAD_LEFTOVER, Finding.OFFLOAD_LEFTOVER),
    "dangling": (Finding.DANGLING, Finding.DANGLING),
    "beside an open one": (Finding.KEPT, Code.OTHER_OPEN),
    "legal hold": (Finding.KEPT, Protection.LEGAL_HOLD),
}


@pytest.mark.parametrize("kind", EXPECTED)
def test_each_finding_has_its_name_code_and_reason(story: Story, kind: str) -> None:
    for ledger in story.world.kept[kind]:
        assert (story.findings[ledger]["finding"], story.findings[ledger]["code"]) == EXPECTED[kind]
        assert story.findings[ledger]["reason"]


@pytest.mark.parametrize("kind", REFERENCES)
def test_what_is_in_use_is_no_finding(story: Story, kind: str) -> None:
    assert not {i: story.findings[i] for i in story.world.kept[kind] if i in story.findings}


def test_a_message_about_a_dangling_ledger_counts_as_done(story: Story) -> None:
    for ledger in story.world.kept["dangling"]:
        assert [row["outcome"] for row in story.pipeline.journal(ledger)] == ["gone"]


@pytest.mark.parametrize("kind", ORPHANS)
def test_an_orphan_is_planned_deleted_journalled_and_archived(story: Story, kind: str) -> None:
    ids = story.world.orphans[kind]
    assert ids, f"nothing of kind {kind} was planted"
    unplanned = {i: story.findings.get(i) for i in ids - story.planned.ids}
    assert not unplanned
    assert not ids & story.alive
    for ledger in ids:
        rows = [row for row in story.pipeline.journal(ledger) if row["outcome"] != "refused"]
        assert [row["outcome"] for row in rows] == ["deleted"], rows
        assert rows[0]["plan_id"] == story.planned.summary.plan_id
        assert rows[0]["run_id"] == "queue"
        (archived,) = story.pipeline.archived(ledger)
        assert archived["path"] == znodes.ledger_znode(ledger)
        assert archived["data"]


def test_every_live_topic_reads_back_whole(story: Story) -> None:
    assert story.read_back == []


def test_nothing_waits_in_the_queue(story: Story) -> None:
    assert story.emptied
    assert not [outcome for outcome in story.outcomes if outcome.outcome in ("later", "stopped")]


def test_a_malformed_message_is_journalled_with_its_bytes_and_acknowledged(story: Story) -> None:
    rows = [row for row in story.pipeline.journal() if row["outcome"] == "refused" and row["run_id"] == "queue"]
    found = {bytes.fromhex(json.loads(row["detail"])["raw"]): row for row in rows}
    assert not {what: raw for what, raw in story.malformed.items() if raw not in found}
    assert all(found[raw]["reason"] for raw in story.malformed.values())


def test_a_ledger_younger_than_the_grace_period_is_kept(story: Story) -> None:
    assert story.young <= story.alive_after_planning
    assert [(row["outcome"], row["code"]) for row in story.young_rows] == [("kept", Finding.TOO_YOUNG)] * len(
        story.young
    )


def test_planning_asks_zookeeper_for_reads_only(story: Story) -> None:
    assert story.opcodes, "nothing went through the recording proxy"
    assert not {code: count for code, count in story.opcodes.items() if code not in READS}


def test_planning_changes_no_znode_of_an_idle_cluster(story: Story) -> None:
    assert story.changed_by_planning == {}
    everything = story.world.kept_ids | story.world.orphan_ids | story.world.direct
    assert everything - story.world.kept["dangling"] <= story.alive_after_planning


def test_a_direct_apply_deletes_without_the_queue(story: Story) -> None:
    assert story.world.direct <= story.planned.ids
    assert not story.alive_after_direct
    assert {outcome.outcome for outcome in story.direct} == {"deleted"}, story.direct
    for ledger in story.world.direct:
        rows = story.pipeline.journal(ledger)
        assert [(row["run_id"], row["outcome"]) for row in rows] == [("direct", "deleted"), ("queue", "gone")]
        assert len(story.pipeline.archived(ledger)) == 1


def test_the_second_time_there_is_nothing_to_do(story: Story) -> None:
    assert story.again_planned.summary.actionable, story.again_planned.summary.gaps
    assert story.again_planned.rows == []
    assert story.again_outcomes == []


def test_a_plan_is_not_sent_twice(story: Story) -> None:
    assert story.sent == len(story.planned.rows)
    again = story.pipeline.apply(story.pipeline.order(story.planned))
    assert (again.sent, again.already) == (0, story.sent)


def test_a_plan_may_be_applied_directly_again(story: Story) -> None:
    outcomes = deletion_run.apply_directly(story.pipeline.where, "direct again", story.pipeline.order(story.planned))
    assert {outcome.outcome for outcome in outcomes} == {"gone"}, outcomes


def test_a_plan_of_nothing_can_be_applied(story: Story) -> None:
    try:
        assert story.pipeline.apply(story.pipeline.order(story.again_planned)).sent == 0
    except LifecycleError as error:
        pytest.fail(str(error))
