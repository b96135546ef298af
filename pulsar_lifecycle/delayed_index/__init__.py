"""Delayed messages: the bucket index that brokers keep of them (PIP-195), sealed, read, tracked."""
