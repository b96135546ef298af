"""Dead letters: the intents that no retry could help, and the check that fails while there are any.

Source of truth: the dead-letter topic behind subscription `ledger-deletion`, and the journal for the reasons. Nothing
here takes a message; job `redrive_dead_letters` does.
"""

from collections import Counter
from collections.abc import Iterable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field
from datetime import UTC, datetime
from typing import Any

import dagster as dg

from assets.names import key
from assets.pages import show
from pulsar_lifecycle.deletion.redrive import DeadLetters, Letter, Reasons, letters_of, look, what_to_do
from pulsar_lifecycle.deletion_queue.queue_topics import DLQ_TOPIC
from pulsar_lifecycle.errors import LifecycleError, NotFound
from pulsar_lifecycle.journal.queries import dead_letter_reasons
from pulsar_lifecycle.model import Position, Topic
from pulsar_lifecycle.ports import BEFORE_ALL, BrokerAdmin, Page, QueueReader
from pulsar_lifecycle.runs.cluster import Cluster
from resources.lifecycle import LifecycleResource

NAME = "dead_letters"
CHECK = "no_dead_letters"
LOOKED_AT = 2_000
"""Messages of every partition that are looked at for tables and sample; all are counted."""
PATIENCE = 10.0
"""Seconds at most that a look waits for one answer of the binary protocol: a sensor's tick has a minute for all."""

COLUMNS = {
    "ledger_id": "int",
    "copy": "string",
    "component": "string",
    "topic": "string",
    "retries": "int",
    "since": "string",
    "code": "string",
    "reason": "string",
    "message": "string",
}


@contextmanager
def open_reader(where: Cluster) -> Iterator[tuple[BrokerAdmin, QueueReader]]:
    """The admin API and a reader of the queue's topics."""
    settings = where.settings
    hurried = settings.pulsar.model_copy(update={"request_timeout": min(settings.pulsar.request_timeout, PATIENCE)})
    with where.ports() as ports, where.connect(settings.model_copy(update={"pulsar": hurried})) as impatient:
        yield ports.admin, impatient.queue_reader


def dead_letters_asset(cluster: str) -> dg.AssetsDefinition:
    """``dead_letters`` with its check ``no_dead_letters``."""
    asset_key = key(cluster, NAME)

    @dg.asset(
        key=asset_key,
        group_name="deletion",
        description="Intents that failed to the last, why, and since when. Nothing deletes them; once the cause "
        "is mended, job `redrive_dead_letters` sends them to the deletion topic again.",
        deps=[key(cluster, "ledger_deletion_dlq_topic")],
        check_specs=[
            dg.AssetCheckSpec(
                CHECK, asset=asset_key, description="Fails while there are dead letters, or while they may get lost."
            )
        ],
        kinds={"pulsar"},
    )
    def dead_letters(lifecycle: LifecycleResource) -> dg.MaterializeResult:
        where = lifecycle.without_spark()
        with open_reader(where) as (_, reader):
            picture = take_picture(reader, where)
        verdict = picture.verdict()
        return dg.MaterializeResult(
            metadata=picture.shown(),
            check_results=[
                dg.AssetCheckResult(
                    check_name=CHECK,
                    passed=verdict.passed,
                    severity=verdict.severity,
                    description=verdict.text,
                    metadata={"dead letters": picture.found.count},
                )
            ],
        )

    return dead_letters


@dataclass(frozen=True)
class CheckVerdict:
    """What check ``no_dead_letters`` says."""

    passed: bool
    severity: dg.AssetCheckSeverity
    text: str


@dataclass
class PartialReader:
    """A reader that shows nothing of a partition it cannot read, and keeps in ``unread`` why."""

    reader: QueueReader
    unread: list[str] = field(default_factory=list[str])

    def partitions(self, topic: Topic) -> list[Topic]:
        """As the reader's."""
        return self.reader.partitions(topic)

    def backlog(self, part: Topic) -> int:
        """As the reader's."""
        return self.reader.backlog(part)

    def waiting(self, part: Topic, after: Position | None, limit: int) -> Page:
        """As the reader's, or an empty page at ``after``."""
        try:
            return self.reader.waiting(part, after, limit)
        except NotFound:
            raise
        except LifecycleError as error:
            self.unread.append(str(error))
            return Page((), after or BEFORE_ALL, False)

    def close(self) -> None:
        """Nothing: the reader is another's."""


@dataclass(frozen=True)
class Picture:
    """The dead letters at one moment, with their reasons; ``letters`` are those looked at, ``unread`` why not all."""

    found: DeadLetters
    letters: Sequence[Letter]
    at: int
    unread: str = ""

    def shown(self) -> dict[str, Any]:
        """As metadata of the asset."""
        oldest = self.found.oldest
        counted = len(self.letters)
        return {
            "dagster/row_count": self.found.count,
            "oldest": _since(oldest) if oldest is not None else "none",
            "age of the oldest (h)": round(max(0, self.at - oldest) / 3_600_000, 1) if oldest is not None else 0,
            "by code": dg.MetadataValue.md(_by_code(self.letters)),
            "by topic": dg.MetadataValue.md(_counted("topic", (letter.topic or "unknown" for letter in self.letters))),
            "sample": sample(self.letters),
            "all of them": dg.MetadataValue.md("`pulsar-lifecycle queue dead-letters`, `--json` for a document"),
            "looked at": f"{counted} of {self.found.count}" if counted < self.found.count else "all",
            "could not be read": self.unread or "none",
            "without subscription": ", ".join(map(str, self.found.unsubscribed)) or "none",
        }

    def verdict(self, mended: Sequence[Topic] = ()) -> CheckVerdict:
        """A dead letter costs disk and nobody's data: a warning. A topic that may lose some: an error."""
        unsafe = [*self.found.unsubscribed, *mended]
        if unsafe:
            text = f"{', '.join(map(str, unsafe))} had no durable subscription of ours: messages may be lost"
            return CheckVerdict(False, dg.AssetCheckSeverity.ERROR, text)
        if self.found.count:
            text = f"dead letters: {self.found.count}; {what_to_do(self.letters)}"
            text += f"; not all could be read: {self.unread}" if self.unread else ""
            return CheckVerdict(False, dg.AssetCheckSeverity.WARN, text)
        return CheckVerdict(True, dg.AssetCheckSeverity.WARN, "no dead letters")


def take_picture(reader: QueueReader, where: Cluster) -> Picture:
    """Look at the dead-letter topic now."""
    found, unread = look_at(reader)
    return picture_of(found, unread, reasons_of(found, where), where.clock.now_ms())


def look_at(reader: QueueReader) -> tuple[DeadLetters, str]:
    """What the dead-letter topic holds, and why not all could be looked at."""
    partial = PartialReader(reader)
    return look(partial, DLQ_TOPIC, LOOKED_AT), "; ".join(partial.unread)


def picture_of(found: DeadLetters, unread: str, reasons: Reasons, now: int) -> Picture:
    """What was found until ``now`` (ms), with its reasons."""
    return Picture(found, letters_of(found.messages, reasons), now, unread)


def reasons_of(found: DeadLetters, where: Cluster) -> Reasons:
    """The journal's reasons for what was found: a letter is journalled after it was sent, by another clock."""
    if found.oldest is None:
        return {}
    oldest = min(found.oldest, where.clock.now_ms())  # a publish time is whatever its sender says
    return dead_letter_reasons(where.journal_reader, where.settings.cluster, max(0, oldest - 3_600_000))


def sample(letters: Sequence[Letter]) -> dg.MetadataValue:
    """A bounded table of dead letters."""
    rows = [letter.row() for letter in letters[: show.SAMPLE]]
    return show.table([row | {"since": _since(row["at"])} for row in rows], COLUMNS)


def _by_code(letters: Sequence[Letter]) -> str:
    """How many of each code, with the sentence of the first."""
    first = {letter.why.code: letter.reason for letter in reversed(letters)}
    counts = Counter(letter.why.code for letter in letters).most_common(show.SAMPLE)
    return show.markdown(["code", "dead letters", "the first"], [(code, count, first[code]) for code, count in counts])


def _counted(name: str, values: Iterable[str]) -> str:
    return show.markdown([name, "dead letters"], Counter(values).most_common(show.SAMPLE))


_LAST = datetime(9999, 12, 31, tzinfo=UTC).timestamp()
"""Later times are shown as this one: Python writes down no year of five digits."""


def _since(at: int) -> str:
    return datetime.fromtimestamp(min(at / 1000, _LAST), UTC).isoformat(timespec="seconds")
