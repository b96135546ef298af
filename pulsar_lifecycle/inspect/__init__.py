"""What people look with: why a ledger is kept or may go, and what a z-node, ledger, topic or bucket holds.

Belongs here: answers for a person, composed of what the other packages know. Not here: a decision or an effect.
"""
