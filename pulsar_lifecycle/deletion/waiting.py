"""Messages that must wait go back behind the others, so that they hide nothing.

Belongs here: sending their copies to the retry topic, uncounted. Not here: which messages wait and for what (the
rules), and the journal and acknowledgements around it (``deletion/batch.py``).
"""

from __future__ import annotations

import hashlib
from collections.abc import Callable, Collection, Iterable, Iterator, Sequence
from enum import StrEnum

from pulsar_lifecycle.copies.object_pairs import CLOCK_SKEW_MS
from pulsar_lifecycle.deletion.decision import Decision, Run
from pulsar_lifecycle.errors import LifecycleError
from pulsar_lifecycle.formats.retry_letter import (
    DELAY_TIME,
    WAITING_FOR,
    WAITING_RUN,
    WAITING_SINCE,
    reconsume_times,
    told_delay,
    waiting_since,
)
from pulsar_lifecycle.model import Topic
from pulsar_lifecycle.ports import Postponed, QueueReader, Received
from pulsar_lifecycle.ports.bundle import Ports
from pulsar_lifecycle.values.codes import Code
from pulsar_lifecycle.values.outcomes import Outcome, Waiting

STAYS = (Waiting.STOPPED, Waiting.NOT_SENT)
"""What a message that is left where it is waits for."""


def stay(decisions: Iterable[Decision], why: str) -> None:
    """What had to go to the retry topic could not be sent there: it waits where it is."""
    for d in decisions:
        d.outcome, d.code, d.waiting = Outcome.WAITING, _still(d.code) or Waiting.NOT_SENT, Waiting.NOT_SENT
        d.reason = f"{d.reason}; {why}"


def _still(code: StrEnum | None) -> Code | None:
    """A code that says something of the ledger which is true wherever its message is."""
    return next((known for known in (Code.OUTCOME_UNKNOWN, Code.TWIN) if code is known), None)


def send_back(run: Run, ports: Ports, waits: Sequence[Decision]) -> None:
    """Send copies of what waits to the retry topic, uncounted; what could not be sent stays where it is.

    Of messages that say the same, one is enough: a lost acknowledgement leaves the original beside its copy, and both
    may wait for months, with more such losses.
    """
    for d in waits:
        published = d.message.publish_time
        d.waiting_since = waiting_since(d.message.properties, published) or published
    firsts = {_same(d): d for d in reversed(waits) if _same(d) not in ports.sent_back}
    some = list(firsts.values())
    notes = [{WAITING_SINCE: str(d.waiting_since), WAITING_FOR: str(d.waiting), WAITING_RUN: run.run_id} for d in some]
    try:
        postponed = ports.queue.send_back([d.message for d in some], notes, run.waiting_delay_ms) if some else []
    except LifecycleError as error:
        stay(waits, f"the retry topic could not be asked: {error}")
        return
    ports.sent_back.update(_same(one) for one in postponed if one.error is None)
    errors = {_same(one): one.error for one in postponed}
    for d in waits:
        d.sent_back = _same(d) in ports.sent_back
        if not d.sent_back:
            stay([d], f"it could not be sent to the retry topic: {errors[_same(d)]}")


def _same(one: Decision | Postponed) -> tuple[bytes, int]:
    """What messages have in common of which one is enough."""
    return hashlib.sha256(one.message.raw).digest(), reconsume_times(one.message.properties)


PAGE = 1_000


def withheld(
    reader: QueueReader, parts: Sequence[Topic], run_id: str, began: int, taken: Callable[[], Collection[str]]
) -> dict[Topic, int]:
    """By partition, how many messages were due when a run began (ms), and that it never took; none is left out.

    ``taken`` gives the ids (hexadecimal) of the messages that it journalled; it is asked only where something due is
    left: an acknowledgement may have been lost. A message that says a delay is due :data:`CLOCK_SKEW_MS` later than
    that, as the broker's clock decides, however long the delay is: ``deletion.deliver_after`` may be days, and who
    forges one hides his own message only. One whose sender gave it a time of delivery that it does not say counts as
    due: no Python client sees that. Raises what looking raises.
    """
    left: dict[Topic, list[str]] = {}
    for part in parts:
        if reader.backlog(part):
            due = [m.message_id.hex() for m in _waiting(reader, part) if _was_due(m, run_id, began)]
            left |= {part: due} if due else {}
    known = taken() if left else ()
    counts = {part: sum(one not in known for one in due) for part, due in left.items()}
    return {part: count for part, count in counts.items() if count}


def _waiting(reader: QueueReader, part: Topic) -> Iterator[Received]:
    after = None
    while True:
        page = reader.waiting(part, after, PAGE)
        yield from page.messages
        if page.end:
            return
        after = page.upto


def _was_due(message: Received, run_id: str, began: int) -> bool:
    if message.properties.get(WAITING_RUN) == run_id:
        return False
    at = message.publish_time + told_delay(message.properties)
    return at + (CLOCK_SKEW_MS if DELAY_TIME in message.properties else 0) <= began
