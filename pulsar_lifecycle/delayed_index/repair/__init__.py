"""Repairs of delayed indexes: which, by rule; planned; applied to cursors' z-nodes, and undone."""
