"""After a clock that was ahead: sensors and schedules tick again, and keep what they know."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import dagster as dg
import pytest
from dagster._core.definitions.run_request import InstigatorType
from dagster._core.remote_origin import (
    GrpcServerCodeLocationOrigin,
    RemoteInstigatorOrigin,
    RemoteRepositoryOrigin,
)
from dagster._core.scheduler.instigation import (
    InstigatorState,
    InstigatorStatus,
    ScheduleInstigatorData,
    SensorInstigatorData,
    TickData,
    TickStatus,
)
from dagster._daemon.sensor import get_elapsed

from orchestration.automatic.after_clock import forget_ticks_ahead, main

NOW, HOUR = 1_900_000_000.0, 3600.0


@pytest.fixture
def instance(tmp_path: Path) -> Iterator[dg.DagsterInstance]:
    with dg.DagsterInstance.local_temp(str(tmp_path)) as made:
        yield made


def _ticked(
    instance: dg.DagsterInstance, name: str, data: SensorInstigatorData | ScheduleInstigatorData, at: float
) -> None:
    kind = InstigatorType.SENSOR if isinstance(data, SensorInstigatorData) else InstigatorType.SCHEDULE
    code = GrpcServerCodeLocationOrigin(location_name="one", host="localhost", port=1)
    origin = RemoteInstigatorOrigin(RemoteRepositoryOrigin(code, "__repository__"), name)
    state = instance.add_instigator_state(InstigatorState(origin, kind, InstigatorStatus.RUNNING, data))
    for when in (at - 60, at):
        tick = TickData(state.instigator_origin_id, name, kind, TickStatus.SKIPPED, when, selector_id=state.selector_id)
        instance.create_tick(tick)


def _state(instance: dg.DagsterInstance, name: str) -> InstigatorState:
    (found,) = [one for one in instance.all_instigator_state() if one.instigator_name == name]
    return found


def _ticks(instance: dg.DagsterInstance, name: str) -> int:
    state = _state(instance, name)
    return len(instance.get_ticks(state.instigator_origin_id, state.selector_id))


def test_what_ticked_by_a_clock_that_was_ahead_ticks_again_and_the_rest_is_left_alone(
    instance: dg.DagsterInstance,
) -> None:
    ahead = SensorInstigatorData(NOW + HOUR, min_interval=60, cursor="mine", last_tick_start_timestamp=NOW + HOUR)
    _ticked(instance, "automation", ahead, NOW + HOUR)
    _ticked(instance, "hourly_scan", ScheduleInstigatorData("7 * * * *", NOW - HOUR, NOW + HOUR), NOW + HOUR)
    before = SensorInstigatorData(NOW - HOUR, last_tick_start_timestamp=NOW - HOUR)
    _ticked(instance, "dead_letters", before, NOW - HOUR)

    assert forget_ticks_ahead(instance, NOW) == ["automation", "hourly_scan"]

    automation, scan = _state(instance, "automation"), _state(instance, "hourly_scan")
    assert get_elapsed(automation) is None  # by which Dagster's daemon starts it
    assert isinstance(automation.instigator_data, SensorInstigatorData)
    assert (automation.instigator_data.cursor, automation.status) == ("mine", InstigatorStatus.RUNNING)
    assert scan.instigator_data == ScheduleInstigatorData("7 * * * *", NOW - HOUR, None)
    assert [_ticks(instance, name) for name in ("automation", "hourly_scan", "dead_letters")] == [0, 0, 2]
    assert _state(instance, "dead_letters").instigator_data == before
    assert forget_ticks_ahead(instance, NOW) == []


def test_a_schedule_that_was_switched_on_by_such_a_clock_counts_as_switched_on_now(
    instance: dg.DagsterInstance,
) -> None:
    _ticked(instance, "hourly_scan", ScheduleInstigatorData("7 * * * *", NOW + HOUR, None), NOW - HOUR)
    assert forget_ticks_ahead(instance, NOW) == ["hourly_scan"]
    assert _state(instance, "hourly_scan").instigator_data == ScheduleInstigatorData("7 * * * *", NOW, None)


def test_a_home_that_is_not_the_daemons_is_told(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setenv("DAGSTER_HOME", str(tmp_path))
    with pytest.raises(SystemExit, match="set DAGSTER_HOME to the daemon's"):
        main()
    with dg.DagsterInstance.get() as home:
        _ticked(home, "automation", SensorInstigatorData(), HOUR)
    main()
    assert capsys.readouterr().out.startswith("of 1 sensors and schedules none has a tick dated ahead")
