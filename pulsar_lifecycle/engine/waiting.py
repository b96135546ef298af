"""Messages that must wait go back behind the others, so that they hide nothing.

Belongs here: sending their copies to the retry topic, uncounted. Not here: which messages wait and for what (the
rules), and the journal and acknowledgements around it (``deletion.py``).
"""

from __future__ import annotations

import hashlib
from collections.abc import Iterable, Sequence

from pulsar_lifecycle.engine.decision import Decision, Run, Tools
from pulsar_lifecycle.errors import LifecycleError
from pulsar_lifecycle.formats.retry_letter import (
    WAITING_FOR,
    WAITING_RUN,
    WAITING_SINCE,
    reconsume_times,
    waiting_since,
)
from pulsar_lifecycle.plan.outcomes import WAITING, Waiting
from pulsar_lifecycle.ports import Postponed

STAYS = (Waiting.STOPPED, Waiting.NOT_SENT)
"""What a message that is left where it is waits for."""


def stay(decisions: Iterable[Decision], why: str) -> None:
    """What had to go to the retry topic could not be sent there: it waits where it is."""
    for d in decisions:
        d.outcome, d.reason, d.waiting = WAITING, f"{d.reason}; {why}", Waiting.NOT_SENT


def send_back(run: Run, tools: Tools, waits: Sequence[Decision]) -> None:
    """Send copies of what waits to the retry topic, uncounted; what could not be sent stays where it is.

    Of messages that say the same, one is enough: a lost acknowledgement leaves the original beside its copy, and both
    may wait for months, with more such losses.
    """
    for d in waits:
        published = d.message.publish_time
        d.extra["waiting_since"] = waiting_since(d.message.properties, published) or published
    firsts = {_same(d): d for d in reversed(waits) if _same(d) not in tools.sent_back}
    some = list(firsts.values())
    notes = [
        {WAITING_SINCE: str(d.extra["waiting_since"]), WAITING_FOR: str(d.waiting), WAITING_RUN: run.run_id}
        for d in some
    ]
    try:
        postponed = tools.queue.send_back([d.message for d in some], notes, run.waiting_delay_ms) if some else []
    except LifecycleError as error:
        stay(waits, f"the retry topic could not be asked: {error}")
        return
    tools.sent_back.update(_same(one) for one in postponed if not one.error)
    errors = {_same(one): one.error for one in postponed}
    for d in waits:
        d.sent_back = _same(d) in tools.sent_back
        if not d.sent_back:
            stay([d], f"it could not be sent to the retry topic: {errors[_same(d)]}")


def _same(one: Decision | Postponed) -> tuple[bytes, int]:
    """What messages have in common of which one is enough."""
    return hashlib.sha256(one.message.raw).digest(), reconsume_times(one.message.properties)
