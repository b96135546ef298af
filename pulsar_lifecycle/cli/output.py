"""Standard output and standard error, either of which may fail: a full disk, a reader that has gone.

Belongs here: that a command goes on to its end all the same, and what its exit code is then. Not here: what is printed
(``show.py``). A command may be in the middle of an effect, and its exit code says how that ended.
"""

from __future__ import annotations

import errno
import io
import os
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any, TextIO


class _Descriptor(io.FileIO):
    """A file descriptor that drops what cannot be written, once a write has failed; ``failure`` is why."""

    failure: OSError | None = None

    def write(self, data: Any, /) -> int:
        if self.failure is None:
            try:
                return super().write(data)
            except OSError as error:
                self.failure = error
        return memoryview(data).nbytes


@contextmanager
def to_the_end() -> Iterator[None]:
    """Let no failure of standard output or standard error end what the process does.

    A reader that has gone, as ``head`` once it has its lines, has had what it wanted: the exit code is the command's
    own. Where output is lost for another reason standard error says so, and no exit code is 0. A closed stream wants
    nothing.
    """
    before = sys.stdout, sys.stderr
    out, err = _descriptor(sys.stdout, 1), _descriptor(sys.stderr, 2)
    sys.stdout, sys.stderr = _text(out, sys.stdout), _text(err, sys.stderr)
    try:
        yield
    except SystemExit as end:
        sys.stdout.flush()
        lost = next((one.failure for one in (out, err) if one and one.failure), None)
        if lost is None or lost.errno == errno.EPIPE:
            raise
        print(f"pulsar-lifecycle: what it prints could not be written: {lost.strerror}", file=sys.stderr)
        raise SystemExit(end.code or 1) from end
    finally:
        sys.stdout.flush()
        sys.stderr.flush()
        sys.stdout, sys.stderr = before


def _descriptor(stream: TextIO | None, number: int) -> _Descriptor | None:
    """That of a stream of this process; None for one that somebody else has put in its place, as a test does."""
    if stream is None:
        return _Descriptor(os.devnull, "w")
    return _Descriptor(number, "w", closefd=False) if stream in (sys.__stdout__, sys.__stderr__) else None


def _text(descriptor: _Descriptor | None, stream: TextIO) -> TextIO:
    if descriptor is None:
        return stream
    encoding = stream.encoding if stream else "utf-8"
    whole_lines = descriptor.isatty()
    return io.TextIOWrapper(io.BufferedWriter(descriptor), encoding, "backslashreplace", line_buffering=whole_lines)
