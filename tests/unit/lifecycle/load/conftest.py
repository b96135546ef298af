"""What tests of load runs share: a broker that loads, expires, trims and unloads."""

from __future__ import annotations

from pathlib import Path

import pytest

from tests.kit.scenes.lifecycle.load_scene import LoadScene


@pytest.fixture
def scene(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> LoadScene:
    scene = LoadScene(tmp_path, monkeypatch)
    scene.work()
    return scene
