"""One topic: its state read afresh, what protects it, its policies, and writing its z-node."""
