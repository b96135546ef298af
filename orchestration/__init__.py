"""Dagster jobs, schedules, sensors and the definitions that hold everything together."""
