"""The committed protobuf code is what the committed .proto files generate."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

ROOT = Path(__file__).parents[2]


def test_generated_code_is_fresh(tmp_path):
    subprocess.run(
        [str(ROOT / "proto/generate.sh"), str(tmp_path)],
        env={**os.environ, "PYTHON": sys.executable},
        check=True,
        capture_output=True,
    )
    generated = {path.name: path.read_text() for path in tmp_path.iterdir()}
    committed = {path.name: path.read_text() for path in (ROOT / "pulsar_lifecycle/_pb").glob("*_pb2.py*")}
    assert generated == committed, "run proto/generate.sh and commit what it writes"
