"""What we keep ourselves: epochs and plans, the journal and the archive."""
