"""Applying a plan of inactive topics: each is deleted whole by its broker, if it is as it was when the plan was made.

Belongs here: whether the plan may be applied, and whether a topic is as planned. Not here: making it
(``lifecycle/activity/inactive_planning.py``), the deletion itself (``delete_topic.py``).

Only a topic goes that no broker has had since before the scan. Whoever writes, reads or subscribes has a broker load
it, which makes a ledger and so writes its z-node: one that is as the scan saw it, and whose last ledger was closed
then, has the data and the cursors that were judged.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Collection, Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import Any

import pyarrow.compute as pc

from pulsar_lifecycle.bundles.guard import others_loaded
from pulsar_lifecycle.copies.listed_ledgers import BookKeeperCopy
from pulsar_lifecycle.errors import RefusedBy
from pulsar_lifecycle.formats import managed_ledger
from pulsar_lifecycle.formats.ledger_metadata import LedgerState
from pulsar_lifecycle.model import COMPACTION_CURSOR, MANAGED_LEDGERS_ROOT, Topic, cursor_name, encode_name
from pulsar_lifecycle.ports import Node, TopicConnections, Unread
from pulsar_lifecycle.ports.bundle import Ports
from pulsar_lifecycle.runs.caps import Order
from pulsar_lifecycle.runs.cluster import Cluster
from pulsar_lifecycle.runs.journal_rows import Step, Subject, Writer
from pulsar_lifecycle.scan import evidence
from pulsar_lifecycle.topics import snapshot
from pulsar_lifecycle.topics.first_phase import LedgerOutcome, Report, of_topic
from pulsar_lifecycle.topics.protection import Protection
from pulsar_lifecycle.topics.system_topics.function_subscriptions import FunctionSubscriptions, function_subscriptions
from pulsar_lifecycle.topics.unloads import RunGuard, finish_unloads
from pulsar_lifecycle.topics.write import TopicRun
from pulsar_lifecycle.trimming import trim_run
from pulsar_lifecycle.trimming.delete_topic import Rule, delete_topic, plan_topic_deletion
from pulsar_lifecycle.trimming.retention_run import PoliciesInForce
from pulsar_lifecycle.trimming.trim import no_report
from pulsar_lifecycle.trimming.trim_rules import acknowledged
from pulsar_lifecycle.values.codes import Code, Why, why_refused
from pulsar_lifecycle.values.outcomes import Action, Outcome, Phase
from pulsar_lifecycle.values.owner_names import holders
from pulsar_lifecycle.values.plans import inactive_plan
from pulsar_lifecycle.values.plans.inactive_plan import InactiveKept, position_text

SYSTEM_CURSORS = "additionalSystemCursorNames"
"""How broker.conf names the cursors that brokers take for their own."""
SEEN_FOR = 10_000
"""How long (ms) a look at what brokers have loaded, or at the topics of a namespace, serves."""


def delete_inactive(
    cluster: Cluster, run_id: str, order: Order, *, dry_run: bool, report: Report = no_report
) -> list[LedgerOutcome]:
    """Delete the topics of a plan, each with a message per ledger first; no topic with connected clients.

    A topic stays, by code, if a broker has it loaded, if anything about it changed since the scan, or a rule keeps it.
    Of a partitioned topic none is begun unless all may go, and the first that stays ends it. A dry run writes nothing,
    and counts every ledger against the caps, as a run does.
    Raises Refused for a plan that is stale, report-only, of another cluster or beyond the caps; NotFound, UsageError,
    and as ``trim_run.delete_topics``.
    """
    lake = cluster.lake
    summary, some, caps = evidence.check_order(
        cluster, order, lake.inactive_plan, inactive_plan.digest, inactive_plan.as_capped, dry_run=dry_run
    )
    closed = _closed(cluster, summary.epoch_id, some.column("ledger_id"))
    whole = Counter(_parent(row["topic"]) for row in lake.inactive_plan(order.plan_id)[1].to_pylist())
    planned = {Topic.parse(row["topic"]): row for row in some.to_pylist()}
    if dry_run:
        with trim_run.looking(cluster, run_id) as (run, ports):
            found = _Deletion(cluster, run, ports, planned, whole, closed).look(report)
            trim_run.check_caps(cluster, found, caps)
            return found
    with trim_run.acting(cluster, run_id, summary.created_at) as (run, ports, guard):
        deletion = _Deletion(cluster, replace(run, plan_id=summary.plan_id), ports, planned, whole, closed)
        counted = trim_run.check_caps(cluster, deletion.look(no_report), caps)
        finish_unloads(ports.store, ports.admin, ports.clock, guard, wait=False)
        return deletion.all(guard, counted, report)


def _closed(cluster: Cluster, epoch_id: str, ledgers: Any) -> frozenset[int]:
    """Which of these ledgers a scan found closed."""
    where = pc.field("ledger_id").isin(ledgers.combine_chunks()) & (pc.field("state") == LedgerState.CLOSED.name)
    batches = cluster.lake.batches(cluster.parts(epoch_id, "bookkeeper_ledgers"), ["ledger_id"], where)
    return frozenset(i for batch in batches for i in batch.column("ledger_id").to_pylist())


def _parent(topic: str) -> str:
    return str(Topic.parse(topic).partitioned_parent)


@dataclass
class _Deletion:
    """One launch. ``planned``: rows of the plan by topic; ``whole``: how many the plan has of a partitioned topic.

    ``closed``: their last ledgers that the scan found closed.
    """

    cluster: Cluster
    run: TopicRun
    ports: Ports
    planned: Mapping[Topic, Mapping[str, Any]]
    whole: Mapping[str, int]
    closed: frozenset[int]
    _policies: PoliciesInForce = field(init=False)
    _clients: tuple[int, Mapping[str, TopicConnections]] | None = None
    _said: tuple[int, Mapping[str, Mapping[str, str]]] | None = None
    _listed: dict[str, tuple[int, Sequence[str]]] = field(default_factory=dict[str, tuple[int, Sequence[str]]])
    _functions: FunctionSubscriptions | None = None

    def __post_init__(self) -> None:
        self._policies = PoliciesInForce(self.cluster)

    def look(self, report: Report) -> list[LedgerOutcome]:
        """What would become of each topic."""
        found: list[LedgerOutcome] = []
        for group in self._groups():
            said = self._look(group)
            report(said)
            found += said
        return found

    def all(self, guard: RunGuard, counted: Mapping[str, frozenset[int]], report: Report) -> list[LedgerOutcome]:
        """Delete topic after topic; the partitions of one only after all were found to be as planned."""
        found: list[LedgerOutcome] = []
        for group in self._groups():
            guard.check(self.ports.store)
            judged = self._look(group)
            going = [topic for topic in group if any(one.outcome is Outcome.GOES for one in _of(judged, topic))]
            apart = next((one for one in going if len(going) > 1 and others_loaded(self.ports.admin, one)), None)
            stays: Topic | None = None
            for topic in sorted(group, key=lambda one: one != apart):  # what is refused comes before what goes
                if stays and topic in going:
                    code, text = InactiveKept.PARTITION_STAYS, f"{stays} was not deleted"
                    said = self._left([of_topic(topic, Outcome.LEFT, code, text)])
                else:
                    said = self._delete(guard, topic, counted) if topic in going else self._left(_of(judged, topic))
                if topic in going and said[-1].outcome is not Outcome.REMOVED:
                    stays = stays or topic
                report(said)
                found += said
        return found

    def _groups(self) -> Iterator[list[Topic]]:
        """Partitions of one topic together; any other topic alone."""
        groups: dict[Topic, list[Topic]] = {}
        for topic in self.planned:
            groups.setdefault(topic.partitioned_parent, []).append(topic)
        yield from groups.values()

    def _look(self, group: list[Topic]) -> list[LedgerOutcome]:
        found = {topic: self._look_at(topic) for topic in group}
        stays = next((topic for topic, said in found.items() if not _goes(said)), None)
        try:
            why = self._partition_missing(group)
        except RefusedBy as refusal:  # of this group alone
            why = why_refused(refusal)
        if why is None and stays and len(group) > 1:
            why = Why(InactiveKept.PARTITION_STAYS, f"{stays} stays")
        if why is None:
            return [one for said in found.values() for one in said]
        return [
            one
            for topic, said in found.items()
            for one in ([of_topic(topic, Outcome.LEFT, why.code, why.text)] if _goes(said) else said)
        ]

    def _look_at(self, topic: Topic) -> list[LedgerOutcome]:
        path = _path(topic)
        self.ports.store.sync("/")
        if self.ports.store.read([path])[0] is None:
            return [of_topic(topic, Outcome.NOTHING, Code.TOPIC_GONE, "it does not exist any more")]
        return plan_topic_deletion(self.run, self.ports, topic, self._rule(topic))

    def _partition_missing(self, group: list[Topic]) -> Why | None:
        """Why not all partitions go: the launch leaves some of the plan's out, or there are others by now."""
        parent = group[0].partitioned_parent
        if group[0] == parent:
            return None
        if len(group) < self.whole[str(parent)]:
            return Why(InactiveKept.PARTITION_STAYS, f"the launch takes {len(group)} of its partitions only")
        others = set(self._partitions(parent)) - set(group)
        new = min(others, key=str, default=None)
        return Why(InactiveKept.PARTITION_STAYS, f"{new} is not of the plan") if new else None

    def _partitions(self, parent: Topic) -> list[Topic]:
        """Every partition that has a z-node, whatever the metadata of the partitioned topic says."""
        path, now = _path(parent).rpartition("/")[0], self.ports.clock.now_ms()
        at, names = self._listed.get(path, (now + 1, ()))
        if not 0 <= now - at <= SEEN_FOR:
            listing = self.ports.store.children([path])[0]
            if isinstance(listing, Unread):
                raise RefusedBy(Code.TOPIC_UNREAD, f"the topics below {path} could not be listed: {listing.reason}")
            names = listing.names if listing else ()
            self._listed[path] = now, names
        begin = f"{encode_name(parent.local)}-partition-"
        numbers = (name.removeprefix(begin) for name in names if name.startswith(begin))
        found = (Topic(parent.namespace, f"{parent.local}-partition-{number}") for number in numbers)
        return [one for one in found if one.partitioned_parent == parent]

    def _delete(self, guard: RunGuard, topic: Topic, counted: Mapping[str, frozenset[int]]) -> list[LedgerOutcome]:
        self._journal(topic, Outcome.BEGUN, Why(Code.ABOUT_TO, "its broker is asked to delete it next"))
        own = counted.get(str(topic), frozenset())
        said = delete_topic(self.run, self.ports, guard, topic, False, own, self._rule(topic))
        last = said[-1]
        outcome = {Outcome.REMOVED: Outcome.DONE, Outcome.REFUSED: Outcome.LEFT}.get(last.outcome, last.outcome)
        self._journal(topic, outcome, last.why)
        return said

    def _left(self, said: list[LedgerOutcome]) -> list[LedgerOutcome]:
        for one in said:
            self._journal(Topic.parse(one.topic), _left(one.outcome), one.why)
        return said

    def _journal(self, topic: Topic, outcome: Outcome, why: Why) -> None:
        writer = Writer(self.run.run_id, self.run.cluster, self.run.plan_id)
        about = Subject(-1, "", str(topic), self.planned[topic]["bytes"])
        step = Step(Action.DELETE_TOPIC, Phase.DELETE_TOPIC)
        self.ports.journal.record([writer.row(step, about, outcome, why, self.ports.clock.now_ms())])

    # ---------------------------------------------------------------------------------------------------- as planned

    def _rule(self, topic: Topic) -> Rule:
        row = self.planned[topic]
        retained = self._policies.rule(topic, row["retention_minutes"], row["retention_mb"])

        def rule(node: Node) -> Why | None:
            kept = self._chosen(topic) or self._loaded(topic) or self._changed(node, row) or retained()
            return kept or self._kept_by_owner(topic)

        return rule

    def _chosen(self, topic: Topic) -> Why | None:
        names = set(self.cluster.settings.inactivity.topics)
        if names.isdisjoint(holders(str(topic.namespace), str(topic))):
            return Why(InactiveKept.NOT_CHOSEN, "inactivity.topics does not name it by now")
        return None

    def _kept_by_owner(self, topic: Topic) -> Why | None:
        if self._policies.keeps_inactive(topic):
            return Why(InactiveKept.OWNER_KEEPS, "its own policy says deleteWhileInactive: false by now")
        return None

    def _changed(self, node: Node, row: Mapping[str, Any]) -> Why | None:
        if (node.stat.czxid, node.stat.version) != (row["czxid"], row["version"]):
            return Why(Code.CHANGED_SINCE_PLAN, "its z-node was written since: it was loaded, at least")
        store, root = self.ports.store, self.run.ledgers_root
        listed = managed_ledger.decode(node.data).ledgers
        ledgers = snapshot.ledger_rows(store, [item.ledger_id for item in listed], root)
        for ledger_id, ledger in ledgers.items():
            if ledger and ledger["state"] != LedgerState.CLOSED.name:
                return Why(
                    InactiveKept.LEDGER_OPEN, f"its ledger {ledger_id} is not closed: nobody knows what it holds"
                )
        if listed and row["ledger_id"] not in self.closed:
            return Why(Code.CHANGED_SINCE_PLAN, "its last ledger was not closed when scanned: it was in use")
        cursors = snapshot.cursors(store, node.path)
        if COMPACTION_CURSOR in cursors:
            return Why(InactiveKept.COMPACTED, "it is compacted: readers of its compacted view need no subscription")
        if kept := self._named_kept(cursors):
            return kept
        positions = snapshot.positions(self.ports, root, node.path, cursors)
        within = {cursor_name(name): cursor.cursors_ledger_id for name, cursor in cursors.items()}
        now = sorted(position_text(name, at.ledger_id, at.entry_id, within[name]) for name, at in positions.items())
        if now != row["positions"]:
            return Why(Code.CHANGED_SINCE_PLAN, "its subscriptions are others than the plan's, or have moved")
        copies = {i: BookKeeperCopy(i, ledger) for i, ledger in ledgers.items()}
        for name, at in positions.items():
            if not all(acknowledged(item, copies[item.ledger_id], at) for item in listed):
                return Why(InactiveKept.UNREAD_MESSAGES, f"messages are, or may be, unread by {name}")
        return None

    def _named_kept(self, cursors: Collection[str]) -> Why | None:
        """Whether settings, brokers or function workers name one of these subscriptions by now."""
        ours = set(self.cluster.settings.inactivity.kept_subscriptions)
        for name in map(cursor_name, cursors):
            if name in ours:
                return Why(InactiveKept.NAMED_KEPT, f"inactivity.kept_subscriptions names {name} by now")
            if name in self._system_cursors():
                return Why(InactiveKept.SYSTEM_CURSOR, f"{SYSTEM_CURSORS} names {name} by now")
        return self._of_functions(cursors) if cursors else None

    def _of_functions(self, cursors: Collection[str]) -> Why | None:
        if self._functions is None:
            self._functions = function_subscriptions(self.cluster)
        return self._functions.keep(map(cursor_name, cursors))

    def _system_cursors(self) -> frozenset[str]:
        """What any broker calls its own."""
        said = (one.get(SYSTEM_CURSORS, "") for one in self._configurations().values())
        return frozenset({name.strip() for one in said for name in one.strip("[]").split(",")} - {""})

    def _configurations(self) -> Mapping[str, Mapping[str, str]]:
        now = self.ports.clock.now_ms()
        if self._said is None or not 0 <= now - self._said[0] <= SEEN_FOR:
            self._said = now, self.ports.admin.configurations()
        return self._said[1]

    def _loaded(self, topic: Topic) -> Why | None:
        one = self._connections().get(str(topic))
        if one is None:
            return None
        if one.producers or any(one.consumers.values()):
            return Why(InactiveKept.USED_LATELY, "clients are connected to it")
        return Why(Protection.LOADED, "a broker has it loaded, and may write to it at any moment: unload it first")

    def _connections(self) -> Mapping[str, TopicConnections]:
        now = self.ports.clock.now_ms()
        if self._clients is None or not 0 <= now - self._clients[0] <= SEEN_FOR:
            self._clients = now, self.ports.admin.connections()
        return self._clients[1]


def _path(topic: Topic) -> str:
    return f"{MANAGED_LEDGERS_ROOT}/{topic.managed_ledger}"


def _left(outcome: Outcome) -> Outcome:
    return outcome if outcome is Outcome.NOTHING else Outcome.LEFT


def _goes(said: list[LedgerOutcome]) -> bool:
    """Whether nothing keeps a topic; one that is gone keeps no other partition."""
    return said[-1].outcome in (Outcome.GOES, Outcome.NOTHING)


def _of(said: list[LedgerOutcome], topic: Topic) -> list[LedgerOutcome]:
    return [one for one in said if one.topic == str(topic)]
