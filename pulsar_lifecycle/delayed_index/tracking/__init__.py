"""The tracker of delayed messages: its buckets in memory, and what of them is stored when."""
