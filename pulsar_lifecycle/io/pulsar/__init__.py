"""The brokers: their REST API, and the deletion queue on the binary protocol."""
