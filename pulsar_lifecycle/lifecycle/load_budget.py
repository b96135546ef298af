"""How many topics of which broker and bundle one launch of a load plan loads, and which wait for that.

Belongs here: brokers under load, load shedding, budgets. Not here: whether a topic may be loaded at all
(``load/load_rules.py``), the order of waves (``load/load_run.py``).
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
from pulsar_lifecycle.model import Topic
from pulsar_lifecycle.ports.bundle import Ports
from pulsar_lifecycle.run_settings import LoadSettings
from pulsar_lifecycle.values.codes import Why


@dataclass
class LoadBudget:
    """What one launch has loaded so far, by broker and by bundle.

    ``idle``: bundles that nobody owned as it began: who owns one by now has taken it for us, and sheds no load.
    """

    settings: LoadSettings
    ports: Ports
    idle: Collection[str]
    _by_broker: Counter[str] = field(default_factory=Counter[str])
    _by_bundle: Counter[str] = field(default_factory=Counter[str])

    def crowded(
        self,
        topics: Sequence[Topic],
        left: Mapping[Topic, Why],
        owned: Mapping[Topic, str],
        owners_since: Mapping[Topic, int | None],
    ) -> dict[Topic, Why]:
        """What keeps topics because of their bundle or their broker, whatever this run has loaded so far.

        ``left``: those that are left anyway; ``owned``: each topic's broker, empty where nobody owns its bundle;
        ``owners_since``: since when (ms).
        """
        settings, now = self.settings, self.ports.clock.now_ms()
        found: dict[Topic, Why] = {}
        going = [topic for topic in topics if topic not in left]
        place = bundles(self.ports.store, going)
        usage = self._usage({owned[topic] for topic in going})
        for topic in going:
            broker, since = owned[topic], None if place[topic] in self.idle else owners_since[topic]
            if not broker:
                continue
            if since is not None and now - since < settings.min_owner_age * 1000:
                found[topic] = Why(LoadKept.BUNDLE_MOVED, f"{broker} has its bundle for {(now - since) // 1000} s only")
            elif (used := usage[broker]) is None or used > settings.max_broker_load:
                said = "does not say how much it uses" if used is None else f"uses {used:.0%}"
                found[topic] = Why(LoadKept.BROKER_BUSY, f"{broker} {said}")
        busy_one = any(used is None or used > settings.max_broker_load for used in usage.values())
        if busy_one and not all(owned[topic] for topic in going):
            busy = Why(LoadKept.BROKER_BUSY, "nobody owns its bundle, and the broker that takes it may be a busy one")
            found |= {topic: busy for topic in going if not owned[topic] and topic not in found}
        return found

    def spent(self, topics: Sequence[Topic], left: Collection[Topic], owned: Mapping[Topic, str]) -> dict[Topic, Why]:
        """What keeps topics because of this run's budget for their bundle and broker; the others count as loaded."""
        settings, place = self.settings, bundles(self.ports.store, topics)
        found: dict[Topic, Why] = {}
        going = [topic for topic in topics if topic not in left]
        for topic in going:
            broker, bundle = owned[topic], place[topic]
            if self._most(broker) >= settings.max_per_broker:
                found[topic] = Why(LoadKept.BUDGET_SPENT, f"load.max_per_broker is {settings.max_per_broker}")
            elif self._by_bundle[bundle] >= settings.max_per_bundle:
                found[topic] = Why(LoadKept.BUDGET_SPENT, f"load.max_per_bundle is {settings.max_per_bundle}")
            else:
                self._by_broker[broker] += 1
                self._by_bundle[bundle] += 1
        return found

    def _most(self, broker: str) -> int:
        """How many topics a broker has loaded at most; any one, by an empty name. Who took some is not known."""
        names = [broker] if broker else self._by_broker.keys() - {""}
        return max((self._by_broker[name] for name in names), default=0) + self._by_broker[""]

    def _usage(self, owners: AbstractSet[str]) -> dict[str, float | None]:
        """How much brokers use, those named and, if one is not known, all; None where that is not known."""
        found: dict[str, float | None] = dict.fromkeys(owners - {""})
        for broker in self.ports.admin.brokers():
            if broker in owners or "" in owners:
                found[broker] = None
                with contextlib.suppress(*load_state.NO_WORD):
                    found[broker] = self.ports.admin.usage(broker)
        return found
