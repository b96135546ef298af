"""Offloaded copies of ledgers: where they are, open attempts, whether one is whole, whether it is the last."""
