"""Cluster ``east``."""
