"""Names in the settings that protect nothing, as nothing has them."""

from __future__ import annotations

import json
import shutil
from collections.abc import Callable
from pathlib import Path

import pytest

from pulsar_lifecycle.inspect.unmatched_names import unmatched_names
from pulsar_lifecycle.settings import load_settings
from tests.kit.command import command_over
from tests.kit.scenes.retention_scene import RetentionScene


def unmatched(scene: RetentionScene, *holds: str, kept: tuple[str, ...] = ()) -> list[str]:
    """The names, of these, that a scan of two topics does not know."""
    words = f"orphans.legal_holds = {json.dumps(holds)}\ninactivity.kept_subscriptions = {json.dumps(kept)}\n"
    before = scene.file.read_text()
    scene.file.write_text(before + words)
    settings = load_settings(str(scene.file))
    scene.file.write_text(before)
    return [one.name for one in unmatched_names(scene.lake, scene.scan(), settings, scene.now)]


@pytest.fixture
def scene(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> RetentionScene:
    found = RetentionScene(tmp_path, monkeypatch)
    found.topic("paid-partition-1", 100, cursor=0)
    found.topic("old", 100, namespace="west/bills")
    return found


def test_names_that_a_scan_knows_are_met(scene: RetentionScene) -> None:
    topic = "persistent://acme/orders/paid"
    assert not unmatched(scene, "acme", "west", "acme/orders", topic, f"{topic}-partition-1", "acme/orders/paid")
    assert not unmatched(scene, kept=("s",))


def test_names_that_nothing_has_are_said(scene: RetentionScene) -> None:
    wrong = [
        "acm",
        "acme/order",
        "acme/orders/pai",
        "persistent://acme/bills/old",
        "persistent://acme/orders/paid-partition-2",
    ]
    assert unmatched(scene, "acme/orders", *wrong, kept=("s", "S")) == [*sorted(wrong), "S"]


def test_status_says_what_a_mistyped_name_means(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    scene = RetentionScene(tmp_path, monkeypatch, files=True)
    servers = scene.servers
    run = command_over(
        stores=lambda *_, **__: servers.open_store(), admin=lambda: servers.admin, clock=lambda: servers.clock
    )
    scene.hold("acme/order")
    assert "unmatched" not in status(run, capsys)
    epoch = scene.scan()
    said = f"orphans.legal_holds names acme/order: no topic of {epoch.epoch_id} has that name"
    assert said in status(run, capsys)
    shutil.rmtree(next(tmp_path.rglob("managed_ledgers")))
    assert "unmatched UNKNOWN: " in status(run, capsys)


def status(run: Callable[..., int], capsys: pytest.CaptureFixture[str]) -> str:
    """The page, in one line."""
    run("status")
    return " ".join(capsys.readouterr().out.split())
