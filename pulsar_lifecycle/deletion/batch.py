"""The second phase: decide every message of the deletion queue afresh, archive, delete, confirm, journal, acknowledge.

Belongs here: the order of these steps for one batch. Not here: what may go (``deciding.py``).

A batch that is killed at any point repeats harmlessly: an archived ledger that still exists is decided again, a deleted
one is found gone and acknowledged; whose deletion that was, the next run writes down (``journal/in_doubt.py``). What
fails goes to the retry topic before its message is acknowledged. So does what must wait: brokers hand out no more than
so many unacknowledged messages, and whatever stayed at the head would hide what is behind it.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence

from pulsar_lifecycle.deletion import offloaded_copies
from pulsar_lifecycle.deletion.deciding import decide
from pulsar_lifecycle.deletion.decision import Decision, Run
from pulsar_lifecycle.deletion.decision_row import journal_row
from pulsar_lifecycle.deletion.waiting import STAYS, send_back, stay
from pulsar_lifecycle.errors import LifecycleError
from pulsar_lifecycle.formats.deletion_message import LedgerType
from pulsar_lifecycle.formats.retry_letter import WAITING_RUN
from pulsar_lifecycle.journal.in_doubt import NOT_KNOWN, TWIN
from pulsar_lifecycle.ports import Archived, Deletion, NodeDeletion, Received
from pulsar_lifecycle.ports.bundle import Ports
from pulsar_lifecycle.runs import control
from pulsar_lifecycle.throttle import RateBudget, mind_latency
from pulsar_lifecycle.values.codes import Code
from pulsar_lifecycle.values.outcomes import Outcome, Phase, Waiting


def work_off(run: Run, ports: Ports, limit: int, wait_ms: int) -> Iterable[Decision]:
    """Take up to ``limit`` messages until the queue gives none for ``wait_ms``; yields decisions once they are durable.

    What this very run sent back because it must wait, and is handed out again, stays where it is: no run takes
    anything twice. Raises Paused, LeaseLost or Overloaded between batches; nothing of a batch is then half done.
    """
    budgets = Budgets(run, ports)
    taken = 0
    seen: set[bytes] = set()
    while taken < limit:
        control.check_not_paused(ports.store)
        mind_latency(ports.store.latency_ms(), run.slow_above_ms, run.stop_above_ms, ports.clock)
        messages = ports.queue.receive(min(run.batch, limit - taken), wait_ms)
        fresh = [m for m in messages if m.message_id not in seen]
        if not fresh:
            return
        seen.update(m.message_id for m in fresh)
        own = [m for m in fresh if m.properties.get(WAITING_RUN) == run.run_id]
        ports.queue.release(own)
        others = [m for m in fresh if m.properties.get(WAITING_RUN) != run.run_id]
        taken += len(others)
        if others:
            yield from delete_batch(run, ports, others, budgets)


class Budgets:
    """One worker's share of the cluster-wide budgets: deletions (a ledger, a pair of objects) and bytes per second."""

    def __init__(self, run: Run, ports: Ports) -> None:
        self._ledgers = RateBudget(run.deletes_per_second, ports.clock)
        self._bytes = RateBudget(run.bytes_per_second, ports.clock)

    def wait(self) -> None:
        """Wait until what was deleted before is paid for."""
        self._ledgers.take(0)
        self._bytes.take(0)

    def take(self, doomed: Iterable[Decision]) -> None:
        """Take what these deletions cost."""
        lengths = [d.length for d in doomed]
        self._ledgers.take(len(lengths))
        self._bytes.take(sum(lengths))


def delete_batch(run: Run, ports: Ports, messages: Sequence[Received], budgets: Budgets) -> list[Decision]:
    """Decide, archive, delete, confirm, journal and acknowledge one batch; see the module docstring for the order."""
    decisions = [Decision(m) for m in messages]
    budgets.wait()  # wait here, not between a decision and its deletion
    decide(run, ports, decisions)
    doomed = {d.path: d for d in reversed(decisions) if not d.outcome}
    twins = [d for d in decisions if not d.outcome and doomed[d.path] is not d]
    ledgers = {path: d for path, d in doomed.items() if d.info.ledger_type is LedgerType.LEDGER}
    copies = [d for d in doomed.values() if d.info.ledger_type is LedgerType.OFFLOAD_LEDGER]
    if doomed:
        budgets.take(doomed.values())
    stopped = _delete(run, ports, ledgers) if ledgers else None
    stopped = _delete_copies(run, ports, copies, stopped) if copies else stopped
    for twin in twins:
        first = doomed[twin.path]
        assert first.outcome is not None
        outcome = Outcome.GONE if first.outcome in (Outcome.DELETED, Outcome.GONE) else first.outcome
        twin.decide(outcome, Code.TWIN, TWIN)
        twin.waiting = first.waiting
    _reconsume(run, ports, [d for d in decisions if d.outcome == Outcome.RETRYING])
    for d in decisions:
        if d.outcome == Outcome.WAITING and not d.message.topic:
            d.outcome = Outcome.NOT_DELETED
    if not stopped:
        send_back(run, ports, [d for d in decisions if d.outcome == Outcome.WAITING and d.waiting not in STAYS])
    ports.journal.record([journal_row(run, d, ports.clock.now_ms()) for d in decisions])
    ports.queue.acknowledge([d.message for d in decisions if d.outcome != Outcome.WAITING or d.sent_back])
    ports.queue.release([d.message for d in decisions if d.outcome == Outcome.WAITING and not d.sent_back])
    if stopped:
        raise stopped
    return decisions


def _delete(run: Run, ports: Ports, doomed: Mapping[str, Decision]) -> LifecycleError | None:
    """Archive, delete and confirm; every doomed ledger has its outcome then. Returns what stops the run, if anything.

    What stops a run is no message's fault: then what was not deleted waits, and no retry of it is counted.
    """
    control.check_not_paused(ports.store)
    _archive(run, ports, doomed.values())
    outcomes: dict[str, NodeDeletion] = {}
    stopped: LifecycleError | None = None
    try:
        results = ports.store.delete_many(
            [Deletion(d.path, d.node.stat.version) for d in doomed.values() if d.node], run.guard
        )
        outcomes = {r.path: r.outcome for r in results}
    except LifecycleError as error:  # part of it may be done: what is there now says which
        stopped = error
    try:
        _confirm(ports, doomed, outcomes, Outcome.WAITING if stopped else Outcome.RETRYING)
    except LifecycleError as error:
        stopped = stopped or error
        for d in doomed.values():
            d.wait(Waiting.STOPPED, f"{NOT_KNOWN}: {error}", Code.OUTCOME_UNKNOWN)
    return stopped


def _delete_copies(
    run: Run, ports: Ports, copies: Sequence[Decision], stopped: LifecycleError | None
) -> LifecycleError | None:
    """As :func:`_delete`, for offloaded copies; no archive can hold them, so the journal says what they were, before.

    The ledgers of the batch are done by then: what goes wrong here is returned, never raised.
    """
    try:
        if stopped:
            raise stopped
        control.check_not_paused(ports.store)
        now = ports.clock.now_ms()
        ports.journal.record([journal_row(run, d, now, Phase.ARCHIVE, Outcome.DELETING) for d in copies])
    except LifecycleError as error:
        for d in copies:
            d.wait(Waiting.STOPPED, f"the run was stopped: {error}")
        return error
    return offloaded_copies.delete(run, ports, copies)


def _reconsume(run: Run, ports: Ports, failed: Sequence[Decision]) -> None:
    """Send what failed to the retry topic, or to the dead-letter topic; what could not be sent waits."""
    if not failed:
        return
    try:
        postponed = ports.queue.reconsume_later([d.message for d in failed], run.retry_delay_ms, run.max_retries)
    except LifecycleError as error:
        stay(failed, f"the retry topic could not be asked: {error}")
        return
    for d, one in zip(failed, postponed, strict=True):
        d.reconsume_times = one.times
        if one.error is not None:
            stay([d], f"it could not be sent to the retry topic: {one.error}" if d.message.topic else one.error)
        elif one.dead:
            d.outcome, d.reason = Outcome.DEAD_LETTERED, f"{d.reason}; {run.max_retries} retries did not help"


def _archive(run: Run, ports: Ports, doomed: Iterable[Decision]) -> None:
    now = ports.clock.now_ms()
    ports.journal.archive(
        [
            Archived(
                run.run_id,
                run.cluster,
                d.info.ledger_id,
                d.path,
                d.node.data,
                d.node.stat.version,
                d.node.stat.czxid,
                d.node.stat.ctime,
                now,
            )
            for d in doomed
            if d.node
        ]
    )


def _confirm(
    ports: Ports, doomed: Mapping[str, Decision], outcomes: Mapping[str, NodeDeletion], failed: Outcome
) -> None:
    """Give every doomed ledger its outcome by what is there now, whatever the deletion said.

    ``outcomes`` is empty where the deletion was cut short: what is absent then counts as deleted by this run. What is
    still there gets the outcome ``failed``.
    """
    ports.store.sync("/")
    for path, node in zip(doomed, ports.store.read(list(doomed)), strict=True):
        d, said = doomed[path], outcomes.get(path, NodeDeletion.DELETED)
        if node is None and said is NodeDeletion.DELETED:
            if d.copy_deletion:
                why = "its topic lists its copy in BookKeeper as deleted, and its offloaded one is whole"
                d.decide(Outcome.DELETED, Code.OFFLOADED_WHOLE, why)
            else:
                d.decide(Outcome.DELETED, Code.UNREFERENCED, "nothing refers to it")
        elif node is None:
            d.decide(Outcome.GONE, Code.NOT_THERE, "someone else deleted it at the same moment")
        else:
            if said is NodeDeletion.CHANGED:
                d.decide(failed, Code.CHANGED_MEANWHILE, "its z-node was changed meanwhile")
            else:
                d.decide(failed, Code.STILL_THERE, "it was not deleted")
            d.waiting = Waiting.STOPPED if failed == Outcome.WAITING else None
