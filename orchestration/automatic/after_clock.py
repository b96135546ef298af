"""After a clock that was ahead: Dagster starts no sensor and no schedule again before the date of its last tick.

Switching them off and on does not help, and the UI says nothing of it. Belongs here: forgetting such ticks in Dagster's
storage. Not here: scans and plans that such a clock dated (``pulsar-lifecycle accept-restore --anyway``).
"""

from __future__ import annotations

import sys
import time

import dagster as dg
from dagster._core.scheduler.instigation import InstigatorState, ScheduleInstigatorData, SensorInstigatorData

_A_SECOND = 1.0
"""Behind the last tick: Dagster forgets those before a time."""


def forget_ticks_ahead(instance: dg.DagsterInstance, now: float) -> list[str]:
    """Have sensors and schedules tick again whose last tick is dated after ``now`` (s); their names.

    They keep their cursors, and lose the history of their ticks. The daemon must not run: it remembers, too.
    """
    mended: list[str] = []
    for state in instance.all_instigator_state():
        ticks = instance.get_ticks(state.instigator_origin_id, state.selector_id, limit=1)
        last = max([*(tick.timestamp for tick in ticks), *_known(state)], default=0.0)
        if last <= now:
            continue
        instance.purge_ticks(state.instigator_origin_id, state.selector_id, before=last + _A_SECOND)
        instance.update_instigator_state(_begun_anew(state, now))
        mended.append(state.instigator_name)
    return sorted(mended)


def _known(state: InstigatorState) -> list[float]:
    """When it ticked, as far as its state says."""
    data = state.instigator_data
    if isinstance(data, SensorInstigatorData):
        return [one for one in (data.last_tick_timestamp, data.last_tick_start_timestamp) if one]
    if isinstance(data, ScheduleInstigatorData):
        return [one for one in (data.start_timestamp, data.last_iteration_timestamp) if one]
    return []


def _begun_anew(state: InstigatorState, now: float) -> InstigatorState:
    data = state.instigator_data
    if isinstance(data, SensorInstigatorData):
        return state.with_data(data._replace(last_tick_timestamp=None, last_tick_start_timestamp=None))
    if isinstance(data, ScheduleInstigatorData):
        begun = min(data.start_timestamp, now) if data.start_timestamp else None
        return state.with_data(data._replace(start_timestamp=begun, last_iteration_timestamp=None))
    return state


def main() -> None:
    """Of the instance of ``$DAGSTER_HOME``, by the clock as it is now."""
    instance = dg.DagsterInstance.get()
    if not (known := len(instance.all_instigator_state())):
        sys.exit(f"{instance.root_directory} knows no sensor and no schedule: set DAGSTER_HOME to the daemon's")
    mended = forget_ticks_ahead(instance, time.time())
    none = f"of {known} sensors and schedules none has a tick dated ahead of this clock"
    print("\n".join(f"{name} ticks again" for name in mended) or none)


if __name__ == "__main__":
    main()
