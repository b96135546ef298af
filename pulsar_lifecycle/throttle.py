"""How hard the library leans on ZooKeeper: a budget per second and a latency guard.

Belongs here: pacing that knows time and nothing of a vendor. Not here: what is read, or how a probe asks.

"""

from __future__ import annotations

import contextlib
import threading
from collections.abc import Callable

from pulsar_lifecycle.errors import LifecycleError, Overloaded
from pulsar_lifecycle.ports import Clock

PROBE_INTERVAL = 1.0
"""Seconds between two probes."""


class RateBudget:
    """At most ``per_second`` units a second, without credit for idle time. Threads may share one.

    A request is let through and paid for by the next one, so the long-run rate holds whatever the size of a request.
    """

    def __init__(self, per_second: float, clock: Clock) -> None:
        self._per_ms = per_second / 1000.0
        self._clock = clock
        self._lock = threading.Lock()
        self._debt = 0.0
        self._paid_at = clock.now_ms()

    def take(self, units: int) -> None:
        """Wait until what was taken before is paid for, then take ``units``."""
        with self._lock:
            now = self._clock.now_ms()
            # A clock that was set back pays nothing, and does no harm beyond that.
            self._debt = max(0.0, self._debt - max(0, now - self._paid_at) * self._per_ms)
            self._paid_at = now
            wait_ms = self._debt / self._per_ms
            self._debt += units
        self._clock.sleep(wait_ms / 1000.0)


def mind_latency(latency_ms: float, slow_above_ms: float, stop_above_ms: float, clock: Clock) -> None:
    """Return at once below ``slow_above_ms``, wait one round trip above it; Overloaded above ``stop_above_ms``."""
    if latency_ms > stop_above_ms:
        raise Overloaded(
            f"ZooKeeper answers in {latency_ms:.0f} ms, zookeeper.stop_above is {stop_above_ms:.0f} ms: stopped; "
            "start again when it has recovered"
        )
    if latency_ms > slow_above_ms:
        clock.sleep(latency_ms / 1000.0)


class LatencyGuard:
    """Measures a round trip once a second in a thread of its own, and slows or stops whoever asks it first.

    ``probe`` returns after one round trip, or when it has waited long enough for one; it raises a LifecycleError when
    there is no connection to measure. The guard acts on the better of the last two probes: one slow answer may be this
    process's own doing (a collection, a busy core). ``slow_above`` and ``stop_above`` are seconds.
    """

    def __init__(self, probe: Callable[[], None], slow_above: float, stop_above: float, clock: Clock) -> None:
        self._probe = probe
        self._slow_ms = slow_above * 1000.0
        self._stop_ms = stop_above * 1000.0
        self._clock = clock
        self._last_two = (0.0, 0.0)
        self._stopping = threading.Event()
        self._thread: threading.Thread | None = None

    @property
    def latency_ms(self) -> float:
        """The latest round trip; 0 before the first."""
        return self._last_two[1]

    def start(self) -> None:
        """Begin to measure in the background, until :meth:`stop`; may be started again."""
        self._stopping.clear()
        self._thread = threading.Thread(target=self._run, name="zookeeper-latency", daemon=True)
        self._thread.start()

    def stop(self) -> None:
        """End the background thread."""
        self._stopping.set()
        if self._thread is not None:
            self._thread.join()
            self._thread = None

    def measure(self) -> float:
        """One probe now; returns the latest round trip in milliseconds.

        A lost connection is not a slow one: it changes nothing here, and whoever reads notices it by itself.
        """
        began = self._clock.now_ms()
        with contextlib.suppress(LifecycleError):
            self._probe()
            self._last_two = (self._last_two[1], float(self._clock.now_ms() - began))
        return self.latency_ms

    def hold(self) -> None:
        """:func:`mind_latency` of what was measured."""
        mind_latency(min(self._last_two), self._slow_ms, self._stop_ms, self._clock)

    def _run(self) -> None:
        while not self._stopping.is_set():
            self.measure()
            self._stopping.wait(PROBE_INTERVAL)


Pace = Callable[[int], object]
"""Told the bytes of each block before they move. May count them, wait (``RateBudget.take``), or raise to stop."""
