"""Entries straight from the bookies over BookKeeper's v2 protocol; it reads only."""
