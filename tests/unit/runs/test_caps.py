"""The settings file is the ceiling of every cap; a launch may only lower it."""

from __future__ import annotations

from dataclasses import asdict

import pytest
from hypothesis import given
from hypothesis import strategies as st

from pulsar_lifecycle.errors import UsageError
from pulsar_lifecycle.run_settings import ApplySettings
from pulsar_lifecycle.runs.caps import AS_SET, Caps, Lowered, effective_caps

COUNTS = st.integers(min_value=1, max_value=1 << 60)
SHARES = st.floats(min_value=0.001, max_value=1)
SETTINGS = st.builds(
    ApplySettings, max_ledgers=COUNTS, max_share=SHARES, max_bytes=COUNTS, max_ledgers_per_topic=COUNTS
)
ASKED = st.builds(
    Lowered,
    max_ledgers=st.none() | COUNTS,
    max_share=st.none() | SHARES,
    max_bytes=st.none() | COUNTS,
    max_ledgers_per_topic=st.none() | COUNTS,
)


@given(SETTINGS, ASKED)
def test_no_launch_gets_more_than_the_settings_allow(settings: ApplySettings, asked: Lowered) -> None:
    assert effective_caps(settings) == Caps(**settings.model_dump())
    wanted = {name: value for name, value in asdict(asked).items() if value is not None}
    if any(value > getattr(settings, name) for name, value in wanted.items()):
        with pytest.raises(UsageError, match=r"apply\.\w+ in the settings file allows"):
            effective_caps(settings, asked)
    else:
        assert asdict(effective_caps(settings, asked)) == settings.model_dump() | wanted


@pytest.mark.parametrize("value", [0, -1])
def test_what_is_no_cap_is_refused(value: int) -> None:
    assert effective_caps(ApplySettings(), AS_SET).max_ledgers == 100_000
    with pytest.raises(UsageError, match=r"^max_ledgers: expected more than 0"):
        effective_caps(ApplySettings(), Lowered(max_ledgers=value))
