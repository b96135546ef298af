"""One object of the lake, stored whole or not at all.

Belongs here: that it survives a crash of this machine once it is stored. Not here: what it holds.
In a folder an object appears by rename after its bytes are on disk; in an object store by one upload.
"""

from __future__ import annotations

import os
import uuid
from pathlib import Path

import pyarrow as pa
import pyarrow.fs as pafs


def store(lake: str, where: str, data: pa.Buffer) -> None:
    """Store an object at ``where`` in the lake, a folder or a URI. Raises OSError and pa.ArrowException."""
    if "://" in lake:
        _upload(where, data)
    else:
        _write_durably(Path(lake), Path(where), data)


def _write_durably(lake: Path, target: Path, data: pa.Buffer) -> None:
    """Write beside the target, sync, rename, and sync every folder up to the lake: each may be new."""
    target.parent.mkdir(parents=True, exist_ok=True)
    unfinished = target.with_name(f".{uuid.uuid4().hex}.tmp")
    try:
        with unfinished.open("xb") as file:
            file.write(data)
            file.flush()
            os.fsync(file.fileno())
        unfinished.rename(target)
    except OSError:
        unfinished.unlink(missing_ok=True)  # a full disk keeps no half of it
        raise
    folder = target
    while folder != lake:
        folder = folder.parent
        descriptor = os.open(folder, os.O_RDONLY | os.O_DIRECTORY)
        try:
            os.fsync(descriptor)
        finally:
            os.close(descriptor)


def _upload(where: str, data: pa.Buffer) -> None:
    """One object; it becomes visible when its upload is complete."""
    filesystem, path = pafs.FileSystem.from_uri(where)
    with filesystem.open_output_stream(path) as stream:
        stream.write(data)
