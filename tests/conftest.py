"""What holds for all tests."""

import gc

import pytest
from hypothesis import HealthCheck, settings

pytest.register_assert_rewrite("tests.kit")

# No test depends on how fast this machine is. A run draws what the last one drew, so that a change is judged by itself;
# --hypothesis-profile=fresh draws anew.
settings.register_profile("fresh", deadline=None, suppress_health_check=[HealthCheck.too_slow])
settings.register_profile("same", settings.get_profile("fresh"), derandomize=True)
settings.load_profile("same")


def pytest_collection_finish() -> None:
    """Look no more for garbage among the libraries and the tests themselves: a tenth of all time went into that."""
    gc.collect()
    gc.freeze()
    gc.set_threshold(200_000, 20, 100)
