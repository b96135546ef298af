"""What every run has: leases and pause, caps, the session, sending intents. Not here: what any capability decides."""
