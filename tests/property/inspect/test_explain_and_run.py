"""``explain`` says "may go" exactly where a deletion run deletes, over random clusters with every kind of ledger.

``explain`` asks no broker and reads no object. So a run may keep what only these know, and where ``explain`` says that
the next run asks a broker, the run may be told that it is free. It reads all that its owner names, and not anew what
a topic's last ledger says of its load: a run reads this, and of the owner what can refer to a ledger of that kind. So
the two may differ where a z-node became unreadable since the scan; nowhere else.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any
from uuid import uuid4

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from pulsar_lifecycle.copies import failed_proofs, unread_locations
from pulsar_lifecycle.deletion import deletion_run
from pulsar_lifecycle.deletion.planning import judged_scan
from pulsar_lifecycle.deletion.planning.orphans import NEEDS_OWNER
from pulsar_lifecycle.formats.deletion_message import (
    LedgerComponent,
    PendingDeleteLedgerInfo,
    decode_deletion_message,
    encode_deletion_message,
)
from pulsar_lifecycle.formats.ledger_metadata import LedgerState
from pulsar_lifecycle.formats.retry_letter import RECONSUMETIMES
from pulsar_lifecycle.inspect.explain import Explanation, explain
from pulsar_lifecycle.inspect.explain_codes import ExplainCode, Verdict
from pulsar_lifecycle.inspect.ledger_history import history_of
from pulsar_lifecycle.metastore.bookkeeper_ledgers import ledger_rows
from pulsar_lifecycle.metastore.fingerprint import cluster_fingerprint
from pulsar_lifecycle.model import Topic, cursor_name
from pulsar_lifecycle.ports import JournalRow, Node
from pulsar_lifecycle.runs import control
from pulsar_lifecycle.runs.cluster import Cluster
from pulsar_lifecycle.scan.snapshot_memory import Memory
from pulsar_lifecycle.settings import ObjectStoreSettings
from pulsar_lifecycle.trimming import trim_run
from pulsar_lifecycle.trimming.trim import TrimOrder
from pulsar_lifecycle.values.codes import Code
from pulsar_lifecycle.values.findings import COMPONENTS, Finding, component_of
from pulsar_lifecycle.values.outcomes import Action, Outcome, Phase, Waiting
from pulsar_lifecycle.values.owner_names import owner_in
from tests.kit.scenes.tiered.copy_deletion_scene import SITE, CopyDeletionScene
from tests.kit.scenes.topic_scene import TOPIC
from tests.kit.simulated.cluster import SimulatedCluster, cursor_tags, data_tags
from tests.kit.simulated.connections import where_of
from tests.kit.simulated.offloaded import BUCKET, POLICY
from tests.kit.simulated.pipeline import MAX_RETRIES, Policy, lake_of, settings_of
from tests.kit.simulated.random_clusters import TOPICS, Drawn, clusters

ROOT = "/ledgers"
TRIMMED = Topic.parse("persistent://acme/orders/trimmed")

POLICIES = [
    Policy(),
    Policy(),
    Policy(system_topics=True),
    Policy(holds=frozenset({"acme/other"})),
    Policy(holds=frozenset({"acme/orders"})),
]

BY_BROKERS = {Code.NOT_KNOWN_YET, Code.STILL_IN_USE, Code.COMPACTION_POSSIBLE, Code.NOT_ASKED, *Memory}
"""Why a run keeps what a broker, asked just then, may have in memory."""


@dataclass
class World:
    """Every kind of ledger, and what becomes of some before and after the newest scan."""

    scene: CopyDeletionScene
    policy: Policy
    buckets: tuple[str, ...] | None = (BUCKET,)
    """Those that the settings declare; None: they have no object store."""

    def __post_init__(self) -> None:
        assert self.scene.off.before
        self.cluster = self.scene.cluster
        self.lake = lake_of(self.scene.off.before)

    @property
    def where(self) -> Cluster:
        declared = None
        if self.buckets:
            declared = ObjectStoreSettings(buckets=self.buckets, pulsar_cluster=POLICY.cluster, exclusive=True)
        file = settings_of(self.policy).model_copy(update={"object_store": declared})
        return where_of(self.cluster, file, self.lake, objects=self.scene.off.store)

    def send(self, ledgers: list[int], retried: int = 0) -> None:
        """A message about each, with all that is true of it."""
        infos = [self.message(one) for one in ledgers]
        topics = self.cluster.open_queue().topics
        for info in infos:
            if info:
                topics.publish(encode_deletion_message(info), {RECONSUMETIMES: str(retried)} if retried else {})

    def message(self, ledger_id: int) -> PendingDeleteLedgerInfo | None:
        (node,) = self.cluster.open_store(read_only=True).read([self.cluster.path(ledger_id)])
        assert isinstance(node, Node)
        (row,) = ledger_rows([node], ROOT).to_pylist()
        topic = owner_in(row)[1]
        if row["component"] not in COMPONENTS or not topic:
            return None
        return PendingDeleteLedgerInfo(
            topic_name=topic,
            component=component_of(row["component"], row["cursor"]),
            ledger_id=ledger_id,
            cursor_name=cursor_name(row["cursor"]) if row["cursor"] else row["bucket_cursor"] or "",
            schema_id=row["schema_id"] or "",
            bucket_key=row["bucket_key"] or "",
            czxid=row["czxid"],
            ctime=row["ctime"],
        )

    def explained(self) -> dict[int, Explanation]:
        with self.where.ports(read_only=True) as ports:
            now = ports.clock.now_ms()
            fingerprint = cluster_fingerprint(ports.store, ROOT)
            return {
                one: explain(
                    one,
                    history_of(self.where, fingerprint, one, now),
                    store=ports.store,
                    reader=ports.reader,
                    now=now,
                    ledgers_root=ROOT,
                )
                for one in sorted(self.cluster.ledger_ids())
            }

    def run(self) -> dict[int, JournalRow]:
        """A deletion run over the whole queue: of each ledger its last word."""
        deletion_run.delete_pending(self.where, "the-run")
        return {
            row.ledger_id: row
            for row in self.cluster.journal.rows
            if (row.run_id, row.phase, row.action) == ("the-run", Phase.DELETE, Action.DELETE_LEDGER)
        }


def by_a_broker(found: Explanation) -> bool:
    """Whether ``explain`` says that the next run asks a broker, or what a broker told the newest scan."""
    if found.code in (ExplainCode.NOT_JUDGED_YET, ExplainCode.WRITTEN_SINCE, Code.UNLOAD_PENDING):
        return True
    ledger, finding = found.ledger, found.history.finding
    scanned = finding is not None and finding["finding"] == Finding.KEPT
    return found.verdict is Verdict.KEPT and scanned and bool(ledger) and ledger["component"] in NEEDS_OWNER


def check(world: World) -> None:
    """The law, both ways."""
    told = world.explained()
    said = world.run()
    loaded = set(world.cluster.admin.loaded)
    unreadable = Code.UNREAD if world.cluster.zookeeper.unreadable else None
    for ledger_id, found in told.items():
        row = said.get(ledger_id)
        if row is None:  # no message can be about it
            assert found.verdict is not Verdict.MAY_GO, found
            continue
        both = (
            f"{ledger_id}: explain {found.verdict} {found.code} ({found.answer.why}); "
            f"{row.outcome} {row.code} ({row.reason})"
        )
        if row.outcome == Outcome.DELETED:
            assert found.verdict is Verdict.MAY_GO or by_a_broker(found) or found.code is unreadable, both
        elif found.verdict is Verdict.MAY_GO:
            assert row.code in BY_BROKERS, both
            assert row.topic in loaded or unreadable, both
    gone = {one for one, row in said.items() if row.outcome == Outcome.DELETED}
    assert world.cluster.ledger_ids() == set(told) - gone


AFTER = ("nothing", "listed", "cursor", "unread", "open", "new id", "reloaded")
DELETION = (
    "nothing",
    "no deletion",
    "disproved",
    "location",
    "unload",
    "other copy",
    "delisted",
    "last",
    "open",
    "dead",
)


@settings(max_examples=25, deadline=None)
@given(
    drawn=clusters(),
    policy=st.sampled_from(POLICIES),
    deletion=st.sampled_from(DELETION),
    after=st.sampled_from(AFTER),
    buckets=st.sampled_from([(BUCKET,), (BUCKET,), (BUCKET,), None]),
    trim=st.sampled_from(["before the scan", "before the scan", "after it", "no"]),
    data=st.data(),
)
def test_a_ledger_may_go_exactly_where_a_run_deletes_it(
    drawn: Drawn, policy: Policy, deletion: str, after: str, buckets: tuple[str, ...] | None, trim: str, data: Any
) -> None:
    cluster = drawn.cluster
    ids = [cluster.ledger(data_tags(TRIMMED)) for _ in range(4)]
    cluster.topic(TRIMMED, ids)
    world = World(CopyDeletionScene(cluster=cluster), policy, buckets)
    for topic in data.draw(st.lists(st.sampled_from(TOPICS), max_size=2)):  # younger than the earlier scan
        cluster.ledger(data_tags(topic))
    judged_scan.scan(world.where, "scan")
    if deletion != "no deletion":
        world.scene.begin_deletions()
    if trim == "before the scan":
        trim_run.trim(world.where, "trim", [TrimOrder(TRIMMED, up_to=ids[1])], dry_run=False)
    sent = sorted(cluster.ledger_ids() - set(world.scene.ids) - set(ids[:2] if trim != "no" else []))
    world.send(sent, retried=data.draw(st.sampled_from([0, 0, 9, 10])))
    if data.draw(st.booleans()):
        cluster.wait(9 * 24)
        judged_scan.scan(world.where, "scan")
    cluster.wait(25)
    judged_scan.scan(world.where, "scan")
    if trim == "after it":
        trim_run.trim(world.where, "trim", [TrimOrder(TRIMMED, up_to=ids[1])], dry_run=False)
    changed_since(world, deletion)
    changed(world, after, data.draw(st.sampled_from(sent)), data.draw(st.sampled_from(TOPICS)))
    cluster.wait(1)
    check(world)


KEPT_BY = {
    "nothing": Code.BOOKKEEPER_DELETED,
    "disproved": Code.NOT_PROVEN,
    "location": Waiting.UNREAD_LOCATION,
    "unload": Code.UNLOAD_PENDING,
    "other copy": Code.COPY_DIFFERS,
    "delisted": Code.DELISTED,
    "last": Code.LAST_LEDGER,
    "open": Code.NEVER_CLOSED,
    "dead": ExplainCode.DEAD_LETTER,
}


@pytest.mark.parametrize("how", KEPT_BY)
def test_what_keeps_a_copy_that_is_listed_as_deleted_keeps_it_by_both(how: str) -> None:
    world = World(CopyDeletionScene(cluster=SimulatedCluster()), Policy())
    world.scene.begin_deletions()
    world.cluster.wait(1)
    judged_scan.scan(world.where, "scan")
    changed_since(world, how)
    world.cluster.wait(1)
    assert world.explained()[world.scene.due[0]].code == KEPT_BY[how]
    check(world)


@pytest.mark.parametrize("buckets", [None, ("another",)])
def test_a_copy_that_is_listed_as_deleted_is_kept_by_both_where_its_bucket_is_not_declared(
    buckets: tuple[str, ...] | None,
) -> None:
    world = World(CopyDeletionScene(cluster=SimulatedCluster()), Policy(), buckets)
    world.scene.off.store.allowed = list(buckets or ())
    world.scene.begin_deletions()
    world.cluster.wait(1)
    judged_scan.scan(world.where, "scan")
    code = Waiting.OBJECT_STORE_DENIES if buckets else Waiting.NO_OBJECT_STORE
    assert world.explained()[world.scene.due[0]].code == code
    check(world)


def changed_since(world: World, how: str) -> None:
    """What happens to a copy in BookKeeper between the two phases of its deletion."""
    scene, cluster = world.scene, world.cluster
    first = scene.due[0]
    store = cluster.open_store()
    if how == "disproved":
        failed_proofs.hold(store, first)
    elif how == "location":
        unread_locations.hold(store, SITE, "run", "no")
    elif how == "unload":
        control.note_unload(store, control.PendingUnload(TOPIC, True, 0, control.LEASE))
    elif how == "other copy":
        scene.change(first, uuid=uuid4())
    elif how == "delisted":
        scene.list_only(scene.ids[1:])
    elif how == "last":
        scene.list_only(scene.ids[:1])
    elif how == "open":
        cluster.ledger(data_tags(TOPIC), ledger_id=first, state=LedgerState.IN_RECOVERY)
    elif how == "dead":
        failed_proofs.hold(store, first)
        waiting = cluster.deletion_topics.waiting
        others = {n: one for n, one in waiting.items() if decode_deletion_message(one[2]).ledger_id not in scene.ids}
        for number, (at, due, raw, properties) in list(waiting.items()):
            waiting[number] = at, due, raw, {**properties, RECONSUMETIMES: str(MAX_RETRIES)}
        for number in others:
            del waiting[number]
        deletion_run.delete_pending(world.where, "earlier-run")
        waiting.update(others)
        failed_proofs.let_go(store, [first])


def changed(world: World, how: str, ledger_id: int, topic: Topic) -> None:
    """What happens to one ledger after the newest scan."""
    cluster = world.cluster
    if how == "listed":
        cluster.topic(topic, [ledger_id])
    elif how == "cursor":
        tagged = world.message(ledger_id)
        if tagged and tagged.component is LedgerComponent.MANAGED_CURSOR:  # brokers give a cursor no ledger but its own
            cluster.cursor(Topic.parse(tagged.topic_name), tagged.cursor_name, ledger=ledger_id)
    elif how == "unread":
        cluster.zookeeper.unreadable.add(cluster.path(ledger_id))
    elif how == "open":
        cluster.ledger(data_tags(topic), ledger_id=ledger_id, state=LedgerState.IN_RECOVERY)
    elif how == "new id":
        cluster.remove(cluster.path(ledger_id))
        cluster.ledger(cursor_tags(topic, "s"), ledger_id=ledger_id)
    elif how == "reloaded":
        cluster.load(topic)
