"""Types of settings: durations, secrets, TLS."""

from __future__ import annotations

import os
import re
from pathlib import Path
from typing import Annotated

from pydantic import (
    BaseModel,
    BeforeValidator,
    ConfigDict,
    Field,
    model_validator,
)

from pulsar_lifecycle.errors import ConfigError

_UNITS = {"ms": 0.001, "s": 1.0, "m": 60.0, "h": 3600.0, "d": 86400.0}


def parse_duration(value: object) -> float:
    """``"10m"``, ``"24h"``, ``"7d"``, ``"500ms"`` or a bare number of seconds -> seconds."""
    if isinstance(value, int | float) and not isinstance(value, bool):
        return float(value)
    found = re.fullmatch(r"\s*(\d+(?:\.\d+)?)\s*(ms|s|m|h|d)\s*", value) if isinstance(value, str) else None
    if not found:
        raise ValueError(f'expected a duration such as "10m", "24h" or "7d", found {value!r}')
    return float(found[1]) * _UNITS[found[2]]


Seconds = Annotated[float, BeforeValidator(parse_duration), Field(ge=0)]


class Section(BaseModel):
    """A table of the settings file; a key that it does not know is an error."""

    model_config = ConfigDict(extra="forbid", frozen=True)


class SecretRef(Section):
    """Where a secret is: exactly one of ``file`` (its whole content, trimmed) and ``env`` (a variable's name)."""

    file: str = ""
    env: str = ""

    @model_validator(mode="before")
    @classmethod
    def _named(cls, value: object) -> object:
        if isinstance(value, str):  # never shown: it is probably the secret
            raise ValueError("a secret is not written here: name { file = ... } or { env = ... }")
        return value

    def resolve(self, key: str) -> str:
        """Read the secret now; raises ConfigError naming ``key``. Never log what it returns."""
        if bool(self.file) == bool(self.env):
            raise ConfigError(f"{key}: give exactly one of file and env")
        if self.env:
            value = os.environ.get(self.env, "")
            if not value:
                raise ConfigError(f"{key}.env: the environment variable {self.env} is not set")
            return value
        try:
            return Path(self.file).read_text(encoding="utf-8").strip()
        except OSError as error:
            raise ConfigError(f"{key}.file: cannot read {self.file}: {error.strerror}") from error


class Tls(Section):
    """TLS material as PEM files.

    ``verify = false`` turns off the check of host names, for an object store that of certificates, too.
    """

    ca_file: str = ""
    cert_file: str = ""
    key_file: str = ""
    verify: bool = True

    @property
    def key(self) -> str:
        """The file with the private key: that of the certificate if none is named."""
        return self.key_file or self.cert_file
