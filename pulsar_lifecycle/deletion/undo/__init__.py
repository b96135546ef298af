"""Undoing deletions: archived ledgers are created again while the bookies still hold the entries."""
