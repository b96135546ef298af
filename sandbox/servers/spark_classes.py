"""Run a small Spark application whose JVM leaves a class-data archive.

Called as ``-m sandbox.servers.spark_classes OPTION=FILE``. It touches what our runs touch: Python on Arrow batches,
shuffles, Parquet. Upstream: dynamic AppCDS, JDK 17.
"""

from __future__ import annotations

import os
import sys
import tempfile
from collections.abc import Iterator
from typing import Any, cast

import pyarrow as pa
from pyspark import SparkContext
from pyspark.sql import SparkSession

from sandbox.servers.archives import SHORT_LIVED


def main() -> None:
    """Run it, and wait for its JVM to end: the archive is written then."""
    archive = sys.argv[1].partition("=")[2]
    os.environ["PYSPARK_PYTHON"] = sys.executable
    conf: dict[str, Any] = {
        "spark.driver.bindAddress": "127.0.0.1",
        "spark.driver.host": "127.0.0.1",
        "spark.driver.defaultJavaOptions": f"{SHORT_LIVED} -XX:ArchiveClassesAtExit={archive}",
        "spark.ui.enabled": "false",
        "spark.sql.shuffle.partitions": "2",
    }
    with tempfile.TemporaryDirectory() as folder:
        session = SparkSession.builder.master("local[2]").config(map=conf).getOrCreate()
        rows = session.range(1000).mapInArrow(_same, "id long")
        rows.groupBy((rows.id % 7).alias("rest")).count().write.parquet(folder, mode="overwrite")
        counts = session.read.parquet(folder)
        rows.join(counts, rows.id == counts.rest).toPandas()
        session.stop()
    java = cast("Any", SparkContext)._gateway
    java.shutdown()
    java.proc.stdin.close()
    java.proc.wait()


def _same(batches: Iterator[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
    yield from batches


if __name__ == "__main__":
    main()
