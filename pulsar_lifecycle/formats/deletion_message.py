"""The deletion intent: one JSON message per ledger on ``persistent://pulsar/system/__ledger_deletion``.

Belongs here: the message's fields, spellings and checks. Not here: topics, subscriptions, sending
(``io/pulsar/queue.py``), and whether the named ledger may be deleted at all. Upstream: PIP-186,
``PendingDeleteLedgerInfo`` and ``DeleteLedgerPayload.OffloadContext``; no released broker writes or reads them.

Beyond the PIP: ``schemaId`` is a string, because schema ids are ``T/NS/topic`` and no Long holds them; two components
exist that the PIP does not know (compacted topics, delayed-index buckets); ``bucketKey``, ``planId``, ``czxid``,
``ctime`` and ``sentAt`` are ours and optional. Unknown fields are ignored, so that other writers may add theirs.
"""

from __future__ import annotations

import json
from collections.abc import Mapping
from dataclasses import dataclass, field
from enum import Enum
from typing import TypeVar, cast

from pulsar_lifecycle.errors import CorruptFormat
from pulsar_lifecycle.model import Topic

FORMAT = "PendingDeleteLedgerInfo"
LONG_MAX = 2**63 - 1
LONG_MIN = -(2**63)
TEXT_LIMIT = 4096
"""UTF-8 bytes of one text field, by far more than any name of Pulsar has: whoever may publish may write anything."""
PAIRS_LIMIT = 64
"""Pairs of an offload context's metadata; offloaders write four."""


class LedgerComponent(Enum):
    """What a ledger stores; the values are the PIP's spellings, or the same style where the PIP has none."""

    MANAGED_LEDGER = "Managed-Ledger"
    MANAGED_CURSOR = "Managed-Cursor"
    SCHEMA_STORAGE = "Schema-Storage"
    COMPACTED_LEDGER = "Compacted-Ledger"
    DELAYED_INDEX_BUCKET = "Delayed-Index-Bucket"


class LedgerType(Enum):
    """Which copy of a ledger is meant: the one in BookKeeper, or the one in tiered storage."""

    LEDGER = "Ledger"
    OFFLOAD_LEDGER = "Offload-Ledger"


_COMPONENTS = {
    **{member.value: member for member in LedgerComponent},
    **{member.name: member for member in LedgerComponent},
    "Managed-Corsor": LedgerComponent.MANAGED_CURSOR,  # sic: PIP-186 spells it both ways
}
_TYPES = {**{member.value: member for member in LedgerType}, **{member.name: member for member in LedgerType}}


@dataclass(frozen=True, slots=True, kw_only=True)
class MessageOffloadContext:
    """Where the tiered-storage copy is: ``msb`` and ``lsb`` are the halves of the UUID as signed Java longs."""

    lsb: int
    msb: int
    driver_name: str
    metadata: Mapping[str, str] = field(default_factory=dict[str, str], hash=False)


@dataclass(frozen=True, slots=True, kw_only=True)
class PendingDeleteLedgerInfo:
    """One intent. Empty text and None stand for an absent field.

    ``topic_name`` is ``persistent://T/NS/local`` (a partition names itself; a schema may name the partitioned parent),
    ``cursor_name`` what ``model.cursor_name`` shows, ``schema_id`` ``T/NS/ENC(local)``, ``bucket_key`` the
    ledger's ``pulsar/delayedIndexBucketKey`` tag. ``czxid`` and ``ctime`` (ms) are those of the ledger's z-node when
    the plan was made, ``sent_at`` is in ms. Raises CorruptFormat when the fields do not make a complete intent.
    """

    topic_name: str
    component: LedgerComponent
    ledger_id: int
    ledger_type: LedgerType = LedgerType.LEDGER
    cursor_name: str = ""
    schema_id: str = ""
    bucket_key: str = ""
    offload_context: MessageOffloadContext | None = None
    plan_id: str = ""
    czxid: int | None = None
    ctime: int | None = None
    sent_at: int | None = None

    def __post_init__(self) -> None:
        if not _is_persistent_topic(self.topic_name):
            raise _bad(f"topicName: persistent://tenant/namespace/topic, found {_shown(self.topic_name)}")
        if not 0 <= self.ledger_id <= LONG_MAX:
            raise _bad(f"ledgerId: 0 .. 2**63-1, found {_shown(self.ledger_id)}")
        needs_cursor = self.component in (LedgerComponent.MANAGED_CURSOR, LedgerComponent.DELAYED_INDEX_BUCKET)
        if needs_cursor and not self.cursor_name:
            raise _missing("cursorName", self.component.value)
        if self.component is LedgerComponent.SCHEMA_STORAGE and not self.schema_id:
            raise _missing("schemaId", self.component.value)
        if self.component is LedgerComponent.DELAYED_INDEX_BUCKET and not self.bucket_key:
            raise _missing("bucketKey", self.component.value)
        if self.ledger_type is LedgerType.OFFLOAD_LEDGER:
            if self.offload_context is None:
                raise _missing("offloadContext", self.ledger_type.value)
            if self.component is not LedgerComponent.MANAGED_LEDGER:
                raise _bad(f"ledgerComponent: only Managed-Ledger is ever offloaded, found {self.component.value}")


def encode_deletion_message(info: PendingDeleteLedgerInfo) -> bytes:
    """Canonical UTF-8 JSON: sorted keys, no spaces, the PIP's fields always present, ours only when set."""
    context = info.offload_context
    document: dict[str, object] = {
        "topicName": info.topic_name,
        "ledgerComponent": info.component.value,
        "cursorName": info.cursor_name or None,
        "schemaId": info.schema_id or None,
        "ledgerType": info.ledger_type.value,
        "ledgerId": info.ledger_id,
        "offloadContext": context
        and {
            "lsb": context.lsb,
            "msb": context.msb,
            "driverName": context.driver_name,
            "metadata": dict(context.metadata),
        },
    }
    ours = {
        "bucketKey": info.bucket_key or None,
        "planId": info.plan_id or None,
        "czxid": info.czxid,
        "ctime": info.ctime,
        "sentAt": info.sent_at,
    }
    document |= {name: value for name, value in ours.items() if value is not None}
    return json.dumps(document, sort_keys=True, separators=(",", ":"), ensure_ascii=False).encode()


def decode_deletion_message(data: bytes) -> PendingDeleteLedgerInfo:
    """One JSON object -> intent; the inverse of :func:`encode_deletion_message`, lenient only in the spellings.

    Raises CorruptFormat that names the missing or malformed field; the offset is that of the JSON error, 0 for a field.
    """
    fields = _Fields(_parse(data), "")
    return PendingDeleteLedgerInfo(
        topic_name=fields.required_text("topicName"),
        component=fields.member("ledgerComponent", _COMPONENTS),
        ledger_id=fields.required_integer("ledgerId"),
        ledger_type=fields.member("ledgerType", _TYPES),
        cursor_name=fields.text("cursorName"),
        schema_id=_schema_id(fields),
        bucket_key=fields.text("bucketKey"),
        offload_context=_offload_context(fields),
        plan_id=fields.text("planId"),
        czxid=fields.integer("czxid"),
        ctime=fields.integer("ctime"),
        sent_at=fields.integer("sentAt"),
    )


def _schema_id(fields: _Fields) -> str:
    """A string, or a number as the PIP declares it."""
    return (
        str(fields.required_integer("schemaId")) if type(fields.value("schemaId")) is int else fields.text("schemaId")
    )


def _offload_context(parent: _Fields) -> MessageOffloadContext | None:
    value = parent.value("offloadContext")
    if value is None:
        return None
    fields = _Fields(_as_object(value, "offloadContext"), "offloadContext.")
    pairs = fields.value("metadata")
    metadata = _Fields(
        _as_object({} if pairs is None else pairs, f"{fields.where}metadata"), f"{fields.where}metadata."
    )
    if len(metadata.document) > PAIRS_LIMIT:
        raise _bad(f"{fields.where}metadata: at most {PAIRS_LIMIT} pairs, found {len(metadata.document)}")
    return MessageOffloadContext(
        lsb=fields.required_integer("lsb", LONG_MIN),
        msb=fields.required_integer("msb", LONG_MIN),
        driver_name=fields.required_text("driverName"),
        metadata={
            _well_formed(name, f"{metadata.where}{_shown(name)}"): metadata.text(name) for name in metadata.document
        },
    )


_Member = TypeVar("_Member", bound=Enum)


@dataclass(frozen=True, slots=True)
class _Fields:
    """A JSON object whose fields are read with their types checked; ``where`` prefixes names in messages."""

    document: Mapping[str, object]
    where: str

    def value(self, name: str) -> object:
        return self.document.get(name)

    def text(self, name: str) -> str:
        value = self.value(name)
        if value is None:
            return ""
        if not isinstance(value, str):
            raise _bad(f"{self.where}{name}: a string, found {_shown(value)}")
        return _well_formed(value, f"{self.where}{name}")

    def required_text(self, name: str) -> str:
        text = self.text(name)
        if not text:
            raise _bad(f"{self.where}{name}, which is missing")
        return text

    def integer(self, name: str, lowest: int = 0) -> int | None:
        value = self.value(name)
        if value is None:
            return None
        if isinstance(value, bool) or not isinstance(value, int) or not lowest <= value <= LONG_MAX:
            raise _bad(f"{self.where}{name}: an integer {lowest} .. 2**63-1, found {_shown(value)}")
        return value

    def required_integer(self, name: str, lowest: int = 0) -> int:
        value = self.integer(name, lowest)
        if value is None:
            raise _bad(f"{self.where}{name}, which is missing")
        return value

    def member(self, name: str, spellings: Mapping[str, _Member]) -> _Member:
        text = self.required_text(name)
        if text not in spellings:
            raise _bad(f"{self.where}{name}: one of {', '.join(spellings)}, found {_shown(text)}")
        return spellings[text]


def _is_persistent_topic(name: str) -> bool:
    try:
        return Topic.parse(name).domain == "persistent"
    except CorruptFormat:
        return False


def _parse(data: bytes) -> Mapping[str, object]:
    try:
        text = data.decode("utf-8")
    except UnicodeDecodeError as error:
        raise CorruptFormat(FORMAT, error.start, "UTF-8") from error
    try:
        document: object = _JSON.decode(text)
    except json.JSONDecodeError as error:
        raise CorruptFormat(FORMAT, len(text[: error.pos].encode()), f"JSON: {error.msg}") from error
    except RecursionError as error:
        raise _bad("JSON that is not nested this deeply") from error
    except ValueError as error:  # an integer with more digits than Python converts
        raise _bad("JSON with numbers of a sane length") from error
    return _as_object(document, "message")


def _as_object(value: object, name: str) -> Mapping[str, object]:
    if not isinstance(value, dict):
        raise _bad(f"{name}: a JSON object, found {_shown(value)}")
    return cast("dict[str, object]", value)


def _unique(pairs: list[tuple[str, object]]) -> dict[str, object]:
    """A repeated key means two readers may see two different ledgers."""
    document = dict(pairs)
    if len(document) != len(pairs):
        raise _bad("every key once in a JSON object")
    return document


def _no_constant(name: str) -> object:
    raise _bad(f"JSON, which has no {name}")


_JSON = json.JSONDecoder(object_pairs_hook=_unique, parse_constant=_no_constant)
"""Made once: json.loads makes one for each message."""


def _well_formed(text: str, name: str) -> str:
    try:
        size = len(text.encode("utf-8"))
    except UnicodeEncodeError as error:
        raise _bad(f"{name}: text without lone surrogates") from error
    if size > TEXT_LIMIT:
        raise _bad(f"{name}: at most {TEXT_LIMIT} bytes of text, found {size}")
    return text


def _shown(value: object) -> str:
    """A value for a message: short, even when it is a huge integer that Python refuses to print."""
    if isinstance(value, int) and value.bit_length() > 128:
        return f"an integer of {value.bit_length()} bits"
    text = ascii(value) if isinstance(value, str | int | float | None) else f"a {type(value).__name__}"
    return text if len(text) <= 80 else text[:77] + "..."


def _missing(name: str, reason: str) -> CorruptFormat:
    return _bad(f"{name}, which is missing and which {reason} needs")


def _bad(expected: str) -> CorruptFormat:
    return CorruptFormat(FORMAT, 0, expected)
