"""A command whose output cannot be written goes on to its end, and its exit code says how that was."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

import pytest

COMMAND = """
import sys
from pathlib import Path
from pulsar_lifecycle.cli import output
with output.to_the_end():
    for n in range(3):
        print("a line", flush=True)
        print("progress", file=sys.stderr, flush=True)
    Path(sys.argv[1]).touch()  # its effect
    sys.exit(int(sys.argv[2]))
"""
LOST = "pulsar-lifecycle: what it prints could not be written: No space left on device\n"


def _ended(tmp_path: Path, code: int, out: int, err: int = subprocess.PIPE) -> tuple[int, str]:
    """The exit code and standard error of a command that came to its end."""
    effect = tmp_path / "effect"
    command = [sys.executable, "-c", COMMAND, str(effect), str(code)]
    done = subprocess.run(command, stdout=out, stderr=err, text=True, check=False)
    assert effect.exists()
    return done.returncode, done.stderr


@pytest.mark.parametrize("code", [0, 1, 2])
def test_a_reader_that_has_gone_changes_no_exit_code(tmp_path: Path, code: int) -> None:
    read, write = os.pipe()
    os.close(read)
    assert _ended(tmp_path, code, write) == (code, "progress\n" * 3)
    os.close(write)


@pytest.mark.parametrize("code", [0, 1, 2])
def test_output_that_is_lost_is_a_failure(tmp_path: Path, code: int) -> None:
    with Path("/dev/full").open("w") as full:
        assert _ended(tmp_path, code, full.fileno()) == (code or 1, "progress\n" * 3 + LOST)


def test_progress_that_is_lost_is_a_failure_at_the_end(tmp_path: Path) -> None:
    with Path("/dev/full").open("w") as full:
        assert _ended(tmp_path, 0, subprocess.DEVNULL, full.fileno())[0] == 1


def test_a_command_writes_to_a_full_disk(tmp_path: Path) -> None:
    with Path("/dev/full").open("w") as full:
        command = [sys.executable, "-c", "from pulsar_lifecycle.cli import main; main(['--help'])"]
        done = subprocess.run(command, stdout=full, stderr=subprocess.PIPE, text=True, check=False)
    assert (done.returncode, done.stderr) == (1, LOST)


@pytest.mark.parametrize("closed", [1, 2])
def test_a_closed_stream_wants_nothing(tmp_path: Path, closed: int) -> None:
    effect = tmp_path / "effect"
    command = [sys.executable, "-c", COMMAND, str(effect), "0"]
    shell = ["/bin/sh", "-c", f'exec "$@" {closed}>&-', "sh", *command]
    done = subprocess.run(shell, capture_output=True, text=True, check=False)
    assert effect.exists()
    assert (done.returncode, done.stdout, done.stderr) == (
        0,
        "" if closed == 1 else "a line\n" * 3,
        "" if closed == 2 else "progress\n" * 3,
    )
