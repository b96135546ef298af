"""The scene whose plans go by themselves."""

from __future__ import annotations

from pathlib import Path

import pytest

from tests.kit.scenes.retention_scene import RetentionScene


@pytest.fixture
def scene(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> RetentionScene:
    return RetentionScene(tmp_path, monkeypatch, files=True)
