"""Ids that nobody else makes."""

from __future__ import annotations

import secrets
from uuid import UUID, uuid4


class RandomIds:
    """Of the operating system's randomness."""

    def token(self, size: int) -> str:
        """``size`` bytes, as hexadecimal digits."""
        return secrets.token_hex(size)

    def uuid(self) -> UUID:
        """A UUID of version 4."""
        return uuid4()
