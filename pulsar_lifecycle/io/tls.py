"""TLS material of the settings as a context of Python's ``ssl``."""

from __future__ import annotations

import ssl
from functools import cache

from pulsar_lifecycle.errors import ConfigError
from pulsar_lifecycle.setting_types import Tls


def tls_context(tls: Tls | None, key: str) -> ssl.SSLContext:
    """A client's context; None trusts the system's authorities. ``key`` is what messages call the setting.

    Raises ConfigError for files that cannot be loaded.
    """
    if tls is None:
        return _system_context()
    try:
        context = ssl.create_default_context(cafile=tls.ca_file or None)
        if tls.cert_file:
            context.load_cert_chain(tls.cert_file, tls.key or None)
    except (OSError, ssl.SSLError) as error:
        raise ConfigError(f"{key}: cannot load the certificates: {error}") from error
    context.check_hostname = tls.verify
    return context


@cache
def _system_context() -> ssl.SSLContext:
    """One for the process: loading the system's authorities takes 40 ms, and a task opens several connections."""
    return ssl.create_default_context()
