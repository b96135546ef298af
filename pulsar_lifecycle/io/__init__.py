"""Adapters to the outside world: the only importers of kazoo, boto3, pulsar, httpx and sockets.

Each implements a Protocol of ``ports`` and raises only ``errors``. Import the adapter's own module.
"""
