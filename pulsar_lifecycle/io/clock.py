"""The real clock. Tests have their own; nothing else in ``io`` asks the operating system for the time of day."""

from __future__ import annotations

import time


class SystemClock:
    """``ports.Clock`` over the operating system."""

    def now_ms(self) -> int:
        """Milliseconds since the epoch."""
        return time.time_ns() // 1_000_000

    def sleep(self, seconds: float) -> None:
        """Wait ``seconds``; nothing or less returns at once."""
        if seconds > 0:
            time.sleep(seconds)
