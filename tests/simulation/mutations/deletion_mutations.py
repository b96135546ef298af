"""Deliberate faults of deletion runs, undo, redrive and ``explain``.

Belongs here: one context manager per mutation, by what the product would do. Not here: how many seeds each may take
(``test_mutations.py``).
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import AbstractContextManager, contextmanager
from dataclasses import replace
from typing import Any
from unittest.mock import patch

from pulsar_lifecycle.deletion import batch, deciding, owner_check, workers
from pulsar_lifecycle.deletion.decision import Decision, Run
from pulsar_lifecycle.deletion.run_evidence import Evidence
from pulsar_lifecycle.deletion.undo import undo_run as undoing
from pulsar_lifecycle.errors import OutcomeUnknown
from pulsar_lifecycle.inspect import ledger_history
from pulsar_lifecycle.journal import in_doubt
from pulsar_lifecycle.ports import Deletion, DeletionResult, Node, NodeDeletion, Received, ReplicaCheck, Unread
from pulsar_lifecycle.ports.bundle import Ports
from pulsar_lifecycle.scan import epochs as scan_epochs
from pulsar_lifecycle.values.codes import Code
from pulsar_lifecycle.values.outcomes import Outcome
from pulsar_lifecycle.values.referenced import Referenced
from tests.kit.fakes.metadata_store import FakeStore
from tests.simulation.mutations.mutation import Mutation
from tests.simulation.world.ports import SimStore
from tests.simulation.world.queue import SimDeadLetters


def skip_owner_check() -> AbstractContextManager[Any]:
    """What a scan has seen is good enough."""
    return patch.object(deciding, "look_at_owners", lambda run, ports, live: None)


@contextmanager
def acknowledge_first() -> Iterator[None]:
    """Acknowledge what was decided, then delete and journal it."""
    real = batch.delete_batch

    def eager(run: Run, ports: Ports, messages: Sequence[Received], budgets: Any) -> list[Decision]:
        ports.queue.acknowledge(messages)
        return real(run, ports, messages, budgets)

    with patch.object(batch, "delete_batch", eager):
        yield


@contextmanager
def acknowledge_before_journal() -> Iterator[None]:
    """Acknowledge after deleting, and journal last."""
    real = batch.delete_batch

    def eager(run: Run, ports: Ports, messages: Sequence[Received], budgets: Any) -> list[Decision]:
        journal = ports.journal

        class Late:
            def record(self, rows: Sequence[Any]) -> str:
                ports.queue.acknowledge(messages)
                return journal.record(rows)

            def archive(self, nodes: Sequence[Any]) -> str:
                return journal.archive(nodes)

        ports.journal = Late()
        try:
            return real(run, ports, messages, budgets)
        finally:
            ports.journal = journal

    with patch.object(batch, "delete_batch", eager):
        yield


@contextmanager
def _evidence(change: Callable[[Evidence], Evidence]) -> Iterator[None]:
    real = batch.work_off

    def working(run: Run, *rest: Any) -> Any:
        return real(replace(run, evidence=change(run.evidence)), *rest)

    with patch.object(workers, "work_off", working):
        yield


@contextmanager
def drop_grace() -> Iterator[None]:
    """A ledger may go as soon as nothing refers to it."""

    def ungracious(evidence: Evidence) -> Evidence:
        return replace(evidence, context=replace(evidence.context, grace=0))

    real = scan_epochs._context

    def at_once(*given: Any) -> Any:
        context, *rest = real(*given)
        return replace(context, grace=0), *rest

    with _evidence(ungracious), patch.object(scan_epochs, "_context", at_once):
        yield


def trust_the_message() -> AbstractContextManager[Any]:
    """Whoever sent an intent knew that nothing refers to the ledger."""
    return _evidence(lambda evidence: replace(evidence, refs=Referenced(), earlier=Referenced(), started_at=1 << 60))


def ignore_earlier_scan() -> AbstractContextManager[Any]:
    """One scan is enough."""
    return _evidence(
        lambda evidence: replace(evidence, earlier=Referenced(), earlier_started_at=1 << 60, earlier_czxid=1 << 60)
    )


def no_version_guard() -> AbstractContextManager[Any]:
    """Delete whatever version a z-node has."""
    return _deleting(lambda deletions, guard, store: ([replace(d, version=-1) for d in deletions], guard))


def no_lease_guard() -> AbstractContextManager[Any]:
    """Delete whoever has the lease."""

    def unguarded(deletions: Sequence[Deletion], guard: tuple[str, int], store: FakeStore) -> Any:
        stat = store.server.stat(guard[0])
        return deletions, (guard[0], stat.version if stat else guard[1])

    return _deleting(unguarded)


@contextmanager
def _deleting(change: Callable[[Any, Any, Any], Any]) -> Iterator[None]:
    real, outcome = SimStore._transaction, SimStore._outcome

    def transaction(self: SimStore, deletions: Sequence[Deletion], guard: tuple[str, int]) -> Any:
        return real(self, *change(deletions, guard, self))

    def lenient(self: SimStore, one: Deletion, absent: str) -> str:
        return outcome(self, one, absent) if one.version != -1 else ("" if self.server.stat(one.path) else absent)

    with patch.object(SimStore, "_transaction", transaction), patch.object(SimStore, "_outcome", lenient):
        yield


@contextmanager
def lost_means_not_deleted() -> Iterator[None]:
    """A connection lost during a deletion is taken for a deletion that was not done, and nobody looks."""
    real = SimStore.delete_many

    def hasty(self: SimStore, deletions: Sequence[Deletion], guard: tuple[str, int]) -> list[DeletionResult]:
        def once() -> Any:
            return self._transaction(deletions, guard)

        try:
            self._effect("delete_many", tuple(d.path for d in deletions), once)
        except OutcomeUnknown:
            self.hasty = True
            return [DeletionResult(d.path, NodeDeletion.GONE) for d in deletions]
        return real(self, deletions, guard)

    def confirm(
        ports: Ports, doomed: Mapping[str, Decision], outcomes: Mapping[str, NodeDeletion], failed: Outcome
    ) -> None:
        for path, d in doomed.items():
            if outcomes.get(path) == "lost":
                d.decide(Outcome.RETRYING, Code.STILL_THERE, "the connection was lost: it was not deleted")
        confirmed(ports, doomed, outcomes, failed)

    confirmed = batch._confirm
    with patch.object(SimStore, "delete_many", hasty), patch.object(batch, "_confirm", confirm):
        yield


@contextmanager
def unreadable_is_absent() -> Iterator[None]:
    """A z-node that may not be read is not there."""

    def blind(node: Node | Unread | None) -> Node | None:
        return node if isinstance(node, Node) else None

    with patch.object(owner_check, "_readable", blind):
        yield


@contextmanager
def skip_sync() -> Iterator[None]:
    """Read whatever the server one happens to be connected to knows."""
    with patch.object(SimStore, "sync", lambda self, path="/": None):
        yield


@contextmanager
def no_archive() -> Iterator[None]:
    """Delete without having kept what is deleted."""
    with patch.object(batch, "_archive", lambda run, ports, doomed: None):
        yield


@contextmanager
def retry_uncopied() -> Iterator[None]:
    """What failed is acknowledged without a copy in the retry topic."""

    def forgetful(run: Run, ports: Ports, failed: Sequence[Decision]) -> None:
        return None

    with patch.object(batch, "_reconsume", forgetful):
        yield


@contextmanager
def waiting_is_done() -> Iterator[None]:
    """What must wait is acknowledged, and waits nowhere."""

    def hasty(run: Run, ports: Ports, waits: Sequence[Decision]) -> None:
        for d in waits:
            d.sent_back = True
            d.waiting_since = 0

    with patch.object(batch, "send_back", hasty):
        yield


def wait_at_the_head() -> AbstractContextManager[Any]:
    """What must wait stays where it is, unacknowledged."""
    return patch.object(batch, "send_back", lambda run, ports, waits: None)


@contextmanager
def waiting_is_counted() -> Iterator[None]:
    """What must wait is retried like what failed."""

    def counting(run: Run, ports: Ports, waits: Sequence[Decision]) -> None:
        for d, sent in zip(
            waits,
            ports.queue.reconsume_later([d.message for d in waits], run.retry_delay_ms, run.max_retries),
            strict=True,
        ):
            d.sent_back = sent.error is None
            d.waiting_since = 0

    with patch.object(batch, "send_back", counting):
        yield


@contextmanager
def no_pause() -> Iterator[None]:
    """Go on while paused."""
    from pulsar_lifecycle.runs import control

    with patch.object(control, "check_not_paused", lambda store: None):
        yield


@contextmanager
def no_budget() -> Iterator[None]:
    """Delete as fast as it goes."""
    with patch.object(batch.Budgets, "take", lambda self, doomed: None):
        yield


@contextmanager
def no_latency_guard() -> Iterator[None]:
    """Go on while ZooKeeper is slow."""
    with patch.object(batch, "mind_latency", lambda *given: None):
        yield


def in_doubt_stays_unsaid() -> AbstractContextManager[Any]:
    """What a run deleted and could not journal is nobody's business."""
    return patch.object(in_doubt, "resolve", lambda *given: 0)


def undo_without_asking() -> AbstractContextManager[Any]:
    """An undo takes for granted that the bookies have everything still."""

    def spread(cluster: Any, reader: Any) -> Any:
        return lambda ledgers: [ReplicaCheck(1, 1, 1, 0, 0, 0, {}, {}) for _ in ledgers]

    return patch.object(undoing, "_spread", spread)


@contextmanager
def redrive_unsaid() -> Iterator[None]:
    """Dead letters are taken before they are sent again."""
    real = SimDeadLetters.take

    def take(self: SimDeadLetters, limit: int, wait_ms: int) -> list[Received]:
        taken = real(self, limit, wait_ms)
        self.acknowledge(taken)
        return taken

    with patch.object(SimDeadLetters, "take", take):
        yield


@contextmanager
def _explained_by(change: Callable[[Evidence], Evidence]) -> Iterator[None]:
    """What ``explain`` goes by is not what a deletion run goes by."""
    real = ledger_history.evidence_at
    with patch.object(ledger_history, "evidence_at", lambda *given: change(real(*given))):
        yield


def explain_without_grace() -> AbstractContextManager[Any]:
    """``explain`` lets young ledgers go."""
    return _explained_by(lambda evidence: replace(evidence, context=replace(evidence.context, grace=0)))


def explain_without_marks() -> AbstractContextManager[Any]:
    """``explain`` does not know what our first phase took off lists."""
    return _explained_by(lambda evidence: replace(evidence, marked={}))


DELETION: Mapping[str, Mutation] = {
    "skip the owner check": skip_owner_check,
    "acknowledge before deleting": acknowledge_first,
    "acknowledge before journalling": acknowledge_before_journal,
    "drop the grace period": drop_grace,
    "trust the message instead of the covered epoch": trust_the_message,
    "delete without version guard": no_version_guard,
    "delete without lease guard": no_lease_guard,
    "count a lost connection as not deleted": lost_means_not_deleted,
    "ignore the earlier scan": ignore_earlier_scan,
    "treat unreadable as absent when asking the owner": unreadable_is_absent,
    "skip sync": skip_sync,
    "delete without archiving": no_archive,
    "acknowledge what was not copied to the retry topic": retry_uncopied,
    "acknowledge what must wait": waiting_is_done,
    "leave what must wait at the head": wait_at_the_head,
    "count what must wait as a retry": waiting_is_counted,
    "go on while paused": no_pause,
    "no budget": no_budget,
    "go on while ZooKeeper is slow": no_latency_guard,
    "never journal for a run that ended": in_doubt_stays_unsaid,
    "undo without asking the bookies": undo_without_asking,
    "acknowledge dead letters before they are sent again": redrive_unsaid,
    "explain young ledgers away": explain_without_grace,
    "explain without what our first phase took off lists": explain_without_marks,
}
