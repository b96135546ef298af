"""Assets of the topic data lifecycle: retention, loads, use, storage, bookies."""
