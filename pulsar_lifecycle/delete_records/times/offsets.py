"""Where the offsets of a request come to, as far as entries must be read for that; and how much stays below them.

Belongs here: whose entries are read, and what a problem with them makes of a partition. Not here: reading them
(``time_offsets.py``). Most offsets need none: a position without a batch index is where it says, and the end is known.
"""

from __future__ import annotations

from collections.abc import Collection, Mapping
from dataclasses import replace

from pulsar_lifecycle.bundles.placing import TRANSACTION_BUFFERS
from pulsar_lifecycle.delete_records.cut_rules import Cut, Refusal, cursors_behind
from pulsar_lifecycle.delete_records.partition import PartitionView
from pulsar_lifecycle.delete_records.request import Offset, Options, Timestamp, TopicPartition
from pulsar_lifecycle.delete_records.times.cut_messages import (
    ChunkedMessage,
    begun_below,
    cut_at_once,
    goes_on,
    goes_on_at,
)
from pulsar_lifecycle.delete_records.times.publish_times import Counts
from pulsar_lifecycle.delete_records.times.readable_ledgers import ReadableLedger, TopicEntryReader, readable_ledgers
from pulsar_lifecycle.delete_records.times.time_offsets import (
    OffsetProblem,
    Question,
    ResolvedOffset,
    count_between,
    resolve,
)
from pulsar_lifecycle.errors import CorruptFormat, LifecycleError, Refused, StoreError
from pulsar_lifecycle.formats.managed_ledger import LedgerInfo, ManagedLedgerInfo
from pulsar_lifecycle.model import MANAGED_LEDGERS_ROOT, MessagePosition, Topic
from pulsar_lifecycle.ports.bundle import Ports
from pulsar_lifecycle.runs.cluster import Cluster
from pulsar_lifecycle.values.codes import Why
from pulsar_lifecycle.values.plans.delete_records_plan import RecordsError

_ERRORS = {
    OffsetProblem.BEYOND_END: RecordsError.OUT_OF_RANGE,
    OffsetProblem.NO_SUCH_LEDGER: RecordsError.NO_SUCH_POSITION,
    OffsetProblem.NO_SUCH_BATCH_INDEX: RecordsError.NO_SUCH_POSITION,
    OffsetProblem.INSIDE_A_MESSAGE: RecordsError.NO_SUCH_POSITION,
    OffsetProblem.NOT_A_MESSAGE: RecordsError.UNREAD,
    OffsetProblem.UNREADABLE: RecordsError.UNREAD,
    OffsetProblem.NO_OBJECT_STORE: RecordsError.UNREAD,
}


def read_offsets(
    cluster: Cluster,
    ports: Ports,
    views: Mapping[TopicPartition, PartitionView],
    offsets: Mapping[TopicPartition, Offset],
    options: Options,
) -> dict[TopicPartition, ResolvedOffset | Refusal]:
    """What the entries of partitions say, where they are needed: all below is read then.

    For a time, a batch index, cursors that are to be moved past what may be delayed, where transactions are used, and
    where a chunked message lies across the position.
    """
    used = _with_transactions(ports, views)
    others: dict[TopicPartition, tuple[MessagePosition, Offset]] = {}
    asked: dict[TopicPartition, tuple[MessagePosition, Offset]] = {}
    for topic, view in views.items():
        offset = offsets[topic]
        position = offset if isinstance(offset, MessagePosition) else view.end
        if view.end is None or view.first is None or position is None or position > view.end:
            continue
        behind = cursors_behind(view, position) if options.move_cursors else {}
        if (
            isinstance(offset, Timestamp)
            or position.batch_index
            or behind
            or (topic.namespace in used and position > view.first)
        ):
            asked[topic] = position, offset
        elif _inside(view, position):
            others[topic] = position, offset
    asked |= {topic: others[topic] for topic in _across(cluster, ports, views, others)}
    ledgers = _ledgers_of(cluster, ports, {topic: views[topic] for topic in asked})
    questions: dict[TopicPartition, Question] = {}
    found: dict[TopicPartition, ResolvedOffset | Refusal] = {}
    for topic, (position, offset) in asked.items():
        own, start = ledgers[topic], views[topic].first
        if isinstance(own, LifecycleError):
            found[topic] = Refusal.of(RecordsError.UNREAD, own)
        elif start is not None:
            by_time = offset.ms if isinstance(offset, Timestamp) else None
            questions[topic] = Question(topic, own, start, by_time, None if by_time is not None else position)
    for (topic, _), answer in zip(questions.items(), resolve(cluster, list(questions.values())), strict=True):
        found[topic] = _open_end(views[topic], answer) or _refusal(answer) or answer
    return found


def _inside(view: PartitionView, position: MessagePosition) -> bool:
    """Whether there are, or may be, messages on both sides of a position."""
    if view.first is None or view.end is None or position <= view.first:
        return False
    return position < view.end or (view.unmeasured is not None and position == view.end)


def _open_end(view: PartitionView, answer: ResolvedOffset) -> Refusal | None:
    """What is open below may end in a last ledger that nobody can read to its end."""
    still_open = answer.unfinished_transactions or answer.unfinished_chunks
    return Refusal(RecordsError.UNREAD, view.unmeasured) if view.unmeasured and still_open else None


def _across(
    cluster: Cluster,
    ports: Ports,
    views: Mapping[TopicPartition, PartitionView],
    positions: Mapping[TopicPartition, tuple[MessagePosition, Offset]],
) -> list[TopicPartition]:
    """Topics where a message is seen to lie across the position, or nobody can look."""
    ledgers = _ledgers(cluster, ports, {topic: _beside(views[topic], at) for topic, (at, _) in positions.items()})
    questions: list[Question] = []
    found: list[TopicPartition] = []
    for topic, (position, _) in positions.items():
        own, start = ledgers[topic], views[topic].first
        if isinstance(own, LifecycleError):
            found.append(topic)
        elif start is not None:
            questions.append(Question(topic, own, start, position=position))
    looks = zip(questions, cut_at_once(cluster, questions), strict=True)
    return found + [question.topic for question, cut in looks if cut]


def _beside(view: PartitionView, position: MessagePosition) -> ManagedLedgerInfo:
    """The list of a partition, cut down to the ledgers of the two entries that a position lies between."""
    below = [e.ledger_id for e in view.extents if e.entries and MessagePosition(e.ledger_id, 0) < position]
    above = [e.ledger_id for e in view.extents if e.entries and MessagePosition(e.ledger_id, e.entries) > position]
    beside = {*below[-1:], *above[:1]}
    return replace(view.info, ledgers=tuple(item for item in view.info.ledgers if item.ledger_id in beside))


def counts_between(
    cluster: Cluster, ports: Ports, cuts: Mapping[TopicPartition, tuple[PartitionView, Cut]]
) -> dict[TopicPartition, Counts]:
    """How much remains readable below each low watermark; a partition is missing where that cannot be read."""
    inexact = {topic: pair for topic, pair in cuts.items() if not pair[1].exact}
    ledgers = _ledgers_of(cluster, ports, {topic: view for topic, (view, _) in inexact.items()})
    spans = [
        (topic, own, cut.first_readable, cut.low_watermark)
        for topic, (_, cut) in inexact.items()
        if not isinstance(own := ledgers[topic], LifecycleError)
    ]
    counted = zip(spans, count_between(cluster, spans), strict=True)
    return {span[0]: counts for span, counts in counted if isinstance(counts, Counts)}


def _ledgers_of(
    cluster: Cluster, ports: Ports, views: Mapping[TopicPartition, PartitionView]
) -> dict[TopicPartition, tuple[ReadableLedger, ...] | LifecycleError]:
    """All that partitions list; of a last ledger whose length nobody knows, nothing but where it begins."""
    infos = {topic: replace(v.info, ledgers=_measured(v)) for topic, v in views.items()}
    found = _ledgers(cluster, ports, infos)
    for topic, view in views.items():
        own = found[topic]
        if view.unmeasured and not isinstance(own, LifecycleError):
            found[topic] = (*own, ReadableLedger(view.extents[-1].ledger_id, -1, 0, None))
    return found


def _measured(view: PartitionView) -> tuple[LedgerInfo, ...]:
    last = view.extents[-1].ledger_id if view.unmeasured else None
    return tuple(item for item in view.info.ledgers if item.ledger_id != last)


def _ledgers(
    cluster: Cluster, ports: Ports, infos: Mapping[TopicPartition, ManagedLedgerInfo]
) -> dict[TopicPartition, tuple[ReadableLedger, ...] | LifecycleError]:
    root = cluster.settings.bookkeeper.ledgers_root
    found = readable_ledgers(ports, root, list(infos.values())) if infos else []
    return dict(zip(infos, found, strict=True))


def cut_since(
    ports: Ports,
    root: str,
    view: PartitionView,
    position: MessagePosition,
    end: MessagePosition,
    unfinished: Collection[str],
) -> Refusal | None:
    """Why what was a position of a partition is none any more: a chunked message was on its way.

    ``end``: the partition's end when that was looked at; ``unfinished``: UUIDs of messages that had begun below the
    position then, and had not ended, as far as anybody read. Raises what the stores and the bookies raise.
    """
    if not _inside(view, position) or view.first is None or view.end is None:
        return None
    if view.end <= end and view.unmeasured is None:
        return None
    entries, start = TopicEntryReader(ports.reader, ports.objects), view.first

    def question(info: ManagedLedgerInfo) -> Question:
        (own,) = readable_ledgers(ports, root, [info])
        if isinstance(own, LifecycleError):
            raise own
        return Question(view.topic, own, start, position=position)

    try:
        near = question(_beside(view, position))
        begun = begun_below(near, entries)
        messages = {ChunkedMessage.of(uuid) for uuid in unfinished} | ({begun} if begun else set())
        cut = position == end and (goes_on_at(near, entries) or begun is not None)
        cut = cut or (bool(messages) and goes_on(messages, question(view.info), end, entries))
    except (CorruptFormat, Refused, StoreError) as error:
        return Refusal.of(RecordsError.UNREAD, error)
    if not cut:
        return None
    text = f"a chunked message that was on its way goes on at {position} or above it, and would be lost: plan again"
    return Refusal(_ERRORS[OffsetProblem.INSIDE_A_MESSAGE], Why(OffsetProblem.INSIDE_A_MESSAGE, text))


def _with_transactions(ports: Ports, views: Mapping[TopicPartition, PartitionView]) -> set[object]:
    """Namespaces in which transactions were used."""
    namespaces = list(dict.fromkeys(topic.namespace for topic in views))
    names = [name for topic in TRANSACTION_BUFFERS for name in (topic, f"{topic}-partition-0")]
    pairs = [(namespace, Topic(namespace, name)) for namespace in namespaces for name in names]
    nodes = ports.store.read([f"{MANAGED_LEDGERS_ROOT}/{topic.managed_ledger}" for _, topic in pairs])
    return {namespace for (namespace, _), node in zip(pairs, nodes, strict=True) if node is not None}


def _refusal(answer: ResolvedOffset) -> Refusal | None:
    if answer.problem:
        return Refusal(_ERRORS[answer.problem], Why(answer.problem, answer.detail))
    if answer.cut_message:
        text = (
            f"a chunked message that begins at {answer.cut_message} goes on at {answer.position} or above it, and "
            f"would be lost: ask for {answer.cut_message}, or for a position behind its last part"
        )
        return Refusal(_ERRORS[OffsetProblem.INSIDE_A_MESSAGE], Why(OffsetProblem.INSIDE_A_MESSAGE, text))
    if answer.unfinished_transactions:
        text = (
            f"{answer.unfinished_transactions} transactions with messages below it are open: wait until they are "
            "committed or aborted"
        )
        return Refusal.plain(RecordsError.TRANSACTION_BELOW, text)
    return None


def out_of_order(answer: ResolvedOffset) -> Refusal | None:
    """Why a time cannot be trusted: publish times go back within what a search over times would delete."""
    if answer.disorder is None:
        return None
    risk = answer.disorder.at_risk
    first = answer.disorder.first_at_risk
    if first is None:
        text = (
            "publish times go back below it, and no message is at risk: none below was published at or after the time; "
            f"--any-order cuts at {answer.position}"
        )
        return Refusal.plain(RecordsError.NOT_MONOTONIC, text)
    text = (
        f"publish times go back below it: a search over times would cut at {answer.disorder.searched} and delete "
        f"{risk.messages} messages from {first.position} on that were published at or after the time; --any-order cuts "
        f"at {answer.position}, before all of them"
    )
    return Refusal.plain(RecordsError.NOT_MONOTONIC, text)
