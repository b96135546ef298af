"""Sending intents to the deletion topic, so that each that counts as sent is kept for whoever consumes it.

Belongs here: which partitions take messages, and whether the subscription was there all the while. Not here: what a
message says (``formats/``), receiving (``queue.py``). A partition drops what nobody waits for within seconds. So a
message counts as sent only if its partition had one and the same subscription from before it was sent until after its
receipt. A partition whose broker does not answer takes none: the others take its share. Once all are such, nothing more
is sent for a while: each send would wait for its time-outs.
"""

from __future__ import annotations

import time
from collections.abc import Sequence

from pulsar_lifecycle.deletion_queue.queue_topics import KeptTopics
from pulsar_lifecycle.errors import LifecycleError, Unavailable
from pulsar_lifecycle.formats.deletion_message import PendingDeleteLedgerInfo, encode_deletion_message
from pulsar_lifecycle.formats.retry_letter import DELAY_TIME
from pulsar_lifecycle.io.pulsar.pulsar_session import Outgoing, PulsarSession
from pulsar_lifecycle.model import Topic
from pulsar_lifecycle.ports import Sent

TRIES = 3
"""How often a message goes out whose partition lost its subscription, or whose broker did not answer."""
SHUT_FOR = 300.0
"""Seconds for which a partition is left alone whose broker did not answer."""


class IntentSender:
    """Sends intents through one session. Not thread-safe."""

    def __init__(self, session: PulsarSession, subscribed: KeptTopics) -> None:
        self._session, self._subscribed = session, subscribed
        self._shut: dict[Topic, float] = {}
        """Until when (by the monotonic clock) partitions are left alone."""
        self._turn = 0

    def send(self, infos: Sequence[PendingDeleteLedgerInfo], deliver_after_ms: int) -> list[Sent]:
        """One un-batched, keyless message per info, in turn over the partitions; waits for receipts.

        Raises what hinders all of them before the first is sent.
        """
        properties = {DELAY_TIME: str(deliver_after_ms)} if deliver_after_ms else {}
        found = [Sent(info, b"", "not sent") for info in infos]
        todo = list(range(len(infos)))
        for tried in range(TRIES):
            if not todo:
                break
            try:
                before = self._subscribed.of_deletion_topic()
                parts = self._open(sorted(before, key=str), again=tried > 0)
            except LifecycleError:
                if tried == 0:
                    raise
                break
            todo = self._send_some(todo, found, parts, before, properties, deliver_after_ms)
        return found

    def _send_some(
        self,
        todo: Sequence[int],
        found: list[Sent],
        parts: Sequence[Topic],
        before: dict[Topic, int],
        properties: dict[str, str],
        delay_ms: int,
    ) -> list[int]:
        """Send those infos, enter what became of each; returns which are to be sent again."""
        outgoing: list[Outgoing] = []
        for index in todo:
            part = parts[self._turn % len(parts)]
            self._turn += 1
            outgoing.append(Outgoing(part, encode_deletion_message(found[index].info), properties, delay_ms))
        receipts = self._session.send_all(outgoing)
        after = self._subscribed.look()
        again: list[int] = []
        for index, one, receipt in zip(todo, outgoing, receipts, strict=True):
            message_id, error = receipt.message_id, receipt.error
            if error is None:
                self._shut.pop(one.topic, None)  # it answers again
            if error is None and after.get(one.topic) != before[one.topic]:
                message_id, error = b"", f"{one.topic} lost its subscription while it was sent"
                again.append(index)
            elif receipt.unanswered:
                self._shut[one.topic] = time.monotonic() + SHUT_FOR
                again.append(index)
            found[index] = Sent(found[index].info, message_id, error)
        return again

    def _open(self, parts: Sequence[Topic], *, again: bool) -> list[Topic]:
        """Those that take messages. Raises what hinders the last one if none does.

        ``again``: in the same send all are tried that did not answer.
        """
        now = time.monotonic()
        taking = [part for part in parts if self._shut.get(part, now) <= now]
        if not taking and not again:
            raise Unavailable(
                f"no partition of {parts[0].partitioned_parent} has stored a message lately: see whether its brokers "
                "run and bookies take entries (`pulsar-lifecycle bookies`), then run again"
            )
        problem: LifecycleError | None = None
        opened: list[Topic] = []
        for part in taking or parts:
            try:
                self._session.open_producer(part)
            except LifecycleError as error:
                self._shut[part], problem = time.monotonic() + SHUT_FOR, error
            else:
                opened.append(part)
        if problem and not opened:
            raise problem
        return opened
