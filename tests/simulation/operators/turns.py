"""An operator's steps, one after the other, and something besides now and then.

Belongs here: which step is next. Not here: what a step does.
"""

from __future__ import annotations

from tests.simulation.operators.operator import Operator
from tests.simulation.world.world import World


class Turns:
    """What an operator of one capability does, by names of its methods: ``STEPS`` in turn, ``BESIDES`` at random."""

    STEPS: tuple[str, ...]
    BESIDES: tuple[str, ...]

    def __init__(self, operator: Operator) -> None:
        self.operator = operator
        self.steps, self.besides = self.STEPS, self.BESIDES
        self.turn = -1

    def next(self) -> str:
        """The step that is due, or another."""
        random = self.operator.random
        if random.random() < 0.25:
            return random.choice(self.besides)
        self.turn += 1
        return self.steps[self.turn % len(self.steps)]

    @property
    def world(self) -> World:
        """The cluster."""
        return self.operator.world
