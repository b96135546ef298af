"""Dagster assets, thin over the library: what exists, what it shows, what it depends on.

Not here: reading, deciding, acting (``pulsar_lifecycle``), jobs and schedules (``orchestration``).
"""
