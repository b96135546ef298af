"""When a token expires, as it says itself.

Belongs here: reading the claim of a JWT (RFC 7519). Not here: whether brokers believe it.
"""

from __future__ import annotations

import base64
import json
from datetime import UTC, datetime


def expired_at(token: str, now: float) -> str | None:
    """When a token expired, where that is before ``now`` (s); None if it has not, or does not say when it does."""
    try:
        payload = token.split(".")[1]
        expires = float(json.loads(base64.urlsafe_b64decode(payload + "=="))["exp"])
        return datetime.fromtimestamp(expires, UTC).isoformat(" ", "seconds") if expires <= now else None
    except (IndexError, KeyError, TypeError, ValueError, OverflowError, OSError):
        return None
