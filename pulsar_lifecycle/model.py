"""The values every part of the library speaks of: ledger and entry ids, positions, topic names.

Belongs here: small frozen values without IO and without a wire format. Names follow Pulsar's own
(``org.apache.pulsar.common.naming.TopicName``, 4.0.7).
"""

from __future__ import annotations

import re
from dataclasses import dataclass
from functools import lru_cache
from typing import NewType
from urllib.parse import quote_plus, unquote_plus

from pulsar_lifecycle.errors import CorruptFormat

LedgerId = NewType("LedgerId", int)
"""BookKeeper ledger id, 0 .. 2**63-1."""
EntryId = NewType("EntryId", int)
"""Entry id inside a ledger, 0-based; -1 means "none"."""

MANAGED_LEDGERS_ROOT = "/managed-ledgers"
"""Below it stands the z-node of each topic, by :attr:`Topic.managed_ledger`, and below that those of its cursors."""
PARTITIONED_ROOT = "/admin/partitioned-topics"
"""Below it stands how many partitions a topic has, by the same name."""
POLICIES_ROOT = "/admin/policies"
"""Below it stand a namespace's policies, in the configuration store."""
COMPACTION_CURSOR = "__compaction"
"""Compactor.COMPACTION_SUBSCRIPTION."""
PENDING_ACKS = "__transaction_pending_ack"
"""How a topic's name ends which keeps a subscription's acknowledgements in transactions (MLPendingAckStore)."""
YEAR_10000 = 253_402_300_800_000
"""The first time (ms) that no date can say; a client may delay a message until any."""

# TopicName.getPartitionIndex: what follows the last "-partition-", an int as Java prints it ("-01" is no partition).
PARTITION_SUFFIX = r"-partition-(0|[1-9][0-9]{0,9})"
"""A little more than ``Topic.partition`` takes for one: a number beyond an int is none."""
_PARTITION = re.compile(f"(.+){PARTITION_SUFFIX}", re.DOTALL)
_MAX_PARTITION = (1 << 31) - 1
CACHED = 10_000
"""Names that are parsed again and again: the ledgers of a topic come together."""

_DOMAINS = ("persistent", "non-persistent")


@lru_cache(CACHED)
def encode_name(name: str) -> str:
    """Local topic or subscription name as a z-node name (java.net.URLEncoder, UTF-8; Codec.java).

    Raises CorruptFormat for text that is not Unicode (lone surrogates, as broken JSON may hold).
    """
    try:
        return quote_plus(name, safe="*").replace("~", "%7E")
    except UnicodeEncodeError as error:
        raise CorruptFormat("name", error.start, f"Unicode text, found {name!r}") from None


@lru_cache(CACHED)
def decode_name(encoded: str) -> str:
    """The inverse of :func:`encode_name`; raises CorruptFormat for what that never gives.

    A name that does not encode back to itself would send every later check to another z-node.
    """
    try:
        name = unquote_plus(encoded, errors="strict")
    except UnicodeDecodeError:
        name = ""
    if not name or encode_name(name) != encoded:
        raise CorruptFormat("name", 0, f"a URL-encoded name, found {encoded!r}")
    return name


def cursor_name(encoded: str) -> str:
    """A cursor's name as users write it, from its z-node's name or its ledgers' tag.

    Subscriptions are encoded, replicators (``pulsar.repl.<cluster>``) are not: a name that is no encoded one stays.
    """
    try:
        return decode_name(encoded)
    except CorruptFormat:
        return encoded


def cursor_nodes(name: str) -> tuple[str, ...]:
    """Every z-node name that :func:`cursor_name` shows as ``name``."""
    encoded = encode_name(name)
    raw = encoded != name and "/" not in name and cursor_name(name) == name
    return (encoded, name) if raw else (encoded,)


@dataclass(frozen=True, slots=True, order=True)
class Position:
    """A message position; ``entry_id`` -1 means "before the first entry"."""

    ledger_id: int
    entry_id: int

    def __str__(self) -> str:
        return f"{self.ledger_id}:{self.entry_id}"


_MESSAGE_POSITION = re.compile(r"(0|[1-9][0-9]*):(0|[1-9][0-9]*)(?::([1-9][0-9]*))?", re.ASCII)
_MAX_ID = (1 << 63) - 1
_MAX_BATCH_INDEX = (1 << 31) - 1


@dataclass(frozen=True, slots=True, order=True)
class MessagePosition:
    """Where a message is, or the next one will be: ``batch_index`` counts from 0 inside the entry.

    Positions compare in the order of a topic's messages. The end of a topic is one entry after its last.
    """

    ledger_id: int
    entry_id: int
    batch_index: int = 0

    def __str__(self) -> str:
        return f"{self.entry}:{self.batch_index}" if self.batch_index else str(self.entry)

    @property
    def entry(self) -> Position:
        """The entry that the message is in."""
        return Position(self.ledger_id, self.entry_id)

    @classmethod
    def parse(cls, text: str) -> MessagePosition:
        """``L:E``, or ``L:E:B`` for a message inside a batch, as :meth:`__str__` writes it.

        Raises CorruptFormat for anything else: signs, leading zeros, a batch index of 0, numbers that do not fit.
        """
        found = _MESSAGE_POSITION.fullmatch(text)
        if found is None:
            raise CorruptFormat("position", 0, f"ledger:entry or ledger:entry:batch index, found {text!r}")
        limits = (_MAX_ID, _MAX_ID, _MAX_BATCH_INDEX)
        for group, limit in enumerate(limits, 1):
            digits = found[group] or ""
            if len(digits) > len(str(limit)) or int(digits or 0) > limit:
                raise CorruptFormat("position", found.start(group), f"a number up to {limit}, found {found[group]}")
        return cls(int(found[1]), int(found[2]), int(found[3] or 0))


@dataclass(frozen=True, slots=True, order=True)
class Namespace:
    """``tenant/namespace``, or ``tenant/cluster/namespace`` for legacy V1 names (``cluster`` set)."""

    tenant: str
    name: str
    cluster: str | None = None

    def __str__(self) -> str:
        return f"{self.tenant}/{self.cluster}/{self.name}" if self.cluster else f"{self.tenant}/{self.name}"

    @classmethod
    def parse(cls, text: str) -> Namespace:
        """``T/NS`` or ``T/CLUSTER/NS``; anything else raises CorruptFormat."""
        parts = text.split("/")
        if len(parts) == 2 and all(parts):
            return cls(parts[0], parts[1])
        if len(parts) == 3 and all(parts):
            return cls(parts[0], parts[2], parts[1])
        raise CorruptFormat("namespace", 0, f"tenant/namespace or tenant/cluster/namespace, found {text!r}")


@dataclass(frozen=True, slots=True, order=True)
class Topic:
    """One non-partitioned topic, or one partition (``local`` then ends in ``-partition-N``).

    ``local`` is the decoded local name. Two spellings matter and both round-trip:
    ``str(topic)`` = ``persistent://T/NS/local`` and ``topic.managed_ledger`` = ``T/NS/persistent/ENC(local)``.
    """

    namespace: Namespace
    local: str
    domain: str = "persistent"

    def __str__(self) -> str:
        return f"{self.domain}://{self.namespace}/{self.local}"

    @property
    def managed_ledger(self) -> str:
        """Managed-ledger name: the z-node path below ``/managed-ledgers/`` and the ledger's tag."""
        return f"{self.namespace}/{self.domain}/{encode_name(self.local)}"

    @property
    def partition(self) -> int | None:
        """Partition number, or None for a topic that is no partition."""
        found = self._partition()
        return found[1] if found else None

    @property
    def partitioned_parent(self) -> Topic:
        """The partitioned topic this is a partition of; itself if it is none."""
        found = self._partition()
        return Topic(self.namespace, found[0], self.domain) if found else self

    def _partition(self) -> tuple[str, int] | None:
        found = _PARTITION.fullmatch(self.local)
        return (found[1], int(found[2])) if found and int(found[2]) <= _MAX_PARTITION else None

    @property
    def schema_id(self) -> str:
        """Schema id, shared by all partitions: ``T/NS/ENC(parent local name)``; a V1 name's cluster is left out."""
        return f"{self.namespace.tenant}/{self.namespace.name}/{encode_name(self.partitioned_parent.local)}"

    @classmethod
    @lru_cache(CACHED)
    def parse(cls, text: str) -> Topic:
        """Full name ``persistent://T/NS/local`` (or V1 ``persistent://T/C/NS/local``).

        A V2 local name holds no slash: with three slashes or more after ``://`` the name is V1, as in TopicName.
        """
        domain, sep, rest = text.partition("://")
        parts = rest.split("/", 3)
        if not sep or domain not in _DOMAINS or len(parts) < 3 or not all(parts):
            raise CorruptFormat("topic name", 0, f"persistent://tenant/namespace/topic, found {text!r}")
        if len(parts) == 3:
            return cls(Namespace(parts[0], parts[1]), parts[2], domain)
        return cls(Namespace(parts[0], parts[2], parts[1]), parts[3], domain)

    @classmethod
    @lru_cache(CACHED)
    def from_managed_ledger(cls, name: str) -> Topic:
        """Managed-ledger name ``T/NS/persistent/ENC(local)`` or V1 ``T/C/NS/persistent/ENC(local)``.

        Raises CorruptFormat for anything else, so that ``topic.managed_ledger`` is always ``name`` again.
        """
        parts = name.split("/")
        if all(parts) and len(parts) in (4, 5) and parts[-2] in _DOMAINS:
            cluster = parts[1] if len(parts) == 5 else None
            return cls(Namespace(parts[0], parts[-3], cluster), decode_name(parts[-1]), parts[-2])
        raise CorruptFormat("managed-ledger name", 0, f"T/NS/persistent/topic, found {name!r}")
