"""Deliberate faults of runs that write or delete topics.

Belongs here: one context manager per mutation, by what the product would do. Not here: how many seeds each may take
(``test_mutations.py``).
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from contextlib import AbstractContextManager, contextmanager
from dataclasses import replace
from typing import Any
from unittest.mock import patch

from pulsar_lifecycle.copies import listed_ledgers
from pulsar_lifecycle.errors import OutcomeUnknown
from pulsar_lifecycle.runs import caps
from pulsar_lifecycle.topics import protection, snapshot
from pulsar_lifecycle.topics.write import TopicWrite
from pulsar_lifecycle.trimming import delete_topic, trim_rules, trim_run
from tests.simulation.mutations.mutation import Mutation
from tests.simulation.world.ports import SimStore


@contextmanager
def compensate() -> Iterator[None]:
    """After a compare-and-set whose outcome is not known, write back what was there."""
    real = SimStore.write

    def write(self: SimStore, path: str, data: bytes, version: int, beside: str = "") -> Any:
        before = self.server.data(path) if self.server.stat(path) is not None else b""
        try:
            return real(self, path, data, version, beside)
        except OutcomeUnknown:
            if path.startswith("/managed-ledgers/"):
                real(self, path, before, -1)
            raise

    with patch.object(SimStore, "write", write):
        yield


def trim_past_cursors() -> AbstractContextManager[Any]:
    """Trim whatever is asked, wherever the cursors stand."""
    return patch.object(snapshot, "positions", lambda *given: {})


def take_any_copy() -> AbstractContextManager[Any]:
    """An offloaded ledger leaves its list wherever its copy is."""
    return patch.object(listed_ledgers, "copy_rule", lambda offload, context: None)


def take_beside_open_ledgers() -> AbstractContextManager[Any]:
    """A ledger leaves its list whatever may be writing its topic."""
    return patch.object(protection, "deletion_rule", lambda topic, context: None)


def take_beside_attempts() -> AbstractContextManager[Any]:
    """A ledger leaves its list whatever its topic's broker is offloading."""
    return patch.object(trim_rules, "open_attempt", lambda info, ours=(): None)


def whatever_is_beside() -> AbstractContextManager[Any]:
    """A topic's z-node is written by its version alone."""
    real = TopicWrite.write
    return patch.object(TopicWrite, "write", lambda self, node, data, beside: real(self, node, data, ""))


@contextmanager
def take_off_system_topics() -> Iterator[None]:
    """The first phase asks for its own setting of system topics alone."""
    real = trim_run.context_of

    def context(cluster: Any, fingerprint: str) -> Any:
        return replace(real(cluster, fingerprint), system_topics=cluster.settings.trimming.system_topics)

    with patch.object(trim_run, "context_of", context):
        yield


@contextmanager
def delete_topics_at_once() -> Iterator[None]:
    """A topic is deleted first; its messages are for later."""

    def send(*given: Any) -> list[Any]:
        return []

    with patch.object(delete_topic, "send_messages", send):
        yield


@contextmanager
def launches_have_caps_of_their_own() -> Iterator[None]:
    """What a launch asks for counts, whatever the settings file says."""
    real = caps.effective_caps

    def asked_for(settings: Any, asked: caps.Lowered = caps.AS_SET) -> caps.Caps:
        if asked.max_ledgers is None:
            return real(settings, asked)
        return caps.Caps(asked.max_ledgers, 1.0, 1 << 50, asked.max_ledgers)

    with patch.object(caps, "effective_caps", asked_for):
        yield


def trims_have_no_caps() -> AbstractContextManager[Any]:
    """Taking ledgers off lists is capped by nothing."""
    return patch.object(trim_run, "check_blast", lambda rows, listed, caps: None)


TOPICS: Mapping[str, Mutation] = {
    "compensate after an ambiguous compare-and-set": compensate,
    "trim past the cursors": trim_past_cursors,
    "take ledgers off lists whose offloaded copies no run deletes": take_any_copy,
    "take ledgers off lists beside an open ledger that leaked": take_beside_open_ledgers,
    "take ledgers off lists beside an offload attempt of a broker": take_beside_attempts,
    "write topics that were created again meanwhile": whatever_is_beside,
    "take ledgers off lists of system topics that deletion runs keep": take_off_system_topics,
    "delete topics before their messages are sent": delete_topics_at_once,
    "let a launch raise the settings' caps": launches_have_caps_of_their_own,
    "take any number of ledgers off lists": trims_have_no_caps,
}
