"""Jobs that take ledgers off topics: ``trim_topics`` and ``delete_topics``. Both are dry runs unless told otherwise."""

from collections import Counter
from collections.abc import Callable, Iterator, Mapping, Sequence
from typing import Any

import dagster as dg
from pydantic import Field

from assets.pages import lineage, show
from assets.pages.failures import refusals_fail
from orchestration.named import ledgers_of, topic_of
from pulsar_lifecycle.errors import LifecycleError, UsageError
from pulsar_lifecycle.topics.first_phase import LedgerOutcome, Report
from pulsar_lifecycle.trimming import trim_run
from pulsar_lifecycle.trimming.trim import TrimOrder
from pulsar_lifecycle.values.outcomes import Outcome
from resources.lifecycle import LifecycleResource

COLUMNS = {
    "topic": "string",
    "ledger_id": "int",
    "component": "string",
    "outcome": "string",
    "reason": "string",
    "bytes": "int",
}


NOTHING_MORE: Mapping[str, Any] = {}


class TrimmedTopic(dg.Config):
    """Which ledgers leave one topic's list: those named, or every one up to ``up_to_ledger`` (inclusive)."""

    topic: str
    ledgers: list[int] = Field(default=[])
    up_to_ledger: int = -1

    def order(self) -> TrimOrder:
        """The library's form of it. Raises UsageError."""
        ledgers_of(f"{self.topic}: up_to_ledger", [] if self.up_to_ledger == -1 else [self.up_to_ledger])
        if bool(self.ledgers) == (self.up_to_ledger >= 0):
            raise UsageError(f"{self.topic}: give either ledgers or up_to_ledger")
        ledgers = ledgers_of(f"{self.topic}: ledgers", self.ledgers)
        return TrimOrder(topic_of("topics", self.topic), ledgers, self.up_to_ledger)


class TrimConfig(dg.Config):
    """What is trimmed. Without ``dry_run = false`` the run says what would happen, and writes nothing."""

    topics: list[TrimmedTopic]
    dry_run: bool = True


class DeleteTopicsConfig(dg.Config):
    """Topics or partitions by their full names; ``force`` deletes those with connected clients, too."""

    topics: list[str]
    force: bool = False
    dry_run: bool = True


def shown(marked: Sequence[LedgerOutcome], dry_run: bool) -> dict[str, Any]:
    """What became of each topic's ledgers, as metadata: totals, by topic, and a sample.

    The sample shows refusals first, and topics before ledgers.
    """
    ledgers = [one for one in marked if one.ledger_id >= 0]
    first = {Outcome.FAILED: 0, Outcome.LEFT: 1, Outcome.REFUSED: 2}
    rows = sorted(marked, key=lambda one: (first.get(one.outcome, 3), one.ledger_id >= 0, one.topic, one.ledger_id))
    told = {*first, Outcome.LEFT_TO_BROKER, Outcome.NOTHING}
    totals = Counter((one.topic, one.outcome, one.why.code.value if one.outcome in told else "") for one in marked)
    reasons = {(one.topic, one.outcome, one.why.code.value): one.reason for one in reversed(marked)}
    stays: dict[tuple[str, str], list[int]] = {}
    for one in ledgers:
        if one.outcome in told:
            stays.setdefault((one.outcome, one.why.code), []).append(one.bytes)
    return {
        "dry run": dry_run,
        "ledgers": len(ledgers),
        "outcomes": dg.MetadataValue.md(
            show.markdown(
                ["outcome", "ledgers", "bytes"],
                [
                    (name, count, show.size(sum(one.bytes for one in ledgers if one.outcome == name)))
                    for name, count in sorted(Counter(one.outcome for one in ledgers).items())
                ],
            )
        ),
        "stays by": dg.MetadataValue.md(
            show.markdown(
                ["outcome", "code", "ledgers", "bytes"],
                [(*kind, len(sizes), show.size(sum(sizes))) for kind, sizes in sorted(stays.items())],
            )
        ),
        "topics": dg.MetadataValue.md(
            show.markdown(
                ["topic", "outcome", "code", "rows", "the first"],
                [(*what, count, reasons.get(what, "")) for what, count in sorted(totals.items())[: show.SAMPLE]],
            )
        ),
        "sample": show.table(
            [{name: getattr(one, name) for name in COLUMNS} for one in rows],
            COLUMNS,
        ),
    }


def lines(marked: Sequence[LedgerOutcome], dry_run: bool) -> Iterator[str]:
    """What became of each topic's ledgers, for the run's log: a line per topic, outcome and code."""
    counts = Counter((one.topic, one.outcome, one.why.code.value) for one in marked)
    reasons = {(one.topic, one.outcome, one.why.code.value): one.reason for one in reversed(marked)}
    for what, count in sorted(counts.items())[: show.SAMPLE]:
        topic, outcome, code = what
        yield f"{'dry run: ' if dry_run else ''}{topic}: {outcome} ({code}), {count} rows: {reasons[what]}"
    if len(counts) > show.SAMPLE:
        yield f"... {len(counts) - show.SAMPLE} more lines: the run's metadata has the totals"


def finish(
    dry_run: bool,
    work: Callable[[Report], list[LedgerOutcome]],
    say: Callable[[str], None] = lambda _: None,
    everything: Mapping[str, Any] = NOTHING_MORE,
) -> dict[str, Any]:
    """Metadata of what ``work`` did, and ``everything``: where all of it is. ``say`` is called with it too.

    A failed topic, a run that was refused everything, or a stop with some topics done, is a Failure that carries it.
    """

    def page(marked: Sequence[LedgerOutcome]) -> dict[str, Any]:
        return {**shown(marked, dry_run), **everything}

    done: list[LedgerOutcome] = []
    try:
        marked = work(done.extend)
    except LifecycleError as error:
        if not done:
            raise
        for line in lines(done, dry_run):
            say(line)
        raise dg.Failure(f"stopped: {error}; the metadata has what was done before", page(done)) from error
    metadata = page(marked)
    for line in lines(marked, dry_run):
        say(line)
    failed = [one for one in marked if one.outcome == Outcome.FAILED]
    if failed:
        first = f"{failed[0].topic}: {failed[0].reason}"
        raise dg.Failure(f"{_topics(failed)} failed, the first: {first}", metadata=metadata)
    refused = [one for one in marked if one.outcome == Outcome.REFUSED]
    if refused and not dry_run and all(one.outcome in (Outcome.REFUSED, Outcome.NOTHING) for one in marked):
        first = f"{refused[0].topic}: {refused[0].reason}"
        raise dg.Failure(f"nothing was done, {_topics(refused)} refused, the first: {first}", metadata=metadata)
    return metadata


def _topics(marked: Sequence[LedgerOutcome]) -> str:
    count = len({one.topic for one in marked})
    return f"{count} topic{'s' if count > 1 else ''}"


@dg.op(
    name="trim",
    description="Send a message for each of the ledgers, then take those acknowledged off their topic's list.",
)
@refusals_fail()
def trim_op(context: dg.OpExecutionContext, config: TrimConfig, lifecycle: LifecycleResource) -> None:
    """Refused topics and ledgers are shown with their reason; a topic that failed fails the run."""
    orders = [one.order() for one in config.topics]
    cluster, dry_run = lifecycle.cluster(), config.dry_run
    with lineage.noted(context, cluster, dry_run=dry_run, sends=True):
        metadata = finish(
            dry_run,
            lambda report: trim_run.trim(cluster, context.run_id, orders, dry_run=dry_run, report=report),
            context.log.info,
            show.everything(context.run_id, dry_run=dry_run),
        )
    context.add_output_metadata(metadata)


@dg.job(
    name="trim_topics",
    executor_def=dg.in_process_executor,
    description="Take expired ledgers off topics' lists, a message to the deletion topic first. Dry run by default.",
)
def trim_topics_job() -> None:
    """The job has one op."""
    trim_op()


@dg.op(
    name="delete_whole_topics",
    description="Send a message for every ledger of each topic, then let the broker delete the topic.",
)
@refusals_fail()
def delete_topics_op(context: dg.OpExecutionContext, config: DeleteTopicsConfig, lifecycle: LifecycleResource) -> None:
    """A topic that the broker refuses stays; its messages find it in use and are kept."""
    topics = [topic_of("topics", name) for name in config.topics]
    cluster, force, dry_run = lifecycle.cluster(), config.force, config.dry_run
    with lineage.noted(context, cluster, dry_run=dry_run, sends=True):
        metadata = finish(
            dry_run,
            lambda report: trim_run.delete_topics(
                cluster, context.run_id, topics, force=force, dry_run=dry_run, report=report
            ),
            context.log.info,
            show.everything(context.run_id, dry_run=dry_run),
        )
    context.add_output_metadata(metadata)


@dg.job(
    name="delete_topics",
    executor_def=dg.in_process_executor,
    description="Delete topics whole, a message per ledger to the deletion topic first. Dry run by default.",
)
def delete_topics_job() -> None:
    """The job has one op."""
    delete_topics_op()
