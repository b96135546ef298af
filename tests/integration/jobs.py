"""Dagster's jobs of one pipeline's code location, as the tests run them, and what their pages show."""

from __future__ import annotations

from typing import Any

import dagster as dg

from orchestration.definitions import build_defs
from tests.integration.pipeline import Pipeline


def key(name: str) -> dg.AssetKey:
    return dg.AssetKey(["sandbox", name])


class Jobs:
    """The jobs of one pipeline's code location."""

    def __init__(self, pipeline: Pipeline, instance: dg.DagsterInstance) -> None:
        self._defs = build_defs(str(pipeline.file))
        self._instance = instance

    def run(self, name: str, config: dict[str, Any] | None = None) -> dg.ExecuteInProcessResult:
        quiet = {"loggers": {"console": {"config": {"log_level": "ERROR"}}}}
        job = self._defs.resolve_job_def(name)
        return job.execute_in_process(run_config={**quiet, **(config or {})}, instance=self._instance)

    def page(self, name: str) -> dict[str, Any]:
        """What the newest materialization of an asset shows."""
        event = self._instance.get_latest_materialization_event(key(name))
        assert event is not None
        assert event.asset_materialization is not None
        return {
            label: getattr(value, "md_str", None) or value.value
            for label, value in event.asset_materialization.metadata.items()
        }
