"""What holds for all tests."""

import gc

import pytest
from hypothesis import HealthCheck, settings

pytest.register_assert_rewrite("tests.kit")

# No test depends on how fast this machine is.
settings.register_profile("any-machine", deadline=None, suppress_health_check=[HealthCheck.too_slow])
settings.load_profile("any-machine")


def pytest_collection_finish() -> None:
    """Look no more for garbage among the libraries and the tests themselves: a tenth of all time went into that."""
    gc.collect()
    gc.freeze()
    gc.set_threshold(200_000, 20, 100)
