"""``compaction suspend`` and ``resume`` over fakes: who is told, what is journalled, what fails."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

from pulsar_lifecycle.errors import Unavailable
from pulsar_lifecycle.records.outcomes import Outcome
from pulsar_lifecycle.runs import control
from tests.kit.command import run
from tests.kit.fakes.bookie_admin import FakeBookieAdmin
from tests.kit.fakes.connections import connecting
from tests.kit.fakes.journal import FakeJournal
from tests.kit.fakes.metadata_store import FakeZooKeeper
from tests.kit.settings import write_settings


class Scene:
    """Bookies ``a`` and ``b``."""

    def __init__(self, folder: Path, monkeypatch: pytest.MonkeyPatch) -> None:
        write_settings(folder, monkeypatch)
        self.store, self.bookies, self.journal = FakeZooKeeper(), FakeBookieAdmin("a", "b"), FakeJournal()
        self.connect = connecting(
            stores=lambda *_, **__: self.store.session(), bookies=lambda: self.bookies, journal=lambda: self.journal
        )

    def run(self, *words: str) -> int:
        return run("compaction", *words, connect=self.connect)

    def rows(self) -> list[tuple[str, str]]:
        return [(row.action, row.outcome) for row in self.journal.rows]

    def suspended(self) -> dict[str, bool]:
        found: dict[str, Any] = self.bookies.statuses
        return {bookie: one.minor_suspended and one.major_suspended for bookie, one in found.items()}


@pytest.fixture
def scene(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Scene:
    return Scene(tmp_path, monkeypatch)


def test_only_those_named_are_told_and_both_ways_are_journalled(
    scene: Scene, capsys: pytest.CaptureFixture[str]
) -> None:
    assert scene.run("suspend", "a", "--why", "peak hour") == 0
    assert scene.suspended() == {"a": True, "b": False}
    assert "peak hour" in capsys.readouterr().out
    assert scene.run("resume", "--all") == 0
    assert scene.suspended() == {"a": False, "b": False}
    assert scene.rows() == [
        ("suspend-compaction", "telling"),
        ("suspend-compaction", "suspended"),
        *[("resume-compaction", "telling"), ("resume-compaction", "resumed")] * 2,
    ]


def test_one_that_does_not_answer_is_named_and_the_others_are_told(scene: Scene) -> None:
    scene.bookies.statuses["a"] = Unavailable("a: no answer")
    assert scene.run("suspend", "--all") == 1
    assert [row.outcome for row in scene.journal.rows] == ["telling", "not-told", "telling", "suspended"]
    assert scene.journal.rows[1].code == Outcome.NOT_TOLD


@pytest.mark.parametrize("words", [("suspend",), ("suspend", "a", "--all"), ("resume", "a", "no-such")])
def test_nobody_is_told_where_it_is_not_clear_who(scene: Scene, words: tuple[str, ...]) -> None:
    assert scene.run(*words) == 2
    assert not scene.journal.rows


def test_nobody_is_told_while_paused(scene: Scene) -> None:
    control.pause(scene.store.session(), "enough")
    assert scene.run("suspend", "--all") == 1
    assert not scene.journal.rows
