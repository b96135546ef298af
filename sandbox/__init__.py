"""A real Pulsar 4.0 cluster in miniature, each server a process of its own, and the data it is seeded with.

Belongs here: starting, stopping and killing the servers, planting topics and leaks, reading topics back. Not here:
anything the product needs to run; the product knows the sandbox only by its marker z-node.
"""
