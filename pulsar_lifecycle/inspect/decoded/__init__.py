"""What a z-node, a ledger, a topic or a bucket holds, decoded for a person.

Belongs here: reading it through the ports without loading a topic or recovering a ledger. What cannot be read stands as
its error where the value would; only a missing or unreadable subject raises. Not here: judging (``explain``), JSON and
printing (``cli/look``).
"""
