"""Where BookKeeper keeps a ledger's metadata: ledger id <-> z-node path, and the layout it declares.

Belongs here: paths and the LAYOUT node. Not here: what the z-node holds (:mod:`ledger_metadata`).
Upstream: ``StringUtils.getHybridHierarchicalLedgerPath``, ``LegacyHierarchicalLedgerManager``,
``LongHierarchicalLedgerManager`` and ``LedgerLayout``, bookkeeper-server 4.17.2.

Ids below 2**31 - 1 are ten digits split 2-4-4, ``/ledgers/00/0000/L0059``; larger ones nineteen digits split 3-4-4-4-4,
``/ledgers/000/0002/1474/8364/L7000``.
"""

from __future__ import annotations

import re
from dataclasses import dataclass

from pulsar_lifecycle.errors import CorruptFormat, UnsupportedFormat

DEFAULT_ROOT = "/ledgers"
MAX_SHORT = (1 << 31) - 1  # Integer.MAX_VALUE: this id and those above use the long form
MAX_LEDGER_ID = (1 << 63) - 1
_SHORT = re.compile(r"/([0-9]{2})/([0-9]{4})/L([0-9]{4})")
_LONG = re.compile(r"/([0-9]{3})/([0-9]{4})/([0-9]{4})/([0-9]{4})/L([0-9]{4})")
_TOP_LEVEL = re.compile(r"[0-9]{2,3}")
_LAYOUT = re.compile(r"([0-9]{1,9})\n([^\n:]+):([0-9]{1,9})\n?")
_LAYOUT_FORMAT = 2  # LedgerLayout.LAYOUT_FORMAT_VERSION
_HIERARCHICAL = (
    "org.apache.bookkeeper.meta.HierarchicalLedgerManagerFactory",
    "org.apache.bookkeeper.meta.LongHierarchicalLedgerManagerFactory",
    "org.apache.bookkeeper.meta.LegacyHierarchicalLedgerManagerFactory",
)


@dataclass(frozen=True, slots=True)
class LedgerLayout:
    """The node ``/ledgers/LAYOUT``: which ledger manager wrote the tree."""

    manager_factory: str
    version: int


def ledger_path(ledger_id: int, root: str = DEFAULT_ROOT) -> str:
    """The z-node of ledger ``ledger_id``; raises ValueError outside 0 .. 2**63-1."""
    if not 0 <= ledger_id <= MAX_LEDGER_ID:
        raise ValueError(f"a ledger id is between 0 and {MAX_LEDGER_ID}, not {ledger_id}")
    if ledger_id < MAX_SHORT:
        digits = f"{ledger_id:010d}"
        return f"{root}/{digits[:2]}/{digits[2:6]}/L{digits[6:]}"
    digits = f"{ledger_id:019d}"
    return f"{root}/{digits[:3]}/{digits[3:7]}/{digits[7:11]}/{digits[11:15]}/L{digits[15:]}"


def parse_ledger_path(path: str, root: str = DEFAULT_ROOT) -> int:
    """The ledger id of a z-node path; exactly the inverse of :func:`ledger_path`, anything else is CorruptFormat."""
    below = path[len(root) :] if path.startswith(root) else ""
    digits = _SHORT.fullmatch(below) or _LONG.fullmatch(below)
    ledger_id = int("".join(digits.groups())) if digits else -1
    if not 0 <= ledger_id <= MAX_LEDGER_ID or ledger_path(ledger_id, root) != path:
        raise CorruptFormat(
            "ledger path", 0, f"{root}/00/0000/L0000 or {root}/000/0000/0000/0000/L0000, found {path!r}"
        )
    return ledger_id


def is_ledger_folder(name: str) -> bool:
    """Whether a child of the root holds ledgers; the others (available, cookies, idgen, LAYOUT ...) are special."""
    return _TOP_LEVEL.fullmatch(name) is not None


def parse_layout(data: bytes) -> LedgerLayout:
    """The LAYOUT node; raises UnsupportedFormat, by name, for ledger managers that keep no hierarchical tree."""
    try:
        found = _LAYOUT.fullmatch(bytes(data).decode())
    except UnicodeDecodeError as error:
        raise CorruptFormat("LAYOUT", error.start, "UTF-8 text") from None
    if found is None:
        raise CorruptFormat("LAYOUT", 0, "a layout format version and FACTORY:VERSION on two lines")
    if int(found[1]) != _LAYOUT_FORMAT:
        raise UnsupportedFormat("LAYOUT", 0, f"layout format {_LAYOUT_FORMAT}, found {found[1]}")
    if found[2] not in _HIERARCHICAL:
        raise UnsupportedFormat("LAYOUT", found.start(2), f"a hierarchical ledger manager, found {found[2]}")
    return LedgerLayout(found[2], int(found[3]))
