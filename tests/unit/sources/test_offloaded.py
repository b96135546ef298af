"""The tables of offloaded ledgers: cut into tasks at blocks, together everything once, as entries or messages."""

import logging
from itertools import pairwise
from uuid import uuid4

import pytest

from pulsar_lifecycle.copies.offloaded_ledger import Location
from pulsar_lifecycle.errors import ConfigError, Conflict, CorruptFormat, UsageError
from pulsar_lifecycle.formats import message
from pulsar_lifecycle.io.connect import Connections
from pulsar_lifecycle.sources.entry_tables import ENTRIES, EntryOptions
from pulsar_lifecycle.sources.messages import MESSAGES
from pulsar_lifecycle.sources.offload_listing import OffloadedData
from pulsar_lifecycle.sources.offloaded import OffloadedReader, PulsarOffload, pieces
from pulsar_lifecycle.tiered.upload import Source, Target, copy_ledger
from tests.golden.files import GOLDEN, entries
from tests.kit.fakes.connections import connecting
from tests.kit.fakes.metadata_store import FakeZooKeeper
from tests.kit.scenes.tiered.copy_scene import BUCKET, PAYLOADS, source_of
from tests.kit.scenes.tiered.copy_scene import CopyScene as Scene
from tests.kit.settings import write_settings

TINY = entries(GOLDEN / "offload/g-s3drv2/L66.entries.bin")


@pytest.fixture
def scene(tmp_path, monkeypatch):
    """Ledgers 1 (of bytes, in many blocks) and 2 (of messages, in two) in the bucket."""
    found = Scene()
    found.locations = {n: Location(BUCKET, uuid4(), n) for n in (1, 2)}
    for location, payloads in ((found.locations[1], PAYLOADS), (found.locations[2], TINY)):
        found.reader.payloads[location.ledger_id] = payloads
        copy_ledger(
            found.reader, found.objects, Source(source_of(payloads).metadata, 1), Target(location, "c", "m", 800)
        )
    found.store = FakeZooKeeper().session()
    found.connect = connecting(objects=lambda: found.objects, store=lambda: found.store)
    write_settings(tmp_path, monkeypatch, [BUCKET])
    return found


def rows(scene, **options):
    """All tasks' rows, and how many tasks."""
    reader = OffloadedReader(
        EntryOptions("pulsar_offload", {k.rstrip("_"): v for k, v in options.items()}), scene.connect
    )
    shares = reader.partitions()
    batches = [batch for share in shares for batch in reader.read(share)]
    assert all(batch.schema == reader.wanted for batch in batches)
    return [row for batch in batches for row in batch.to_pylist()], len(shares)


@pytest.mark.parametrize("size", ["1", "300", "800", "1000", "100000000"])
def test_tasks_of_any_size_read_every_entry_once(scene, size):
    found, tasks = rows(scene, partition_bytes=size)
    assert {(r["ledger_id"], r["entry_id"]): r["payload"] for r in found} == {
        **{(1, e): p for e, p in enumerate(PAYLOADS)},
        **{(2, e): p for e, p in enumerate(TINY)},
    }
    assert len(found) == len(PAYLOADS) + len(TINY)
    assert (tasks == 1) == (size == "100000000")


def test_one_ledger_by_key_and_what_begins_with_a_prefix(scene):
    one = scene.locations[1]
    for options in ({"ledgers": one.data_key}, {"ledgers": one.index_key, "bucket": BUCKET}, {"prefix": str(one.uuid)}):
        found, _ = rows(scene, **options, columns="payload")
        assert [row["payload"] for row in found] == PAYLOADS


def test_messages_are_what_was_sent(scene):
    found, _ = rows(scene, as_="messages", ledgers=scene.locations[2].data_key, columns="entry_id,payload,problem")
    sent = [m.payload for payload in TINY for m in message.decode(payload).messages]
    assert [row["payload"] for row in found] == sent
    assert all(row["problem"] is None for row in found)
    with pytest.raises(CorruptFormat, match="entry 1:0"):
        rows(scene, as_="messages", ledgers=scene.locations[1].data_key)
    found, _ = rows(scene, as_="messages", ledgers=scene.locations[1].data_key, mode="permissive")
    assert [row["payload"] for row in found] == PAYLOADS


def test_an_upload_that_was_not_finished_is_named_and_left_out(scene, caplog):
    two = scene.locations[2]
    scene.objects.delete_many(BUCKET, [two.index_key])
    with caplog.at_level(logging.WARNING):
        found, _ = rows(scene)
    assert len(found) == len(PAYLOADS)
    assert f"1 offloads are left out: {two.data_key}: it has no index object" in caplog.text
    scene.objects.delete_many(BUCKET, [two.data_key, scene.locations[1].data_key, scene.locations[1].index_key])
    assert rows(scene) == ([], 1)


def test_an_object_replaced_since_the_query_was_planned_ends_it(scene):
    reader = OffloadedReader(EntryOptions("pulsar_offload", {"ledgers": scene.locations[1].data_key}), scene.connect)
    (share,) = reader.partitions()
    key = scene.locations[1].data_key
    head = scene.objects.head(BUCKET, key)
    scene.service.put(BUCKET, key, scene.data(key), head.metadata, etag="another")
    with pytest.raises(Conflict, match="replaced since the query was planned"):
        list(reader.read(share))


def test_wrong_orders_are_refused_with_what_to_give(scene, tmp_path, monkeypatch):
    for options, said in (
        ({"topic": "persistent://a/b/c", "prefix": "x"}, "at most one of the options topic and prefix"),
        ({"topic": "persistent://a/b/c", "bucket": "x"}, "leave out the option bucket"),
        ({"partition_bytes": "0"}, "option partition_bytes: expected a number above 0"),
        ({"columns": "nonsense"}, "option columns"),
        ({"as_": "rows"}, "option as: expected entries or messages"),
    ):
        with pytest.raises(UsageError, match=said):
            rows(scene, **options)
    write_settings(tmp_path, monkeypatch, [BUCKET, "other"])
    with pytest.raises(UsageError, match=f"give the option bucket, one of {BUCKET}, other"):
        rows(scene)
    assert rows(scene, bucket=BUCKET)[0]
    write_settings(tmp_path, monkeypatch, [])
    scene.connect = Connections
    with pytest.raises(ConfigError, match="object_store"):
        rows(scene)


def test_the_schema_is_that_of_entries_or_messages():
    assert PulsarOffload({}).schema().names == ENTRIES.names
    assert PulsarOffload({"as": "messages"}).schema().names == MESSAGES.names
    assert PulsarOffload({"columns": "payload"}).schema().names == ["payload"]
    with pytest.raises(UsageError):
        PulsarOffload({"mode": "lenient"}).schema()


def test_large_objects_are_cut_and_small_ones_go_together():
    sizes = [10, 250, 30, 40, 100, 1]
    all_of_them = [OffloadedData(Location(BUCKET, uuid4(), n), size, "e") for n, size in enumerate(sizes)]
    groups = pieces(all_of_them, 100)
    assert all(sum(end - begin for _, begin, end in group) <= 100 for group in groups)
    for one in all_of_them:
        cuts = [(begin, end) for group in groups for found, begin, end in group if found is one]
        assert cuts[0][0] == 0
        assert cuts[-1][1] == one.size
        assert all(a[1] == b[0] for a, b in pairwise(cuts))
    assert len(groups) < len(sizes) + 2
