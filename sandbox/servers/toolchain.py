"""Java, Maven, the servers' jars and the offloader's: checked, and fetched or built once into the cache folder.

Belongs here: finding tools and class paths. Not here: how a server is configured (:mod:`sandbox.servers.kinds`).
"""

from __future__ import annotations

import fcntl
import hashlib
import os
import re
import shutil
import subprocess
import time
import zipfile
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path

from pulsar_lifecycle.errors import LifecycleError

CACHE_VARIABLE = "PULSAR_LIFECYCLE_CACHE"
JAVA_MINIMUM = 17
MAVEN_MINIMUM = (3, 6)

_HERE = Path(__file__).parent
_POMS = tuple(_HERE / name for name in ("pom.xml", "pulsar/pom.xml", "s3proxy/pom.xml"))
_MODULES = ("pulsar", "s3proxy")
_OFFLOADER = _HERE / "offloader"

Progress = Callable[[str], None]


class SandboxError(LifecycleError):
    """The sandbox cannot do what was asked; the message is one line, with what to do about it."""


def cache_folder() -> Path:
    """Where downloads live: ``$PULSAR_LIFECYCLE_CACHE``, or ``.cache`` below the current folder."""
    return Path(os.environ.get(CACHE_VARIABLE) or ".cache").absolute()


@contextmanager
def locked(path: Path) -> Iterator[None]:
    """Hold an exclusive lock on the file at ``path`` (created); another process waits for it."""
    path.parent.mkdir(parents=True, exist_ok=True)
    with path.open("w") as file:
        fcntl.flock(file, fcntl.LOCK_EX)
        yield


def java() -> str:
    """Path of a java of version 17 or later: ``$JAVA_HOME/bin/java``, else the one on the PATH."""
    home = os.environ.get("JAVA_HOME")
    found = shutil.which("java", path=str(Path(home) / "bin")) if home else shutil.which("java")
    where = f"JAVA_HOME ({home})" if home else "the PATH"
    if not found:
        raise SandboxError(f"no java in {where}: install Java {JAVA_MINIMUM} or later, or set JAVA_HOME")
    text = subprocess.run([found, "-version"], capture_output=True, text=True, check=False).stderr
    version = re.search(r'version "(\d+)(?:\.(\d+))?', text)
    major = int(version[2] or 0) if version and version[1] == "1" else int(version[1]) if version else 0
    if major < JAVA_MINIMUM:
        raise SandboxError(
            f"{found} is Java {major or 'of unknown version'}: install Java {JAVA_MINIMUM} or later, or set JAVA_HOME"
        )
    return found


def _maven() -> str:
    found = shutil.which("mvn")
    if not found:
        raise SandboxError("no mvn on the PATH: install Apache Maven 3.6 or later")
    text = subprocess.run([found, "-v"], capture_output=True, text=True, check=False).stdout
    version = re.search(r"Apache Maven (\d+)\.(\d+)", text)
    if not version or (int(version[1]), int(version[2])) < MAVEN_MINIMUM:
        raise SandboxError(f"{found} is {version[0] if version else 'no Maven'}: install Apache Maven 3.6 or later")
    return found


@dataclass(frozen=True)
class Tools:
    """The java to run, and the class path of each set of servers."""

    java: str
    pulsar: str
    s3proxy: str


def find_tools(progress: Progress = print) -> Tools:
    """Check java and fetch the jars on first use, safely when several start at once; SandboxError says what to do."""
    found = java()
    digest = hashlib.sha256(b"\0".join(pom.read_bytes() for pom in _POMS)).hexdigest()[:12]
    cache = cache_folder()
    lib = cache / f"sandbox-{digest}"
    if not lib.is_dir():
        with locked(cache / "sandbox.lock"):
            if not lib.is_dir():
                _fetch(lib, progress)
    return Tools(found, f"{lib}/pulsar/*", f"{lib}/s3proxy/*")


def offloader_folder(tools: Tools, progress: Progress = print) -> Path:
    """Folder with the plug-in that gives brokers an offloader, built on first use; it needs a JDK, not just a JRE."""
    sources = sorted(_OFFLOADER.iterdir())
    digest = hashlib.sha256(b"\0".join([tools.pulsar.encode(), *(file.read_bytes() for file in sources)]))
    cache = cache_folder()
    folder = cache / f"offloader-{digest.hexdigest()[:12]}"
    if not folder.is_dir():
        with locked(cache / "offloader.lock"):
            if not folder.is_dir():
                progress(f"building the brokers' offloader into {folder} (once)")
                _build_offloader(tools, sources, folder)
    return folder


def _build_offloader(tools: Tools, sources: list[Path], folder: Path) -> None:
    """A NAR as brokers load it: classes, and a service file that names the factory."""
    partial = folder.with_suffix(".partial")
    shutil.rmtree(partial, ignore_errors=True)
    classes = partial / "classes"
    classes.mkdir(parents=True)
    jars = os.pathsep.join(map(str, sorted(Path(tools.pulsar).parent.glob("*.jar"))))
    compiler = [tools.java, "-m", "jdk.compiler/com.sun.tools.javac.Main", "-cp", jars, "-d", str(classes)]
    programs = [str(file) for file in sources if file.suffix == ".java"]
    done = subprocess.run([*compiler, *programs], capture_output=True, text=True, check=False)
    if done.returncode:
        raise SandboxError(f"the brokers' offloader could not be built; a JDK is needed: {done.stderr.strip()[:300]}")
    with zipfile.ZipFile(partial / "offloader.nar", "w") as nar:
        nar.mkdir("META-INF/bundled-dependencies")
        nar.write(_OFFLOADER / "pulsar-offloader.yaml", "META-INF/services/pulsar-offloader.yaml")
        for file in sorted(classes.rglob("*.class")):
            nar.write(file, str(file.relative_to(classes)))
    shutil.rmtree(classes)
    partial.rename(folder)


def _fetch(lib: Path, progress: Progress) -> None:
    maven = _maven()
    progress(f"fetching Pulsar 4.0.7 and S3Proxy 4.1.0 from Maven into {lib} (once, about 300 MB)")
    partial = lib.with_suffix(".partial")
    shutil.rmtree(partial, ignore_errors=True)
    log = lib.with_suffix(".log")
    command = [maven, "-B", "-q", "-f", str(_POMS[0]), f"-Dlib={partial}", "dependency:copy-dependencies"]
    with log.open("wb") as output:
        fetching = subprocess.Popen(command, stdout=output, stderr=subprocess.STDOUT, stdin=subprocess.DEVNULL)
        try:
            begun = told = time.monotonic()
            while fetching.poll() is None:
                time.sleep(0.2)
                if time.monotonic() - told > 10:
                    told = time.monotonic()
                    progress(f"  still fetching after {told - begun:.0f} s")
        finally:
            if fetching.poll() is None:
                fetching.terminate()
                fetching.wait()
    missing = [module for module in _MODULES if not any((partial / module).glob("*.jar"))]
    if fetching.returncode or missing:
        raise SandboxError(f"maven could not fetch the sandbox's jars; check the network and {log}")
    partial.rename(lib)
