"""A cluster as a Dagster component: one ``defs.yaml`` in a folder of its own, one code location for each.

Belongs here: reading where the settings file is. Not here: what a cluster consists of (``orchestration/definitions``).
"""

import dagster as dg

from orchestration.definitions import build_defs


class PulsarCluster(dg.Component, dg.Model, dg.Resolvable):
    """Everything for one Pulsar cluster, by its settings file; empty: ``$PULSAR_LIFECYCLE_CONFIG``."""

    config_file: str = ""

    def build_defs(self, context: dg.ComponentLoadContext) -> dg.Definitions:
        """Assets, jobs, schedules and sensors of the cluster. Raises ConfigError for wrong settings."""
        return build_defs(self.config_file)
