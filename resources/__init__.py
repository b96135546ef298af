"""Dagster resources: settings, open, close; nothing else."""
