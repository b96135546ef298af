"""Decisions over Arrow tables, without IO and without a clock."""
