"""Two-phase deletion: what is an orphan, the plan, the queue, the decision about each message, undo."""
