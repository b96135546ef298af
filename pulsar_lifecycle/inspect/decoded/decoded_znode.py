"""Any z-node, decoded by where it lies.

Ledger passwords and credentials in policies are hidden. Not here: what belongs to it elsewhere (``decoded_ledger.py``,
``decoded_topic.py``).
"""

from __future__ import annotations

import json
import re
from dataclasses import asdict, dataclass
from typing import Any

from pulsar_lifecycle.errors import CorruptFormat, NotFound
from pulsar_lifecycle.formats import bookie_info, ledger_path
from pulsar_lifecycle.formats.plain_data import describe
from pulsar_lifecycle.inspect import explain
from pulsar_lifecycle.metastore.walk import SCHEMAS_ROOT
from pulsar_lifecycle.model import MANAGED_LEDGERS_ROOT, Topic
from pulsar_lifecycle.ports import Children, MetadataStore, Node

HIDDEN = "(hidden)"
_SECRET = re.compile(r"password|secret|token|credential|authenticationparam|privatekey", re.IGNORECASE)


@dataclass(frozen=True, slots=True)
class DecodedNode:
    """A z-node. ``value``: plain data under upstream's names, None for an empty one, or why it does not decode.

    ``format``: the name of a ``describe`` format, ``bookie``, or ``plain`` for what is JSON or text.
    """

    node: Node
    format: str
    value: Any | CorruptFormat
    children: tuple[str, ...]

    @property
    def broken(self) -> CorruptFormat | None:
        """Why it does not decode; None if it does."""
        return self.value if isinstance(self.value, CorruptFormat) else None


def described(format_name: str, data: bytes) -> dict[str, Any]:
    """``plain_data.describe`` without secrets. Raises UsageError, CorruptFormat, UnsupportedFormat."""
    return without_secrets(describe(format_name, data))


def without_secrets(value: Any) -> Any:
    """The same plain value; what stands under a name that sounds like a secret's is hidden, unless it is empty.

    ``{"key": NAME, "value": ...}`` and ``{"name": NAME, "value": ...}``, upstream's pairs, count as such too.
    """
    if isinstance(value, dict):
        named = str(value.get("key", value.get("name", "")))
        return {
            key: HIDDEN
            if isinstance(item, str) and item and _SECRET.search(named if key == "value" else key)
            else without_secrets(item)
            for key, item in value.items()
        }
    return [without_secrets(item) for item in value] if isinstance(value, list) else value


def decoded_znode(store: MetadataStore, path: str, ledgers_root: str) -> DecodedNode:
    """Any z-node, decoded by where it lies. Raises NotFound, AccessDenied."""
    store.sync("/")
    node = explain.readable(store.read([path])[0], path)
    if node is None:
        raise NotFound(f"{path}: there is no such z-node")
    listing = store.children([path])[0]
    format_name = format_of(path, ledgers_root)
    try:
        value = _value(node, format_name)
    except CorruptFormat as error:
        value = error
    return DecodedNode(node, format_name, value, tuple(sorted(listing.names)) if isinstance(listing, Children) else ())


def format_of(path: str, ledgers_root: str) -> str:
    """The ``format`` of a :class:`DecodedNode`, by its path."""
    parts = path.split("/")
    if path.startswith(f"{ledgers_root}/"):
        if path.startswith(f"{ledgers_root}/available/") and parts[-1] != bookie_info.READ_ONLY:
            return "bookie"
        try:
            ledger_path.parse_ledger_path(path, ledgers_root)
        except CorruptFormat:
            return "plain"
        return "ledger-metadata"
    if path.startswith(f"{MANAGED_LEDGERS_ROOT}/"):
        for domain in (4, 5):  # T/NS/persistent, and V1 T/C/NS/persistent
            if parts[domain : domain + 1] == ["persistent"]:
                return {1: "managed-ledger", 2: "cursor"}.get(len(parts) - domain - 1, "plain")
    if path.startswith(f"{SCHEMAS_ROOT}/") and len(parts) >= 5:
        return "schema-locator"
    return "plain"


def _value(node: Node, format_name: str) -> Any:
    if format_name == "bookie":
        return asdict(bookie_info.decode(node.data, node.path.rpartition("/")[2]))
    if not node.data:
        return None
    if format_name != "plain":
        return described(format_name, node.data)
    try:
        text = node.data.decode()
        value = json.loads(text) if text.lstrip()[:1] in ("{", "[") else text
    except ValueError:
        return f"0x{node.data.hex()}"
    return without_secrets(value)


def parse_topic(text: str) -> Topic:
    """A full topic name, ``tenant/namespace/topic``, or a managed-ledger name. Raises CorruptFormat."""
    if "://" in text:
        return Topic.parse(text)
    if "/persistent/" in text:
        return Topic.from_managed_ledger(text)
    return Topic.parse(f"persistent://{text}")
