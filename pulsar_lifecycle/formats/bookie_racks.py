"""The z-node ``/bookies``: which rack a bookie stands in, as Pulsar's rack-aware placement reads it.

Belongs here: its JSON, ``{group: {bookie: {"rack": ..., "hostname": ...}}}``. Not here: which bookies there are.
Upstream: ``BookiesRackConfiguration`` and ``BookieRackAffinityMapping``, Pulsar 4.0.
"""

from __future__ import annotations

import json
from collections.abc import Mapping
from typing import Any, cast

from pulsar_lifecycle.errors import CorruptFormat

BOOKIES = "/bookies"
DEFAULT_RACK = "/default-rack"
"""Where brokers take a bookie to stand that the z-node does not name."""


def decode(data: bytes) -> dict[str, str]:
    """Bookie id -> rack; a bookie without a rack is left out. Raises CorruptFormat."""
    try:
        groups: Any = json.loads(data) if data.strip() else {}
    except (ValueError, RecursionError) as error:
        raise CorruptFormat(BOOKIES, 0, f"JSON: {error}") from error
    found: dict[str, str] = {}
    for group, bookies in _object(groups, "groups of bookies").items():
        for bookie, info in _object(bookies, f"the bookies of group {group}").items():
            rack = _object(info, f"rack and hostname of bookie {bookie}").get("rack")
            if rack is not None and not isinstance(rack, str):
                raise CorruptFormat(BOOKIES, 0, f"a rack of bookie {bookie} as text, found {rack!r}")
            if rack:
                found[bookie] = "/" + rack.strip("/")
    return found


def _object(value: Any, what: str) -> Mapping[str, Any]:
    if not isinstance(value, dict):
        raise CorruptFormat(BOOKIES, 0, f"{what} as a JSON object, found {type(value).__name__}")
    return cast("Mapping[str, Any]", value)
