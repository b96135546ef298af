"""Job ``delete_records``: plan what deleting records of some partitions comes to, or apply such a plan."""

from collections import Counter
from collections.abc import Mapping, Sequence
from typing import Any

import dagster as dg
from pydantic import Field

from assets.pages import lineage, show
from assets.pages.failures import refusals_fail
from orchestration.automatic.may_begin import may_begin
from orchestration.named import CapsConfig, parsed
from pulsar_lifecycle.delete_records.apply_run import FINISHED_WITHIN, Patience, apply_delete_records
from pulsar_lifecycle.delete_records.cut_rules import Refusal
from pulsar_lifecycle.delete_records.offset_file import RequestedOffset
from pulsar_lifecycle.delete_records.records_planning import plan_delete_records, run_config
from pulsar_lifecycle.delete_records.request import (
    DeleteRecordsResult,
    Options,
    TopicPartition,
    parse_offset,
    parse_topic,
)
from pulsar_lifecycle.delete_records.requested_partitions import not_asked_for, requested_partitions
from pulsar_lifecycle.errors import UsageError
from pulsar_lifecycle.runs.caps import Order
from pulsar_lifecycle.runs.cluster import Cluster
from pulsar_lifecycle.values.plans.delete_records_plan import RecordsError
from pulsar_lifecycle.values.plans.plan_kind import PlanKind, kind_of
from pulsar_lifecycle.values.plans.plan_summary import PlanSummary
from pulsar_lifecycle.values.plans.records_table import COLUMNS, RecordsTable, undo_of
from resources.lifecycle import LifecycleResource

OF_A_PLAN = ("move_cursors", "exact", "any_order", "no_undo")
OF_AN_APPLY = ("wait", "wait_for_bookies", "finish", "collect")
PLANNED = dict.fromkeys((*COLUMNS, "notes"), "string")
ANSWERED = {
    "partition": "string",
    "low_watermark": "string",
    "first_readable": "string",
    "error": "string",
    "code": "string",
    "reason": "string",
    "lost_copies": "int",
    "not_asked": "string",
}


class RecordsOffset(dg.Config):
    """One entry of a request: a topic, all its partitions or one of them, and from where on its messages stay."""

    topic: str
    partition: int = -1
    offset: str

    def asked(self, number: int) -> RequestedOffset:
        """The library's form of it. Raises UsageError."""
        field = f"partitions[{number}]"
        topic = parsed(f"{field}.topic", parse_topic, self.topic)
        if self.partition < -1 or (self.partition >= 0 and topic.partition is not None):
            raise UsageError(
                f"{field}.partition: expected the number of a partition of {topic}, found {self.partition}"
            )
        offset = parsed(f"{field}.offset", parse_offset, self.offset)
        return RequestedOffset(topic, None if self.partition == -1 else self.partition, offset, field)


class DeleteRecordsConfig(CapsConfig):
    """Either ``partitions``, for a plan, or ``plan_id`` and ``digest``, to apply it. Times in seconds.

    Without ``dry_run = false`` a plan is not applied: the run answers as things stand. ``finish``: the run scans and
    deletes meanwhile, for ``wait`` seconds or an hour. ``collect``: it has the bookies collect then.
    """

    partitions: list[RecordsOffset] = Field(default=[])
    move_cursors: bool = False
    exact: bool = False
    any_order: bool = False
    no_undo: bool = False
    plan_id: str = ""
    digest: str = ""
    timeout: float = Field(default=300.0, gt=0, le=31_536_000)
    wait: float = Field(default=0.0, ge=0, le=31_536_000)
    wait_for_bookies: bool = False
    finish: bool = False
    collect: bool = False
    dry_run: bool = True

    def order(self) -> Order:
        """The library's form of what applies a plan; the caps may be lowered, as of any plan."""
        return self.order_of(self.plan_id, self.digest)

    def asked(self) -> list[RequestedOffset]:
        """The request; empty where a plan is to be applied. Raises UsageError."""
        if bool(self.partitions) == bool(self.plan_id):
            raise UsageError("give either partitions, for a plan, or plan_id and digest, to apply it")
        if ignored := [name for name in (OF_A_PLAN if self.plan_id else OF_AN_APPLY) if getattr(self, name)]:
            whose = "a plan: make one anew" if self.plan_id else "an apply: plan without"
            raise UsageError(f"{', '.join(ignored)}: of {whose}")
        if self.partitions and not self.dry_run:
            raise UsageError("dry_run = false: belongs to the apply of a plan: without it, partitions are planned")
        return [one.asked(number) for number, one in enumerate(self.partitions)]


@dg.op(
    name="delete_before",
    description="Plan to delete everything before a position, a time or the end of each partition, or apply the plan.",
)
@refusals_fail()
def delete_before_op(context: dg.OpExecutionContext, config: DeleteRecordsConfig, lifecycle: LifecycleResource) -> None:
    """A partition with an error fails the run (:func:`failing`); the metadata has every partition's result."""
    where, asked = lifecycle.cluster(), config.asked()
    if asked:
        options = Options(config.move_cursors, config.exact, config.any_order, config.no_undo)
        context.add_output_metadata(_plan(where, asked, options))
        return
    order = config.order()
    wait = config.wait or (FINISHED_WITHIN if config.finish else 0.0)
    patience = Patience(config.timeout, wait, config.wait_for_bookies, config.finish, config.collect)
    if not may_begin(context, where, config.plan_id):
        return
    refused: dict[TopicPartition, Refusal | None] = {}
    with lineage.noted(context, where, config.plan_id, dry_run=config.dry_run, sends=True):
        results = apply_delete_records(
            where,
            context.run_id,
            order,
            dry_run=config.dry_run,
            patience=patience,
            report=refused.__setitem__,
            progress=context.log.info,
        )
    everything = show.everything(context.run_id, config.plan_id, dry_run=config.dry_run)
    metadata = {**answered(results, config.dry_run), **everything}
    failed = failing(config.plan_id, results, refused, waited=wait > 0)
    if failed and not config.dry_run:
        raise dg.Failure(failure(failed, results), metadata=metadata)
    context.add_output_metadata(metadata)


def failure(failed: Sequence[TopicPartition], results: Mapping[TopicPartition, DeleteRecordsResult]) -> str:
    """How many partitions fail a run by which error: one that waits for its deletion is no other's refusal."""
    counted = Counter(results[topic].error for topic in failed)
    errors = ", ".join(f"{count} {error}" for error, count in counted.most_common())
    first = results[failed[0]]
    return (
        f"{len(failed)} of {len(results)} partitions fail this run ({errors}), the first: {failed[0]}: "
        f"{first.error}: {first.reason}; running it again is harmless"
    )


def failing(
    plan_id: str,
    results: Mapping[TopicPartition, DeleteRecordsResult],
    refused: Mapping[TopicPartition, Refusal | None],
    *,
    waited: bool,
) -> list[TopicPartition]:
    """Partitions whose errors fail a run that applies a plan; ``refused``: what the apply itself found.

    All errors do, but for a plan of policy ``consumed_records``, which may be applied every hour. What its rules keep
    is as it should be, also where it was tried again after something else had failed. And nobody waits for the deletion
    of what left its topics, unless the run was to (``waited``).
    """
    errors = [topic for topic, result in results.items() if result.error]
    if kind_of(plan_id) is not PlanKind.CONSUMED_RECORDS:
        return errors

    def fails(topic: TopicPartition) -> bool:
        error, found = results[topic].error, refused.get(topic)
        return (waited and error is RecordsError.TIMEOUT) or (found is not None and found.error is error)

    return [topic for topic in errors if fails(topic)]


def _plan(where: Cluster, asked: Sequence[RequestedOffset], options: Options) -> dict[str, Any]:
    with where.ports(read_only=True) as ports:
        found = requested_partitions(ports.store, ports.configuration, asked)
    summary, rows = plan_delete_records(where, found.offsets, options, unread=found.unread)
    return ({"not asked for": not_asked_for(found.others)} if found.others else {}) | planned(summary, rows.to_pylist())


def planned(summary: PlanSummary, rows: Sequence[Mapping[str, Any]]) -> dict[str, Any]:
    """A plan as metadata: what applies it, and some partitions of both kinds, those with an error first."""
    table = RecordsTable(show.size, show.at)
    sample = of_both(sorted(rows, key=lambda row: row["topic"]))
    shown = [dict(zip(PLANNED, (*table.line(row), "; ".join(table.notes(row))), strict=True)) for row in sample]
    return {
        "plan": summary.plan_id,
        "digest": summary.digest,
        "actionable": summary.actionable,
        "partitions": len(rows),
        "with an error": sum(row["error"] is not None for row in rows),
        "frees": show.size(summary.physical_bytes),
        "undo": undo_of(rows),
        "to apply it": dg.MetadataValue.json(run_config(summary)),
        "whole plan": dg.MetadataValue.md(f"{show.whole_plan(summary.plan_id)}\n\n{show.applied_by(summary.plan_id)}"),
        "sample": show.table(shown, PLANNED),
    }


def answered(results: Mapping[TopicPartition, DeleteRecordsResult], dry_run: bool) -> dict[str, Any]:
    """Results as metadata: some of both kinds, errors first."""
    rows = [
        {
            "partition": str(topic),
            "low_watermark": str(result.low_watermark),
            "first_readable": str(result.first_readable or ""),
            "error": result.error,
            "code": result.code,
            "reason": result.reason or result.readable_below,
            "lost_copies": result.lost_copies,
            "not_asked": ", ".join(result.not_asked),
        }
        for topic, result in sorted(results.items(), key=lambda item: str(item[0]))
    ]
    errors = sum(row["error"] is not None for row in rows)
    sample = show.table(of_both(rows), ANSWERED)
    return {"dry run": dry_run, "partitions": len(rows), "errors": errors, "sample": sample}


def of_both(rows: Sequence[Mapping[str, Any]]) -> list[Mapping[str, Any]]:
    """As many rows as a sample has, those with an error first: neither kind hides the other."""
    failed = [row for row in rows if row["error"] is not None]
    fine = [row for row in rows if row["error"] is None]
    shown = failed[: max(show.SAMPLE // 2, show.SAMPLE - len(fine))]
    return [*shown, *fine[: show.SAMPLE - len(shown)]]


@dg.job(
    name="delete_records",
    executor_def=dg.in_process_executor,
    description="Delete everything before a position, a time or the end of partitions: with partitions a plan, with "
    "its id and digest what it says. Each partition is answered by its low watermark or an error. Dry run by default.",
)
def delete_records_job() -> None:
    """The job has one op."""
    delete_before_op()
