"""Tiered storage: which ledgers go, the upload and its proof, the commit, reverting, the copies in BookKeeper."""
