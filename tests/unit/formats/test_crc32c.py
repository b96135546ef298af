"""Checksums of parts tell the checksum of the whole."""

from __future__ import annotations

import random
from array import array

import pytest

from pulsar_lifecycle.formats import crc32c


def test_the_check_value():
    assert list(crc32c.checksums([b"123456789", memoryview(b""), bytearray(b"a")])) == [0xE3069283, 0, 0xC1D04330]
    assert crc32c.extend(crc32c.extend(0, b"1234"), b"56789") == 0xE3069283


@pytest.mark.parametrize(
    "lengths",
    [[], [0], [0, 0, 0], [1], [12, 1024] * 99, [12, 0] * 5, [1 << 24, 3], [3, 1 << 24, (1 << 24) - 1]],
    ids=str,
)
def test_parts_tell_the_whole(lengths):
    rng = random.Random(1)
    parts = [rng.randbytes(length) for length in lengths]
    before = b"what was there"
    found = crc32c.combined(crc32c.extend(0, before), crc32c.checksums(parts), array("I", lengths))
    assert found == crc32c.extend(0, before + b"".join(parts))


def test_any_parts_tell_the_whole():
    rng = random.Random(2)
    for _ in range(300):
        parts = [rng.randbytes(rng.choice([0, 1, 12, rng.randrange(5000)])) for _ in range(rng.randrange(40))]
        lengths = array("I", map(len, parts))
        assert crc32c.combined(0, crc32c.checksums(parts), lengths) == crc32c.extend(0, b"".join(parts))
