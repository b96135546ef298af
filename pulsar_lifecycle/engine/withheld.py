"""What a broker did not hand out to a deletion run though it was due.

Belongs here: comparing what still waits after a run with what the run took. Not here: taking (``deletion.py``).
A consumer cannot tell "nothing is left" from "nothing more is given": brokers stop at
``maxUnackedMessagesPerConsumer`` and ``maxUnackedMessagesPerSubscription``, throttle, or give messages to others.
"""

from __future__ import annotations

from collections.abc import Callable, Collection, Iterator, Sequence

from pulsar_lifecycle.formats.retry_letter import DELAY_TIME, WAITING_RUN, told_delay
from pulsar_lifecycle.model import Topic
from pulsar_lifecycle.plan.objects import CLOCK_SKEW_MS
from pulsar_lifecycle.ports import QueueReader, Received

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
