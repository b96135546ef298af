"""Where a time falls in a topic, and what lies below a position."""
