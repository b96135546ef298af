"""The library behind pulsar-lifecycle: formats, decisions, adapters and Spark kernels; no Dagster."""
