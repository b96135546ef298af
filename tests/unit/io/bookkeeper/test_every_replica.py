"""Asking every replica of a ledger: which entries are there, thin, lost or unanswered."""

from __future__ import annotations

import socket
from dataclasses import replace

import pytest

from pulsar_lifecycle.formats import striping
from pulsar_lifecycle.formats.ledger_metadata import Segment
from pulsar_lifecycle.ports import ReplicaCheck
from tests.kit.scenes.bookies import LEDGER, TOO_MANY_REQUESTS, ThreeBookies, three_bookies

cluster = pytest.fixture(three_bookies, name="cluster")


# ----------------------------------------------------------------------------------------------------- every replica


@pytest.mark.parametrize(("ensemble", "write"), [(3, 3), (3, 2), (3, 1), (1, 1)])
def test_every_copy_of_a_small_ledger_is_asked_for(cluster: ThreeBookies, ensemble: int, write: int) -> None:
    metadata = cluster.metadata(ensemble, write, 1, last=99)
    cluster.fill(metadata, 100)

    (check,) = cluster.reader.check_replicas([(LEDGER, metadata)])

    assert check == ReplicaCheck(100, 100, 100 * write, 0, 0, 0, {}, {})
    assert check.every_entry
    assert (cluster.asked("batch") > 0) == (ensemble == write)


@pytest.mark.parametrize(("ensemble", "write"), [(3, 3), (3, 2)])
def test_a_large_ledger_is_sampled_the_same_way_each_time_at_every_bookie_of_every_segment(
    cluster: ThreeBookies, ensemble: int, write: int
) -> None:
    a, b, c = cluster.ids
    segments = (Segment(0, (a, b, c)), Segment(700, (c, a, b)), Segment(2000, (b, c, a)))  # the last has no entry
    metadata = replace(cluster.metadata(ensemble, write, 1, last=1999, segments=segments), length=1 << 30)
    for e in range(2000):
        order = (0, 1, 2) if e < 700 else (2, 0, 1)
        for i in range(write):
            cluster.bookies[order[(e + i) % 3]].add(LEDGER, e, b"payload %d" % e)

    first, again = cluster.reader.check_replicas([(LEDGER, metadata)] * 2)

    assert first == again
    assert not first.every_entry
    assert 0 < first.asked < 200
    assert first.held == first.asked * write
    for bookie in cluster.bookies:
        asked = {entry for _, _, entry in bookie.requests}
        assert any(e < 700 for e in asked)
        assert any(e >= 700 for e in asked)
    assert {0, 699, 700, 1999} <= {entry for bookie in cluster.bookies for _, _, entry in bookie.requests}


@pytest.mark.parametrize("ensemble", [2, 3])
def test_what_one_bookie_collected_leaves_its_entries_thin(cluster: ThreeBookies, ensemble: int) -> None:
    metadata = cluster.metadata(ensemble, 2, 2, last=29)
    cluster.fill(metadata, 30)
    gone = len(cluster.bookies[0].entries.pop(LEDGER))

    (check,) = cluster.reader.check_replicas([(LEDGER, metadata)])

    assert check == ReplicaCheck(30, 30, 60 - gone, gone, 0, 0, {"bookie-0": gone}, {})


@pytest.mark.parametrize("ensemble", [2, 3])
@pytest.mark.parametrize("loss", ["deleted", "damaged"])
def test_an_entry_without_any_good_copy_is_lost(cluster: ThreeBookies, ensemble: int, loss: str) -> None:
    metadata = cluster.metadata(ensemble, 2, 2, last=29)
    cluster.fill(metadata, 30)
    for bookie in cluster.bookies:
        if 17 in bookie.entries.get(LEDGER, ()):
            bookie.spoil(LEDGER, 17)
            if loss == "deleted":
                del bookie.entries[LEDGER][17]

    (check,) = cluster.reader.check_replicas([(LEDGER, metadata)])

    assert (check.held, check.lost, check.thin, check.unproven) == (58, 1, 0, 0)
    assert sum(check.missing.values()) == 2


def test_a_ledger_collected_everywhere_is_lost_and_costs_one_question_a_bookie(cluster: ThreeBookies) -> None:
    metadata = cluster.metadata(2, 2, 2, last=29)

    (check,) = cluster.reader.check_replicas([(LEDGER, metadata)])

    assert (check.held, check.lost) == (0, 30)
    assert cluster.asked("batch") == 2


@pytest.mark.parametrize("ensemble", [2, 3])
@pytest.mark.parametrize("trouble", ["stopped", "refuses", "not registered"])
def test_a_bookie_that_does_not_answer_is_never_gone(cluster: ThreeBookies, ensemble: int, trouble: str) -> None:
    metadata = cluster.metadata(ensemble, 2, 2, last=29)
    cluster.fill(metadata, 30)
    for i in (0, 1):
        if trouble == "refuses":
            cluster.bookies[i].code = TOO_MANY_REQUESTS
        elif trouble == "stopped":
            cluster.bookies[i].stop()
        else:
            cluster.ids[i] = f"lost-{i}"
    if trouble == "not registered":
        metadata = cluster.metadata(ensemble, 2, 2, last=29)

    (check,) = cluster.reader.check_replicas([(LEDGER, metadata)])

    both = sum(set(striping.replicas(metadata, e)) == set(cluster.ids[:2]) for e in range(30))
    assert (check.lost, check.unproven, check.thin) == (0, both, 30 - both)
    assert set(check.unanswered) == set(cluster.ids[:2])
    assert check.missing == {}


def test_one_timeout_is_waited_out_once_for_many_ledgers(cluster: ThreeBookies) -> None:
    metadata = cluster.metadata(2, 2, 2, last=4)
    for ledger_id in range(50):
        cluster.fill(metadata, 5, ledger_id)
    with socket.create_server(("127.0.0.1", 0)) as mute:
        cluster.bookies[0].stop()
        cluster.bookies[0].port = mute.getsockname()[1]
        cluster.reregister(0)
        checks = cluster.reader.check_replicas([(ledger_id, metadata) for ledger_id in range(50)])
        mute.settimeout(1)
        mute.accept()[0].close()
        with pytest.raises(TimeoutError):
            mute.accept()  # nobody came back

    assert all(check.thin == 5 and set(check.unanswered) == {"bookie-0"} for check in checks)


def test_a_bookie_without_batch_reads_is_checked_by_single_reads(cluster: ThreeBookies) -> None:
    metadata = cluster.metadata(2, 2, 2, last=29)
    cluster.fill(metadata, 30)
    cluster.bookies[1].batch_reads = False

    assert cluster.reader.check_replicas([(LEDGER, metadata)]) == [ReplicaCheck(30, 30, 60, 0, 0, 0, {}, {})]


def test_an_empty_ledger_has_nothing_to_ask_for(cluster: ThreeBookies) -> None:
    assert cluster.reader.check_replicas([(LEDGER, cluster.metadata(2, 2, 2, last=-1))]) == [
        ReplicaCheck(0, 0, 0, 0, 0, 0, {}, {})
    ]
