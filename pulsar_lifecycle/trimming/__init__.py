"""Trimming topics and deleting them whole: the first phase of a deletion."""
