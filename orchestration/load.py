"""Jobs ``plan_load`` and ``load_topics``: which topics need a broker, and have brokers load, trim and unload them."""

import dagster as dg
from dagster._core.definitions.unresolved_asset_job_definition import UnresolvedAssetJobDefinition

from assets.names import key


def plan_load_job(cluster: str) -> UnresolvedAssetJobDefinition:
    """Judge the newest scan's topics by the policies in force; writes nothing to the cluster."""
    return dg.define_asset_job(
        "plan_load",
        selection=[key(cluster, name) for name in ("topics_to_load", "load_plan")],
        description="Which topics only a broker that loads them can free data of, what brokers would do to them "
        "besides, and the plan. Loads no topic, and writes nothing to the cluster.",
        executor_def=dg.in_process_executor,
    )
