"""Delete records in a schedule: partitions at rest, requests for positions in them, applied, and answered in the end.

Belongs here: which schedules have it, what an operator does, its laws: nothing at or above the low watermark goes, by a
time nothing that was published at or after it; the low watermark never moves back, no subscription is moved past it;
each partition of a request is answered with what is true of itself, no earlier than it is, of the objects of offloaded
copies too, and of its bookies where they are asked; and nothing is done to another topic of its name. Not here: cursors
and holes of what a run takes off a list, and deletions, which ``laws.py`` judges for every run.
"""

from __future__ import annotations

from collections import Counter, defaultdict
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from random import Random
from uuid import UUID

from pulsar_lifecycle.delete_records.apply_run import Patience, apply_delete_records
from pulsar_lifecycle.delete_records.records_planning import EACH, plan_delete_records
from pulsar_lifecycle.delete_records.request import END, DeleteRecordsResult, Offset, Options, Timestamp
from pulsar_lifecycle.formats import managed_ledger
from pulsar_lifecycle.formats.managed_ledger import LOW_WATERMARK, LedgerInfo
from pulsar_lifecycle.formats.offload_object import data_key, index_key
from pulsar_lifecycle.model import MessagePosition, Position, Topic
from pulsar_lifecycle.runs.caps import Order
from tests.kit.records.topic_times import sent
from tests.kit.simulated.offloaded import BUCKET
from tests.simulation.faults import states
from tests.simulation.laws.deletion_laws import Violation
from tests.simulation.operators.operator import Operator
from tests.simulation.operators.retaining import EVERY
from tests.simulation.operators.turns import Turns
from tests.simulation.world.model import Cursor, ModelTopic
from tests.simulation.world.ports import SimStore

AT = 10


def has(seed: int) -> bool:
    """Whether a schedule deletes records; every fifth of those is left as it was, with what it caught before."""
    return seed % EVERY == AT and seed % 100 != 90


def of_many(seed: int) -> bool:
    """Whether each request of a schedule is for as many partitions as it can be: several are answered at once."""
    return seed % 100 == 50


Copies = set[tuple[int, UUID]]
"""Ledgers, each with the attempt that offloaded a copy of it."""


@dataclass(frozen=True)
class Request:
    """A plan: of each partition its low watermark or its error, and what created its z-node.

    ``copies``: those that the topic named all the while that the plan was made. ``trimmed``: ledgers that a broker had
    trimmed and deleted by then, which nothing names any more: no bookie is asked for them.
    """

    order: Order
    marks: Mapping[Topic, MessagePosition]
    errors: Mapping[Topic, str]
    born: Mapping[Topic, int | None]
    copies: Mapping[Topic, Copies]
    trimmed: Mapping[Topic, set[int]]


class Recording(Turns):
    """What an operator does about records. Its methods return what to print."""

    NAMESPACE = "acme/orders"
    STEPS: tuple[str, ...] = (
        *("grow", "grow", "days", "scan", "plan_records", "apply_records", "hours", "plan_records", "apply_records"),
        *("scan", "delete_records", "answer_records"),
    )
    """What an operator does, in this order."""
    BESIDES: tuple[str, ...] = ("apply_records", "plan_records", "answer_records", "hours", "scan", "delete_records")
    """What comes out of it, sometimes."""
    RUNS = frozenset({"plan_records", "apply_records", "answer_records", "delete_records"})

    def __init__(self, operator: Operator) -> None:
        super().__init__(operator)
        self.topics: list[Topic] = []
        self.counts = Counter[str]()
        self.had: dict[Topic, set[int]] = defaultdict(set)
        """Every ledger that a partition had when its records were asked to go; not those of a topic it replaced."""
        self.took: dict[Topic, Copies] = defaultdict(set)
        """Copies of what a run took off a partition's list, unless the topic was replaced since."""
        self.runs_took: set[int] = set()
        """Ledgers that a run took off a list."""
        self.born: dict[Topic, int | None] = {}
        self.asked: dict[Topic, MessagePosition] = {}
        """The highest position that an applied plan asks for."""
        self.published: dict[int, list[int]] = {}
        """When (ms) each entry of a ledger was published."""
        self.plans: list[Request] = []
        self.applied: Request | None = None
        """While it is applied."""
        operator.laws.judge_retention = self.judge
        self._judge_write: Callable[[SimStore, str, bytes, bytes], None] = self.world.zookeeper.on_write
        self.world.zookeeper.on_write = self.about_to_write
        self.world.admin.on_properties = self.broker_keeps
        self.world.admin.on_move = self.broker_moves

    def grow(self) -> str:
        """A partition that rests has ledgers of some messages, and sometimes a subscription amid them."""
        world, random = self.world, self.operator.random
        name = Topic.parse(f"persistent://{self.NAMESPACE}/recorded-{len(self.topics)}")
        if name in world.model.topics or world.full():
            return "no room for another partition"
        self.topics.append(name)
        world.put(f"/admin/policies/{name.namespace}", b"{}")
        ledgers = [self._ledger(name, random.randint(1, 3)) for _ in range(4)]
        topic = world.model.topics[name] = ModelTopic(name, ledgers)
        topic.moved = topic.pinned = True
        world.store(topic)
        if random.random() < 0.3:
            topic.cursors["s"] = Cursor(at=random.choice(ledgers[1:]))
            world.store_cursor(topic, "s")
        return f"{name} rests with {ledgers}"

    def days(self) -> str:
        """Long enough for another scan to agree, and for what was written to count as unloaded."""
        self.world.wait_ms(5 * 24 * 3_600_000)
        return "five days"

    def hours(self) -> str:
        """Messages are delivered meanwhile."""
        self.world.wait_ms(2 * 3_600_000)
        return "two hours"

    def plan_records(self) -> str:
        """A plan for some partitions: positions in them, ends."""
        random, world = self.operator.random, self.world
        offsets: dict[Topic, Offset] = {}
        for name in self._some():
            topic = world.model.topics.get(name)
            if topic is None or topic.away or not topic.ledgers:
                continue
            ledger = topic.ledgers[0] if name in self.asked and random.random() < 0.5 else random.choice(topic.ledgers)
            offsets[name] = (
                END if random.random() < 0.2 else MessagePosition(ledger, random.randint(0, self._entries(ledger)))
            )
            if self.born.setdefault(name, self._born(name)) != self._born(name):
                self.born[name], self.had[name], self.took[name] = self._born(name), set(), set()
            self.had[name] |= set(topic.ledgers)
        besides = self._besides()
        for name in offsets:
            if besides.random() < 0.3:
                times = [at for i in world.model.topics[name].ledgers for at in self.published.get(i, ())] or [0]
                offsets[name] = Timestamp(besides.choice(times) + besides.randint(0, 1))
        options = Options(move_cursors=besides.random() < 0.6, any_order=besides.random() < 0.5)
        if not offsets:
            return "no partition to ask for"
        world.trace, named = None, {topic: self._named(topic) for topic in offsets}
        before, acts, restored = world.zookeeper.zxid, len(world.interceptor.fired), world.restored_at
        summary, rows = plan_delete_records(self.operator.cluster, offsets, options)
        if world.restored_at != restored:
            return "the metadata store was restored amid a plan: what was asked for may be gone"
        if len(world.interceptor.fired) == acts and world.zookeeper.zxid != before:
            raise Violation("I6: a plan to delete records wrote to the metadata store")
        marks = {
            Topic.parse(row["topic"]): MessagePosition.parse(row["low_watermark"])
            for row in rows.to_pylist()
            if row["error"] is None
        }
        errors = {Topic.parse(row["topic"]): row["error"] for row in rows.to_pylist() if row["error"]}
        born = {topic: self._born(topic) for topic in marks}
        copies = {topic: named[topic] & self._named(topic) for topic in marks}
        gone = {topic: {i for i in self.had[topic] - self.runs_took if not world.exists(i)} for topic in marks}
        trimmed = {topic: gone[topic].difference(self._listed(topic)) for topic in marks}
        self.plans.append(Request(Order(summary.plan_id, summary.digest), marks, errors, born, copies, trimmed))
        self._are_asked_for(offsets, marks)
        self.counts["plans that move subscriptions"] += any(
            row["moved_cursors"] and not row["error"] for row in rows.to_pylist()
        )
        return f"{summary.plan_id}: {offsets} -> {marks}, {errors}"

    def apply_records(self) -> str:
        """Apply the newest plan, or the one before; whoever is answered is answered truly."""
        return self._apply(dry_run=False)

    def answer_records(self) -> str:
        """Ask once more, and do nothing."""
        return self._apply(dry_run=True)

    def delete_records(self) -> str:
        """A deletion run."""
        return self.operator.delete()

    # ----------------------------------------------------------------------------------------------------------- laws

    def judge(self, topic: Topic, gone: list[LedgerInfo]) -> str:
        """Why these must not leave the list of their topic; empty if no message at or above the position is in them."""
        asked = self.asked.get(topic)
        for item in gone:
            end = MessagePosition(item.ledger_id, self._entries(item.ledger_id))
            if asked is None or (end > asked and item.ledger_id >= asked.ledger_id):
                return f"{item.ledger_id} has messages up to {end}, all before {asked} is asked for"
        return ""

    def about_to_write(self, store: SimStore, path: str, old: bytes, new: bytes) -> None:
        """The low watermark goes up, to no more than was asked for; then as the other laws say."""
        if path.startswith("/managed-ledgers/") and path.count("/persistent/") == 1 and old and new:
            topic = Topic.from_managed_ledger(path.removeprefix("/managed-ledgers/"))
            if self.applied and self.applied.born.get(topic) != self._born(topic):
                raise Violation(f"{topic} is written, and is another topic than was planned")
            self._raised(topic, _mark(old), _mark(new))
            named, left = self._named(topic), {item.ledger_id for item in managed_ledger.decode(new).ledgers}
            self.took[topic] |= {(ledger, uuid) for ledger, uuid in named if ledger not in left}
            self.runs_took |= {item.ledger_id for item in managed_ledger.decode(old).ledgers} - left
        self._judge_write(store, path, old, new)

    def broker_keeps(self, topic: Topic, properties: Mapping[str, str]) -> None:
        """A broker is asked to keep the low watermark; it writes whatever it is told."""
        world = self.world
        path = world.topic_path(topic)
        old = managed_ledger.decode(world.zookeeper.data(path))
        merged = {**old.properties, **properties}
        self._raised(topic, _highest(old.properties), _highest(merged))
        world.put(path, managed_ledger.encode(managed_ledger.ManagedLedgerInfo(old.ledgers, old.terminated, merged)))
        self.counts["low watermarks kept by brokers"] += 1

    def broker_moves(self, topic: Topic, name: str, past: Position) -> None:
        """A broker is asked to move a subscription; it does whatever it is told."""
        world, asked = self.world, self.asked.get(topic)
        cursor = world.model.topics[topic].cursors[name]
        if asked is None or past >= asked.entry or past < world.position(cursor):
            raise Violation(
                f"{name} of {topic} is moved from {world.position(cursor)} past {past}, to {asked} is asked for"
            )
        world.move_to(world.model.topics[topic], name, past.ledger_id)
        cursor.exact = past
        world.store_cursor(world.model.topics[topic], name)
        self.counts["subscriptions moved"] += 1

    def _raised(self, topic: Topic, old: MessagePosition | None, new: MessagePosition | None) -> None:
        if new == old:
            return
        if new is None or (old is not None and new < old):
            raise Violation(f"the low watermark of {topic} moves back from {old} to {new}")
        if topic not in self.asked or new > self.asked[topic]:
            raise Violation(f"the low watermark of {topic} becomes {new}, {self.asked.get(topic)} is asked for")
        self.counts["low watermarks raised"] += 1

    def _answered(
        self, request: Request, topic: Topic, result: DeleteRecordsResult, *, bookies: bool, still: bool
    ) -> None:
        """An answer is true: the low watermark is kept with the topic, and no ledger below it exists.

        Nor has any bookie, if they were asked, entries of one, nor a bucket an object of a copy that the plan could
        name or a run took off the list. The same holds of the ledger that the low watermark lies in, once it left the
        list; ``still``: nothing happened meanwhile, so the answer must know whether it did.
        """
        mark = result.low_watermark
        if result.error is not None or isinstance(mark, int):
            if result.error is None or mark != -1:
                raise Violation(f"{topic} is answered with {result}")
            return
        if request.born[topic] != self._born(topic):
            raise Violation(f"{topic} is answered with {result}, and is another topic than was planned")
        path, asked = self.world.topic_path(topic), request.marks[topic]
        kept = _mark(self.world.zookeeper.data(path)) if self.world.zookeeper.stat(path) else None
        if kept is None or mark != asked or mark > kept:
            raise Violation(f"{topic} is answered with {mark} for {asked}, and its low watermark is {kept}")
        gone = {ledger for ledger in self.had[topic] if ledger < mark.ledger_id}
        if still and mark > MessagePosition(mark.ledger_id, 0) and mark.ledger_id in self.had[topic]:
            within = {mark.ledger_id}.difference(self._listed(topic))
            gone |= within
            self.counts["low watermarks answered whose ledger left the list"] += len(within)
        for ledger in sorted(gone):
            if self.world.exists(ledger):
                raise Violation(f"{topic} is answered with {mark}, and ledger {ledger} exists")
            if bookies and ledger not in request.trimmed[topic] and self.world.reader.payloads.get(ledger):
                raise Violation(f"{topic} is answered with {mark}, and bookies have entries of {ledger}")
        copies = sorted((i, uuid) for i, uuid in request.copies[topic] | self.took[topic] if i in gone)
        for ledger, uuid in copies:
            keys = {data_key(uuid, ledger), index_key(uuid, ledger)}
            if there := keys.intersection(self.world.buckets.objects[BUCKET]):
                raise Violation(f"{topic} is answered with {mark}, and of {ledger} there is {min(there)}")
        self.counts["offloaded copies answered"] += len(copies)
        self.counts["partitions answered"] += 1

    def _answered_each(self, request: Request, found: Mapping[Topic, DeleteRecordsResult], *, still: bool) -> None:
        """Each partition of a request has its own answer; ``still``: nothing happened meanwhile."""
        if found.keys() != request.marks.keys() | request.errors.keys():
            raise Violation(
                f"{sorted(map(str, found))} are answered, {request.marks} and {request.errors} were planned"
            )
        for topic, error in request.errors.items():
            if found[topic].error != error:
                raise Violation(f"{topic} is answered with {found[topic]}, its plan says {error}")
        true = [topic for topic in request.marks if found[topic].error is None]
        for topic in true if still else ():
            info = managed_ledger.decode(self.world.zookeeper.data(self.world.topic_path(topic)))
            first = MessagePosition(min(item.ledger_id for item in info.ledgers), 0)
            if found[topic].first_readable != first:
                raise Violation(f"{topic} is answered with {found[topic]}, and shows messages from {first} on")
        self.counts["requests with several answers"] += len(true) > 1

    # -------------------------------------------------------------------------------------------------------- private

    def _apply(self, *, dry_run: bool) -> str:
        operator = self.operator
        if not self.plans:
            return "no plan to delete records yet"
        request = operator.random.choice([*self.plans[-2:], self.plans[-1], self.plans[-1]])
        run_id = operator._run_id("records")
        self.world.trace = None
        operator.laws.retaining, self.applied = not dry_run, None if dry_run else request
        patience = Patience(bookies=self._besides().random() < 0.5)
        acts = len(self.world.interceptor.fired)
        try:
            with operator._within_caps(run_id):
                found = apply_delete_records(
                    operator.cluster, run_id, request.order, dry_run=dry_run, patience=patience
                )
        finally:
            operator.laws.retaining, self.applied = False, None
        still = len(self.world.interceptor.fired) == acts
        for topic in request.marks.keys() & found.keys():
            self._answered(request, topic, found[topic], bookies=patience.bookies, still=still)
        self._answered_each(request, found, still=still)
        return "; ".join(f"{topic}: {result}" for topic, result in found.items())

    def _some(self) -> list[Topic]:
        """Partitions that a request is for."""
        random = self.operator.random
        return random.sample(self.topics, min(len(self.topics), random.randint(1, 3)))

    def _listed(self, topic: Topic) -> list[int]:
        there = self.world.model.topics.get(topic)
        return there.ledgers if there else []

    def _named(self, topic: Topic) -> Copies:
        """The copies that a topic's metadata names."""
        there = self.world.model.topics.get(topic)
        return {(ledger, one.uuid) for ledger, one in (there.offloaded if there else {}).items() if one.uuid}

    def _born(self, topic: Topic) -> int | None:
        stat = self.world.zookeeper.stat(self.world.topic_path(topic))
        return stat.czxid if stat else None

    def _are_asked_for(self, offsets: Mapping[Topic, Offset], marks: Mapping[Topic, MessagePosition]) -> None:
        """What the operator asked for, by the simulator's own truth; a plan may keep to what was asked for before."""
        for topic, offset in offsets.items():
            wanted = self._wanted(topic, offset)
            allowed = max(wanted, self.asked.get(topic, wanted))
            if topic in marks:
                next_ledgers = [i for i in sorted(self.had[topic]) if i > wanted.ledger_id]
                if wanted.entry_id >= self._entries(wanted.ledger_id) and next_ledgers:
                    allowed = max(allowed, MessagePosition(next_ledgers[0], 0))
                if marks[topic] > allowed:
                    raise Violation(f"{topic}: a plan goes up to {marks[topic]}, {allowed} is asked for")
            self.asked[topic] = allowed

    def _wanted(self, topic: Topic, offset: Offset) -> MessagePosition:
        """The first message that stays: of a time, the first published at or after it that the topic lists."""
        if isinstance(offset, MessagePosition):
            return offset
        if isinstance(offset, Timestamp):
            for ledger in sorted(self.world.model.topics[topic].ledgers):
                for entry, at in enumerate(self.published.get(ledger, ())):
                    if at >= offset.ms:
                        return MessagePosition(ledger, entry)
        last = max(self.had[topic])
        return MessagePosition(last, self._entries(last))

    def _ledger(self, name: Topic, entries: int) -> int:
        """A ledger of messages; one of ten was published by a producer whose clock is an hour slow."""
        besides, before = self._besides(), sum(map(len, self.published.values()))
        now = self.world.time.now_ms() + before
        times = [now + at - (3_600_000 if besides.random() < 0.1 else 0) for at in range(entries)]
        ledger = self.world.make("data", name, entries=[sent(at) for at in times])
        self.published[ledger] = times
        return ledger

    def _besides(self) -> Random:
        """Chance that leaves what the schedule draws as it is."""
        return Random(hash(self.operator.random.getstate()[1]))

    def _entries(self, ledger: int) -> int:
        return len(self.world.model.ledgers[ledger].entries)


class RecordingOfMany(Recording):
    """The same where each request is for the last partitions, and some were created again meanwhile."""

    RUNS = Recording.RUNS | {"request"}

    def __init__(self, operator: Operator) -> None:
        super().__init__(operator)
        self.steps = ("grow_all", "scan", "days", "scan", "request", "request")
        self.besides = ("answer_records", "create_again", "apply_records", "delete_records")

    def grow_all(self) -> str:
        """Three partitions at once."""
        return "; ".join(self.grow() for _ in range(3))

    def days(self) -> str:
        """The operator has everything well again before going on."""
        return f"{super().days()}, {states.heal(self.world)}"

    def request(self) -> str:
        """One request, from its plan to its answer."""
        said = [self.operator.scan(), self.plan_records()]
        if self.operator.random.random() < 0.3:
            said.append(self.create_again())
        steps = (self.apply_records, self.hours, self.operator.scan, self.delete_records, self.answer_records)
        return "; ".join((*said, *(step() for step in steps)))

    def _some(self) -> list[Topic]:
        return self.topics[-EACH:]  # of more, several threads would work on them, and a schedule must repeat

    def create_again(self) -> str:
        """A partition is deleted, and another one has its name, at rest with as many ledgers."""
        world, topics = self.world, self.world.model.topics
        shadowed = {Topic.parse(one.shadow_of) for one in topics.values() if one.shadow_of}
        resting = [one for one in topics.values() if one.name not in shadowed and one.ledgers and not one.away]
        there = [one.name for one in resting if one.name in self.topics]
        if not there or world.full():
            return "no partition to create again"
        name = self.operator.random.choice(there)
        world.delete_topic(topics[name])
        topic = topics[name] = ModelTopic(name, [self._ledger(name, 2) for _ in range(4)])
        topic.moved = topic.pinned = True
        world.store(topic)
        self.counts["partitions created again"] += 1
        return f"{name} is created again with {topic.ledgers}"


def _mark(data: bytes) -> MessagePosition | None:
    """The low watermark that a topic keeps."""
    return _highest(managed_ledger.decode(data).properties)


def _highest(properties: Mapping[str, str]) -> MessagePosition | None:
    """Of all the positions that brokers were asked to keep, and of the one that a run wrote."""
    found = [MessagePosition.parse(text) for name, text in properties.items() if name.startswith(LOW_WATERMARK)]
    return max(found, default=None)
