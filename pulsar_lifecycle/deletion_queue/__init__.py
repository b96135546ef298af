"""The topics of the deletion queue: their names, and what waits in them."""
