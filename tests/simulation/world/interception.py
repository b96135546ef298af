"""A switch in every port: what happens before and after each call is the simulator's choice.

Belongs here: intercepting calls, killing a process, and the memory of what a run did. Not here: the ports, and which
faults there are (``faults``).
"""

from __future__ import annotations

from collections.abc import Callable
from contextlib import contextmanager
from dataclasses import dataclass, field
from typing import Any, TypeVar

T = TypeVar("T")


class Crash(BaseException):
    """Kill -9: no product code may catch it, and nothing of the process acts after it."""


@dataclass
class Injection:
    """Something that happens at the ``nth`` call (from 0) whose name begins with one of ``calls``."""

    name: str
    calls: tuple[str, ...]
    nth: int
    when: str
    act: Callable[[str], None]
    times: int = 1
    seen: int = 0

    def due(self, call: str, when: str) -> bool:
        """Count the call; whether it is one to act at."""
        if when != self.when or not call.startswith(self.calls):
            return False
        self.seen += 1
        return self.nth < self.seen <= self.nth + self.times


@dataclass
class Interceptor:
    """What every port asks before and after each of its calls; ``dead`` is how its process was killed."""

    injections: list[Injection] = field(default_factory=list)
    fired: list[str] = field(default_factory=list)
    dead: type[Crash] | None = None
    quiet: bool = False
    calls: int = 0

    def before(self, call: str) -> None:
        self.calls += 1
        if self.injections or self.dead:
            self._at(call, "before")

    def after(self, call: str) -> None:
        if self.injections or self.dead:
            self._at(call, "after")

    def _at(self, call: str, when: str) -> None:
        if self.quiet:
            return
        if self.dead:
            raise self.dead(call)
        for injection in self.injections:
            if injection.due(call, when):
                self.fired.append(f"{injection.name} {when} {call}")
                with self.hushed():
                    injection.act(call)

    @contextmanager
    def hushed(self) -> Any:
        """What an injection itself does is not intercepted."""
        was, self.quiet = self.quiet, True
        try:
            yield
        finally:
            self.quiet = was


def crash(interceptor: Interceptor, how: type[Crash] = Crash) -> Callable[[str], None]:
    """End this process here."""

    def act(call: str) -> None:
        interceptor.dead = how
        raise how(call)

    return act


@dataclass
class Trace:
    """What the simulator knows of one deletion run: its lease, its evidence, what it has done."""

    run_id: str
    guard: tuple[str, int] = ("", -1)
    epoch_id: str = ""
    batch: int = 1
    per_second: float = 1e9
    started: int = 0
    deleted: set[int] = field(default_factory=set)
    transactions: int = 0
    tasks: int = 0
    latency_at_receive: float = 0.0
    undo: bool = False
    kind: str = ""
    """What a run on tiered storage does; empty of any other."""
    read_well: bool = False
    """Whether a broker has read an offloaded ledger in it, and none failed to."""
    read_badly: bool = False
    unread: set[str] = field(default_factory=set)
    """Namespaces that it has committed ledgers of."""
    read: set[str] = field(default_factory=set)
    """Namespaces of which a broker has read a ledger in it."""
