"""A stream of entries from bookies that fail, lie or do not answer: what comes, and what is raised."""

from __future__ import annotations

import random
from dataclasses import replace

import pytest

from pulsar_lifecycle.errors import CorruptFormat, LifecycleError, NotFound, StoreError, Unavailable
from pulsar_lifecycle.formats import entry, striping
from pulsar_lifecycle.formats.ledger_metadata import DigestType, LedgerMetadata, Segment
from tests.kit.fakes.bookie_server import BookieServer
from tests.kit.scenes.streamed_ledger import LEDGER, STRIPINGS, FiveBookies, five_bookies, some

TOO_MANY_REQUESTS = 106


cluster = pytest.fixture(five_bookies, name="cluster")


@pytest.mark.usefixtures("small_batches")
@pytest.mark.parametrize("trouble", ["stopped", "refuses", "lost the ledger", "lost half", "old", "restarted", "cuts"])
@pytest.mark.parametrize(("ensemble", "write"), [(3, 2), (5, 3), (2, 2)])
def test_what_one_bookie_fails_to_give_comes_from_another(
    cluster: FiveBookies, trouble: str, ensemble: int, write: int
) -> None:
    payloads = some(1_000)
    metadata = cluster.write(payloads, ensemble, write)
    bookie = cluster.bookies[cluster.ids[1]]
    stream = cluster.reader.stream(LEDGER, metadata, 0, 999)
    found = list(next(stream).payloads)
    match trouble:
        case "stopped":
            bookie.stop()
        case "refuses":
            bookie.code = TOO_MANY_REQUESTS
        case "lost the ledger":
            bookie.entries.clear()
        case "lost half":
            for e in range(0, 1_000, 2):
                bookie.entries[LEDGER].pop(e, None)
        case "old":
            bookie.batch_reads = False
        case "restarted":
            bookie.restart()
        case "cuts":
            bookie.batch_limit = 3

    for batch in stream:
        found += batch.payloads

    assert found == payloads


@pytest.mark.parametrize(("ensemble", "write"), [(3, 2), (2, 2)])
def test_a_mute_bookie_is_waited_for_once(cluster: FiveBookies, ensemble: int, write: int) -> None:
    cluster.reader = cluster.connect(read_timeout=6)
    payloads = some(1_000)
    metadata = cluster.write(payloads, ensemble, write)
    mute = cluster.bookies[cluster.ids[0]]
    mute.mute = True

    assert cluster.stream(metadata) == payloads

    asked = len(mute.requests)
    assert cluster.stream(metadata) == payloads
    assert len(mute.requests) == asked


@pytest.mark.usefixtures("small_batches")
@pytest.mark.parametrize(("ensemble", "write"), STRIPINGS[:-1])
def test_a_flipped_bit_costs_one_entry_from_another_replica(cluster: FiveBookies, ensemble: int, write: int) -> None:
    payloads = [b"%07d" % i * 20 for i in range(1_000)]
    metadata = cluster.write(payloads, ensemble, write)
    whole = cluster.stream(metadata)
    before = cluster.asked()
    for entry_id in (0, 123, 124, 999):
        cluster.spoil(metadata, entry_id, write - 1)

    assert whole == cluster.stream(metadata) == payloads
    assert cluster.asked() - before <= before + 4 * (write - 1) + 4  # one more for the rest of its batch


@pytest.mark.usefixtures("small_batches")
@pytest.mark.parametrize(("ensemble", "write"), STRIPINGS)
def test_a_bit_flipped_in_every_copy_is_told_after_the_entries_before_it(
    cluster: FiveBookies, ensemble: int, write: int
) -> None:
    payloads = some(1_000)
    payloads[321] = b"good"
    metadata = cluster.write(payloads, ensemble, write)
    cluster.spoil(metadata, 321, write)
    found: list[bytes] = []

    def read() -> None:
        for batch in cluster.reader.stream(LEDGER, metadata, 0, 999):
            found.extend(batch.payloads)

    with pytest.raises(CorruptFormat) as raised:
        read()

    assert found == payloads[:321]
    assert "7:321" in str(raised.value)
    assert all(bookie in str(raised.value) for bookie in striping.replicas(metadata, 321))


@pytest.mark.parametrize("ensemble", [2, 3])
def test_lengths_that_do_not_add_up_are_no_better_than_a_wrong_digest(cluster: FiveBookies, ensemble: int) -> None:
    payloads = [b"payload"] * 50
    metadata = cluster.write(payloads, ensemble, 2)
    liar, honest = striping.replicas(metadata, 20)
    cluster.bookies[liar].add(LEDGER, 20, b"another", length=7 * 21 - 1)
    assert cluster.stream(metadata) == payloads

    cluster.bookies[honest].add(LEDGER, 20, b"shorter", length=7 * 21 - 1)
    with pytest.raises(CorruptFormat, match=r"7:20.*length"):
        cluster.stream(metadata)
    with pytest.raises(CorruptFormat, match=r"7:21.*length"):
        cluster.stream(metadata, 20)


@pytest.mark.parametrize("ensemble", [2, 3])
def test_the_last_entry_must_reach_the_length_of_the_ledger(cluster: FiveBookies, ensemble: int) -> None:
    payloads = [b"payload"] * 50
    metadata = replace(cluster.write(payloads, ensemble, 2), length=351)

    with pytest.raises(CorruptFormat, match=r"7:49.*351"):
        cluster.stream(metadata)
    assert cluster.stream(metadata, 0, 48) == payloads[:-1]


@pytest.mark.parametrize("ensemble", [2, 3])
def test_another_entry_or_ledger_under_a_good_digest_is_not_taken(cluster: FiveBookies, ensemble: int) -> None:
    payloads = [b"payload"] * 50
    metadata = cluster.write(payloads, ensemble, 2)
    cluster.write(payloads, ensemble, 2, ledger_id=8)
    for bookie in cluster.bookies.values():
        if 30 in bookie.entries.get(LEDGER, {}):
            bookie.entries[LEDGER][30] = bookie.entries[8][30]

    with pytest.raises(CorruptFormat, match="entry 7:30, found 8:30"):
        cluster.stream(metadata)


@pytest.mark.parametrize("ensemble", [2, 3])
def test_what_is_raised_when_no_replica_has_an_entry(cluster: FiveBookies, ensemble: int) -> None:
    payloads = [b"payload"] * 50
    metadata = cluster.write(payloads, ensemble, 2)
    first, second = (cluster.bookies[bookie] for bookie in striping.replicas(metadata, 30))

    del first.entries[LEDGER][30], second.entries[LEDGER][30]
    with pytest.raises(StoreError, match="7:30") as missing:
        cluster.stream(metadata)
    assert type(missing.value) is StoreError

    first.code = TOO_MANY_REQUESTS
    with pytest.raises(Unavailable, match="TOO_MANY"):
        cluster.stream(metadata)

    for bookie in cluster.bookies.values():
        bookie.code = 0
        bookie.entries.clear()
    with pytest.raises(NotFound):
        cluster.stream(metadata)


@pytest.mark.usefixtures("small_batches")
@pytest.mark.parametrize("seed", range(30))
def test_whatever_is_broken_the_entries_come_up_to_the_first_without_a_good_copy(
    cluster: FiveBookies, seed: int
) -> None:
    chance = random.Random(seed)
    ensemble, write = chance.choice([*STRIPINGS, (4, 4)])
    firsts = [0, *sorted(chance.sample(range(1, 400), chance.randrange(3)))]
    segments = tuple(Segment(first, tuple(chance.sample(cluster.ids, ensemble))) for first in firsts)
    payloads = some(400, seed)
    metadata = cluster.write(payloads, ensemble, write, segments=segments)
    for bookie in cluster.bookies.values():
        bookie.batch_reads = chance.random() < 0.7
        bookie.batch_limit = chance.choice((1, 5, 1_000))
        bookie.code = TOO_MANY_REQUESTS if chance.random() < 0.1 else 0
    share = chance.choice((0.0, 0.02, 0.3))
    good = 400
    for e in reversed(range(400)):
        copies = [cluster.bookies[bookie] for bookie in striping.replicas(metadata, e)]
        for bookie in copies:
            if chance.random() < share:
                chance.choice((BookieServer.spoil, lambda bookie, ledger, e: bookie.entries[ledger].pop(e)))(
                    bookie, LEDGER, e
                )
        stored = [(b, b.entries[LEDGER].get(e)) for b in copies]
        if not any(b.code == 0 and data and _is_good(data, metadata, e) for b, data in stored):
            good = e
    found: list[bytes] = []

    def read() -> None:
        for batch in cluster.reader.stream(LEDGER, metadata, 0, 399):
            found.extend(batch.payloads)

    if good == 400:
        read()
    else:
        with pytest.raises(LifecycleError, match=f"{LEDGER}:{good}"):
            read()

    assert found == payloads[:good]


def _is_good(data: bytes, metadata: LedgerMetadata, entry_id: int) -> bool:
    try:
        entry.decode(data, DigestType.CRC32C, metadata.password, ledger_id=LEDGER, entry_id=entry_id)
    except CorruptFormat:
        return False
    return True
