"""Gaps of a scan as a sentence."""

from __future__ import annotations

import pytest

from pulsar_lifecycle.values.gaps import FEW, Gap, GapCode, in_words


@pytest.mark.parametrize(("count", "end"), [(0, ""), (1, "no. 0"), (FEW, "no. 2"), (FEW + 997, "no. 2; and 997 more")])
def test_a_sentence_names_a_few_gaps_however_many_there_are(count: int, end: str) -> None:
    said = in_words(Gap(GapCode.ZNODE_UNREAD, f"/{number}", f"no. {number}") for number in range(count))
    assert said.endswith(end)
    assert said.count(GapCode.ZNODE_UNREAD) == min(count, FEW)
