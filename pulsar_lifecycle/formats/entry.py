"""An entry as a bookie stores and serves it: header, digest, payload.

Belongs here: splitting, verifying and building these bytes, and the keys derived from a ledger's password. Not here:
the protocol that carries them (io/), what the payload means (:mod:`message`, :mod:`cursor`, :mod:`schema` ...).
Upstream: ``DigestManager`` and ``MacDigestManager``, bookkeeper-server 4.17.2.

ledgerId int64 · entryId int64 · lastAddConfirmed int64 · length int64 · digest · payload, big-endian. The digest covers
the 32 bytes of the header and the payload. ``length`` is cumulative over the ledger.
"""

from __future__ import annotations

import hashlib
import hmac
import struct
import zlib
from collections.abc import Iterable
from dataclasses import dataclass
from typing import Any, cast

import google_crc32c

from pulsar_lifecycle.errors import CorruptFormat
from pulsar_lifecycle.formats.ledger_metadata import DigestType

WHAT = "entry"
_crc32c = cast(Any, google_crc32c)  # ships without complete types
_HEADER = struct.Struct(">qqqq")
_CHECKSUM = struct.Struct(">I")
HEADER_SIZE = _HEADER.size
DIGEST_SIZE = {DigestType.CRC32C: 4, DigestType.CRC32: 8, DigestType.HMAC: 20, DigestType.DUMMY: 0}


@dataclass(frozen=True, slots=True)
class StoredEntry:
    """A verified entry. ``length``: payload bytes of entries 0 .. ``entry_id`` together.

    ``last_add_confirmed`` is what the writer knew when it sent the entry, less than ``entry_id``; -1 means none.
    """

    ledger_id: int
    entry_id: int
    last_add_confirmed: int
    length: int
    payload: bytes


def decode(
    data: bytes,
    digest_type: DigestType,
    password: bytes = b"",
    *,
    ledger_id: int | None = None,
    entry_id: int | None = None,
) -> StoredEntry:
    """An entry with its digest verified.

    Raises CorruptFormat if the digest does not match, or if it is not the ledger or entry asked for.
    """
    begin = HEADER_SIZE + DIGEST_SIZE[digest_type]
    if len(data) < begin:
        raise CorruptFormat(WHAT, len(data), f"at least {begin} bytes, a header and its {digest_type.name} digest")
    payload = data[begin:]
    if digest(digest_type, data[:HEADER_SIZE], payload, password) != data[HEADER_SIZE:begin]:
        raise CorruptFormat(WHAT, HEADER_SIZE, f"the {digest_type.name} digest of header and payload")
    ledger, entry, last_add_confirmed, length = _HEADER.unpack_from(data)
    found = StoredEntry(ledger, entry, last_add_confirmed, length, payload)
    if ledger_id is not None and found.ledger_id != ledger_id:
        raise CorruptFormat(WHAT, 0, f"ledger {ledger_id}, found {found.ledger_id}")
    if entry_id is not None and found.entry_id != entry_id:
        raise CorruptFormat(WHAT, 8, f"entry {entry_id}, found {found.entry_id}")
    return found


@dataclass(slots=True)
class EntryRun:
    """Payloads of consecutive entries, verified, up to the first that has a ``problem``.

    ``before`` and ``after`` are the ledger's cumulative lengths around them; 0 without payloads.
    """

    payloads: list[bytes]
    before: int
    after: int
    problem: CorruptFormat | None


def verify(
    data: bytes,
    bounds: Iterable[tuple[int, int]],
    digest_type: DigestType,
    password: bytes,
    *,
    ledger_id: int,
    first: int,
) -> EntryRun:
    """Entries ``first``, ``first`` + 1 ... of a ledger, each between two offsets of ``data``, as :func:`decode` would.

    Many times faster. The cumulative length must grow from each to the next by exactly its payload.
    """
    begin = HEADER_SIZE + DIGEST_SIZE[digest_type]
    unpack, crc = _HEADER.unpack_from, digest_type is DigestType.CRC32C
    checksum, extend, value = _CHECKSUM.unpack_from, _crc32c.extend, _crc32c.value
    run = EntryRun([], 0, 0, None)
    add = run.payloads.append
    entry_id = first
    for start, end in bounds:
        if end - start < begin:
            return _ended(run, end - start, f"at least {begin} bytes, a header and its {digest_type.name} digest")
        found_ledger, found, _, length = unpack(data, start)
        header = data[start : start + HEADER_SIZE]
        payload = data[start + begin : end]
        if (
            extend(value(header), payload) != checksum(data, start + HEADER_SIZE)[0]
            if crc
            else digest(digest_type, header, payload, password) != data[start + HEADER_SIZE : start + begin]
        ):
            return _ended(run, HEADER_SIZE, f"the {digest_type.name} digest of header and payload")
        if found_ledger != ledger_id or found != entry_id:
            return _ended(run, 0, f"entry {ledger_id}:{entry_id}, found {found_ledger}:{found}")
        before = length - (end - start - begin)
        if entry_id == first:
            if before < 0:
                return _ended(run, 24, f"a cumulative length of {len(payload)} or more, found {length}")
            run.before = before
        elif before != run.after:
            return _ended(run, 24, f"a cumulative length of {run.after + len(payload)}, found {length}")
        run.after = length
        add(payload)
        entry_id += 1
    return run


def _ended(run: EntryRun, offset: int, expected: str) -> EntryRun:
    run.problem = CorruptFormat(WHAT, offset, expected)
    return run


def encode(entry: StoredEntry, digest_type: DigestType, password: bytes = b"") -> bytes:
    """The bytes that a bookie stores; raises struct.error for numbers that do not fit 64 bits."""
    header = _HEADER.pack(entry.ledger_id, entry.entry_id, entry.last_add_confirmed, entry.length)
    return header + digest(digest_type, header, entry.payload, password) + entry.payload


def digest(digest_type: DigestType, header: bytes, payload: bytes, password: bytes) -> bytes:
    """The digest of an entry's 32-byte header and payload; only HMAC uses the password."""
    match digest_type:
        case DigestType.CRC32C:
            return _crc32c.extend(_crc32c.value(header), payload).to_bytes(4, "big")
        case DigestType.CRC32:
            return zlib.crc32(payload, zlib.crc32(header)).to_bytes(8, "big")
        case DigestType.HMAC:
            mac = hmac.new(_derived(b"mac", password), header, hashlib.sha1)
            mac.update(payload)
            return mac.digest()
        case DigestType.DUMMY:
            return b""


def master_key(password: bytes) -> bytes:
    """The 20 bytes that writing to, or fencing, a ledger asks for, whatever the digest type."""
    return _derived(b"ledger", password)


def _derived(purpose: bytes, password: bytes) -> bytes:
    return hashlib.sha1(purpose + password, usedforsecurity=False).digest()
