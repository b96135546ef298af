"""Jobs of one op that act on a cluster: runs of one cluster wait for each other in a pool, instead of being refused.

Belongs here: how such a job is declared, and which pools there are. Not here: the lease, which holds even across
instances of Dagster (``pulsar_lifecycle/runs/control.py``).
"""

from collections.abc import Callable
from typing import Any

import dagster as dg

from assets.names import pool

DELETIONS = "deletion"
"""The pool of what needs the lease of those that delete."""
SENDING = "sending"
"""Of what only sends intents, which it may beside a deletion run."""
RECORDS = "records"
"""Of runs that delete records: they may wait for a deletion run, so they must not keep it from beginning."""
COLLECTING = "collection"
"""Of collections of bookies: they take long, and no deletion need wait for them."""


def acting_job(
    cluster: str, name: str, body: Callable[..., Any], *, op: str, does: str, says: str, waits_in: str = DELETIONS
) -> dg.JobDefinition:
    """Job ``name``, described by ``says``, of one op ``op``, by ``does``: ``body``. ``waits_in``: its pool."""
    acts = dg.op(name=op, description=does, pool=pool(cluster, waits_in))(body)

    @dg.job(name=name, executor_def=dg.in_process_executor, description=says)
    def job() -> None:
        acts()

    return job
