"""CRC32C of bytes, and of what lies behind each other when only the parts' checksums are known.

Belongs here: the arithmetic. Not here: what is checked by it (``offload_data``). Source: a CRC is linear, so n more
bytes multiply what came before by x^(8n) modulo the polynomial (as in zlib's crc32_combine).
"""

from __future__ import annotations

from array import array
from collections.abc import Iterable
from functools import lru_cache
from typing import Any, cast

import google_crc32c
import numpy as np
import numpy.typing as npt

_POLYNOMIAL = 0x82F63B78  # Castagnoli's, bits reversed
_crc32c = cast(Any, google_crc32c)  # ships without complete types

_Numbers = npt.NDArray[np.uint32]


def checksums(parts: Iterable[bytes | memoryview]) -> array[int]:
    """CRC32C of each."""
    return array("I", map(_crc32c.value, map(bytes, parts)))


def extend(checksum: int, data: bytes) -> int:
    """CRC32C of what has ``checksum`` with ``data`` behind it; 0 to begin with."""
    return _crc32c.extend(checksum, data)


def combined(checksum: int, checksums: array[int], lengths: array[int]) -> int:
    """CRC32C of what has ``checksum`` with parts behind it that have these CRC32C and lengths in bytes (arrays "I")."""
    whole = np.frombuffer(array("I", [checksum]) + checksums, np.uint32)
    sizes = np.frombuffer(array("I", [0]) + lengths, np.uint32).astype(np.uint64)
    while len(whole) > 1:
        if len(whole) % 2:
            whole, sizes = np.append(whole, np.uint32(0)), np.append(sizes, np.uint64(0))
        whole = _moved(whole[::2], sizes[1::2]) ^ whole[1::2]
        sizes = sizes[::2] + sizes[1::2]
    return int(whole[0])


def _moved(checksums: _Numbers, lengths: npt.NDArray[np.uint64]) -> _Numbers:
    """The checksum of each payload with so many zero bytes appended."""
    moved = checksums
    for place in range(-(-int(lengths.max()).bit_length() // 4)):
        digits = (lengths >> np.uint64(4 * place)).astype(np.uint32) & np.uint32(15)
        first = digits[0]
        if (digits == first).all():
            if first:
                moved = _looked_up(_tables(place)[:, first], moved, np.uint32(0))
        else:
            moved = _looked_up(_tables(place).reshape(4, -1), moved, digits << np.uint32(8))
    return moved


def _looked_up(tables: _Numbers, numbers: _Numbers, begin: npt.NDArray[np.uint32] | np.uint32) -> _Numbers:
    """What becomes of each number: a look in one table for each of its bytes, from ``begin`` on."""
    found = tables[0].take((numbers & np.uint32(0xFF)) + begin)
    for at in (1, 2, 3):
        found ^= tables[at].take(((numbers >> np.uint32(8 * at)) & np.uint32(0xFF)) + begin)
    return found


@lru_cache(maxsize=16)
def _tables(place: int) -> _Numbers:
    """What n * 16**``place`` zero bytes make of each byte of a checksum, n = 0 .. 15, shape (4, 16, 256)."""
    tables = np.zeros((4, 16, 256), np.uint32)
    images = np.uint32(1) << np.arange(32, dtype=np.uint32)
    for n in range(16):
        for bit, image in enumerate(images):
            at, size = bit // 8, 1 << bit % 8
            tables[at, n, size : 2 * size] = tables[at, n, :size] ^ image
        images = _looked_up(tables[:, 1], images, np.uint32(0)) if n else _one(place)
    return tables


def _one(place: int) -> _Numbers:
    """What 16**``place`` zero bytes make of each bit of a checksum."""
    images = np.uint32(1) << np.arange(32, dtype=np.uint32)
    if place:
        for _ in range(16):
            images = _looked_up(_tables(place - 1)[:, 1], images, np.uint32(0))
        return images
    for _ in range(8):
        images = (images >> np.uint32(1)) ^ (images & np.uint32(1)) * np.uint32(_POLYNOMIAL)
    return images
