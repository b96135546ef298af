"""The frame of assets that judge a scan into a table, and plan what of it goes.

Not here: what is judged and planned, and what the pages show.
"""

from collections.abc import Callable, Iterator, Mapping
from typing import Any

import dagster as dg
import pyarrow as pa

from assets.names import EPOCH
from assets.pages import show
from assets.pages.epochs import epoch_to_read
from assets.pages.growth import growth_result, growth_spec
from pulsar_lifecycle.runs.cluster import Cluster
from pulsar_lifecycle.runs.progress import of_stages, reporting
from pulsar_lifecycle.values.epoch import Epoch
from pulsar_lifecycle.values.plans.plan_summary import PlanSummary
from resources.lifecycle import LifecycleResource


def table_and_plan(
    name: str,
    table: dg.AssetSpec,
    stored_as: str,
    plan: dg.AssetSpec,
    make: Callable[[Cluster, Epoch], tuple[PlanSummary, pa.Table]],
    table_shown: Callable[[Cluster, str], Mapping[str, Any]],
    plan_shown: Callable[[Cluster, PlanSummary, pa.Table], Mapping[str, Any]],
    capped: Callable[[pa.Table], pa.Table],
    automated: str = "",
) -> dg.AssetsDefinition:
    """The multi-asset ``name``: ``make`` stores the table, as ``stored_as`` of its epoch, and the plan.

    ``capped``: the plan's rows as caps count them. ``automated``: the key of its kind in ``[automation]``; empty where
    plans never go by themselves.
    """
    kinds = (automated,) if automated else ()

    @dg.multi_asset(name=name, specs=[table, plan], check_specs=[growth_spec(plan.key, kind) for kind in kinds])
    def judged(context: dg.AssetExecutionContext, lifecycle: LifecycleResource) -> Iterator[dg.MaterializeResult]:
        where = lifecycle.cluster()
        epoch_id = epoch_to_read(context, where)
        with reporting(context.log.info, of_stages(where.spark)):
            summary, rows = make(where, where.lake.epoch(epoch_id))
        stored = show.stored(where, epoch_id, stored_as)
        yield dg.MaterializeResult(asset_key=table.key, metadata={**stored, **table_shown(where, epoch_id)})
        yield dg.MaterializeResult(
            asset_key=plan.key,
            metadata={
                EPOCH: epoch_id,
                "dagster/uri": show.plan_uri(where, summary.plan_id),
                **show.over_caps(where, summary, capped(rows)),
                **plan_shown(where, summary, rows),
            },
            data_version=dg.DataVersion(summary.digest),
            check_results=[growth_result(where, plan.key, summary, kind) for kind in kinds],
        )

    return judged
