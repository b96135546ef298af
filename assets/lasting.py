"""What runs leave behind for good: the journal, the archive, and what left topics' lists.

Source of truth: the lake. Runs add to them and say so here (``assets/pages/lineage.py``); nothing materializes them.
"""

from __future__ import annotations

import dagster as dg

from assets.names import key


def lasting_assets(cluster: str) -> list[dg.AssetSpec]:
    """``trimmed_ledgers``, ``journal`` and ``archive``."""

    def spec(name: str, description: str, deps: list[str]) -> dg.AssetSpec:
        return dg.AssetSpec(
            key(cluster, name),
            group_name="journal",
            description=f"{description} Jobs with effects write it; it cannot be materialized.",
            kinds={"parquet"},
            deps=[key(cluster, one) for one in deps],
        )

    return [
        spec(
            "trimmed_ledgers",
            "Ledgers that left their topics' lists, by trimming, by retention or with their topic. Read it with "
            "`pulsar-lifecycle journal --code planned`.",
            ["retention_plan", "load_plan", "inactive_topics_plan"],
        ),
        spec(
            "journal",
            "Every decision and effect of every run: which ledger, by which plan, what became of it and why. Read it "
            "with `pulsar-lifecycle journal`.",
            ["ledger_deletions", "trimmed_ledgers", "offloaded_ledgers"],
        ),
        spec(
            "archive",
            "Every z-node of a ledger as it was before its deletion: what job `undo_deletions` puts back.",
            ["ledger_deletions"],
        ),
    ]
