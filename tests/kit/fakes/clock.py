"""A clock that only moves when it is told to, or when somebody sleeps on it."""

from __future__ import annotations

from collections.abc import Callable


class FakeClock:
    """Passes for ``ports.Clock``; ``slept`` lists what was asked of :meth:`sleep`, in seconds.

    ``on_sleep`` is what others do while somebody sleeps (seconds).
    """

    def __init__(self, now_ms: int = 1_700_000_000_000) -> None:
        self._now_ms = float(now_ms)
        self.slept: list[float] = []
        self.on_sleep: Callable[[float], None] = lambda seconds: None

    def now_ms(self) -> int:
        return int(self._now_ms)

    def sleep(self, seconds: float) -> None:
        if seconds > 0:
            self.slept.append(seconds)
            self.advance(seconds)
            self.on_sleep(seconds)

    def advance(self, seconds: float) -> None:
        self._now_ms += seconds * 1000.0
