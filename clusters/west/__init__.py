"""Cluster ``west``."""
