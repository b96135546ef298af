"""What is refused, by its code: the sentence is tested where it is made."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from enum import StrEnum

import pytest

from pulsar_lifecycle.errors import RefusedBy


@contextmanager
def refused_by(code: StrEnum, naming: str = "") -> Iterator[pytest.ExceptionInfo[RefusedBy]]:
    """What is done within is refused by this rule, and what is said of it has the name of what it is about."""
    with pytest.raises(RefusedBy) as found:
        yield found
    assert found.value.code is code
    assert naming in str(found.value)
