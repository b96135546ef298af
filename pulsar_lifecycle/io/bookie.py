"""Entries straight from the bookies: ``ports.LedgerReader`` without recovery, without fencing, without Java.

Belongs here: which replicas to ask, failover, and what their answers mean together. Not here: frames
(``bookie_connection``), entry bytes (``formats.entry``).
Source: bookkeeper-server 4.17.2, RoundRobinDistributionSchedule, PendingReadOp, ReadLastConfirmedOp.

What "not there" means. NO_LEDGER is said by a bookie that has no entry of the ledger: it was deleted and collected, or
nothing was ever written there. NO_ENTRY is said by a bookie that has others of its entries. Only NO_LEDGER from every
replica is NotFound; a replica that does not answer, or answers anything else, never counts as "not there".
"""

from __future__ import annotations

import time
from collections import Counter, defaultdict, deque
from collections.abc import Iterable, Iterator, Sequence
from types import TracebackType
from typing import Self

from pulsar_lifecycle.errors import (
    AccessDenied,
    ConfigError,
    CorruptFormat,
    LifecycleError,
    NotFound,
    StoreError,
    Unavailable,
)
from pulsar_lifecycle.formats import bookie_info, entry, striping
from pulsar_lifecycle.formats.ledger_metadata import DigestType, LedgerMetadata, LedgerState, Segment
from pulsar_lifecycle.io.bookie_connection import LAST_ENTRY, Answer, BookieConnection, Code
from pulsar_lifecycle.ports import Entry, MetadataStore, Node, ReplicaCheck
from pulsar_lifecycle.settings import BookKeeperSettings

WINDOW = 256
"""Reads in flight to one bookie; it refuses beyond maxPendingReadRequestsPerThread (2,500 in Pulsar's conf)."""
PORTION = 32 << 20
"""Bytes of entries that a check of replicas has in memory at once."""
DOWN_SECONDS = 10.0
"""A bookie that could not be reached is not tried again for so long."""

_Request = tuple[str, int, int]
"""Bookie id, ledger id, entry id."""
_Wanted = tuple[int, LedgerMetadata, int]
"""Ledger id, metadata, entry id."""


class BookieReader:
    """``ports.LedgerReader`` over one connection to each bookie. One thread at a time.

    Finds the bookies through ``store``. Raises ConfigError if the settings ask for TLS, which it does not speak.
    """

    def __init__(self, store: MetadataStore, settings: BookKeeperSettings) -> None:
        if settings.tls is not None:
            raise ConfigError(
                "bookkeeper.tls: reading entries over TLS is not supported; remove it, or read no entries"
            )
        self._store = store
        self._settings = settings
        self._connections: dict[str, BookieConnection] = {}
        self._down: dict[str, tuple[float, str]] = {}
        self._single_reads_only: set[str] = set()

    def __enter__(self) -> Self:
        return self

    def __exit__(self, kind: type[BaseException] | None, error: BaseException | None, tb: TracebackType | None) -> None:
        self.close()

    def last_entry(self, ledger_id: int, metadata: LedgerMetadata) -> Entry | None:
        """The last entry of a ledger, confirmed or not; None if it has none.

        CLOSED: the entry that the metadata names. Otherwise: the highest that any bookie of the last ensemble has, if
        so many of them answered that no acknowledged entry can have escaped. Raises NotFound when every replica says
        NO_LEDGER (which an open ledger that was never written says too), Unavailable when too few replicas answered,
        CorruptFormat when only entries with a wrong digest were found, StoreError when all answered and none has it.
        """
        result = self.last_entries([(ledger_id, metadata)])[0]
        if isinstance(result, LifecycleError):
            raise result
        return result

    def last_entries(self, ledgers: Sequence[tuple[int, LedgerMetadata]]) -> list[Entry | LifecycleError | None]:
        """:meth:`last_entry` of many ledgers in few round trips, in order; what it would raise stands in the list."""
        results: list[Entry | LifecycleError | None] = [None] * len(ledgers)
        wanted: list[tuple[int, _Wanted]] = []
        open_ledgers: list[int] = []
        for i, (ledger_id, metadata) in enumerate(ledgers):
            if metadata.state != LedgerState.CLOSED:
                open_ledgers.append(i)
            elif metadata.last_entry_id >= 0:
                wanted.append((i, (ledger_id, metadata, metadata.last_entry_id)))
        probes = [(bookie, ledgers[i][0], LAST_ENTRY) for i in open_ledgers for bookie in _last(ledgers[i][1]).bookies]
        answers = iter(self._exchange(probes))
        for i in open_ledgers:
            ledger_id, metadata = ledgers[i]
            found = _highest(ledger_id, metadata, [next(answers) for _ in _last(metadata).bookies])
            if isinstance(found, int):
                wanted.append((i, (ledger_id, metadata, found)))
            else:
                results[i] = found
        for (i, _), result in zip(wanted, self._read_single([item for _, item in wanted]), strict=True):
            results[i] = result
        return results

    def read(self, ledger_id: int, metadata: LedgerMetadata, first: int, last: int) -> list[Entry]:
        """Entries first..last, both inclusive. Each is verified; another replica is asked where one fails.

        Raises NotFound when every replica of an entry says NO_LEDGER, StoreError when they all answered and none has
        it, Unavailable, CorruptFormat.
        """
        entries: list[Entry] = []
        at = first
        while at <= last:
            end = min(last, striping.segment_end(metadata, at, last))
            if metadata.ensemble_size == metadata.write_quorum:  # otherwise no bookie has consecutive entries
                batch = self._read_batch(ledger_id, metadata, at, end)
                if batch:
                    entries += batch
                    at += len(batch)
                    continue
            end = min(end, at + WINDOW * metadata.ensemble_size - 1)
            for result in self._read_single([(ledger_id, metadata, e) for e in range(at, end + 1)]):
                if isinstance(result, LifecycleError):
                    raise result
                entries.append(result)
            at = end + 1
        return entries

    def check_replicas(self, ledgers: Sequence[tuple[int, LedgerMetadata]]) -> list[ReplicaCheck]:
        """Ask every replica of closed ledgers whether it still holds its entries; one result per ledger, in order.

        A bookie that fails once is not asked again in the same call: it is silent for all that was left to ask.
        """
        tallies = [_Tally(ledger_id, metadata) for ledger_id, metadata in ledgers]
        silent: dict[str, LifecycleError] = {}
        singles: list[_Copy] = []
        for tally in tallies:
            if striping.is_small(tally.metadata) and tally.metadata.ensemble_size == tally.metadata.write_quorum:
                for first, last in striping.ranges(tally.metadata):
                    for bookie in striping.replicas(tally.metadata, first):
                        rest = self._check_run(tally, bookie, first, last, silent)
                        singles += [(tally, e, bookie) for e in range(rest, last + 1)]
            else:
                singles += [(tally, e, bookie) for e in tally.asked for bookie in tally.replicas(e)]
        for some in _portions(singles):
            todo = [copy for copy in some if copy[2] not in silent]
            for tally, _, bookie in some:
                if bookie in silent:
                    tally.silence(bookie, silent[bookie])
            answers = self._exchange([(bookie, tally.ledger_id, e) for tally, e, bookie in todo])
            for (tally, e, bookie), answer in zip(todo, answers, strict=True):
                if isinstance(answer, LifecycleError):
                    silent.setdefault(bookie, answer)
                tally.hear(bookie, e, answer)
        return [tally.result() for tally in tallies]

    def _check_run(self, tally: _Tally, bookie: str, first: int, last: int, silent: dict[str, LifecycleError]) -> int:
        """Hear a bookie on the consecutive entries first..last; returns the first that must be read singly."""
        at = first
        while at <= last:
            if bookie in silent:
                tally.silence(bookie, silent[bookie])
                return last + 1
            if bookie in self._single_reads_only:
                return at
            try:
                code, found = self._batch(bookie, tally.ledger_id, at, last - at + 1)
            except LifecycleError as error:
                if bookie not in self._single_reads_only:
                    silent[bookie] = error
                continue
            if code == Code.NO_LEDGER:
                for e in range(at, last + 1):
                    tally.hear(bookie, e, Answer(code))
                return last + 1
            if code not in (Code.OK, Code.NO_ENTRY):
                tally.silence(bookie, _refusal(code))
                return last + 1
            for e, data in enumerate(found[: last - at + 1], at):
                tally.hear(bookie, e, Answer(code, data))
            if not found:
                tally.hear(bookie, at, Answer(Code.NO_ENTRY))
            at += max(1, len(found))
        return at

    def close(self) -> None:
        """Close all connections."""
        for connection in self._connections.values():
            connection.close()
        self._connections.clear()

    # -------------------------------------------------------------------------------------------------------- private

    def _read_batch(self, ledger_id: int, metadata: LedgerMetadata, first: int, last: int) -> list[Entry]:
        """Verified entries from ``first`` on, from the first replica that gives any; empty: read them singly."""
        for bookie in striping.replicas(metadata, first):
            if bookie in self._single_reads_only:
                continue
            try:
                _, found = self._batch(bookie, ledger_id, first, last - first + 1)
            except LifecycleError:
                continue
            entries: list[Entry] = []
            for data in found[: last - first + 1]:
                try:
                    entries.append(_verified(data, ledger_id, metadata, first + len(entries)))
                except CorruptFormat:
                    break  # what comes before is good; the next round asks another replica for this one
            if entries:
                return entries
        return []

    def _batch(self, bookie: str, ledger_id: int, first: int, count: int) -> tuple[int, list[bytes]]:
        while True:
            connection = self._connection(bookie)
            again = connection.used
            try:
                return connection.read_batch(ledger_id, first, count)
            except (OSError, CorruptFormat) as error:
                self._forget(bookie)
                if again and not isinstance(error, TimeoutError):
                    continue  # the bookie may have restarted since; a new connection tells
                if isinstance(error, ConnectionError):
                    self._single_reads_only.add(bookie)
                raise Unavailable(f"bookie {bookie}: {error}") from error

    def _read_single(self, wanted: Sequence[_Wanted]) -> list[Entry | LifecycleError]:
        """One entry each, in order, from the first replica that has it and whose digest agrees."""
        results: list[Entry | LifecycleError | None] = [None] * len(wanted)
        said: defaultdict[int, list[Answer | LifecycleError]] = defaultdict(list)
        left = list(range(len(wanted)))
        turn = 0
        while left:
            asked = [i for i in left if turn < wanted[i][1].write_quorum]
            requests = [
                (striping.replicas(wanted[i][1], wanted[i][2])[turn], wanted[i][0], wanted[i][2]) for i in asked
            ]
            for i, answer in zip(asked, self._exchange(requests), strict=True):
                ledger_id, metadata, entry_id = wanted[i]
                if isinstance(answer, Answer) and answer.code == Code.OK:
                    try:
                        results[i] = _verified(answer.data, ledger_id, metadata, entry_id)
                        continue
                    except CorruptFormat as error:
                        answer = error
                said[i].append(answer)
            for i in left:
                if results[i] is None and turn + 1 >= wanted[i][1].write_quorum:
                    results[i] = _nowhere(f"entry {wanted[i][0]}:{wanted[i][2]}", said[i])
            left = [i for i in left if results[i] is None]
            turn += 1
        return [result for result in results if result is not None]

    def _exchange(self, requests: Sequence[_Request]) -> list[Answer | LifecycleError]:
        """Ask all bookies at once, each within its window; an answer or an error per request, in order."""
        results: list[Answer | LifecycleError | None] = [None] * len(requests)
        queues: defaultdict[str, deque[int]] = defaultdict(deque)
        for i, (bookie, _, _) in enumerate(requests):
            queues[bookie].append(i)
        while queues:
            flying: list[tuple[str, BookieConnection, list[int], bool]] = []
            for bookie, queue in queues.items():
                window = [queue.popleft() for _ in range(min(WINDOW, len(queue)))]
                try:
                    connection = self._connection(bookie)
                    fresh = not connection.used
                    flying.append((bookie, connection, window, fresh))
                    connection.send_reads([requests[i][1:] for i in window])
                except LifecycleError as error:
                    for i in (*window, *queue):
                        results[i] = error
                    queue.clear()
                except OSError:
                    pass  # reading the answers below finds it broken
            for bookie, connection, window, fresh in flying:
                waiting: defaultdict[tuple[int, int], list[int]] = defaultdict(list)
                for i in window:
                    waiting[requests[i][1:]].append(i)
                try:
                    for key, answer in connection.answers(len(window)):
                        if not waiting[key]:
                            raise CorruptFormat("bookie answer", 8, f"an entry that was asked for, found {key}")
                        results[waiting[key].pop()] = answer
                except (OSError, CorruptFormat) as error:
                    self._forget(bookie)
                    unanswered = [i for i in window if results[i] is None]
                    if fresh or isinstance(error, TimeoutError):
                        failure = Unavailable(f"bookie {bookie}: {error}")
                        for i in (*unanswered, *queues[bookie]):
                            results[i] = failure
                        queues[bookie].clear()
                    else:
                        queues[bookie].extendleft(reversed(unanswered))
            queues = defaultdict(deque, {bookie: queue for bookie, queue in queues.items() if queue})
        return [result for result in results if result is not None]

    def _connection(self, bookie: str) -> BookieConnection:
        if bookie in self._connections:
            return self._connections[bookie]
        until, reason = self._down.get(bookie, (0.0, ""))
        if time.monotonic() < until:
            raise Unavailable(reason)
        try:
            endpoint = self._endpoint(bookie)
            connection = BookieConnection(endpoint.host, endpoint.port, self._settings.read_timeout)
        except (OSError, CorruptFormat, Unavailable) as error:
            reason = f"bookie {bookie}: {error}"
            self._down[bookie] = (time.monotonic() + DOWN_SECONDS, reason)
            raise Unavailable(reason) from error
        self._connections[bookie] = connection
        return connection

    def _forget(self, bookie: str) -> None:
        connection = self._connections.pop(bookie, None)
        if connection is not None:
            connection.close()

    def _endpoint(self, bookie: str) -> bookie_info.Endpoint:
        available = f"{self._settings.ledgers_root}/available"
        nodes = self._store.read([f"{available}/{bookie}", f"{available}/readonly/{bookie}"])
        node = next((node for node in nodes if isinstance(node, Node)), None)
        if node is None:
            raise Unavailable(f"is not registered below {available}")
        endpoint = bookie_info.decode(node.data, bookie).rpc
        if endpoint is None:
            raise Unavailable(f"registered no {bookie_info.PROTOCOL_RPC} endpoint")
        return endpoint


def _last(metadata: LedgerMetadata) -> Segment:
    return metadata.segments[-1]


class _Tally:
    """What was heard of one ledger's replicas so far."""

    def __init__(self, ledger_id: int, metadata: LedgerMetadata) -> None:
        self.ledger_id = ledger_id
        self.metadata = metadata
        self.asked = striping.telling_entries(metadata)
        self._good: Counter[int] = Counter()
        self._bad: Counter[int] = Counter()
        self._missing: Counter[str] = Counter()
        self._silent: dict[str, str] = {}

    def replicas(self, entry_id: int) -> list[str]:
        """The bookies to ask for an entry."""
        return striping.replicas(self.metadata, entry_id)

    def hear(self, bookie: str, entry_id: int, answer: Answer | LifecycleError) -> None:
        """One bookie's answer for one entry."""
        if isinstance(answer, LifecycleError):
            self.silence(bookie, answer)
        elif answer.code == Code.OK and self._is_good(answer.data, entry_id):
            self._good[entry_id] += 1
        elif answer.code in (Code.OK, Code.NO_ENTRY, Code.NO_LEDGER):
            self._bad[entry_id] += 1
            self._missing[bookie] += 1
        else:
            self.silence(bookie, _refusal(answer.code))

    def silence(self, bookie: str, why: LifecycleError) -> None:
        """A bookie that gave no answer that says anything."""
        self._silent.setdefault(bookie, str(why))

    def result(self) -> ReplicaCheck:
        """The sum of it."""
        copies = self.metadata.write_quorum
        nowhere = [e for e in self.asked if not self._good[e]]
        lost = sum(self._bad[e] >= copies for e in nowhere)
        return ReplicaCheck(
            entries=self.metadata.last_entry_id + 1,
            asked=len(self.asked),
            held=self._good.total(),
            thin=sum(0 < self._good[e] < copies for e in self.asked),
            lost=lost,
            unproven=len(nowhere) - lost,
            missing=dict(self._missing),
            silent=dict(self._silent),
        )

    def _is_good(self, data: bytes, entry_id: int) -> bool:
        try:
            _verified(data, self.ledger_id, self.metadata, entry_id)
        except CorruptFormat:
            return False
        return True


_Copy = tuple[_Tally, int, str]
"""Ledger, entry id, bookie id."""


def _portions(copies: Iterable[_Copy]) -> Iterator[list[_Copy]]:
    """Copies in their order, so many at a time that by the mean size of their entries they fill :data:`PORTION`."""
    some: list[_Copy] = []
    size = 0
    for copy in copies:
        metadata = copy[0].metadata
        some.append(copy)
        size += 64 + metadata.length // (metadata.last_entry_id + 1)
        if size >= PORTION:
            yield some
            some, size = [], 0
    if some:
        yield some


def _verified(data: bytes, ledger_id: int, metadata: LedgerMetadata, entry_id: int | None) -> Entry:
    """The entry; raises CorruptFormat. Where the metadata does not say the digest, one that agrees is proof enough."""
    kinds = [DigestType.CRC32C, DigestType.CRC32, DigestType.HMAC]
    if metadata.digest_type is not None:
        kinds = [metadata.digest_type]
    for kind in kinds:
        try:
            found = entry.decode(data, kind, metadata.password, ledger_id=ledger_id, entry_id=entry_id)
        except CorruptFormat:
            if kind == kinds[-1]:
                raise
        else:
            return Entry(found.ledger_id, found.entry_id, found.payload)
    raise AssertionError("unreachable: the last kind returns or raises")


def _highest(
    ledger_id: int, metadata: LedgerMetadata, answers: Sequence[Answer | LifecycleError]
) -> Entry | int | LifecycleError | None:
    """The last entry of a ledger that is not closed, from what each bookie of the last ensemble has last.

    An id where an earlier ensemble must have it: the last segment starts after it and nothing came since.
    """
    best: Entry | None = None
    silent: list[LifecycleError | None] = []
    for answer in answers:
        problem: LifecycleError | None = answer if isinstance(answer, LifecycleError) else None
        if isinstance(answer, Answer):
            if answer.code == Code.OK:
                try:
                    found = _verified(answer.data, ledger_id, metadata, None)
                    best = found if best is None or found.entry_id > best.entry_id else best
                except CorruptFormat as error:
                    problem = error
            elif answer.code not in (Code.NO_ENTRY, Code.NO_LEDGER):
                problem = _refusal(answer.code)
        silent.append(problem)
    problems = [problem for problem in silent if problem is not None]
    size = len(silent)
    for start in range(size):
        window = [silent[(start + i) % size] for i in range(metadata.write_quorum)]
        if sum(problem is not None for problem in window) >= metadata.ack_quorum:
            return _of_kind(f"ledger {ledger_id}: too few bookies say what their last entry is", problems)
    before = _last(metadata).first_entry_id - 1
    if before >= 0 and (best is None or best.entry_id < before):
        return before
    if best is None and all(isinstance(answer, Answer) and answer.code == Code.NO_LEDGER for answer in answers):
        return NotFound(f"ledger {ledger_id}: no bookie of its ensemble has it")
    return best


def _nowhere(what: str, said: Sequence[Answer | LifecycleError]) -> LifecycleError:
    """Why an entry could not be read, from what each of its replicas said."""
    codes = [answer.code for answer in said if isinstance(answer, Answer)]
    problems = [answer for answer in said if isinstance(answer, LifecycleError)]
    problems += [_refusal(code) for code in codes if code not in (Code.NO_ENTRY, Code.NO_LEDGER)]
    if problems:
        return _of_kind(what, problems)
    if all(code == Code.NO_LEDGER for code in codes):
        return NotFound(f"{what}: every replica says that the ledger is gone")
    return StoreError(f"{what}: every replica answered and none has it")


def _of_kind(what: str, problems: Sequence[LifecycleError]) -> LifecycleError:
    """One error for several: as long as a replica may still answer, the read may be repeated."""
    text = "; ".join(dict.fromkeys(map(str, problems)))
    corrupt = next((problem for problem in problems if isinstance(problem, CorruptFormat)), None)
    if corrupt is not None and all(isinstance(problem, CorruptFormat) for problem in problems):
        return corrupt
    if all(isinstance(problem, AccessDenied) for problem in problems):
        return AccessDenied(f"{what}: {text}")
    return Unavailable(f"{what}: {text}")


def _refusal(code: int) -> LifecycleError:
    if code == Code.UNAUTHORIZED:
        return AccessDenied("the bookie demands authentication, which this reader does not speak")
    name = Code(code).name if code in set(Code) else "unknown"
    return Unavailable(f"the bookie answered {code} ({name})")
