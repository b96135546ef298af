"""Class-data archives: the servers' classes as a JVM has them once they are loaded, so that the next start is quicker.

The servers of the first sandbox write down which classes they load. From that a process in the background makes an
archive in the cache folder, one for each class path and JDK. For the drivers of Spark a small application makes one.
Nothing waits for them. A JVM without one, or that cannot use it, just starts slower. Upstream: AppCDS, JDK 17.
"""

from __future__ import annotations

import hashlib
import os
import sys
from collections.abc import Iterable
from contextlib import suppress
from importlib.metadata import distribution
from pathlib import Path

from sandbox.servers import processes
from sandbox.servers.toolchain import cache_folder

SHORT_LIVED = "-XX:TieredStopAtLevel=1 -XX:+UseSerialGC"
"""Options of a JVM that ends before thorough compilation has paid."""
SPARK = str(distribution("pyspark").locate_file("pyspark/jars"))
"""Stands for the class path of a Spark driver."""
_MAKE = 'nice "$@" -XX:SharedArchiveFile="$0.partial"; mv "$0.partial" "$0" || : > "$0"'
"""An empty file says that no archive can be made here."""


def options(java: str, class_path: str, classes: Path | None) -> list[str]:
    """Options of a JVM: use the archive, or write the names of what it loads into ``classes`` while there is none."""
    archive = _archive(java, class_path)
    if archive.is_file() and archive.stat().st_size:
        return [f"-XX:SharedArchiveFile={archive}"]
    if classes is None or _list(archive).exists():
        return []
    return [f"-XX:DumpLoadedClassList={classes}"]


def make(java: str, class_path: str, lists: Iterable[Path]) -> None:
    """Begin to make the archive of what ``lists`` name, unless somebody did; returns at once."""
    archive = _archive(java, class_path)
    names: dict[str, None] = {}
    for file in lists:
        if file.exists():
            whole, _, _ = file.read_text().rpartition("\n")  # its server may be in the middle of a line
            names.update(dict.fromkeys(whole.splitlines()))
    if not names:
        return
    classes = f"-XX:SharedClassListFile={_list(archive)}"
    _begin(archive, "\n".join(names) + "\n", [java, "-Xshare:dump", "-Xmx1g", classes, "-cp", class_path])


def driver_options(java: str) -> str:
    """Options of the JVM of a Spark driver: of one that ends soon, and that uses the archive once it is there."""
    return f"{SHORT_LIVED} -XX:SharedArchiveFile={_archive(java, SPARK)}"


def make_for_spark(java: str) -> None:
    """Begin to make the archive of what a Spark driver loads, unless somebody did; returns at once."""
    _begin(_archive(java, SPARK), "", [sys.executable, "-m", "sandbox.servers.spark_classes"])


def _begin(archive: Path, classes: str, command: list[str]) -> None:
    """Start ``command`` that makes the archive, unless somebody did: who does leaves the list of its ``classes``."""
    with suppress(FileExistsError), _list(archive).open("x") as wanted:
        wanted.write(classes)
        wanted.close()
        script = ["/bin/sh", "-c", _MAKE, str(archive), *command]
        processes.spawn(script, archive.parent, archive.with_suffix(".log"), dict(os.environ))


def _archive(java: str, class_path: str) -> Path:
    """Where the archive for this JDK and these jars is; the JVM itself refuses it if they differ."""
    release = Path(java).resolve().parents[1] / "release"
    jdk = release.read_bytes() if release.is_file() else java.encode()
    digest = hashlib.sha256(b"\0".join([jdk, class_path.encode()])).hexdigest()[:12]
    return cache_folder() / f"classes-{digest}.jsa"


def _list(archive: Path) -> Path:
    return archive.with_suffix(".lst")
