"""The one resource of the code location: settings, lake and Spark session of a cluster.

Not here: anything that reads or changes a cluster; that is the library's.
"""

import os
import sys
from pathlib import Path
from typing import Any

import dagster as dg
from dagster_pyspark import LazyPySparkResource
from pyspark.sql import SparkSession

from pulsar_lifecycle.io.connect import Connections
from pulsar_lifecycle.ports import Connect, Lake
from pulsar_lifecycle.runs.cluster import Cluster
from pulsar_lifecycle.settings import CONFIG_VARIABLE, Settings, load_settings
from pulsar_lifecycle.sources.spark_session import CONF, ship


def spark_config(settings: Settings) -> dict[str, Any]:
    """Spark's configuration: what the library needs, then what the settings say."""
    driver = {"spark.master": settings.spark.master, "spark.app.name": f"pulsar-lifecycle {settings.cluster}"}
    logging = Path(__file__).with_name("log4j2.properties").as_uri()
    local = {
        "spark.driver.bindAddress": "127.0.0.1",
        "spark.driver.host": "127.0.0.1",
        "spark.driver.extraJavaOptions": f"-Dlog4j2.configurationFile={logging}",
        "spark.ui.enabled": "false",
    }
    python = {"spark.pyspark.python": sys.executable}
    return {
        **CONF,
        **driver,
        **python,
        **(local if settings.spark.master.startswith("local") else {}),
        **settings.spark.conf,
    }


class LifecycleResource(dg.ConfigurableResource):
    """A cluster by its settings file; an empty path stands for ``$PULSAR_LIFECYCLE_CONFIG``."""

    config_file: str = ""

    def path(self) -> str:
        """The settings file's path as Spark needs it, too."""
        return self.config_file or os.environ.get(CONFIG_VARIABLE, "")

    def settings(self) -> Settings:
        """The validated settings, read now. Raises ConfigError."""
        return load_settings(self.path() or None)

    def lake(self) -> Lake:
        """The lake, without Spark."""
        return self.without_spark().lake

    def opener(self) -> Connect:
        """What opens the ports of the cluster: adapters to its servers, but in tests."""
        return Connections

    def without_spark(self) -> Cluster:
        """What needs no Spark, which this does not start."""
        return Cluster(self.settings(), self.opener(), self.path())

    def cluster(self) -> Cluster:
        """Everything a scan or a deletion run needs; starts Spark once it is asked for: not every run needs it."""
        settings = self.settings()
        return Cluster(settings, self.opener(), self.path(), start_session=lambda: self._started(settings))

    def _started(self, settings: Settings) -> SparkSession:
        config = spark_config(settings)
        if settings.spark.master.startswith("local"):
            os.environ.setdefault("SPARK_LOCAL_IP", "127.0.0.1")
        os.environ.setdefault("PYSPARK_PYTHON", config["spark.pyspark.python"])  # PySpark reads it here, not in conf
        return ship(self.spark_resource(config).spark_session)

    def spark_resource(self, config: dict[str, Any]) -> LazyPySparkResource:
        """What starts Spark; ``config``: what the settings want of it."""
        return LazyPySparkResource(spark_config=config)


class LifecycleOnSpark(LifecycleResource):
    """A cluster by its settings file, with the Spark of the resource ``pyspark``."""

    pyspark: dg.ResourceDependency[LazyPySparkResource]

    def spark_resource(self, config: dict[str, Any]) -> LazyPySparkResource:
        """Resource ``pyspark`` as it is: the definitions gave it its configuration."""
        return self.pyspark
