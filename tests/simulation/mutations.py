"""Deliberate faults of the engine, to prove that the simulator bites.

Belongs here: one context manager per mutation. Not here: how many seeds each may take (``test_mutations.py``).
"""

from __future__ import annotations

from array import array
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import AbstractContextManager, contextmanager
from dataclasses import replace
from typing import Any
from unittest.mock import patch

from pulsar_lifecycle.copies import whole_copies
from pulsar_lifecycle.copies.offloaded_ledger import Location
from pulsar_lifecycle.deletion import batch, deletion_run, offloaded_copies, owner_check
from pulsar_lifecycle.deletion import workers as on_tasks
from pulsar_lifecycle.deletion.decision import Decision, ObjectSeen, Run
from pulsar_lifecycle.deletion.run_evidence import Evidence
from pulsar_lifecycle.deletion.undo import undo_run as undoing
from pulsar_lifecycle.errors import OutcomeUnknown
from pulsar_lifecycle.inspect import history
from pulsar_lifecycle.journal import in_doubt
from pulsar_lifecycle.metastore import walk
from pulsar_lifecycle.ports import Deletion, DeletionResult, Node, NodeDeletion, Received, ReplicaCheck, Unread
from pulsar_lifecycle.ports.bundle import Ports
from pulsar_lifecycle.records import owner_names
from pulsar_lifecycle.records.codes import Code
from pulsar_lifecycle.records.copies import bucket_of
from pulsar_lifecycle.records.outcomes import Outcome
from pulsar_lifecycle.records.referenced import Referenced
from pulsar_lifecycle.records.tables import Problem, Trouble
from pulsar_lifecycle.runs import caps
from pulsar_lifecycle.scan import epochs as scan_epochs
from pulsar_lifecycle.scan import evidence, history_check, snapshot_inquiry, stored_references
from pulsar_lifecycle.scan import snapshot_memory as plan_snapshots
from pulsar_lifecycle.scan.neighbours import Neighbours
from pulsar_lifecycle.scan.shrinkage import Limits
from pulsar_lifecycle.scan.snapshot_memory import Memory
from pulsar_lifecycle.topics import listed_ledgers, protection, snapshot
from pulsar_lifecycle.topics.write import TopicWrite
from pulsar_lifecycle.trimming import delete_topic, trim_rules, trim_run
from tests.kit.fakes.metadata_store import FakeStore
from tests.simulation.ports import SimDeadLetters, SimStore

Mutation = Callable[[], AbstractContextManager[Any]]


def skip_owner_check() -> AbstractContextManager[Any]:
    """What a scan has seen is good enough."""
    return patch.object(batch, "look_at_owners", lambda run, ports, live: None)


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

    with patch.object(on_tasks, "work_off", working):
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
            self.hasty = True  # pyright: ignore[reportAttributeAccessIssue]
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
def unreadable_is_gone_to_scans() -> Iterator[None]:
    """A scan takes a z-node that may not be read for one that is gone."""
    real = walk.scanned

    def blind(store: Any, paths: list[str], listed: Any) -> Any:
        for rows in real(store, paths, listed):
            for index, trouble in rows.troubles.items():
                if trouble.problem is Problem.UNREAD and trouble.error.startswith("no permission"):
                    rows.troubles[index] = Trouble(Problem.GONE, "")
            yield rows

    with patch.object(walk, "scanned", blind):
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
            d.sent_back = not sent.error
            d.waiting_since = 0

    with patch.object(batch, "send_back", counting):
        yield


@contextmanager
def trust_any_scan() -> Iterator[None]:
    """Act on the newest scan, covered or not."""

    def newest(cluster: Any, fingerprint: str) -> Any:
        epochs = cluster.lake.epochs(fingerprint)
        if not epochs:
            raise deletion_run.NotFound("no scan")
        return epochs[-1]

    with patch.object(deletion_run, "newest_epoch", newest), patch.object(evidence, "newest_epoch", newest):
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


@contextmanager
def skipped_children_ignored() -> Iterator[None]:
    """Take a listing for whole although its parent counts more children."""
    real = SimStore.children

    def agreeing(self: SimStore, paths: Sequence[str]) -> Any:
        return [replace(c, num_children=len(c.names)) if hasattr(c, "names") else c for c in real(self, paths)]

    with patch.object(SimStore, "children", agreeing):
        yield


@contextmanager
def compensate() -> Iterator[None]:
    """After a compare-and-set whose outcome is not known, write back what was there."""
    real = SimStore.write

    def write(self: SimStore, path: str, data: bytes, version: int, beside: str = "") -> Any:
        before = self.server.data(path) if self.server.stat(path) is not None else b""
        try:
            return real(self, path, data, version, beside)
        except OutcomeUnknown:
            if path.startswith("/managed-ledgers/"):
                real(self, path, before, -1)
            raise

    with patch.object(SimStore, "write", write):
        yield


def trim_past_cursors() -> AbstractContextManager[Any]:
    """Trim whatever is asked, wherever the cursors stand."""
    return patch.object(snapshot, "positions", lambda *given: {})


def in_doubt_stays_unsaid() -> AbstractContextManager[Any]:
    """What a run deleted and could not journal is nobody's business."""
    return patch.object(in_doubt, "resolve", lambda *given: 0)


@contextmanager
def any_copy_may_go() -> Iterator[None]:
    """An offloaded copy is deleted whatever metadata names it."""
    with patch.object(offloaded_copies, "in_use", lambda run, ports, d, why: None):
        yield


def copies_unseen() -> AbstractContextManager[Any]:
    """What an object says of its age and origin is not looked at."""

    def judge(run: Run, d: Decision, found: Any) -> None:
        d.objects = tuple(ObjectSeen(bucket_of(d.info), one.key, 0, "", 0) for one in found)

    return patch.object(offloaded_copies, "_judge", judge)


def take_any_copy() -> AbstractContextManager[Any]:
    """An offloaded ledger leaves its list wherever its copy is."""
    return patch.object(listed_ledgers, "copy_rule", lambda offload, context: None)


def take_beside_open_ledgers() -> AbstractContextManager[Any]:
    """A ledger leaves its list whatever may be writing its topic."""
    return patch.object(protection, "deletion_rule", lambda topic, context: None)


def take_beside_attempts() -> AbstractContextManager[Any]:
    """A ledger leaves its list whatever its topic's broker is offloading."""
    return patch.object(trim_rules, "open_attempt", lambda info, ours=(): None)


def whatever_is_beside() -> AbstractContextManager[Any]:
    """A topic's z-node is written by its version alone."""
    real = TopicWrite.write
    return patch.object(TopicWrite, "write", lambda self, node, data, beside: real(self, node, data, ""))


@contextmanager
def take_off_system_topics() -> Iterator[None]:
    """The first phase asks for its own setting of system topics alone."""
    real = trim_run._context

    def context(cluster: Any, fingerprint: str) -> Any:
        return replace(real(cluster, fingerprint), system_topics=cluster.settings.trimming.system_topics)

    with patch.object(trim_run, "_context", context):
        yield


@contextmanager
def delete_topics_at_once() -> Iterator[None]:
    """A topic is deleted first; its messages are for later."""

    def send(*given: Any) -> list[Any]:
        return []

    with patch.object(delete_topic, "send_messages", send):
        yield


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


def only_two_scans_count() -> AbstractContextManager[Any]:
    """What the scans between the two found in use is nobody's business."""
    return patch.object(deletion_run, "since", lambda cluster, earlier, epoch: [earlier])


@contextmanager
def shadows_are_forgotten() -> Iterator[None]:
    """Only the newest scan says which topics are the sources of shadow topics."""

    def newest(cluster: Any, epoch: Any) -> Any:
        return cluster.lake.context(epoch.epoch_id)

    with patch.object(evidence, "context_of", newest):
        yield


def time_goes_forward() -> AbstractContextManager[Any]:
    """Nobody looks whether the metadata store went back in time."""
    return patch.object(history_check, "broken_since", lambda *given: "")


@contextmanager
def launches_have_caps_of_their_own() -> Iterator[None]:
    """What a launch asks for counts, whatever the settings file says."""
    real = caps.effective_caps

    def asked_for(settings: Any, asked: caps.Lowered = caps.AS_SET) -> caps.Caps:
        if asked.max_ledgers is None:
            return real(settings, asked)
        return caps.Caps(asked.max_ledgers, 1.0, 1 << 50, asked.max_ledgers)

    with patch.object(caps, "effective_caps", asked_for):
        yield


def trims_have_no_caps() -> AbstractContextManager[Any]:
    """Taking ledgers off lists is capped by nothing."""
    return patch.object(trim_run, "check_blast", lambda rows, listed, caps: None)


def cursors_have_z_nodes() -> AbstractContextManager[Any]:
    """A snapshot whose cursor has no z-node is nobody's."""
    real = plan_snapshots.before_asking

    def hasty(*, stored_cursor: bool, **known: Any) -> Memory | None:
        return real(stored_cursor=True, **known) if stored_cursor else Memory.NOTHING

    return patch.object(plan_snapshots, "before_asking", hasty)


@contextmanager
def trimmed_snapshots_are_free() -> Iterator[None]:
    """A snapshot whose range the topic has no ledgers of is nobody's: a scan finds all free, and a run keeps others."""
    at_scan, at_deletion = snapshot_inquiry._memory, owner_check._decide_pending

    def trimmed(key: str | None, first: int | None) -> bool:
        return bool(key and first is not None and int(key.split("_")[2]) < first)

    def scanned(row: Mapping[str, Any], inquiry: Any) -> Memory | None:
        return Memory.NOTHING if snapshot_inquiry._held_perhaps(row) else at_scan(row, inquiry)

    def settle(run: Run, ports: Ports, topic: Any, node: Any, info: Any, internals: Any, pending: Any) -> None:
        first = min((item.ledger_id for item in info.ledgers), default=None)
        left = [d for d in pending if not trimmed(d.info.bucket_key, first)]
        at_deletion(run, ports, topic, node, info, internals, left)

    with patch.object(snapshot_inquiry, "_memory", scanned), patch.object(owner_check, "_decide_pending", settle):
        yield


def whenever_it_was_loaded() -> AbstractContextManager[Any]:
    """A broker that has no cursor of that name in memory has no snapshot of it, however long it has the topic."""
    real = plan_snapshots.before_asking

    def hasty(**known: Any) -> Memory | None:
        found = real(**known)
        return None if found is Memory.LOADED_BEFORE else found

    return patch.object(plan_snapshots, "before_asking", hasty)


def losses_counted_by_number() -> AbstractContextManager[Any]:
    """A hundred may always get lost."""
    real = Limits.exceeded
    return patch.object(Limits, "exceeded", lambda self, loss: real(self, loss) if len(loss.lost) > 100 else "")


@contextmanager
def damage_keeps_nobody() -> Iterator[None]:
    """An entry that cannot be read named nothing."""
    nobody = frozenset[str]()
    with (
        patch.object(owner_names, "owners_to_keep", lambda lost: (nobody, nobody)),
        patch.object(scan_epochs, "_once_called", lambda *given: nobody),
    ):
        yield


def silence_names_nothing() -> AbstractContextManager[Any]:
    """A broker that does not say what it has in memory has nothing there."""
    return patch.object(stored_references, "_silent", lambda *given: list[Any]())


def silence_stops_all() -> AbstractContextManager[Any]:
    """Whatever a broker does not say may be anybody's."""
    return patch.object(stored_references, "_of_this_topic", lambda error: False)


def nobody_looks_around() -> AbstractContextManager[Any]:
    """What else stands on the ZooKeeper is nobody's business."""
    return patch.object(scan_epochs, "look_around", lambda *given: Neighbours())


@contextmanager
def _comparing(change: Callable[[list[int]], list[int]]) -> Iterator[None]:
    """Two copies are read whole, and of the checksums of each only what ``change`` makes of them is compared."""
    real = whole_copies.compare

    def compare(what: str, some: whole_copies.Checksums, other: str, others: whole_copies.Checksums) -> Any:
        def changed(checksums: whole_copies.Checksums) -> whole_copies.Checksums:
            yield array("I", change([one for several in checksums for one in several]))

        return real(what, changed(some), other, changed(others))

    with patch.object(whole_copies, "compare", compare):
        yield


def compare_a_sample() -> AbstractContextManager[Any]:
    """The first and the last entry of two copies say enough of all."""
    return _comparing(lambda sums: [sum_ if n in (0, len(sums) - 1) else 0 for n, sum_ in enumerate(sums)])


def compare_the_lengths() -> AbstractContextManager[Any]:
    """Two copies with as many entries are the same."""
    return _comparing(lambda sums: [0] * len(sums))


def only_the_newest_listing_counts() -> AbstractContextManager[Any]:
    """What no topic lists at the newest scan is nobody's, whatever the scans before it saw listed."""
    real = offloaded_copies._places
    return patch.object(offloaded_copies, "_places", lambda run: replace(real(run), earlier=Referenced()))


LARGE = 200
"""Bytes of a data object: those with one entry have fewer."""


@contextmanager
def compare_small_copies() -> Iterator[None]:
    """A large copy is not read before it goes."""
    real = offloaded_copies.why_unlike

    def hasty(other_copy: Any, location: Location, places: Any, **ports: Any) -> Any:
        head = ports["objects"].head(location.bucket, location.data_key)
        return None if head and head.size > LARGE else real(other_copy, location, places, **ports)

    with patch.object(offloaded_copies, "why_unlike", hasty):
        yield


@contextmanager
def _explained_by(change: Callable[[Evidence], Evidence]) -> Iterator[None]:
    """What ``explain`` goes by is not what a deletion run goes by."""
    real = history.evidence_at
    with patch.object(history, "evidence_at", lambda *given: change(real(*given))):
        yield


def explain_without_grace() -> AbstractContextManager[Any]:
    """``explain`` lets young ledgers go."""
    return _explained_by(lambda evidence: replace(evidence, context=replace(evidence.context, grace=0)))


def explain_without_marks() -> AbstractContextManager[Any]:
    """``explain`` does not know what our first phase took off lists."""
    return _explained_by(lambda evidence: replace(evidence, marked={}))


MUTATIONS: Mapping[str, Mutation] = {
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
    "treat unreadable as gone when scanning": unreadable_is_gone_to_scans,
    "skip sync": skip_sync,
    "delete without archiving": no_archive,
    "acknowledge what was not copied to the retry topic": retry_uncopied,
    "acknowledge what must wait": waiting_is_done,
    "leave what must wait at the head": wait_at_the_head,
    "count what must wait as a retry": waiting_is_counted,
    "act on a scan that is not covered": trust_any_scan,
    "go on while paused": no_pause,
    "no budget": no_budget,
    "go on while ZooKeeper is slow": no_latency_guard,
    "compensate after an ambiguous compare-and-set": compensate,
    "trim past the cursors": trim_past_cursors,
    "never journal for a run that ended": in_doubt_stays_unsaid,
    "delete offloaded copies that metadata names": any_copy_may_go,
    "delete objects whatever their age and origin": copies_unseen,
    "take ledgers off lists whose offloaded copies no run deletes": take_any_copy,
    "take ledgers off lists beside an open ledger that leaked": take_beside_open_ledgers,
    "take ledgers off lists beside an offload attempt of a broker": take_beside_attempts,
    "write topics that were created again meanwhile": whatever_is_beside,
    "take ledgers off lists of system topics that deletion runs keep": take_off_system_topics,
    "delete topics before their messages are sent": delete_topics_at_once,
    "undo without asking the bookies": undo_without_asking,
    "acknowledge dead letters before they are sent again": redrive_unsaid,
    "never look whether the store went back in time": time_goes_forward,
    "forget what the scans between two found": only_two_scans_count,
    "forget shadow topics that the newest scan did not see": shadows_are_forgotten,
    "count what got lost instead of weighing it": losses_counted_by_number,
    "keep no owner of a damaged entry": damage_keeps_nobody,
    "take silence for an empty memory": silence_names_nothing,
    "stop every plan for what a broker does not say of one topic": silence_stops_all,
    "never look for another cluster on the ZooKeeper": nobody_looks_around,
    "take listings for whole": skipped_children_ignored,
    "let a launch raise the settings' caps": launches_have_caps_of_their_own,
    "take any number of ledgers off lists": trims_have_no_caps,
    "free snapshots of cursors without a z-node": cursors_have_z_nodes,
    "free snapshots whose range is trimmed": trimmed_snapshots_are_free,
    "free snapshots of whatever cursor a broker does not name": whenever_it_was_loaded,
    "compare a sample of two copies": compare_a_sample,
    "compare the lengths of two copies": compare_the_lengths,
    "compare only copies that are small": compare_small_copies,
    "forget that earlier scans found the ledger of a copy listed": only_the_newest_listing_counts,
    "explain young ledgers away": explain_without_grace,
    "explain without what our first phase took off lists": explain_without_marks,
}
"""Each by what the engine would do."""
