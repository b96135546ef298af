"""Jobs: ``scan`` looks and plans, ``apply_plan`` sends intents, ``delete_pending`` scans again and deletes.

``redrive_dead_letters`` gives dead letters another life in the queue.

Spark jobs run in one process: a JVM per step would cost more than the step.
"""

from typing import Any

import dagster as dg
from dagster._core.definitions.unresolved_asset_job_definition import UnresolvedAssetJobDefinition
from dagster._core.storage.tags import MAX_RUNTIME_SECONDS_TAG
from pydantic import Field

from assets import dead_letters
from assets.deletion import check_not_stopped, outcomes_shown
from assets.names import CLUSTER, FINDINGS, METASTORE, key
from assets.pages import lineage, show
from assets.pages.failures import refusals_fail
from orchestration.automatic.may_begin import may_begin
from orchestration.named import CapsConfig, ledgers_of, namespace_of, topic_of
from pulsar_lifecycle.deletion import deletion_run
from pulsar_lifecycle.deletion.redrive import LetterFilter, at_most, chosen, redrive_now
from pulsar_lifecycle.deletion.workers import OutcomeCount
from pulsar_lifecycle.runs.caps import Order
from pulsar_lifecycle.values.outcomes import Outcome
from resources.lifecycle import LifecycleResource

SCANNED = (*METASTORE, "ledger_references", *FINDINGS, "scan_coverage")


def scan_job(cluster: str) -> UnresolvedAssetJobDefinition:
    """Look at the cluster, judge, plan; writes nothing to it."""
    return dg.define_asset_job(
        "scan",
        selection=[key(cluster, name) for name in (*SCANNED, "deletion_plan")],
        description="Read the metastore, find who refers to what, judge every ledger, make a deletion plan. "
        "Writes nothing to the cluster.",
        executor_def=dg.in_process_executor,
        tags={MAX_RUNTIME_SECONDS_TAG: "86400"},  # deletion runs wait for its pool, even if it died with its host
    )


def watch_queue_job(cluster: str) -> UnresolvedAssetJobDefinition:
    """Look at the deletion queue; takes nothing."""
    return dg.define_asset_job(
        "watch_queue",
        selection=[key(cluster, "pending_deletions"), key(cluster, dead_letters.NAME)],
        description="Look what waits in the deletion queue, for how long, and at its dead letters. Takes nothing.",
        executor_def=dg.in_process_executor,
    )


def delete_pending_job(cluster: str) -> UnresolvedAssetJobDefinition:
    """Scan, so that there is evidence younger than every intent, then work the queue off."""
    return dg.define_asset_job(
        "delete_pending",
        selection=[key(cluster, name) for name in (*SCANNED, "ledger_deletions")],
        description="Scan again, then delete what the queue holds and nothing refers to. "
        "Intents sent after the scan began wait for the next run.",
        executor_def=dg.in_process_executor,
        tags={CLUSTER: cluster},
    )


class PlanConfig(CapsConfig):
    """Which plan, how much of it however often it is applied (0: all); its page has it ready.

    ``namespaces``: only what is of these tenants, namespaces and full topic names; empty: all.

    The caps are those of the settings file, section ``apply``; a launch may lower them, and is refused if it asks for
    more.
    """

    plan_id: str
    digest: str
    limit: int = 0

    def order(self) -> Order:
        """The library's form of it."""
        return self.order_of(self.plan_id, self.digest, self.limit)


class ApplyConfig(PlanConfig):
    """A deletion plan, and whether it goes without the queue."""

    direct: bool = False


@dg.op(
    name="send_intents",
    description="Send one message per planned ledger to the deletion topic; with `direct`, delete without the queue.",
)
@refusals_fail()
def send_intents_op(context: dg.OpExecutionContext, config: ApplyConfig, lifecycle: LifecycleResource) -> None:
    """Refuses a stale, report-only or foreign plan and one that exceeds its caps."""
    where = lifecycle.cluster()
    if not may_begin(context, where, config.plan_id):
        return
    with lineage.noted(context, where, config.plan_id):
        if config.direct:
            context.add_output_metadata(deleted(deletion_run.apply_directly(where, context.run_id, config.order())))
            return
        applied = deletion_run.apply_plan(where, context.run_id, config.order(), context.log.info)
    context.add_output_metadata({"sent": applied.sent, "sent before": applied.already, "failed": applied.failed})
    if applied.problem:
        raise dg.Failure(f"{applied.problem}; apply the plan again to send the rest")


def deleted(outcomes: list[OutcomeCount]) -> dict[str, Any]:
    """Metadata of what a plan applied directly did. A stop, or nothing deleted though something stays, is a Failure."""
    metadata = outcomes_shown(outcomes)
    check_not_stopped(outcomes, metadata)
    stayed = [o for o in outcomes if o.outcome not in (Outcome.DELETED, Outcome.GONE)]
    if stayed and not any(o.outcome == Outcome.DELETED for o in outcomes):
        count, first = sum(o.ledgers for o in stayed), f"{stayed[0].outcome}: {stayed[0].reason}"
        raise dg.Failure(f"nothing was deleted, {count} ledgers stay, the first reason: {first}", metadata=metadata)
    return metadata


@dg.job(
    name="apply_plan",
    executor_def=dg.in_process_executor,
    description="Apply a deletion plan: its intents go to the deletion topic.",
)
def apply_plan_job() -> None:
    """The job has one op."""
    send_intents_op()


class RedriveConfig(dg.Config):
    """Which dead letters, and how many at most; empty lists and code want all. Without ``dry_run = false``, nothing.

    At most ``apply.max_ledgers`` of the settings file; unset: 1,000, or that if it is less.
    """

    ledger_ids: list[int] = Field(default=[])
    topics: list[str] = Field(default=[])
    namespaces: list[str] = Field(default=[])
    code: str = ""
    max_messages: int | None = None
    dry_run: bool = True

    def wanted(self) -> LetterFilter:
        """The library's form of it. Raises UsageError."""
        return LetterFilter(
            ledgers_of("ledger_ids", self.ledger_ids),
            frozenset(str(topic_of("topics", name)) for name in self.topics),
            frozenset(str(namespace_of("namespaces", name)) for name in self.namespaces),
            self.code.strip(),
        )


@dg.op(
    name="redrive",
    description="Send dead letters to the deletion topic again, as they were sent first; a dry run unless told so.",
)
@refusals_fail()
def redrive_op(context: dg.OpExecutionContext, config: RedriveConfig, lifecycle: LifecycleResource) -> None:
    """Refused while two-phase deletion is switched off, the cluster is paused or another run acts."""
    where, wanted = lifecycle.without_spark(), config.wanted()
    most = at_most(where.settings, config.max_messages)
    if config.dry_run:
        with dead_letters.open_reader(where) as (_, reader):
            picture = dead_letters.take_picture(reader, where)
        some = chosen(picture.letters, wanted, most)
        context.add_output_metadata(
            {**picture.shown(), "would send": len(some), "would be sent": dead_letters.sample(some)}
        )
        context.log.info(f"dry run: {len(some)} dead letters would be sent again; set dry_run to false to send them")
        return
    with lineage.noted(context, where, sends=True):
        done = redrive_now(where, context.run_id, wanted, most, context.log.info)
    metadata = {
        "sent": done.sent,
        "failed": done.failed,
        "looked at": done.looked,
        "not handed out by the broker": done.withheld,
        "unparseable, left": done.unparseable,
        "sent again": dead_letters.sample(done.sample),
        **show.everything(context.run_id),
    }
    if done.failed:
        raise dg.Failure(
            f"{done.failed} dead letters could not be sent, the first: {done.first_error}; they are where they were",
            metadata=metadata,
        )
    if done.withheld:
        raise dg.Failure(
            f"{done.sent} were sent, and {done.withheld} dead letters were never seen: another consumer holds them, or "
            f"the {done.looked} before them, of which too many are not wanted, fill up maxUnackedMessagesPerConsumer; "
            "end that consumer, or redrive what is in front first, without a filter",
            metadata=metadata,
        )
    if done.looked and not done.sent:
        raise dg.Failure(
            f"nothing was sent: of {done.looked} dead letters {done.unparseable} cannot be parsed, and no other is "
            "what ledger_ids, topics, namespaces and code ask for",
            metadata=metadata,
        )
    context.add_output_metadata(metadata)


@dg.job(
    name="redrive_dead_letters",
    executor_def=dg.in_process_executor,
    description="Give dead letters another life in the deletion queue, chosen by ledger, topic, namespace or code.",
)
def redrive_job() -> None:
    """The job has one op."""
    redrive_op()
