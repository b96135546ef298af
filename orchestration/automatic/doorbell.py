"""The doorbell of the deletion queue: whether a deletion run is to be started, or why none is.

It looks and takes nothing: the run that it starts consumes the durable subscription. Not here: what else goes by itself
(``automatic/automation.py``), whose sensor looks here.
"""

import json
from dataclasses import dataclass, field

import dagster as dg

from assets.dead_letters import open_reader
from assets.deletion import DELETING, left_alone
from assets.names import CLUSTER
from orchestration.automatic.at_work import ACTIVE, BY_ITSELF, DELETION, at_work, end_dead, lease_of, may_be_dead
from pulsar_lifecycle.deletion_queue.queue_topics import DELETION_TOPIC, RETRY_TOPIC
from pulsar_lifecycle.errors import LifecycleError
from pulsar_lifecycle.formats.retry_letter import due_at
from pulsar_lifecycle.model import Position, Topic
from pulsar_lifecycle.ports import Node, QueueReader
from pulsar_lifecycle.runs.cluster import Cluster
from pulsar_lifecycle.runs.control import LEASE, check_not_paused, holder_of
from pulsar_lifecycle.runs.plan_checks import SWITCHED_OFF

TOPICS = (DELETION_TOPIC, RETRY_TOPIC)

RING_EVERY_LOOKS = 5
"""A failed run key never rings again, so keys change with time: after so many looks."""

RING_AGAIN_LOOKS = 20
"""While as many messages wait as at the last ring: they cannot be decided yet, and every ring scans."""

TURN_LOOKS = 3
"""So long after a deletion run ended it does not ring: what waits for the lease has its turn."""

PAGE = 500
"""Messages of one partition that one tick looks at."""


def rung(
    context: dg.SensorEvaluationContext, where: Cluster, watch: "Watch", cluster: str, now: int, look_every: int
) -> dg.RunRequest | str:
    """The deletion run that is due at ``now`` (ms), or why none is; ``watch`` then knows what was seen.

    One is due while a message is: published, and its delay has passed. Dagster's storage does not notice that a run
    died with its host, and such a run holds its pools for ever: one that has said nothing for very long is marked as
    failed before it rings, if nobody has the lease.
    """
    if waits := left_alone(where):
        return waits
    mine = dg.RunsFilter(job_name=DELETING, statuses=list(ACTIVE), tags={CLUSTER: cluster})
    active = context.instance.get_runs(mine)
    if not all(may_be_dead(context.instance, run, now) for run in active):
        return "a run is at it"
    for other in at_work(context.instance, cluster, now):
        if lease_of(other) == DELETION and BY_ITSELF in other.tags:  # one by hand may wait for a deletion run
            return f"run {other.run_id} of {other.job_name} has its turn"
    if _ended_just_now(context.instance, DELETING, cluster, now, TURN_LOOKS * look_every):
        return "a deletion run has just ended: what else waits has its turn"
    if not where.settings.deletion.topicTwoPhaseDeletionEnabled:
        return SWITCHED_OFF
    try:
        with open_reader(where) as (_, reader):
            total, due, unread = watch.look(reader, now)
    except LifecycleError as error:
        return f"the queue could not be read: {error}"
    if not due:
        reason = f"none of {total} messages is due" if total else "the queue is empty"
        return f"nothing that could be read is due, and not all could: {unread}" if unread else reason
    if stopped := held_back(where, now):
        return stopped
    for run in context.instance.get_runs(mine) if active else ():  # one may have ended meanwhile
        if not may_be_dead(context.instance, run, now):
            return "a run is at it"
        context.log.warning(end_dead(context.instance, run))
    every = look_every * (RING_AGAIN_LOOKS if watch.rung == total else RING_EVERY_LOOKS)
    watch.rung = total
    context.log.info(f"{total} messages wait")  # not a tag: a run that is executed again would have it, too
    bucket = f"{every}-{now // (every * 1000)}"
    return dg.RunRequest(f"{DELETING}-{bucket}", job_name=DELETING)


def _ended_just_now(instance: dg.DagsterInstance, job: str, cluster: str, now: int, seconds: float) -> bool:
    """Whether the newest run of a job ended within so many seconds before ``now`` (ms)."""
    newest = instance.get_run_records(dg.RunsFilter(job_name=job, tags={CLUSTER: cluster}), limit=1)
    ended = newest[0].end_time if newest else None
    return ended is not None and 0 <= now / 1000 - ended < seconds


def held_back(where: Cluster, now: int) -> str | None:
    """Why a run would be refused once it had scanned, as far as can be told before the scan."""
    try:
        with where.ports(read_only=True) as ports:
            check_not_paused(ports.store)
            holder = ports.store.read([holder_of(LEASE)])[0]
        if holder is not None:
            who = holder.data.decode(errors="replace") if isinstance(holder, Node) else f"who ({holder.reason})"
            return f"another run is at it: {who}"
        return _unconfirmed(where, now)
    except LifecycleError as error:
        return str(error)


def _unconfirmed(where: Cluster, now: int) -> str | None:
    """Why no scan made now could be confirmed by an earlier one. Without any, a run is to make the first."""
    settings = where.settings
    declared = settings.bookkeeper.shared_with
    roots = None if declared is None else [root.name for root in declared]
    epochs = [e for e in where.lake.epochs(cluster=settings.cluster) if e.covers(roots)]
    if not epochs:
        return None
    wait = settings.orphans.confirm_after - (now - epochs[0].started_at) / 1000
    first = f"the first covered scan, {epochs[0].epoch_id}, is too young to confirm another"
    return f"{first}: nothing can be deleted for {wait:.0f} s" if wait > 0 else None


@dataclass
class Watch:
    """What the doorbell knows between ticks: how far it has looked in each partition, and what is due next there.

    ``parts``: partition -> (position looked up to, when (ms) the first message up to there is due). It only saves
    reading; without it everything that waits is looked at again. ``rung``: how many messages waited at the last ring.
    """

    parts: dict[str, tuple[Position, int | None]] = field(default_factory=dict[str, tuple[Position, int | None]])
    rung: int = -1

    @classmethod
    def parse(cls, cursor: str | None) -> "Watch":
        """A cursor that we did not write, or not in this form, is none."""
        try:
            stored = json.loads(cursor or "{}")
            parts = {name: (Position(*where), due) for name, (where, due) in stored["parts"].items()}
            return cls(parts, int(stored["rung"]))
        except (ValueError, KeyError, TypeError, AttributeError):
            return cls()

    def dump(self) -> str:
        """As the sensor's cursor: one entry a partition."""
        parts = {name: [[p.ledger_id, p.entry_id], due] for name, (p, due) in self.parts.items()}
        return json.dumps({"parts": parts, "rung": self.rung})

    def forget_all_but(self, parts: list[str]) -> None:
        """Drop partitions that are gone or have nothing left."""
        self.parts = {name: known for name, known in self.parts.items() if name in parts}

    def look(self, reader: QueueReader, now: int) -> tuple[int, bool, str | None]:
        """How many messages wait, whether one is due, and why a partition could not be read; None if all could."""
        waiting: dict[str, int] = {}
        due, unread = False, None
        for part in [part for topic in TOPICS for part in reader.partitions(topic)]:
            try:
                if count := reader.backlog(part):
                    waiting[str(part)] = count
                    due |= self.is_due(reader, part, now)
            except LifecycleError as error:
                unread = unread or str(error)
        self.forget_all_but(list(waiting))
        return sum(waiting.values()), due, unread

    def is_due(self, reader: QueueReader, part: Topic, now: int) -> bool:
        """Whether a message of this partition is due; looks at one page, behind what it knows already."""
        upto, due = self.parts.pop(str(part), (None, None))
        if due is not None and due <= now:  # it may be done meanwhile: look again, from the first that waits
            upto, due = None, None
        page = reader.waiting(part, upto, PAGE)
        first = min([due_at(m.properties, m.publish_time, now) for m in page.messages], default=None)
        if first is not None and first <= now:
            return True
        known = [at for at in (due, first) if at is not None]
        self.parts[str(part)] = (page.upto, min(known, default=None))
        return False
