"""What the answers of one or several bookies mean: an entry, the end of an open ledger, or an error.

Not here: asking (``pool.py``), and whom (``reader.py``, ``stream.py``, ``replica_check.py``).
Source: bookkeeper-server 4.17.2, PendingReadOp, ReadLastConfirmedOp.

What "not there" means. NO_LEDGER is said by a bookie that has no entry of the ledger: it was deleted and collected, or
nothing was ever written there. NO_ENTRY is said by a bookie that has others of its entries. Only NO_LEDGER from every
replica is NotFound; a replica that does not answer, or answers anything else, never counts as "not there".
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence

from pulsar_lifecycle.errors import AccessDenied, CorruptFormat, LifecycleError, NotFound, StoreError, Unavailable
from pulsar_lifecycle.formats import entry, striping
from pulsar_lifecycle.formats.ledger_metadata import DigestType, LedgerMetadata
from pulsar_lifecycle.io.bookkeeper.connection import BookieCode, BookieResponse
from pulsar_lifecycle.ports import Entry

ABSENT = (BookieCode.NO_ENTRY, BookieCode.NO_LEDGER)
"""Answers that a bookie does not have what it was asked for."""


def digest_types(metadata: LedgerMetadata) -> list[DigestType]:
    """The digests that an entry may have: where the metadata does not say it, one that agrees is proof enough."""
    if metadata.digest_type is not None:
        return [metadata.digest_type]
    return [DigestType.CRC32C, DigestType.CRC32, DigestType.HMAC]


def verified(data: bytes, ledger_id: int, metadata: LedgerMetadata, entry_id: int | None) -> Entry:
    """The entry, the one asked for if that is given; raises CorruptFormat."""
    kinds = digest_types(metadata)
    for kind in kinds:
        try:
            found = entry.decode(data, kind, metadata.password, ledger_id=ledger_id, entry_id=entry_id)
        except CorruptFormat:
            if kind == kinds[-1]:
                raise
        else:
            return Entry(found.ledger_id, found.entry_id, found.payload, found.length)
    raise AssertionError("unreachable: the last kind returns or raises")


def verified_run(
    answer: BookieResponse, metadata: LedgerMetadata, ledger_id: int, first: int, count: int
) -> entry.EntryRun:
    """Of the ``count`` entries asked for from ``first`` on those that came, up to the first that is not right."""
    kinds = digest_types(metadata)
    bounds = answer.bounds[:count]
    while True:
        kind = kinds.pop(0)
        run = entry.verify(answer.frame, bounds, kind, metadata.password, ledger_id=ledger_id, first=first)
        if run.payloads or not kinds:
            return run


def highest(
    ledger_id: int, metadata: LedgerMetadata, answers: Sequence[BookieResponse | LifecycleError]
) -> Entry | int | LifecycleError | None:
    """The last entry of a ledger that is not closed, from what each bookie of the last ensemble has last.

    An id where an earlier ensemble must have it: the last segment starts after it and nothing came since.
    """
    best: Entry | None = None
    failures: list[LifecycleError | None] = []
    for answer in answers:
        problem: LifecycleError | None = answer if isinstance(answer, LifecycleError) else None
        if isinstance(answer, BookieResponse):
            if answer.code == BookieCode.OK:
                try:
                    found = verified(answer.data, ledger_id, metadata, None)
                    best = found if best is None or found.entry_id > best.entry_id else best
                except CorruptFormat as error:
                    problem = error
            elif answer.code not in ABSENT:
                problem = refusal(answer.code)
        failures.append(problem)
    problems = [problem for problem in failures if problem is not None]
    silent = [problem is not None for problem in failures]
    if not striping.is_covered(silent, metadata.write_quorum, metadata.ack_quorum):
        return of_kind(f"ledger {ledger_id}: too few bookies say what their last entry is", problems)
    before = metadata.segments[-1].first_entry_id - 1
    if before >= 0 and (best is None or best.entry_id < before):
        return before
    if best is None and all(
        isinstance(answer, BookieResponse) and answer.code == BookieCode.NO_LEDGER for answer in answers
    ):
        return NotFound(f"ledger {ledger_id}: no bookie of its ensemble has it")
    return best


def nowhere(what: str, said: Mapping[str, BookieResponse | LifecycleError]) -> LifecycleError:
    """Why an entry could not be read, from what each of its replicas said, by bookie id."""
    codes = [answer.code for answer in said.values() if isinstance(answer, BookieResponse)]
    problems = {bookie: answer for bookie, answer in said.items() if isinstance(answer, LifecycleError)}
    problems |= {
        bookie: refusal(answer.code)
        for bookie, answer in said.items()
        if isinstance(answer, BookieResponse) and answer.code not in ABSENT
    }
    corrupt = [problem for problem in problems.values() if isinstance(problem, CorruptFormat)]
    if corrupt and len(corrupt) == len(problems):
        return CorruptFormat(f"{what} on {', '.join(problems)}", corrupt[0].offset, corrupt[0].expected)
    if problems:
        return of_kind(what, list(problems.values()))
    if all(code == BookieCode.NO_LEDGER for code in codes):
        return NotFound(f"{what}: every replica says that the ledger is gone")
    return StoreError(f"{what}: every replica answered and none has it")


def of_kind(what: str, problems: Sequence[LifecycleError]) -> LifecycleError:
    """One error for several: as long as a replica may still answer, the read may be repeated."""
    text = "; ".join(dict.fromkeys(map(str, problems)))
    if all(isinstance(problem, CorruptFormat) for problem in problems):
        return problems[0]
    if all(isinstance(problem, AccessDenied) for problem in problems):
        return AccessDenied(f"{what}: {text}")
    return Unavailable(f"{what}: {text}")


def refusal(code: int) -> LifecycleError:
    """The error that an answer other than OK and :data:`ABSENT` is."""
    if code == BookieCode.UNAUTHORIZED:
        return AccessDenied("the bookie demands authentication, which this reader does not speak")
    name = BookieCode(code).name if code in set(BookieCode) else "unknown"
    return Unavailable(f"the bookie answered {code} ({name})")
