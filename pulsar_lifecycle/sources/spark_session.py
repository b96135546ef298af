"""Making a Spark session fit for the library: our code on the executors, our data sources known.

Belongs here: what any session needs, whatever its master. Not here: creating it (``resources/`` does, from settings).
"""

from __future__ import annotations

import tempfile
import zipfile
from pathlib import Path

import pyspark
from pyspark.sql import SparkSession

import pulsar_lifecycle
from pulsar_lifecycle.metastore import sources
from pulsar_lifecycle.sources.entries import BookKeeperEntries
from pulsar_lifecycle.sources.index_sources import DelayedIndexBuckets, DelayedIndexMessages
from pulsar_lifecycle.sources.offloaded import PulsarOffload

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


def ship(spark: SparkSession) -> SparkSession:
    """Ship the library to the executors: all that our own runs need; harmless when repeated."""
    if spark.conf.get("spark.pulsarLifecycle.shipped", "") != pyspark.__version__:
        spark.addArtifacts(str(_zip()), pyfile=True)
        spark.conf.set("spark.pulsarLifecycle.shipped", pyspark.__version__)
    return spark


def prepare(spark: SparkSession) -> SparkSession:
    """:func:`ship`, and make the data sources known to the session; harmless when repeated.

    Spark then looks for data sources among all installed packages, which takes it some seconds.
    """
    ship(spark)
    spark.conf.set("spark.sql.python.filterPushdown.enabled", "true")  # else the metastore's sources refuse to read
    sources.register(spark)
    for source in (BookKeeperEntries, PulsarOffload, DelayedIndexBuckets, DelayedIndexMessages):
        spark.dataSource.register(source)
    return spark


def _zip() -> Path:
    """The library as one zip; executors import it by name, so kernels may be pickled by reference."""
    root = Path(pulsar_lifecycle.__file__).parent
    target = Path(tempfile.mkdtemp(prefix="pulsar-lifecycle-")) / "pulsar_lifecycle.zip"
    with zipfile.ZipFile(target, "w", zipfile.ZIP_DEFLATED) as archive:
        for path in sorted(root.rglob("*.py")):
            archive.write(path, f"pulsar_lifecycle/{path.relative_to(root)}")
    return target
