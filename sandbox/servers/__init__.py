"""The sandbox's servers as processes of this machine: their jars, their configuration, how each is started and known.

Not here: which of them a cluster has (:mod:`sandbox.cluster`), what is in it (:mod:`sandbox.planting`).
"""
