"""The code location's jobs, run as an operator would launch them.

Belongs here: launching a job with the configuration that its plan's page shows. Not here: what a demo runs and proves.
"""

from __future__ import annotations

import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import dagster as dg
from dagster._core.storage.tags import REPOSITORY_LABEL_TAG
from pyspark.sql import SparkSession

from orchestration.definitions import build_defs
from pulsar_lifecycle.deletion.planning.confirmed_orphans import run_config
from pulsar_lifecycle.errors import LifecycleError
from pulsar_lifecycle.values.gaps import in_words
from pulsar_lifecycle.values.plans.offload_plan import OffloadPlan
from pulsar_lifecycle.values.plans.plan_summary import PlanSummary
from resources.lifecycle import LifecycleResource
from sandbox.servers import ui

LABEL = f"__repository__@{ui.LOCATION}"
"""How Dagster calls the code location of ``workspace.yaml``: pages of jobs show runs with this label."""


class Jobs:
    """The code location's jobs, run in this process on the sandbox's instance of Dagster, which its UI shows."""

    def __init__(self, config: str, say: Callable[[str], None]) -> None:
        self._defs = build_defs(config)
        self._config = config
        self._say = say
        self.run_ids: list[str] = []
        self.took: dict[str, float] = {}
        """Seconds, of the last run of a job."""

    def run(self, name: str, what: str, ops: dict[str, Any] | None = None) -> dg.ExecuteInProcessResult:
        """Run a job to its end. Raises LifecycleError when it fails."""
        self._say(what)
        quiet = {"loggers": {"console": {"config": {"log_level": "ERROR"}}}}
        began = time.monotonic()
        with ui.instance(Path(self._config).parent) as instance:
            result = self._defs.resolve_job_def(name).execute_in_process(
                run_config={**quiet, **({"ops": ops} if ops else {})},
                instance=instance,
                raise_on_error=False,
                tags={REPOSITORY_LABEL_TAG: LABEL},
            )
        self.run_ids.append(result.run_id)
        self.took[name] = time.monotonic() - began
        if not result.success:
            failures = [e.message or "" for e in result.all_events if e.is_failure]
            raise LifecycleError(f"job {name} failed: {failures[-1] if failures else 'no message'}")
        return result

    @property
    def spark(self) -> SparkSession:
        """The session that the jobs used."""
        return LifecycleResource(config_file=self._config).cluster().spark

    def offload(self, plan: OffloadPlan, what: str) -> None:
        """Launch ``offload`` as the plan's page says. Raises LifecycleError for a report-only plan."""
        if not plan.actionable:
            raise LifecycleError(f"offload plan {plan.plan_id} is report-only: {in_words(plan.gaps)}")
        config = {"plan_id": plan.plan_id, "digest": plan.digest}
        self.run("offload", what, {"offload_ledgers": {"config": config}})

    def launch(self, name: str, config: dict[str, Any], what: str) -> None:
        """Launch a job that is a dry run by default, as its plan's page says, with ``dry_run = false``."""
        ((op, said),) = config["ops"].items()
        self.run(name, what, {op: {"config": said["config"] | {"dry_run": False}}})

    def apply(self, summary: PlanSummary) -> None:
        """Launch ``apply_plan`` as the plan's page says."""
        ops = run_config(summary)["ops"]
        self.run("apply_plan", "applying the plan: one message per ledger to the deletion topic", ops)
