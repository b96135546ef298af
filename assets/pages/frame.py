"""What every asset of a cluster has in common: columns with their words, owners, code versions, freshness.

Belongs here: what follows from an asset's name and the settings alone. Not here: what an asset is, does or shows.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from datetime import timedelta
from importlib.metadata import PackageNotFoundError, version
from typing import Any

import dagster as dg
import pyarrow as pa
from dagster._core.definitions.declarative_automation.operators.dep_operators import DepsAutomationCondition

from assets.pages.versions import version_of
from pulsar_lifecycle.inspect.catalog import OF_AN_ASSET, WORDS
from pulsar_lifecycle.settings import CatalogSettings

SCANS = ("bookkeeper_ledgers", "ledger_references", "scan_coverage", "orphan_ledgers", "deletion_plan")
"""What every scan makes anew, and turns stale when scans stop."""


Conditions = Mapping[str, dg.AutomationCondition[Any] | None]
"""What makes an asset by itself, by its name."""


def deps_updated() -> DepsAutomationCondition[Any]:
    """One of its dependencies was made anew, or is about to be."""
    updated = dg.AutomationCondition.newly_updated() | dg.AutomationCondition.will_be_requested()
    return dg.AutomationCondition.any_deps_match(updated)


def framed(
    assets: Iterable[dg.AssetsDefinition | dg.AssetSpec],
    catalog: CatalogSettings,
    conditions: Conditions,
    awaited: Mapping[str, float],
) -> list[dg.AssetsDefinition | dg.AssetSpec]:
    """The assets with what their names say of them; ``awaited``: how old others may be (s)."""

    def dressed(spec: dg.AssetSpec) -> dg.AssetSpec:
        name = spec.key.path[-1]
        schema = OF_AN_ASSET.get(name)
        columns = {"dagster/column_schema": columns_of(schema)} if schema else {}
        return spec.replace_attributes(
            owners=list(catalog.owners),
            metadata={**spec.metadata, **columns},
            code_version=code_version(schema) if schema else spec.code_version,
            freshness_policy=freshness(name, catalog, awaited),
            automation_condition=conditions.get(name),
        )

    return [one.map_asset_specs(dressed) if isinstance(one, dg.AssetsDefinition) else dressed(one) for one in assets]


def columns_of(schema: pa.Schema) -> dg.TableSchema:
    """An Arrow schema as Dagster shows it, with the words of each column."""
    return dg.TableSchema(
        [dg.TableColumn(field.name, str(field.type), description=WORDS.get(field.name)) for field in schema]
    )


def code_version(schema: pa.Schema) -> str:
    """Another one for each release, and for each change of the columns."""
    try:
        release = version("pulsar-lifecycle")
    except PackageNotFoundError:
        release = "0"
    return f"{release}-{version_of([(field.name, str(field.type)) for field in schema]).value[:8]}"


def freshness(name: str, catalog: CatalogSettings, awaited: Mapping[str, float]) -> dg.FreshnessPolicy | None:
    """How old an asset may be before its health is bad; None for what nothing makes regularly."""
    limits: Sequence[tuple[Sequence[str], float]] = (
        (SCANS, catalog.scan_fresh_for),
        (("pending_deletions",), catalog.queue_fresh_for),
        (("object_inventory", "orphan_objects"), catalog.inventory_fresh_for),
        *(((one,), seconds) for one, seconds in awaited.items()),
    )
    for names, seconds in limits:
        if name in names:
            return dg.FreshnessPolicy.time_window(
                fail_window=timedelta(seconds=seconds), warn_window=timedelta(seconds=seconds * 0.8)
            )
    return None
