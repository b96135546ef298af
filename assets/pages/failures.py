"""How a job or an asset ends that cannot do what it was asked for, or not all of it: red, with one sentence.

Not here: what became of each topic or subscription; the job's own module shows that.
"""

from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from typing import Any, Protocol, TypeVar

import dagster as dg

from pulsar_lifecycle.errors import ConfigError, LifecycleError, NotFound, Refused, RefusedBy, UsageError
from pulsar_lifecycle.values.outcomes import Outcome


class HasOutcome(Protocol):
    """What became of one thing that a plan names."""

    @property
    def outcome(self) -> Outcome:
        """:attr:`Outcome.FAILED` makes the job red."""
        ...


Done = TypeVar("Done", bound=HasOutcome)


@contextmanager
def refusals_fail() -> Iterator[None]:
    """Turn a refusal, a wrong setting or run configuration and what is not there into a Failure.

    Its description is the error's words, after a code if any: what was asked for has to change, so nothing is retried.
    """
    try:
        yield
    except (ConfigError, UsageError, NotFound) as error:
        raise dg.Failure(str(error), allow_retries=False) from None
    except Refused as error:
        code = f" ({error.code.value})" if isinstance(error, RefusedBy) else ""
        raise dg.Failure(f"refused{code}: {error}", allow_retries=False) from None


@contextmanager
def shown_at_the_end(
    context: dg.OpExecutionContext,
    done: Sequence[Done],
    shown: Callable[[Sequence[Done]], Mapping[str, Any]],
    noun: str,
    named: Callable[[Done], str],
) -> Iterator[None]:
    """Make what the block has put into ``done`` the op's metadata.

    Raises dagster.Failure with that metadata where a step failed, naming the first, or where the block stopped with
    some of it done. An error before anything was done is raised as it is.
    """
    try:
        yield
    except LifecycleError as error:
        if not done:
            raise
        raise dg.Failure(f"stopped: {error}; the metadata has what was done before", shown(done)) from error
    if failed := [one for one in done if one.outcome is Outcome.FAILED]:
        raise dg.Failure(f"{len(failed)} of {len(done)} {noun}failed, the first: {named(failed[0])}", shown(done))
    context.add_output_metadata(shown(done))
