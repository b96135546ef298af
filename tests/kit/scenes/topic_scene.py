"""One topic on the simulated cluster, its broker, and a run that may write it: what scenes of single topics build on.

Belongs here: what is there, what others do to it, the values of a run. Not here: what one capability does with it
(``offload_scene.py``, ``copy_deletion_scene.py``), what must come out.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping
from dataclasses import replace
from typing import Any, Protocol

from pulsar_lifecycle.formats import managed_ledger
from pulsar_lifecycle.formats.ledger_metadata import LedgerState
from pulsar_lifecycle.formats.managed_ledger import LedgerInfo, ManagedLedgerInfo, OffloadContext
from pulsar_lifecycle.metastore.load_state import Brokers
from pulsar_lifecycle.model import Namespace, Topic
from pulsar_lifecycle.ports import MetadataStore
from pulsar_lifecycle.runs import control
from pulsar_lifecycle.runs.control import PendingUnload
from pulsar_lifecycle.topics import snapshot
from pulsar_lifecycle.topics.load_losses import LoadLosses, Replication
from pulsar_lifecycle.topics.policies import InForce
from pulsar_lifecycle.topics.unloads import RunGuard, Unloads
from pulsar_lifecycle.topics.write import TopicRun
from pulsar_lifecycle.values.codes import Why
from pulsar_lifecycle.values.findings import Context
from pulsar_lifecycle.values.topic_load import LoadReason
from tests.kit.crash import Tell
from tests.kit.fakes.metadata_store import FakeStore, Operation
from tests.kit.simulated.cluster import SimulatedCluster, data_tags

TOPIC = Topic.parse("persistent://acme/orders/a+b c~é-partition-0")
OTHER = Topic.parse("persistent://acme/orders/other")


def nothing_lost(namespace: Namespace) -> LoadLosses:
    """Policies by which a topic of a namespace loses nothing by a load."""
    return LoadLosses(InForce({str(namespace): Replication()}))


class TopicScene:
    """The z-node of :data:`TOPIC` and sessions on it; who makes its ledgers fills ``ids``."""

    def __init__(self, cluster: SimulatedCluster | None = None) -> None:
        self.cluster = cluster or SimulatedCluster()
        self.path = self.cluster.topic_path(TOPIC)
        self.ids: list[int] = []
        self.store: FakeStore = self.cluster.open_store()
        self.loaded_topics: bool | frozenset[str] = False
        self.limit = 500
        self.losses: LoadLosses | None = None
        """What a load has topics lose; None: nothing."""
        self.tick: Tell = lambda step: None

    # ---------------------------------------------------------------------------------------------------- what is there

    @property
    def info(self) -> ManagedLedgerInfo:
        return managed_ledger.decode(self.cluster.zookeeper.data(self.path))

    @property
    def items(self) -> dict[int, LedgerInfo]:
        return {item.ledger_id: item for item in self.info.ledgers}

    @property
    def version(self) -> int:
        stat = self.cluster.zookeeper.stat(self.path)
        assert stat
        return stat.version

    @property
    def pending_unloads(self) -> list[PendingUnload]:
        return [one for one in control.pending_unloads(self.cluster.open_store()) if isinstance(one, PendingUnload)]

    @property
    def left_pending(self) -> list[bool]:
        """For each pending unload, whether the topic counted as loaded when it was written."""
        return [one.loaded for one in self.pending_unloads]

    # --------------------------------------------------------------------------------------------------- what others do

    def close(self, ledger_id: int) -> None:
        """The ledger is closed in BookKeeper."""
        newest = self.cluster._last_id
        self.cluster.ledger(data_tags(TOPIC), ledger_id=ledger_id)
        self.cluster._last_id = newest

    def write(self, ledger_id: int, context: OffloadContext | None) -> None:
        """The topic's z-node says this of a ledger's offload."""
        ledgers = tuple(replace(i, offload=context) if i.ledger_id == ledger_id else i for i in self.info.ledgers)
        self.cluster.put(self.path, managed_ledger.encode(replace(self.info, ledgers=ledgers)))

    def on_write(self, act: Callable[[], object], when: str = "before", times: int = 1) -> None:
        """Do something at the moments our compare-and-set reaches the topic's z-node."""
        setattr(self.store, when, self.at_write(act, times))

    def at_write(self, act: Callable[[], object], times: int) -> Callable[[Operation], None]:
        left = [times]

        def hook(operation: Operation) -> None:
            if operation == Operation("write", (self.path,)) and left[0]:
                left[0] -= 1
                act()

        return hook

    # ---------------------------------------------------------------------------------------------------------- running

    def law(self) -> None:
        """What must be true at every moment."""

    def step(self, name: str) -> None:
        """What a port of a run tells."""
        self.law()
        self.tick(name)

    def new_session(self) -> None:
        """The process is gone, and its session with it."""
        self.store.close()
        self.store = self.cluster.open_store()

    def topic_run(self, store: MetadataStore, context: Context, deliver_after_ms: int = 0, error: str = "") -> TopicRun:
        """A run by what the brokers list now; ``error``: which of them does not answer."""
        loaded = {} if error else dict(self.cluster.admin.loaded)
        clock = self.cluster.clock
        shadows = snapshot.Shadows(lambda: snapshot.shadow_sources(store, store), clock)
        return TopicRun(
            "run",
            "simulated",
            "/ledgers",
            clock.now_ms(),
            Brokers(loaded, 60_000, Why(LoadReason.BROKERS_UNANSWERED, error) if error else None),
            context,
            deliver_after_ms,
            self.loaded_topics,
            shadows,
            losses=lambda namespace: self.losses or nothing_lost(namespace),
        )

    def guard(self, store: MetadataStore, lease: str = control.OFFLOAD_LEASE) -> RunGuard:
        """A lease, and a budget of unloads."""
        self.lease = control.take_lease(store, "run", self.cluster.clock, 0, lease)
        return RunGuard(self.lease.guard, Unloads(5, self.limit, self.cluster.clock))


class TopicBroker:
    """A broker with the topic's metadata in memory, once it has loaded it."""

    def __init__(self, scene: TopicScene) -> None:
        self.scene = scene
        self.memory: ManagedLedgerInfo | None = None
        self.version = -1

    def load(self) -> None:
        """Make a ledger, write the z-node, serve the topic."""
        scene = self.scene
        scene.ids.append(scene.cluster.ledger(data_tags(TOPIC), state=LedgerState.OPEN))
        info = scene.info
        self.memory = replace(info, ledgers=(*info.ledgers, LedgerInfo(scene.ids[-1])))
        scene.cluster.put(scene.path, managed_ledger.encode(self.memory))
        self.version = scene.version
        scene.cluster.load(TOPIC)

    def unload(self, topic: Topic) -> None:
        """Forget it, its last ledger closed."""
        if topic == TOPIC and self.memory is not None:
            self.scene.close(self.memory.ledgers[-1].ledger_id)
            self.memory = None


class Told(Protocol):
    """What a run says of one ledger."""

    @property
    def ledger_id(self) -> int: ...

    @property
    def outcome(self) -> Any: ...


def outcomes(found: Iterable[Told] | Mapping[int, Told]) -> dict[int, Any]:
    """Ledger -> what became of it."""
    return {one.ledger_id: one.outcome for one in (found.values() if isinstance(found, Mapping) else found)}
