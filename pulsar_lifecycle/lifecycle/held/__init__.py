"""What topics hold that retention does not reach: ledgers that were never closed, and subscriptions' backlogs."""
