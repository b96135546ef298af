"""The inventory of the buckets, and sweeping what nothing needs out of them."""
