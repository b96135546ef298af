"""What holds for all tests."""

import pytest
from hypothesis import settings

pytest.register_assert_rewrite("tests.kit")

# No test depends on how fast this machine is.
settings.register_profile("any-machine", deadline=None)
settings.load_profile("any-machine")
