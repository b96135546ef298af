"""Bytes as a torn or foreign write would leave them."""

from __future__ import annotations

import random


def mutated(data: bytes, rng: random.Random) -> bytes:
    """``data`` with bytes changed, by a little too, cut, repeated or put in, as a torn or foreign write leaves it."""
    out = bytearray(data)
    for _ in range(rng.randint(1, 4)):
        at = rng.randrange(len(out) + 1)
        match rng.randrange(6):
            case 0 if at < len(out):
                out[at] = rng.randrange(256)
            case 1:
                del out[at:]
            case 2:
                del out[at : at + rng.randint(1, 8)]
            case 3:
                out[at:at] = rng.randbytes(rng.randint(1, 8))
            case 4 if at < len(out):
                out[at] = (out[at] + rng.choice([-1, 1])) % 256
            case _:
                out[at:at] = out[at : at + 16]
    return bytes(out)
