"""How many topics of which broker and bundle one launch of a load plan loads, and which wait for that.

Belongs here: bundles without an owner, brokers under load, load shedding, budgets. Not here: whether a topic may be
loaded at all (``load/load_rules.py``), the order of waves (``load/load_run.py``).
"""

from __future__ import annotations

import contextlib
from collections import Counter
from collections.abc import Collection, Mapping, Sequence
from collections.abc import Set as AbstractSet
from dataclasses import dataclass, field

from pulsar_lifecycle.bundles.placing import bundles
from pulsar_lifecycle.lifecycle.load.load_rules import LoadKept
from pulsar_lifecycle.metastore import load_state
from pulsar_lifecycle.metastore.load_state import Brokers
from pulsar_lifecycle.model import Topic
from pulsar_lifecycle.ports.bundle import Ports
from pulsar_lifecycle.run_settings import LoadSettings
from pulsar_lifecycle.topics.bundle_owner import Owners, would_be_loaded
from pulsar_lifecycle.values.codes import Why


@dataclass
class LoadBudget:
    """What one launch has loaded so far, by broker and by bundle."""

    settings: LoadSettings
    ports: Ports
    _by_broker: Counter[str] = field(default_factory=Counter[str])
    _by_bundle: Counter[str] = field(default_factory=Counter[str])

    def crowded(
        self,
        topics: Sequence[Topic],
        left: Mapping[Topic, Why],
        owned: Mapping[Topic, str],
        owners_since: Mapping[Topic, int | None],
        brokers: Brokers,
        owners: Owners,
    ) -> dict[Topic, Why]:
        """What keeps topics because of their bundle or their broker, whatever this run has loaded so far.

        ``left``: those that are left anyway; ``owned``: each topic's broker, empty where nobody owns its bundle;
        ``owners_since``: since when (ms).
        """
        store, settings = self.ports.store, self.settings
        place, now = bundles(store, topics), self.ports.clock.now_ms()
        found: dict[Topic, Why] = {}
        going = [topic for topic in topics if topic not in left]
        together, usage = frozenset(going), self._usage({owned[topic] for topic in going})
        for topic in going:
            broker, since = owned[topic], owners_since[topic]
            if besides := would_be_loaded(store, brokers, owners, topic, together):
                found[topic] = Why(LoadKept.BUNDLE_SHARED, besides)
            elif not broker:
                continue
            elif since is not None and now - since < settings.min_owner_age * 1000:
                found[topic] = Why(LoadKept.BUNDLE_MOVED, f"{broker} has its bundle for {(now - since) // 1000} s only")
            elif (used := usage[broker]) is None or used > settings.max_broker_load:
                found[topic] = Why(LoadKept.BROKER_BUSY, f"{broker} uses {'?' if used is None else f'{used:.0%}'}")
        busy_one = any(used is None or used > settings.max_broker_load for used in usage.values())
        if busy_one and not all(owned[topic] for topic in going):
            busy = Why(LoadKept.BROKER_BUSY, "nobody owns its bundle, and the broker that takes it may be a busy one")
            found |= {topic: busy for topic in going if not owned[topic] and topic not in found}
        unowned = Counter(place[topic] for topic in going if not owned[topic])
        most = min(settings.max_per_bundle, settings.max_per_broker)
        for topic in going:
            if not owned[topic] and (count := unowned[place[topic]]) > most:
                text = f"nobody owns its bundle, whose {count} topics are loaded together, and {most} may be"
                found[topic] = Why(LoadKept.BUNDLE_TOO_LARGE, text)
        return found

    def spent(self, topics: Sequence[Topic], left: Collection[Topic], owned: Mapping[Topic, str]) -> dict[Topic, Why]:
        """What keeps topics because of this run's budget for their bundle and broker; the others count as loaded."""
        settings, place = self.settings, bundles(self.ports.store, topics)
        found: dict[Topic, Why] = {}
        going = [topic for topic in topics if topic not in left]
        for topic in going:
            broker, bundle = owned[topic], place[topic]
            if self._by_broker[broker] >= settings.max_per_broker:
                found[topic] = Why(LoadKept.BUDGET_SPENT, f"load.max_per_broker is {settings.max_per_broker}")
            elif self._by_bundle[bundle] >= settings.max_per_bundle:
                found[topic] = Why(LoadKept.BUDGET_SPENT, f"load.max_per_bundle is {settings.max_per_bundle}")
            else:
                self._by_broker[broker] += 1
                self._by_bundle[bundle] += 1
        return found | whole_or_nothing(going, owned, found)

    def _usage(self, owners: AbstractSet[str]) -> dict[str, float | None]:
        """How much brokers use, those named and, if one is not known, all; None where that is not known."""
        found: dict[str, float | None] = dict.fromkeys(owners - {""})
        for broker in self.ports.admin.brokers():
            if broker in owners or "" in owners:
                found[broker] = None
                with contextlib.suppress(*load_state.NO_WORD):
                    found[broker] = self.ports.admin.usage(broker)
        return found


def whole_or_nothing(
    going: Collection[Topic], owned: Mapping[Topic, str], found: Mapping[Topic, Why]
) -> dict[Topic, Why]:
    """Of a bundle without an owner all topics go, or none."""
    kept = next((topic for topic in going if not owned[topic] and topic in found), None)
    if kept is None:
        return {}
    why = Why(LoadKept.BUNDLE_SHARED, f"nobody owns its bundle, which has {kept}, too")
    return {topic: why for topic in going if not owned[topic] and topic not in found}
