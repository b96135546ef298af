"""A broker that loads a topic while its z-node is written: it has made a ledger by then, and cannot list it any more.

Belongs here: the moment. Not here: what a test expects of the ledger.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Any
from unittest.mock import patch

from pulsar_lifecycle.formats.ledger_metadata import LedgerState
from pulsar_lifecycle.model import Topic
from pulsar_lifecycle.ports import Stat
from tests.kit.simulated.cluster import SimulatedCluster, data_tags


@contextmanager
def just_before_the_write(cluster: SimulatedCluster, topic: Topic, act: Callable[[], object]) -> Iterator[None]:
    """``act`` happens once, when the product's write of the topic's z-node arrives; then that is carried out."""
    write, acts = cluster.zookeeper.write, [act]

    def writing(path: str, data: bytes, version: int) -> Stat:
        if path == cluster.topic_path(topic) and acts:
            acts.pop()()
        return write(path, data, version)

    with patch.object(cluster.zookeeper, "write", writing):
        yield


def left_open(cluster: SimulatedCluster, topic: Topic, **more: Any) -> int:
    """A ledger that a load of the topic made, and that it lists nowhere."""
    return cluster.ledger(data_tags(topic), state=LedgerState.OPEN, entries=(), **more)
