"""Settings files of clusters that nothing answers for: what loads and asks nobody needs no more."""

from __future__ import annotations

import json
from collections.abc import Sequence
from pathlib import Path

import pytest

from pulsar_lifecycle.settings import CONFIG_VARIABLE

SETTINGS = """
cluster = "{cluster}"
zookeeper.hosts = "127.0.0.1:1"
pulsar.admin_url = "http://127.0.0.1:1"
pulsar.service_url = "pulsar://127.0.0.1:1"
lake.path = "{lake}"
"""
"""All that is required; takes ``cluster`` and ``lake``."""


def write_settings(
    folder: Path,
    monkeypatch: pytest.MonkeyPatch,
    buckets: Sequence[str] = (),
    *,
    cluster: str = "test",
    more: str = "",
) -> Path:
    """A file in ``folder``, with a lake there, that this process takes for its settings; ``more`` is put below."""
    path = folder / "lifecycle.toml"
    text = SETTINGS.format(cluster=cluster, lake=folder / "lake") + more
    if buckets:
        text += f'object_store = {{ endpoint = "http://127.0.0.1:1", buckets = {json.dumps(list(buckets))} }}\n'
    path.write_text(text)
    monkeypatch.setenv(CONFIG_VARIABLE, str(path))
    return path
