from __future__ import annotations

import itertools

from leafage.core.step_times import PARTS, StepTimes


def clock(*times: float):
    return iter(times).__next__


def test_each_lap_gets_the_time_since_the_last_one() -> None:
    times = StepTimes(clock(10.0, 11.0, 13.0, 16.0))
    times.lap("schedule")
    times.lap("update")
    times.lap("schedule")
    assert times.outside == dict.fromkeys(PARTS, 0.0) | {"schedule": 4.0, "update": 2.0}
    assert sum(times.native.values()) == 0


def test_native_time_is_taken_out_of_its_part() -> None:
    times = StepTimes(clock(0.0, 5.0))
    times.lap("forward", 4.5)
    assert times.outside["forward"] == 0.5 and times.native["forward"] == 4.5


def test_idle_time_belongs_to_no_part() -> None:
    times = StepTimes(clock(0.0, 100.0, 101.0))
    times.start()
    times.lap("schedule")
    assert sum(times.outside.values()) == 1.0


def test_without_a_clock_all_times_stay_zero() -> None:
    times = StepTimes()
    for part in itertools.islice(PARTS, 3):
        times.lap(part)
    assert sum(times.outside.values()) == 0
