"""The kill harness over fakes: a process that dies before or after any of its calls.

Belongs here: what a step is, and dying at each in turn. Not here: a process that is killed on real servers
(``tests/integration/killed_run.py``), the simulator's faults.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import contextmanager
from itertools import count
from typing import Any, TypeVar

import pytest

from tests.kit.fakes.broker_admin import FakeBrokerAdmin
from tests.kit.fakes.metadata_store import FakeStore

S = TypeVar("S")
Tell = Callable[[str], None]
"""Takes the name of a step; it may raise :class:`Crash`."""


class Crash(BaseException):
    """The process is gone: no product code may catch it."""


class Steps:
    """Every step in its order. The process dies at step ``kill_at``, from 0, and does none that would come after it."""

    def __init__(self, kill_at: int | None = None) -> None:
        self.seen: list[str] = []
        self._kill_at = kill_at

    def __call__(self, step: str) -> None:
        self.seen.append(step)
        if self._kill_at is not None and len(self.seen) > self._kill_at:
            raise Crash(step)


class Watched:
    """A port that tells of each call before it is made, and after it was: ``before NAME``, ``after NAME``."""

    def __init__(self, port: Any, tell: Tell, prefix: str = "") -> None:
        self._port, self._tell, self._prefix = port, tell, prefix

    def __getattr__(self, name: str) -> Any:
        found = getattr(self._port, name)

        def call(*given: Any, **named: Any) -> Any:
            self._tell(f"before {self._prefix}{name}")
            result = found(*given, **named)
            self._tell(f"after {self._prefix}{name}")
            return result

        return call


@contextmanager
def killed_at_unsubscribe(admin: FakeBrokerAdmin, *, after: bool) -> Iterator[None]:
    """The process dies at its request to delete a subscription; ``after``: once the broker has done that."""
    unsubscribe = admin.on_unsubscribe

    def dies(topic: Any, name: str) -> None:
        if after:
            unsubscribe(topic, name)
        raise Crash

    admin.on_unsubscribe = dies
    with pytest.raises(Crash):
        yield
    admin.on_unsubscribe = unsubscribe


def watch(store: FakeStore, tell: Tell) -> None:
    """Tell of each request of a session: ``before NAME``, ``after NAME``."""
    store.before = lambda operation: tell(f"before {operation.name}")
    store.after = lambda operation: tell(f"after {operation.name}")


def before_calls(tell: Tell) -> Tell:
    """Tell only of what comes before a call: dying there is dying after the call before it."""
    return lambda step: tell(step) if step.startswith("before") else None


def killed_at_every_step(begin: Callable[[], S], work: Callable[[S, Tell], object]) -> Iterator[tuple[S, str]]:
    """What ``begin`` makes after ``work`` on it was killed, with the step it was killed at; for each step in turn.

    ``work`` tells of its steps.
    """
    for number in count():
        made, steps = begin(), Steps(number)
        try:
            work(made, steps)
        except Crash:
            yield made, steps.seen[number]
        else:
            return


def raising(error: BaseException) -> Callable[..., None]:
    """What fails so, whatever it is given."""

    def act(*_: object) -> None:
        raise error

    return act
