"""Inactive subscriptions of topics that no broker has: which of a plan a load may delete, those of partitions together.

Belongs here: what the settings and the scan's plan of inactive subscriptions say, and that one of a partitioned topic
goes on all partitions or on none. Not here: the rule (``load/going_subscriptions.py``), deleting one
(``load/unsubscribing.py``), those of loaded topics (``activity/cursor_run.py``).
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Collection, Iterable, Mapping
from dataclasses import dataclass, field
from typing import Any

from pulsar_lifecycle.lifecycle.load.load_rules import LoadKept, inactive_pairs
from pulsar_lifecycle.model import Topic
from pulsar_lifecycle.runs.cluster import Cluster
from pulsar_lifecycle.settings import Settings
from pulsar_lifecycle.values import plans
from pulsar_lifecycle.values.codes import Why
from pulsar_lifecycle.values.owner_names import holders
from pulsar_lifecycle.values.plans import inactive_plan, load_plan
from pulsar_lifecycle.values.plans.plan_kind import PlanKind, kind_of


def planned_inactive(cluster: Cluster, epoch_id: str) -> dict[str, dict[str, int]]:
    """By topic, those of the newest plan of inactive subscriptions of a scan; none of one that is report-only.

    Each by its name, with the czxid of its z-node.

    Raises Refused where its files are not those of its digest.
    """
    if not cluster.settings.load.inactive_subscriptions:
        return {}
    kind = PlanKind.INACTIVE_SUBSCRIPTIONS
    made = [
        one
        for one in cluster.lake.inactive_plans()
        if one.epoch_id == epoch_id and one.cluster == cluster.settings.cluster and kind_of(one.plan_id) is kind
    ]
    if not made or not made[-1].actionable:
        return {}
    summary, rows = cluster.lake.inactive_plan(made[-1].plan_id)
    plans.check_digest(summary.plan_id, made[-1].digest, summary.digest, inactive_plan.digest(rows, summary.to_json()))
    found: dict[str, dict[str, int]] = {}
    for row in rows.select(["topic", "cursor", "czxid"]).to_pylist():
        found.setdefault(row["topic"], {})[row["cursor"]] = row["czxid"]
    return found


def chosen(settings: Settings, by_topic: Mapping[str, Mapping[str, int]]) -> dict[str, Mapping[str, int]]:
    """Those of topics that both `load.inactive_subscriptions` and `inactivity.subscriptions` name."""
    both = settings.load.inactive_subscriptions, settings.inactivity.subscriptions

    def named(topic: str) -> bool:
        own = holders(str(Topic.parse(topic).namespace), topic)
        return not any(frozenset(names).isdisjoint(own) for names in both)

    return {topic: some for topic, some in by_topic.items() if named(topic)}


def staying_somewhere(
    rows: Iterable[Mapping[str, Any]], by_topic: Mapping[str, Collection[str]]
) -> frozenset[tuple[str, str]]:
    """Subscriptions that go on some partitions, by ``rows`` of a load plan, and not on all of ``by_topic``.

    A plan of inactive subscriptions has one on all its partitions, or on none.
    """
    going = Counter(pair for row in rows for pair in inactive_pairs(row))
    named = Counter((str(Topic.parse(topic).partitioned_parent), n) for topic, names in by_topic.items() for n in names)
    return frozenset(pair for pair, count in going.items() if count < named[pair])


@dataclass
class Together:
    """Of one launch: subscriptions that stay on a partition, and so on all others from then on.

    ``planned``: rows of the whole plan, by topic; ``launched``: topics that the launch takes of it. ``there``: whether
    a topic has a subscription still: on others it goes though an earlier launch deleted it here.
    """

    planned: Mapping[Topic, Mapping[str, Any]]
    launched: Collection[Topic]
    there: Callable[[Topic, str], bool]
    _stays: dict[tuple[str, str], str] = field(default_factory=dict[tuple[str, str], str])
    _looked: set[tuple[str, str]] = field(default_factory=set[tuple[str, str]])
    _on: dict[tuple[str, str], list[Topic]] = field(init=False)

    def __post_init__(self) -> None:
        self._on = {}
        for topic, row in self.planned.items():
            for pair in inactive_pairs(row):
                self._on.setdefault(pair, []).append(topic)

    def look(
        self, topics: Collection[Topic], left: Collection[Topic], others: Callable[[list[Topic]], Collection[Topic]]
    ) -> dict[Topic, Why]:
        """Why each of ``topics`` is left for the sake of another partition; not those that are ``left`` anyway.

        ``others``: which of some topics of other waves would be left, as they are now.
        """
        new = {pair for topic in topics if topic not in left for pair in self._pairs(topic)} - self._looked
        self._looked |= new
        later = [(one, pair) for pair in sorted(new) for one in self._on[pair] if one not in topics]
        asked = {one for one, _ in later if one in self.launched}
        staying = set(others(sorted(asked, key=str))) if asked else set[Topic]()
        for one, pair in later:
            if one in staying or one not in asked:
                self._stays_on(one, pair)
        for topic in left:
            self.stays(topic)
        return {topic: why for topic in topics if topic not in left and (why := self._why(topic))}

    def going(self, topic: Topic) -> Mapping[str, Any]:
        """The planned row of a topic, without the subscriptions that stay on another partition.

        But only if another partition has lost one of the others: what one has lost goes on all, whatever else a broker
        refused to delete there. Else the row is whole, and a topic with a subscription that stays is left alone.
        """
        row, pairs = self.planned[topic], self._pairs(topic)
        staying = {pair for pair in pairs if self._stays.get(pair, str(topic)) != str(topic)}
        rest = ((one, name) for owner, name in pairs - staying for one in self._on[owner, name] if one != topic)
        if not staying or all(self.there(one, name) for one, name in rest):
            return row
        names = {name for _, name in staying}
        some = {name: czxid for name, czxid in load_plan.inactive(row).items() if name not in names}
        return {**row, "inactive_subscriptions": list(some), "inactive_czxids": list(some.values())}

    def apart(self, topic: Topic, row: Mapping[str, Any]) -> dict[str, Why]:
        """Its planned subscriptions that ``row``, which :meth:`going` gave, is without, and why each stays."""
        pairs = inactive_pairs(self.planned[topic]) - inactive_pairs(row)
        return {pair[1]: Why(LoadKept.PARTITION_STAYS, f"it stays on {self._stays[pair]}") for pair in pairs}

    def names(self, topic: Topic) -> set[str]:
        """The subscriptions of a topic that go on all partitions or on none, and that others have, too."""
        return {name for _, name in self._pairs(topic)}

    def stays(self, topic: Topic) -> None:
        """This launch does not delete what a topic still has of its inactive subscriptions."""
        for pair in self._pairs(topic):
            self._stays_on(topic, pair)

    def _stays_on(self, topic: Topic, pair: tuple[str, str]) -> None:
        if pair not in self._stays and self.there(topic, pair[1]):
            self._stays[pair] = str(topic)

    def _pairs(self, topic: Topic) -> set[tuple[str, str]]:
        return {pair for pair in inactive_pairs(self.planned[topic]) if len(self._on[pair]) > 1}

    def _why(self, topic: Topic) -> Why | None:
        pair = next((pair for pair in sorted(inactive_pairs(self.going(topic))) if pair in self._stays), None)
        if pair is None:
            return None
        where = f"stays on {self._stays[pair]}"
        if self._stays[pair] == str(topic):
            where = "was to stay here when other partitions were judged, and so stays on all"
        return Why(LoadKept.PARTITION_STAYS, f"subscription {pair[1]} {where}")
