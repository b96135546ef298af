"""Where the golden bytes are and how to read the ones that hold several entries."""

from __future__ import annotations

import struct
from pathlib import Path

GOLDEN = Path(__file__).parent


def matching(pattern: str) -> list[Path]:
    """Golden files by glob; at least one, so that a moved file does not pass as tested."""
    found = sorted(GOLDEN.glob(pattern))
    assert found, pattern
    return found


def entries(path: Path) -> list[bytes]:
    """The entry payloads of an ``.entries.bin`` file."""
    data, offset, found = path.read_bytes(), 0, []
    while offset < len(data):
        (size,) = struct.unpack_from(">I", data, offset)
        found.append(data[offset + 4 : offset + 4 + size])
        offset += 4 + size
    return found


def name(path: Path) -> str:
    """A test id."""
    return str(path.relative_to(GOLDEN))
