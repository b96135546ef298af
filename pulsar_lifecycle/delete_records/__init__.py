"""Delete records: everything of a partition before a position, a time or its end, answered once it is true."""
