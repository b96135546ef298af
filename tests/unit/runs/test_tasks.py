"""Tasks of this process give what Spark's give: every result in the order of the pieces, and counts."""

from __future__ import annotations

import pytest

from pulsar_lifecycle.errors import Failed
from pulsar_lifecycle.runs.tasks import LocalTasks, in_waves


@pytest.mark.parametrize("at_once", [1, 3])
def test_results_come_in_the_order_of_the_pieces(at_once: int) -> None:
    tasks = LocalTasks(at_once)
    counted = tasks.counter()

    def work(piece: int) -> int:
        counted.add(piece)
        return piece * 2

    assert list(tasks.map(work, range(10))) == [2 * n for n in range(10)]
    assert (counted.value, tasks.at_once) == (45, at_once)
    assert list(tasks.map(work, [])) == []


@pytest.mark.parametrize("at_once", [1, 3])
def test_all_is_done_before_anybody_asks_for_a_result(at_once: int) -> None:
    done: list[int] = []
    LocalTasks(at_once).map(done.append, [1, 2])
    assert sorted(done) == [1, 2]


@pytest.mark.parametrize("at_once", [1, 3])
def test_what_fails_comes_out(at_once: int) -> None:
    def work(piece: int) -> int:
        raise Failed("no")

    with pytest.raises(Failed):
        LocalTasks(at_once).map(work, [1, 2])


@pytest.mark.parametrize(
    ("items", "most", "waves"),
    [
        (0, 5, []),
        (1, 5, [[[0]]]),
        (5, 5, [[[0, 1, 2], [3, 4]]]),
        (5, 1, [[[0], [1]], [[2], [3]], [[4]]]),
    ],
)
def test_waves_have_as_many_pieces_as_work_at_once(items: int, most: int, waves: list[list[list[int]]]) -> None:
    assert list(in_waves(LocalTasks(2), list, range(items), most)) == waves
