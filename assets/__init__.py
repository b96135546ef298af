"""Dagster assets, thin over the library: what exists, what it shows, what it depends on.

Not here: reading, deciding, acting (``pulsar_lifecycle``), jobs and schedules (``orchestration``).
"""

import warnings

import dagster as dg

# Single-run back-fills are beta in Dagster 1.13 and what back-fills of many namespaces need.
warnings.filterwarnings("ignore", message=".*backfill_policy.*", category=dg.BetaWarning)
# Dagster's own call, of a sensor that starts one of several jobs.
warnings.filterwarnings("ignore", message=".*owners.*SensorDefinition.*", category=dg.BetaWarning)
