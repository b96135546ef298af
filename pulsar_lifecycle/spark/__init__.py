"""Spark: data sources (reads) and kernels (idempotent effects). Not here: decisions, formats, vendors."""
