"""What is stored of delayed indexes: buckets as snapshots hold them, the messages that are delayed, and findings."""
