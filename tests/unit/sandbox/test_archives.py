"""Class-data archives are made once, used once they are there, and done without where none can be made."""

from __future__ import annotations

from pathlib import Path

import pytest

from sandbox.clients import wait_for
from sandbox.servers import archives

JARS = "/nowhere/*"
DUMPS = """
for argument in "$@"; do
  case "$argument" in
    -XX:SharedArchiveFile=*) archive="${argument#-XX:SharedArchiveFile=}";;
    -XX:SharedClassListFile=*) list="${argument#-XX:SharedClassListFile=}";;
  esac
done
cp "$list" "$archive"
echo dump >> "$0.dumps"
"""


@pytest.fixture
def cache(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    made = tmp_path / "cache"
    made.mkdir()
    monkeypatch.setenv("PULSAR_LIFECYCLE_CACHE", str(made))
    return made


def java(folder: Path, script: str) -> Path:
    made = folder / "jdk" / "bin" / "java"
    made.parent.mkdir(parents=True)
    made.write_text(f"#!/bin/sh\n{script}\n")
    made.chmod(0o755)
    return made


def lists(folder: Path) -> list[Path]:
    """Of two servers; the second is in the middle of a line."""
    (folder / "a").write_text("java/lang/Object\na/A\n")
    (folder / "b").write_text("java/lang/Object\nb/B\nb/Ha")
    return [folder / "a", folder / "b"]


def test_servers_say_what_they_load_until_the_archive_is_there(cache: Path, tmp_path: Path) -> None:
    binary = java(tmp_path, DUMPS)
    classes = tmp_path / "classes"
    assert archives.options(str(binary), JARS, classes) == [f"-XX:DumpLoadedClassList={classes}"]
    assert archives.options(str(binary), JARS, None) == []
    for _ in range(2):
        archives.make(str(binary), JARS, lists(tmp_path))
        assert not any("DumpLoadedClassList" in option for option in archives.options(str(binary), JARS, classes))
    wait_for("the archive", lambda: list(cache.glob("*.jsa")))
    (archive,) = cache.glob("*.jsa")
    assert archives.options(str(binary), JARS, classes) == [f"-XX:SharedArchiveFile={archive}"]
    assert archive.read_text().split() == ["java/lang/Object", "a/A", "b/B"]
    assert Path(f"{binary}.dumps").read_text() == "dump\n"
    (tmp_path / "jdk" / "release").write_text('JAVA_VERSION="21"')
    assert archives.options(str(binary), JARS, None) == []


def test_servers_start_without_where_no_archive_can_be_made(cache: Path, tmp_path: Path) -> None:
    binary = java(tmp_path, "exit 1")
    archives.make(str(binary), JARS, lists(tmp_path))
    wait_for("the try to end", lambda: list(cache.glob("*.jsa")))
    assert archives.options(str(binary), JARS, tmp_path / "classes") == []


def test_one_spark_application_makes_the_archive_of_all_drivers(
    cache: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    binary = java(tmp_path, 'echo "$@" >> "$0.runs"; touch "${3#-XX:SharedArchiveFile=}"')
    monkeypatch.setattr(archives.sys, "executable", str(binary))
    for _ in range(2):
        archives.make_for_spark(str(binary))
    wait_for("the archive", lambda: list(cache.glob("*.jsa")))
    (archive,) = cache.glob("*.jsa")
    assert archives.driver_options(str(binary)).endswith(f" -XX:SharedArchiveFile={archive}")
    ran = Path(f"{binary}.runs").read_text()
    assert ran == f"-m sandbox.servers.spark_classes -XX:SharedArchiveFile={archive}.partial\n"
