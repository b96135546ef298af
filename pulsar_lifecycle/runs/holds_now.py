"""What is on legal hold while a run works: one that takes hours keeps to a hold that is set meanwhile.

Belongs here: when the settings file is read again. Not here: what a hold keeps (``topics/protection.py``).
"""

from __future__ import annotations

import threading
from pathlib import Path

from pulsar_lifecycle.errors import ConfigError
from pulsar_lifecycle.ports import Clock
from pulsar_lifecycle.run_settings import OrphanSettings
from pulsar_lifecycle.settings import load_settings


class HoldsNow:
    """The legal holds of a settings file as it is whenever somebody asks; threads may share one.

    Without a ``file``, as on executors, it says of none.
    """

    def __init__(self, file: str, clock: Clock) -> None:
        self._file, self._clock = file, clock
        self._version: tuple[int, ...] = ()
        self._said = OrphanSettings()
        self._reading = threading.Lock()

    def names(self) -> frozenset[str]:
        """Every name that a legal hold in force means. Raises ConfigError for a file that cannot be read by now."""
        if not self._file:
            return frozenset()
        with self._reading:
            version = self._version_now()
            if version != self._version:
                self._said = load_settings(self._file).orphans
                self._version = version  # of before the read: what is written meanwhile is read the next time
            return self._said.holds(self._clock.now_ms())

    def _version_now(self) -> tuple[int, ...]:
        """What differs once the file, or what its name leads to, is another one."""
        try:
            stat = Path(self._file).stat()
        except OSError as error:
            raise ConfigError(f"{self._file}: cannot be read: {error.strerror}") from error
        return stat.st_dev, stat.st_ino, stat.st_size, stat.st_mtime_ns, stat.st_ctime_ns
