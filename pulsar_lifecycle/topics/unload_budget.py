"""How many unloads a run may still make, and for which topics some are kept.

Not here: making them (``unloads.py``).
"""

from __future__ import annotations

import threading
from collections import Counter

from pulsar_lifecycle.model import Topic


class UnloadBudget:
    """So many unloads; what a topic needs may be kept for it, and nobody else takes that."""

    def __init__(self, unloads: int) -> None:
        self._left = unloads
        self._kept: Counter[Topic] = Counter()
        self._lock = threading.Lock()

    def has(self, unloads: int, topic: Topic | None) -> bool:
        """Whether there are so many, of which those that are kept for ``topic`` are some."""
        with self._lock:
            return self._left + (self._kept[topic] if topic else 0) >= unloads

    def keep(self, topic: Topic, unloads: int) -> bool:
        """Whether there are so many, which are kept for a topic."""
        with self._lock:
            if self._left < unloads:
                return False
            self._left -= unloads
            self._kept[topic] += unloads
            return True

    def give_back(self, topic: Topic) -> None:
        """What is kept for a topic is anybody's again."""
        with self._lock:
            self._left += self._kept.pop(topic, 0)

    def take(self, topic: Topic) -> bool:
        """Whether there is one for a topic, which is taken: first of those that are kept for it."""
        with self._lock:
            if self._kept[topic]:
                self._kept[topic] -= 1
                return True
            if self._left <= 0:
                return False
            self._left -= 1
            return True
