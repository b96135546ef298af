"""How a job ends that was asked for something it cannot do: red, with one sentence and no stack trace.

Not here: refusals and failures of what a job does; those say where they come from.
"""

from collections.abc import Iterator
from contextlib import contextmanager

import dagster as dg

from pulsar_lifecycle.errors import ConfigError, UsageError


@contextmanager
def wrong_configuration_fails() -> Iterator[None]:
    """Turn ConfigError and UsageError, of the settings file or of the run's configuration, into a Failure."""
    try:
        yield
    except (ConfigError, UsageError) as error:
        raise dg.Failure(str(error), allow_retries=False) from None
