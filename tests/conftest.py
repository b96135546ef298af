"""Every test: how Hypothesis looks for examples."""

from hypothesis import settings

# No test depends on how fast this machine is.
settings.register_profile("any-machine", deadline=None)
settings.load_profile("any-machine")
