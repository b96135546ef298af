"""A topic whose z-node is edited, over the fakes.

Belongs here: the topic and an edit of it. Not here: what a test expects.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import replace

from pulsar_lifecycle.formats import managed_ledger
from pulsar_lifecycle.formats.ledger_metadata import LedgerState
from pulsar_lifecycle.formats.managed_ledger import LedgerInfo, ManagedLedgerInfo
from pulsar_lifecycle.ports import Node
from pulsar_lifecycle.ports.bundle import Ports
from pulsar_lifecycle.runs import control
from pulsar_lifecycle.runs.control import OFFLOAD_LEASE as LEASE
from pulsar_lifecycle.runs.control import PendingUnload
from pulsar_lifecycle.topics.write import EditOutcome, edit_topic
from pulsar_lifecycle.values.findings import Context
from tests.kit.builders import some_why
from tests.kit.fakes.metadata_store import Operation
from tests.kit.scenes.topic_scene import TOPIC, TopicScene
from tests.kit.simulated.cluster import data_tags

DONE = "done"
POLICY = "offload.loaded_topics"
CONTEXT = Context(now=0, grace=0, namespaces=frozenset({"acme/orders"}))
MINE = "mine"
PENDING = control.PENDING_UNLOADS[LEASE]


class WriteScene(TopicScene):
    """A topic whose properties are edited; ``steps`` are the effects in their order."""

    def __init__(self, *, loaded: bool = False, policy: bool | frozenset[str] | None = None, limit: int = 500) -> None:
        super().__init__()
        state = LedgerState.OPEN if loaded else LedgerState.CLOSED
        self.ids = [self.cluster.ledger(data_tags(TOPIC)), self.cluster.ledger(data_tags(TOPIC), state=state)]
        self.cluster.topic(TOPIC, self.ids)
        self.cluster.admin.topics[TOPIC] = {}
        if loaded:
            self.cluster.load(TOPIC)
        self.cluster.wait(1)
        self.new_session()
        self.steps: list[str] = []
        self.looks = 0
        self.store.before = self.look
        self.cluster.admin.on_unload = lambda topic: self.steps.append("unload")
        self.loaded_topics = loaded if policy is None else policy
        self.limit = limit
        self.guard = self.guard(self.store)
        self.steps.clear()

    def look(self, operation: Operation) -> None:
        if operation.name in ("create", "write", "delete"):
            self.steps.append(f"{operation.name} {operation.paths[0].removeprefix(PENDING)}")

    @property
    def pending_name(self) -> str:
        return PendingUnload(TOPIC, True, 0, LEASE).path.removeprefix(PENDING)

    @property
    def written(self) -> bool:
        return MINE in self.info.properties

    def broker_writes(self) -> None:
        """A rollover."""
        info = self.info
        new = LedgerInfo(self.cluster.ledger(data_tags(TOPIC), state=LedgerState.OPEN))
        self.cluster.put(self.path, managed_ledger.encode(replace(info, ledgers=(*info.ledgers, new))))

    def on_write(self, act: Callable[[], object], when: str = "before", times: int = 1) -> None:
        """As above, and the steps are still looked at."""
        hook = self.at_write(act, times)

        def looked(operation: Operation) -> None:
            if when == "before":
                self.look(operation)
            hook(operation)

        setattr(self.store, when, looked)

    def edit(
        self, change: Callable[..., tuple[ManagedLedgerInfo, dict[int, EditOutcome]]] | None = None
    ) -> dict[int, EditOutcome]:
        cluster = self.cluster
        ports = Ports(self.store, cluster.reader, cluster.admin, cluster.open_queue(), cluster.journal, cluster.clock)
        run = self.topic_run(self.store, CONTEXT)
        return edit_topic(run, ports, self.guard, TOPIC, change or self.change, POLICY)

    def change(self, node: Node, info: ManagedLedgerInfo) -> tuple[ManagedLedgerInfo, dict[int, EditOutcome]]:
        self.looks += 1
        first, last = self.ids
        said = {
            first: EditOutcome(DONE, some_why("so it is"), changes=MINE not in info.properties),
            last: EditOutcome("kept", some_why("the last")),
        }
        return replace(info, properties={**info.properties, MINE: "yes"}), said


def outcomes(said: Mapping[int, EditOutcome]) -> list[str]:
    return [one.outcome for _, one in sorted(said.items())]
