"""A backfill as one run: Dagster makes a run of each contiguous range of partitions, the first of them does all.

Belongs here: how such an asset is declared, which partitions a run works on, how their pages are written. Not here:
what it does with them. Runs of one backfill are told apart by its tag alone, so that a run that is launched again does
what it did before.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from typing import Any

import dagster as dg
from dagster._core.execution.backfill import BulkActionStatus
from dagster._core.storage.tags import BACKFILL_ID_TAG

from assets.names import key, namespace_partitions
from assets.pages.switch import by_a_person

NO_MORE: tuple[dg.MaterializeResult, ...] = ()
"""What the body of such an asset yields: it wrote the events of its partitions itself, for those of other runs too."""

NO_NAMESPACE: Mapping[str, Any] = {"namespace": "deleted, by the newest scan: nothing to do"}
"""The page of a namespace that stays in the list of partitions, as what was done there stays shown."""

_CANCELED = (BulkActionStatus.CANCELING, BulkActionStatus.CANCELED)


def by_namespace(
    cluster: str, name: str, *, description: str, **about: Any
) -> Callable[[Callable[..., Any]], dg.AssetsDefinition]:
    """Declares an asset of a cluster that is partitioned by namespace; ``about`` is what :func:`dagster.asset` takes.

    ``description``: what it does where ``dry_run`` is false; how to say so is added. Its body does
    :func:`partitions_to_do` in :func:`pages_written`, and yields :data:`NO_MORE`.
    """
    return dg.asset(
        key=key(cluster, name),
        partitions_def=namespace_partitions(cluster),
        backfill_policy=dg.BackfillPolicy.single_run(),
        output_required=False,
        description=f"{description} As it ships it is a dry run. To do it, the *Config* of the backfill is "
        f"`{{ops: {{{cluster}__{name}: {{config: {{dry_run: false}}}}}}}}`. Dagster makes a run of each range of "
        "neighbours, though its dialog says one: the first does all, with one plan.",
        **about,
    )


def partitions_to_do(context: dg.AssetExecutionContext) -> list[str]:
    """The partitions that this run works on: its own, or all of its backfill, or none if another run does all.

    The run with the backfill's first partition does all of it, also where a person executes it again. Dagster then
    takes the backfill's tag away, if that is over; any other run does its own. So does one whose backfill is not kept
    any more, or does not name this asset. Raises dagster.Failure for a backfill that was canceled while the run waited:
    Dagster ends such runs only some time later.
    """
    own = list(context.partition_keys)
    going_on = context.run.tags.get(BACKFILL_ID_TAG)
    backfill_id = going_on or _backfill_before(context)
    backfill = context.instance.get_backfill(backfill_id) if backfill_id else None
    if backfill is None or not backfill.is_asset_backfill:
        return own
    if going_on and backfill.status in _CANCELED and not by_a_person(context.run):
        raise dg.Failure(f"backfill {backfill_id} was canceled: nothing was done", allow_retries=False)
    graph = context.job_def.asset_layer.asset_graph
    target = backfill.get_asset_backfill_data(graph).target_subset
    whole = {one.partition_key for one in target.iterate_asset_partitions() if one.asset_key == context.asset_key}
    every = sorted(name for name in whole if name is not None)
    if not every or not set(own) <= set(every):
        return own
    if every[0] in own:
        if len(every) > len(own):
            context.log.info(f"this run does the whole backfill {backfill_id}: {len(every)} partitions")
        return every
    if not going_on:
        return own
    context.log.info(f"part of backfill {backfill_id}: the run with partition {every[0]} does all of it")
    return []


def _backfill_before(context: dg.AssetExecutionContext) -> str | None:
    """The backfill of the run that this one executes again, first of all."""
    first = context.run.root_run_id
    before = context.instance.get_run_by_id(first) if first else None
    return before.tags.get(BACKFILL_ID_TAG) if before else None


@contextmanager
def pages_written(
    context: dg.AssetExecutionContext, names: Sequence[str], page: Callable[[str], Mapping[str, Any]]
) -> Iterator[None]:
    """Write the page of each partition, ``page`` of its name, however the block ends.

    Where it ends in an error, or is terminated, its partitions count as not made: Dagster shows the backfill as failed,
    which it does not by a run's end alone. What was done until then is on their pages as an observation. An error of
    ``page`` hides none of the block's.
    """
    try:
        yield
    except BaseException as ended:
        why = {"not made": f"run {context.run.run_id} {_text(ended)}"}
        try:
            for name in names:
                context.log_event(
                    dg.AssetObservation(context.asset_key, partition=name, metadata={**why, **page(name)})
                )
        except Exception as error:  # why the block ended matters more
            context.log.warning(f"the pages of its namespaces could not be written: {error}")
        raise
    for name in names:
        context.log_event(dg.AssetMaterialization(context.asset_key, partition=name, metadata=page(name)))


def _text(error: BaseException) -> str:
    """How a run ended; a Failure has what it says as its description."""
    if not isinstance(error, Exception):
        return "was terminated: `pulsar-lifecycle journal --run` has what it did"
    return f"failed: {(error.description if isinstance(error, dg.Failure) else None) or str(error)}"
