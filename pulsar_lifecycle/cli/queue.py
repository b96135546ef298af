"""``queue status``: what waits, what became of what was sent, whether anything needs an operator; ``dead-letters``.

Belongs here: gathering and laying out. Not here: looking (``deletion_queue/queue_state.py``), counting
(``journal/metrics.py``). It writes nothing to the cluster and loads only the queue's own topics.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Sequence
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from pulsar_lifecycle.cli import show
from pulsar_lifecycle.cli.options import AsJson, cluster_of
from pulsar_lifecycle.cli.our_znodes import (
    Note,
    ShownLocation,
    ShownUnload,
    note,
    pending_unloads,
    refusals,
    refusals_document,
    unread_locations,
)
from pulsar_lifecycle.cli.status import lake_state
from pulsar_lifecycle.values.outcomes import Phase

if TYPE_CHECKING:
    from pulsar_lifecycle.deletion.redrive import DeadLetters
    from pulsar_lifecycle.deletion_queue.queue_state import PartitionState, QueueState
    from pulsar_lifecycle.journal.metrics import DeletionRun
    from pulsar_lifecycle.ports import JournalReader, QueueReader
    from pulsar_lifecycle.runs.cluster import Cluster
    from pulsar_lifecycle.settings import Settings
    from pulsar_lifecycle.values.codes import Why

app = typer.Typer(help="The deletion queue.", no_args_is_help=True)

PATIENCE_MS = 86_400_000
"""How long an intent may wait for a scan, or be due, before somebody must look why there is none."""

ALL = 1 << 31
"""Messages of a partition at most that are listed."""
REASONS = 3
"""Reasons of dead letters that are named, the most frequent ones."""


@app.callback()
def queue() -> None:
    """The deletion queue: main, retry and dead-letter topic."""


@app.command()
def status(
    context: typer.Context,
    as_json: AsJson = False,
    textfile: Annotated[
        Path | None,
        typer.Option("--textfile", help="Write the metrics there, for Prometheus. [default: metrics.textfile]"),
    ] = None,
) -> None:
    """What waits, what became of it, the nine metrics of PIP-186. Exit code 1 if something needs an operator."""
    where = cluster_of(context)
    settings, now = where.settings, where.clock.now_ms()
    found = _status(where, now, str(textfile.absolute()) if textfile else settings.metrics.textfile)
    if as_json:
        show.json_document(found.to_json())
    else:
        _print(found, now)
    if found.findings:
        raise typer.Exit(1)


@app.command("dead-letters")
def dead_letters(context: typer.Context, as_json: AsJson = False) -> None:
    """Every dead letter, why it is one and since when. Takes none; job `redrive_dead_letters` sends them again."""
    from pulsar_lifecycle.deletion.redrive import letters_of, look
    from pulsar_lifecycle.deletion_queue.queue_topics import DLQ_TOPIC
    from pulsar_lifecycle.journal.queries import dead_letter_reasons

    where = cluster_of(context)
    now, cluster = where.clock.now_ms(), where.settings.cluster
    with where.ports(read_only=True) as ports:
        found = look(ports.queue_reader, DLQ_TOPIC, ALL)
    since = _journalled_since(found, now)
    reasons = {} if since is None else dead_letter_reasons(where.journal_reader, cluster, since)
    rows = [letter.row() for letter in letters_of(found.messages, reasons)]
    unsubscribed = list(map(str, found.unsubscribed))
    if as_json:
        show.json_document(
            {"cluster": cluster, "count": found.count, "without_subscription": unsubscribed, "rows": rows}
        )
        return
    show.text(show.counted(found.count, "dead letter"))
    if unsubscribed:
        show.text(f"without subscription, so messages may be lost: {', '.join(unsubscribed)}")
    names = ("ledger_id", "copy", "topic", "retries", "code", "reason")
    show.table(
        ["ledger", "copy", "topic", "retries", "code", "reason", "since"],
        [(*(row[name] for name in names), show.moment(row["at"])) for row in rows],
    )


def _journalled_since(found: DeadLetters, now: int) -> int | None:
    """From when on (ms) the journal may say why: another clock than the broker's dates it. None without a letter."""
    return None if found.oldest is None else max(0, min(found.oldest, now) - 3_600_000)


@dataclass(frozen=True)
class QueueStatus:
    """What the command tells; ``last_run`` and ``run_before`` are of the journal, ``findings`` need an operator."""

    cluster: str
    enabled: bool
    paused: Note | None
    refused: list[Why]
    lease: Note | None
    pending_unloads: list[ShownUnload]
    unread_locations: list[ShownLocation]
    queue: QueueState
    waits_for_window: bool
    left_to_you: bool
    metrics: dict[str, Any]
    last_run: DeletionRun | None
    run_before: DeletionRun | None
    findings: list[str]

    def to_json(self) -> dict[str, Any]:
        """The document of ``--json``."""
        return {
            "cluster": self.cluster,
            "enabled": self.enabled,
            "paused": self.paused and asdict(self.paused),
            "refused": refusals_document(self.refused),
            "lease": self.lease and asdict(self.lease),
            "pending_unloads": [one.to_json() for one in self.pending_unloads],
            "unread_locations": [one.to_json() for one in self.unread_locations],
            "queue": self.queue.to_json(),
            "waits_for_window": self.waits_for_window,
            "left_to_you": self.left_to_you,
            "metrics": self.metrics,
            "last_run": self.last_run and _run(self.last_run),
            "run_before": self.run_before and _run(self.run_before),
            "findings": self.findings,
        }


def _status(where: Cluster, now: int, textfile: str) -> QueueStatus:
    from pulsar_lifecycle.deletion_queue.queue_state import look
    from pulsar_lifecycle.journal import metrics
    from pulsar_lifecycle.journal.index_metrics import index_metrics
    from pulsar_lifecycle.journal.prometheus import write_textfile
    from pulsar_lifecycle.journal.tallies import tallied
    from pulsar_lifecycle.runs import control
    from pulsar_lifecycle.values.refusals import RefusalCode

    settings, journal = where.settings, where.journal_reader
    with where.ports(read_only=True) as ports:
        store = ports.store
        paused, holder = note(store, control.PAUSE), note(store, control.holder_of(control.LEASE))
        unloads, unread = pending_unloads(store), unread_locations(store)
        refused = refusals(settings, store, ports.lake.epochs(cluster=settings.cluster))
        reader = ports.queue_reader
        waiting = look(ports.admin, reader, now)
        dead = _dead_letters(where, reader, waiting.dead, now) if waiting.dead else []
    tallies = tallied(journal, now)
    counted = metrics.count(tallies, settings.cluster)
    runs = metrics.deletion_runs(tallies, settings.cluster)
    if textfile:
        more = index_metrics(where.lake, journal, tallies, settings.cluster, now)
        write_textfile(textfile, settings.cluster, counted, waiting.in_flight, more)
    due = any(part.due for part in (*waiting.main, *waiting.retry))
    shut = due and settings.automation.delete_pending.waits_for_window(now)
    return QueueStatus(
        cluster=settings.cluster,
        enabled=settings.deletion.topicTwoPhaseDeletionEnabled,
        paused=paused,
        refused=refused,
        lease=holder,
        pending_unloads=unloads,
        unread_locations=unread,
        queue=waiting,
        waits_for_window=shut,
        left_to_you=due and not settings.automation.delete_pending.begins,
        metrics=counted.to_json(),
        last_run=runs[-1] if runs else None,
        run_before=runs[-2] if len(runs) > 1 else None,
        findings=[
            *(f"every run is refused: {why.text}" for why in refused if why.code is not RefusalCode.SWITCHED_OFF),
            *_unwritable(where),
            *dead,
            *_findings(waiting, paused, settings, counted.ledgers_sent + counted.offload_ledgers_sent > 0),
            *_failing(journal, runs[-2:]),
            *_stuck(waiting, now, shut=shut),
            *(str(one) for one in unloads if one.waits),
            *map(str, unread),
        ],
    )


def _run(run: DeletionRun) -> dict[str, Any]:
    return {
        "run_id": run.run_id,
        "ended_at": run.last_at,
        "outcomes": dict(run.outcomes),
        "deleted_bytes": run.deleted_bytes,
    }


def _unwritable(where: Cluster) -> list[str]:
    """Whether nothing could be journalled now; a lake that is not there yet is made by the first scan."""
    _, why = lake_state(where)
    return [f"nothing can be journalled from here, so no run would begin: {why}"] if why else []


def _stuck(waiting: QueueState, now: int, *, shut: bool) -> list[str]:
    """What waits for an operator; what waits for a scan, or for a run, only once it has waited for long.

    ``shut``: no run may take what is due, as its window is shut.
    """
    from pulsar_lifecycle.deletion_queue.queue_state import UNTAKEN
    from pulsar_lifecycle.values.outcomes import WAITS_FOR, Waiting

    since = waiting.due_since
    long = since is not None and now - since > PATIENCE_MS and not shut
    untaken = [f"no run has taken what is due since {show.moment(since)}: {UNTAKEN}"] if since and long else []
    return untaken + [
        f"{show.counted(one.messages, 'intent')}, the oldest for {show.span(now - one.since)}, waiting for "
        f"{WAITS_FOR[one.waiting]}"
        for one in waiting.waits
        if one.waiting not in (Waiting.NO_SCAN, Waiting.NO_EARLIER_SCAN, Waiting.TURN) or now - one.since > PATIENCE_MS
    ]


def _failing(journal: JournalReader, runs: Sequence[DeletionRun]) -> list[str]:
    """Whether the last of these runs failed more often than the one before it.

    What is held as in use did not fail, and neither did what the brokers' lists do not tell yet.
    """
    import pyarrow.compute as pc

    from pulsar_lifecycle.journal.metrics import FAILED
    from pulsar_lifecycle.journal.queries import journal_rows
    from pulsar_lifecycle.values.codes import Code

    held = (Code.STILL_IN_USE, Code.NOT_KNOWN_YET)
    failed = (pc.field("phase") == Phase.DELETE) & pc.field("outcome").isin(sorted(FAILED))
    failures = (journal_rows(journal, run_id=run.run_id).filter(failed) for run in runs)
    rows = [rows.select(["code", "reason"]).to_pylist() for rows in failures]
    counts = [Counter(row["code"] for row in some if row["code"] not in held) for some in rows]
    if not counts or counts[-1].total() <= sum(before.total() for before in counts[:-1]):
        return []
    ((code, number),) = counts[-1].most_common(1)
    reason = next(row["reason"] for row in rows[-1] if row["code"] == code)
    return [
        f"retries grow: the last deletion run failed {counts[-1].total()} times, more often than the one before it, "
        f"{number} of them with {code}, the first: {reason}; mend that before they become dead letters "
        f"(`pulsar-lifecycle journal --run {runs[-1].run_id}` has every reason)"
    ]


def _dead_letters(where: Cluster, reader: QueueReader, count: int, now: int) -> list[str]:
    """The codes of those looked at, each with its first reason and a ledger to follow."""
    from pulsar_lifecycle.deletion.redrive import letters_of, look, what_to_do
    from pulsar_lifecycle.deletion_queue.queue_state import LOOKED_AT
    from pulsar_lifecycle.deletion_queue.queue_topics import DLQ_TOPIC
    from pulsar_lifecycle.errors import LifecycleError
    from pulsar_lifecycle.journal.queries import dead_letter_reasons

    told = show.counted(count, "dead letter")
    try:
        found = look(reader, DLQ_TOPIC, LOOKED_AT)
    except LifecycleError as error:
        return [f"{told}, which cannot be looked at now: {error}"]
    since = _journalled_since(found, now)
    if since is None:
        return [f"{told}, which cannot be looked at now: the broker shows none of them"]
    letters = letters_of(found.messages, dead_letter_reasons(where.journal_reader, where.settings.cluster, since))
    if len(letters) < count:
        told += f", {len(letters)} of them looked at"
    ledgers = {letter.why.code: letter.message.info.ledger_id for letter in reversed(letters) if letter.message.info}
    first = {letter.why.code: letter.reason for letter in reversed(letters)}
    reasons = Counter(letter.why.code for letter in letters).most_common()
    causes = [
        f"{number} with {code or 'no code'}: {first[code]}"
        + (f" (`pulsar-lifecycle journal --ledger {ledgers[code]}`)" if code in ledgers else "")
        for code, number in reasons[:REASONS]
    ]
    if rest := reasons[REASONS:]:
        causes.append(f"{sum(number for _, number in rest)} with {show.counted(len(rest), 'other code')}")
    causes.append(what_to_do(letters))
    return [f"{told}: {'; '.join(causes)}"]


def _findings(waiting: QueueState, paused: Note | None, settings: Settings, ever_sent: bool) -> list[str]:
    """What needs an operator, each with what to do. ``ever_sent``: the topics were there once."""
    found: list[str] = []
    if ever_sent and waiting.missing:
        found.append(
            f"somebody deleted {', '.join(waiting.missing)}, and what waited there: any apply or deletion run makes it "
            "anew, and the job reconcile_namespaces with `resend_in_flight` sends again what was in flight"
        )
    if waiting.unsubscribed:
        found.append(
            f"no subscription on {', '.join(waiting.unsubscribed)}: what is sent there is lost; "
            "any apply or deletion run makes it anew"
        )
    if waiting.due_error:
        found.append(f"which intents are due could not be seen: {waiting.due_error}; no run takes what cannot be read")
    if paused:
        found.append("paused: `pulsar-lifecycle resume` lets effects go on")
    if not settings.deletion.topicTwoPhaseDeletionEnabled and waiting.in_flight:
        found.append("deletion.topicTwoPhaseDeletionEnabled is false while intents are in flight: they wait")
    return found


# ----------------------------------------------------------------------------------------------------------- the page


def _print(found: QueueStatus, now: int) -> None:
    from pulsar_lifecycle.deletion_queue.queue_state import LEFT_TO_YOU, WINDOW_SHUT
    from pulsar_lifecycle.journal.metrics import METRICS

    queue = found.queue
    waits = f"; {WINDOW_SHUT}" if found.waits_for_window else f"; {LEFT_TO_YOU}" if found.left_to_you else ""
    for finding in found.findings:
        show.text(f"! {finding}", "bold red")
    if not found.findings:
        show.text("nothing needs you", "bold green")
    show.facts(
        [
            ("cluster", found.cluster),
            ("in flight", f"{show.counted(queue.in_flight, 'intent')}, {_due(queue)}{waits}"),
            ("dead letters", str(queue.dead)),
            ("effects", _effects(found.paused, found.enabled)),
            ("acting", str(found.lease) if found.lease else "nobody"),
            ("pending unloads", list(map(str, found.pending_unloads))),
            ("unread", list(map(str, found.unread_locations))),
            ("last run", _last(found.last_run, now)),
        ]
    )
    show.text("topics", "bold cyan")
    parts = [*queue.main, *queue.retry, *queue.dead_letters]
    show.table(["partition", "waiting", "due", "not yet due", "subscription"], [_line(part) for part in parts], 2)
    if not parts:
        show.text("  none: the next apply makes them")
    if queue.waits:
        show.text(
            "waiting for something, uncounted" + ("" if _all_seen(queue) else ", of those at the front"), "bold cyan"
        )
        lines = [(one.waiting, one.messages, show.span(now - one.since)) for one in queue.waits]
        show.table(["for", "intents", "the oldest since"], lines, 2)
    show.text("metrics, since the journal began", "bold cyan")
    show.table(["count", "what"], [(found.metrics[metric.name], metric.help) for metric in METRICS], 2)


def _due(queue: QueueState) -> str:
    parts = [*queue.main, *queue.retry]
    if not parts or any(part.due is None for part in parts if part.backlog):
        return "due: not known"
    some = "" if _all_seen(queue) else " of those at the front"
    return f"{sum(part.due or 0 for part in parts)} due, {sum(part.later or 0 for part in parts)} not yet{some}"


def _all_seen(queue: QueueState) -> bool:
    return all(part.all_seen for part in (*queue.main, *queue.retry))


def _effects(paused: Note | None, enabled: bool) -> str:
    told = f"PAUSED {paused}" if paused else "not paused"
    return told if enabled else f"{told}; SWITCHED OFF: deletion.topicTwoPhaseDeletionEnabled is false"


def _last(run: DeletionRun | None, now: int) -> str:
    if run is None:
        return "none yet"
    outcomes = ", ".join(f"{count} {outcome}" for outcome, count in run.outcomes.items())
    return f"{run.run_id}, {show.ago(run.last_at, now)}: {outcomes}; {show.size(run.deleted_bytes)} deleted"


def _line(part: PartitionState) -> tuple[Any, ...]:
    name = part.topic.rpartition("/")[2]
    more = "" if part.all_seen else "+"
    due, later = (None if count is None else f"{count}{more}" for count in (part.due, part.later))
    return name, part.backlog, due, later, "there" if part.subscribed else "MISSING"
