"""``compaction suspend`` and ``resume`` over fakes: who is told, what is journalled, what fails."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any

import pyarrow as pa
import pytest

from pulsar_lifecycle.errors import LifecycleError, OutcomeUnknown, Unavailable
from pulsar_lifecycle.lifecycle.bookies.bookie_disk import BOOKIE_DISK, BookieDisk, DiskVerdict
from pulsar_lifecycle.lifecycle.bookies.disk_run import TABLE
from pulsar_lifecycle.lifecycle.bookies.placement import Placed
from pulsar_lifecycle.lifecycle.bookies.suspension import suspended_bookies
from pulsar_lifecycle.runs import control
from pulsar_lifecycle.runs.journal_rows import BookieTold, Step, Subject, Writer
from pulsar_lifecycle.values.codes import Why
from pulsar_lifecycle.values.outcomes import Action, Outcome, Phase
from tests.kit.command import command_over, run
from tests.kit.fakes.bookie_admin import FakeBookieAdmin
from tests.kit.fakes.connections import connecting
from tests.kit.fakes.journal import FakeJournal
from tests.kit.fakes.metadata_store import FakeZooKeeper
from tests.kit.scenes.retention_scene import MINUTE, RetentionScene
from tests.kit.settings import write_settings
from tests.kit.simulated.cluster import SimulatedCluster


class Scene:
    """Bookies ``a`` and ``b``."""

    def __init__(self, folder: Path, monkeypatch: pytest.MonkeyPatch) -> None:
        write_settings(folder, monkeypatch)
        self.store, self.bookies, self.journal = FakeZooKeeper(), FakeBookieAdmin("a", "b"), FakeJournal()
        self.connect = connecting(
            stores=lambda *_, **__: self.store.session(),
            bookies=lambda: self.bookies,
            journal=lambda: self.journal,
            journal_reader=lambda: self.journal,
        )

    def run(self, *words: str) -> int:
        return run("compaction", *words, connect=self.connect)

    def command(self) -> Callable[..., int]:
        """Any command, over a whole cluster's metadata."""
        cluster = SimulatedCluster()
        return command_over(
            stores=lambda *_, **__: cluster.open_store(),
            bookies=lambda: self.bookies,
            journal=lambda: self.journal,
            journal_reader=lambda: self.journal,
        )

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


def test_status_names_the_bookies_whose_compaction_an_operator_suspended(
    scene: Scene, capsys: pytest.CaptureFixture[str]
) -> None:
    command = scene.command()
    command("compaction", "suspend", "--all", "--why", "peak hour")
    command("compaction", "resume", "a")
    capsys.readouterr()
    command("status")
    out = " ".join(capsys.readouterr().out.split())
    assert "b has compaction suspended" in out
    assert "peak hour" in out
    assert "a has compaction" not in out


def test_one_that_may_have_heard_may_be_suspended_until_it_is_resumed(
    scene: Scene, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    command = scene.command()
    errors: dict[str, LifecycleError] = {"a": OutcomeUnknown("timed out")}

    def tell(bookie: str) -> None:
        if bookie in errors:
            raise errors[bookie]

    def suspended() -> list[str]:
        capsys.readouterr()
        command("status")
        words = " ".join(capsys.readouterr().out.split())
        said = [f"{bookie} {has}" for bookie in "ab" for has in ("has", "may have")]
        return [one for one in said if f"{one} compaction suspended" in words]

    for name in ("suspend_compaction", "resume_compaction"):
        monkeypatch.setattr(scene.bookies, name, tell)
    assert command("compaction", "suspend", "--all") == 1
    assert [row.outcome for row in scene.journal.rows] == ["telling", "telling", "telling", "suspended"]
    assert suspended() == ["a may have", "b has"]
    assert command("compaction", "resume", "a") == 1
    errors["a"] = Unavailable("no connection")
    for word in ("suspend", "resume"):
        assert command("compaction", word, "a") == 1
    assert suspended() == ["a may have", "b has"]
    errors.clear()
    assert command("compaction", "resume", "a") == 0
    assert suspended() == ["b has"]
    errors["b"] = OutcomeUnknown("killed, for all that the journal knows")
    assert command("compaction", "resume", "b") == 1
    assert suspended() == ["b may have"]


@pytest.mark.parametrize(
    ("verdict", "minutes", "expected"),
    [
        (DiskVerdict.SUSPENDED, 1, "its disk is full"),
        (DiskVerdict.SUSPENDED, -1, "peak hour"),
        (DiskVerdict.NOTHING_TO_FREE, 1, None),
        (DiskVerdict.NOTHING_TO_FREE, -1, "peak hour"),
        (DiskVerdict.NOT_COLLECTED, 1, None),
        (DiskVerdict.READ_ONLY, 1, "peak hour"),
        (DiskVerdict.UNANSWERED, 1, "peak hour"),
    ],
)
def test_the_later_of_what_a_bookie_said_and_what_it_was_told_counts(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, verdict: DiskVerdict, minutes: int, expected: str | None
) -> None:
    scene = RetentionScene(tmp_path, monkeypatch)
    servers, told = scene.servers, scene.now
    row = BookieDisk("a", verdict, Placed(), None, "its disk is full", told + minutes * MINUTE).row()
    disks = pa.RecordBatch.from_pylist([row], BOOKIE_DISK)
    scene.cluster.store(scene.scan().epoch_id, TABLE, BOOKIE_DISK, lambda _: [disks], [None])
    step, about = Step(Action.SUSPEND_COMPACTION, Phase.SUSPEND_COMPACTION), BookieTold("a", why="peak hour")
    subject = Subject(-1, "Bookie", "", details=(about,))
    word = Writer("run", "test").row(step, subject, Outcome.SUSPENDED, Why(Outcome.SUSPENDED, "told"), told)
    servers.journal.record([word])
    assert [one.why for one in suspended_bookies(scene.cluster)] == ([expected] if expected else [])


@pytest.mark.parametrize(
    ("order", "expected"),
    [
        ("S R suspended resumed", [False]),
        ("S R resumed suspended", [False]),
        ("R S suspended resumed", [False]),
        ("R S resumed suspended", [False]),
        ("R resumed S suspended", [True]),
        ("S suspended R resumed", []),
        ("S suspended R", [False]),
        ("S R resumed", []),
    ],
)
def test_of_two_operators_who_speak_at_once_nobody_knows_who_was_heard_last(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, order: str, expected: list[bool]
) -> None:
    """``S``: a run is about to have the bookie suspend, ``R``: another to have it resume."""
    scene = RetentionScene(tmp_path, monkeypatch)
    suspend = Step(Action.SUSPEND_COMPACTION, Phase.SUSPEND_COMPACTION)
    resume = Step(Action.RESUME_COMPACTION, Phase.RESUME_COMPACTION)
    words = {
        "S": (suspend, Outcome.TELLING),
        "R": (resume, Outcome.TELLING),
        "suspended": (suspend, Outcome.SUSPENDED),
        "resumed": (resume, Outcome.RESUMED),
    }
    for at, word in enumerate(order.split(), scene.now):
        step, outcome = words[word]
        subject = Subject(-1, "Bookie", "", details=(BookieTold("a", why="why"),))
        row = Writer(f"run {step.action}", "test").row(step, subject, outcome, Why(outcome, "said"), at)
        scene.servers.journal.record([row])
    assert [one.sure for one in suspended_bookies(scene.cluster)] == expected


def test_nobody_is_told_while_paused(scene: Scene) -> None:
    control.pause(scene.store.session(), "enough")
    assert scene.run("suspend", "--all") == 1
    assert not scene.journal.rows
