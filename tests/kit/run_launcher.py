"""A launcher of Dagster's runs for tests of its daemon: each run in this process, over at once."""

from __future__ import annotations

from concurrent.futures import ThreadPoolExecutor

from dagster._core.launcher import LaunchRunContext
from dagster._core.launcher.sync_in_memory_run_launcher import SyncInMemoryRunLauncher


class InThisProcess(SyncInMemoryRunLauncher):
    """Beside the daemon's own event loop, in which a run cannot begin another."""

    def launch_run(self, context: LaunchRunContext) -> None:
        """Returns when the run has ended, well or not."""
        with ThreadPoolExecutor(1) as thread:
            thread.submit(super().launch_run, context).result()
