"""Bundles of topics, and what requests to brokers have them take."""
