"""Spark data sources of entries and messages, in BookKeeper and in buckets, and the session that knows them."""
