"""Buckets of tiered storage over S3."""
