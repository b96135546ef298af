"""What is said when Java or Maven is missing or old, and that the jars are fetched, and the plug-in built, once."""

from __future__ import annotations

import zipfile
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import pytest

from sandbox.servers.toolchain import SandboxError, Tools, find_tools, offloader_folder

JAVA_17 = "echo 'openjdk version \"17.0.15\" 2025-04-15' >&2"
JAVA_8 = "echo 'java version \"1.8.0_412\"' >&2"
MAVEN = """
case "$*" in
  -v) echo "Apache Maven 3.9.6"; exit 0;;
esac
echo fetch >> "$FETCHES"
for argument in "$@"; do
  case "$argument" in -Dlib=*) lib="${argument#-Dlib=}";; esac
done
mkdir -p "$lib/pulsar" "$lib/s3proxy"
touch "$lib/pulsar/a.jar" "$lib/s3proxy/b.jar"
"""
COMPILER = """
echo compile >> "$FETCHES"
while [ "$1" != -d ]; do shift; done
touch "$2/Compiled.class"
"""
BROKEN_MAVEN = 'case "$*" in -v) echo "Apache Maven 3.9.6"; exit 0;; esac; exit 1'


class Machine:
    def __init__(self, folder: Path) -> None:
        self.bin = folder / "bin"
        self.bin.mkdir()
        self.fetches = folder / "fetches"
        self.cache = folder / "cache"

    def install(self, name: str, script: str) -> None:
        (self.bin / name).write_text(f"#!/bin/sh\n{script}\n")
        (self.bin / name).chmod(0o755)


@pytest.fixture
def machine(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Machine:
    made = Machine(tmp_path)
    monkeypatch.delenv("JAVA_HOME", raising=False)
    monkeypatch.setenv("PULSAR_LIFECYCLE_CACHE", str(made.cache))
    monkeypatch.setenv("FETCHES", str(made.fetches))
    made.install("env", 'exec /usr/bin/env "$@"')
    for tool in ("mkdir", "touch"):
        made.install(tool, f'exec /bin/{tool} "$@"')
    monkeypatch.setenv("PATH", str(made.bin))
    return made


def quiet(_: str) -> None: ...


def test_a_missing_java_is_named_with_what_to_do(machine: Machine) -> None:
    with pytest.raises(SandboxError, match=r"no java in the PATH: install Java 17 or later, or set JAVA_HOME"):
        find_tools(quiet)


def test_an_old_java_is_named_with_its_version(machine: Machine) -> None:
    machine.install("java", JAVA_8)
    with pytest.raises(SandboxError, match=r"bin/java is Java 8: install Java 17 or later"):
        find_tools(quiet)


def test_java_home_comes_before_the_path(machine: Machine, monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    machine.install("java", JAVA_17)
    monkeypatch.setenv("JAVA_HOME", str(tmp_path / "nothing"))
    with pytest.raises(SandboxError, match="no java in JAVA_HOME"):
        find_tools(quiet)


@pytest.mark.parametrize(
    ("script", "said"),
    [
        (None, "no mvn on the PATH: install Apache Maven 3.6 or later"),
        ('echo "Apache Maven 3.3.9"', "is Apache Maven 3.3: install Apache Maven 3.6 or later"),
        (BROKEN_MAVEN, "check the network and .*log"),
    ],
)
def test_a_missing_old_or_failing_maven_is_one_line(machine: Machine, script: str | None, said: str) -> None:
    machine.install("java", JAVA_17)
    if script:
        machine.install("mvn", script)
    with pytest.raises(SandboxError, match=said) as refused:
        find_tools(quiet)
    assert "\n" not in str(refused.value)


def test_the_jars_are_fetched_once_however_many_start(machine: Machine) -> None:
    machine.install("java", JAVA_17)
    machine.install("mvn", MAVEN)
    with ThreadPoolExecutor(4) as starters:
        found = list(starters.map(find_tools, [quiet] * 4))
    assert machine.fetches.read_text().splitlines() == ["fetch"]
    assert len(set(found)) == 1
    assert (Path(found[0].pulsar).parent / "a.jar").exists()


def test_a_failed_fetch_is_tried_again(machine: Machine) -> None:
    machine.install("java", JAVA_17)
    machine.install("mvn", BROKEN_MAVEN)
    with pytest.raises(SandboxError):
        find_tools(quiet)
    machine.install("mvn", MAVEN)
    assert (Path(find_tools(quiet).s3proxy).parent / "b.jar").exists()


def test_the_offloader_is_built_once_as_brokers_look_for_it(machine: Machine) -> None:
    machine.install("java", COMPILER)
    tools = Tools(str(machine.bin / "java"), f"{machine.cache}/pulsar/*", "")
    folder = offloader_folder(tools, quiet)
    assert offloader_folder(tools, quiet) == folder
    assert machine.fetches.read_text() == "compile\n"
    (plugin,) = folder.iterdir()
    assert plugin.name == "offloader.nar"
    with zipfile.ZipFile(plugin) as nar:
        names = {"META-INF/bundled-dependencies/", "META-INF/services/pulsar-offloader.yaml", "Compiled.class"}
        assert set(nar.namelist()) == names


def test_without_a_compiler_it_says_what_is_needed(machine: Machine) -> None:
    machine.install("java", "echo 'Module jdk.compiler not found' >&2; exit 1")
    tools = Tools(str(machine.bin / "java"), f"{machine.cache}/pulsar/*", "")
    with pytest.raises(SandboxError, match="a JDK is needed: Module"):
        offloader_folder(tools, quiet)
