"""Making a Spark session fit for the library: our code on the executors, our data sources known.

Belongs here: what any session needs, whatever its master. Not here: creating it (``resources/`` does, from settings).
"""

from __future__ import annotations

import tempfile
import threading
import zipfile
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path

import pyspark
from pyspark.sql import SparkSession

import pulsar_lifecycle
from pulsar_lifecycle.settings import Settings
from pulsar_lifecycle.spark import sources
from pulsar_lifecycle.spark.entries import BookKeeperEntries
from pulsar_lifecycle.spark.offloaded import PulsarOffload

CONF = {
    # The first-tier compiler: a run lives for minutes, and compiling well took the driver a third of its CPU time.
    "spark.driver.defaultJavaOptions": "-XX:TieredStopAtLevel=1 -XX:+UseParallelGC",
    "spark.sql.python.filterPushdown.enabled": "true",
    "spark.sql.execution.arrow.pyspark.enabled": "true",
    "spark.sql.execution.arrow.maxRecordsPerBatch": "20000",
    "spark.sql.shuffle.partitions": "16",  # what is shuffled are counts and samples for the pages: never the ledgers
    "spark.speculation": "false",  # a speculative copy of a deletion task would only repeat its work
    "spark.ui.showConsoleProgress": "false",
    "spark.sql.session.timeZone": "UTC",
}
"""What our jobs rely on; settings may add to it."""


def prepare(spark: SparkSession) -> SparkSession:
    """Ship the library to the executors and register the data sources; harmless when repeated."""
    if spark.conf.get("spark.pulsarLifecycle.shipped", "") != pyspark.__version__:
        spark.addArtifacts(str(_zip()), pyfile=True)
        spark.conf.set("spark.pulsarLifecycle.shipped", pyspark.__version__)
    sources.register(spark)
    for source in (BookKeeperEntries, PulsarOffload):
        spark.dataSource.register(source)
    return spark


def concurrency(spark: SparkSession) -> int:
    """How many tasks run at once."""
    return max(1, spark.sparkContext.defaultParallelism)


def share_of(spark: SparkSession, settings: Settings) -> Settings:
    """The settings for one of the tasks that run at once: its share of the reads of z-nodes per second."""
    reads = max(1, settings.zookeeper.reads_per_second // concurrency(spark))
    zookeeper = settings.zookeeper.model_copy(update={"reads_per_second": reads})
    return settings.model_copy(update={"zookeeper": zookeeper})


def _zip() -> Path:
    """The library as one zip; executors import it by name, so kernels may be pickled by reference."""
    root = Path(pulsar_lifecycle.__file__).parent
    target = Path(tempfile.mkdtemp(prefix="pulsar-lifecycle-")) / "pulsar_lifecycle.zip"
    with zipfile.ZipFile(target, "w", zipfile.ZIP_DEFLATED) as archive:
        for path in sorted(root.rglob("*.py")):
            archive.write(path, f"pulsar_lifecycle/{path.relative_to(root)}")
    return target


@contextmanager
def reporting(spark: SparkSession, say: Callable[[str], None], extra: Callable[[], str] = str) -> Iterator[None]:
    """Say every :data:`REPORT_SECONDS` how many tasks of the running stages are done, and what ``extra`` adds.

    Runs in a thread of its own; what goes wrong there is said once and ends the reports, never the work.
    """
    done = threading.Event()

    def report() -> None:
        while not done.wait(REPORT_SECONDS):
            try:
                tracker = spark.sparkContext.statusTracker()
                stages = [tracker.getStageInfo(stage) for stage in tracker.getActiveStageIds()]
                tasks = ", ".join(f"{s.numCompletedTasks} of {s.numTasks} tasks" for s in stages if s)
                say("; ".join(part for part in (tasks or "planning", extra()) if part))
            except Exception as error:
                say(f"no more progress reports: {error}")
                return

    thread = threading.Thread(target=report, name="progress", daemon=True)
    thread.start()
    try:
        yield
    finally:
        done.set()
        thread.join()


REPORT_SECONDS = 15.0
"""Seconds between two progress reports."""
