"""What the journal and the archive say: marks, intents, read checks, deletions in doubt, metrics."""
