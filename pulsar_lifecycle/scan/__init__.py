"""A scan of the cluster: its tables, who refers to what, the coverage proof, and what a run may rely on of it."""
