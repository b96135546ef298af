"""Jobs of the topic data lifecycle: retention, loads, inactive topics, bookies."""
