"""A ledger copied to a bucket, byte for byte what the broker writes, and what is left behind when a request fails."""

import json
from dataclasses import replace

import pytest

from pulsar_lifecycle.errors import (
    AccessDenied,
    CorruptFormat,
    NotFound,
    OutcomeUnknown,
    Paused,
    StoreError,
    Unavailable,
)
from pulsar_lifecycle.formats import crc32c, ledger_metadata, offload_data, offload_index
from pulsar_lifecycle.formats import offload_object as names
from pulsar_lifecycle.formats.ledger_metadata import LedgerState
from pulsar_lifecycle.tiered import upload
from pulsar_lifecycle.tiered.upload import Source
from pulsar_lifecycle.values.codes import Code
from tests.golden.files import matching
from tests.kit.refused import refused_by
from tests.kit.scenes.tiered.copy_scene import BLOCK, BUCKET, DATA, ID, INDEX, PAYLOADS, source_of, target
from tests.kit.scenes.tiered.copy_scene import CopyScene as Scene

GOLDENS = [path.parent for path in matching("offload/*/object_data.bin")]


def test_both_objects_are_what_the_broker_would_have_written():
    scene = Scene()
    copied = scene.copy()
    data, index = scene.data(), offload_index.decode(scene.data(INDEX))
    read = [bytes(p) for block in offload_data.read_blocks(data) for p in block.payloads]
    assert read == PAYLOADS
    assert index == copied.index
    assert len(index.blocks) > 3
    assert index.ledger.ctime == 1234
    assert copied.checksums == crc32c.checksums(PAYLOADS)
    assert copied.data_etag == scene.objects.head(BUCKET, DATA).etag
    assert copied.index_etag == scene.objects.head(BUCKET, INDEX).etag
    for key, role in ((DATA, names.Role.DATA), (INDEX, names.Role.INDEX)):
        assert scene.service.content_types[BUCKET, key] == names.CONTENT_TYPES[role]
        metadata = scene.objects.head(BUCKET, key).metadata
        names.check_version(metadata)
        assert metadata["pulsarclustername"] == "standalone"
        assert metadata["managedledgername"] == "t/ns/persistent/a%2Bb"
        assert metadata["role"] == role
    assert not scene.service.uploads


@pytest.mark.parametrize("folder", GOLDENS, ids=lambda folder: folder.name)
def test_a_copy_of_a_golden_ledger_is_the_golden_data_object(folder):
    golden = (folder / "object_data.bin").read_bytes()
    scene = Scene([bytes(p) for block in offload_data.read_blocks(golden) for p in block.payloads])
    (z_node,) = folder.glob("zk_bkledger_*.bin")
    facts = json.loads((folder / "expected.json").read_text())
    index = offload_index.decode((folder / "object_index.bin").read_bytes())
    scene.source = Source(ledger_metadata.decode(z_node.read_bytes()), facts.get("ctime", index.ledger.ctime))
    assert scene.copy(target(offload_data.DEFAULT_BLOCK_SIZE)).index == index
    assert scene.data() == golden


@pytest.mark.parametrize("path", matching("offload_blocks/blocks_of_*.bin"), ids=lambda path: path.stem)
def test_a_copy_in_many_blocks_is_the_golden_data_object(path):
    payloads = [bytes(p) for block in offload_data.read_blocks(path.read_bytes()) for p in block.payloads]
    scene = Scene(payloads)
    scene.copy(target(int(path.stem.rpartition("_")[2])))
    assert scene.data() == path.read_bytes()


def test_a_ctime_that_bookkeeper_stores_is_taken():
    scene = Scene()
    scene.source = source_of(PAYLOADS, ctime=99)
    assert scene.copy().index.ledger.ctime == 99


def test_a_repeated_copy_writes_the_same_bytes():
    scene = Scene()
    first = scene.copy()
    before = dict(scene.service.data)
    assert scene.copy() == first
    assert scene.service.data == before


def test_no_more_blocks_are_under_way_than_allowed():
    scene = Scene()
    sent, done, most = [], [], []

    def count(into):
        def hook(name, bucket, keys):
            if name == "upload_part":
                into.append(1)
                most.append(len(sent) - len(done))

        return hook

    scene.objects.before, scene.objects.after = count(sent), count(done)
    scene.copy(blocks_in_flight=2)
    assert len(done) == len(offload_index.decode(scene.data(INDEX)).blocks) > 5
    assert max(most) <= 2


def test_every_block_is_told_before_it_is_sent():
    scene = Scene()
    told = []
    index = scene.copy(pace=told.append).index
    assert sum(told) == index.data_object_length
    assert len(told) == len(index.blocks)


def test_stopping_between_blocks_leaves_nothing():
    scene = Scene()
    told = []

    def stop_at_the_third(size):
        told.append(size)
        if len(told) == 3:
            raise Paused("stop")

    with pytest.raises(Paused):
        scene.copy(pace=stop_at_the_third)
    assert_nothing_left(scene)


@pytest.mark.parametrize(
    ("changes", "block_size", "code"),
    [
        ({"state": LedgerState.OPEN}, BLOCK, Code.NOT_IN_BOOKKEEPER),
        ({"state": LedgerState.IN_RECOVERY}, BLOCK, Code.NOT_IN_BOOKKEEPER),
        ({"length": 0}, BLOCK, Code.EMPTY),
        ({"length": 30 * 100}, 169, Code.BLOCKS_TOO_SMALL),
        ({"length": 10_000 * 100, "last_entry_id": 29_999}, 228, Code.BLOCKS_TOO_SMALL),
    ],
)
def test_what_its_metadata_shows_to_be_impossible_is_refused_before_anything_is_asked(changes, block_size, code):
    scene = Scene()
    scene.source = Source(replace(scene.source.metadata, **changes), 1)
    with refused_by(code, "ledger 4711"):
        scene.copy(target(block_size))
    assert scene.objects.requests == []


def test_an_entry_that_fits_no_block_is_refused_where_it_is_met():
    scene = Scene([b"x" * 100, b"y" * 300, b"z" * 10])
    with refused_by(Code.BLOCKS_TOO_SMALL, "entry 1 has 300 bytes, but a block of 400 has room for 260"):
        scene.copy()
    assert_nothing_left(scene)


def test_more_parts_than_a_service_takes_are_refused(monkeypatch):
    monkeypatch.setattr(upload, "MAX_PARTS", 14)
    scene = Scene()
    with refused_by(Code.BLOCKS_TOO_SMALL):
        scene.copy()
    assert_nothing_left(scene)
    monkeypatch.setattr(upload, "MAX_PARTS", 30)
    assert len(scene.copy().index.blocks) <= 30


@pytest.mark.parametrize("times", [1, 100])
@pytest.mark.parametrize("error", [Unavailable("cut"), AccessDenied("no"), NotFound("no such upload")])
def test_a_part_that_fails_ends_the_copy_and_its_upload(error, times):
    scene = Scene()
    scene.fail("upload_part", error, times=times)
    with pytest.raises(type(error)):
        scene.copy()
    assert_nothing_left(scene)
    assert scene.methods[-1] == "abort_upload"


def test_an_upload_that_cannot_be_dropped_is_named():
    scene = Scene()

    def hook(name, bucket, keys):
        if name in ("upload_part", "abort_upload"):
            raise Unavailable("gone")

    scene.objects.before = hook
    with pytest.raises(Unavailable) as raised:
        scene.copy()
    assert any("upload-000000" in note and DATA in note for note in raised.value.__notes__)


@pytest.mark.parametrize(
    ("change", "error"),
    [
        (lambda payloads: payloads[:-1], StoreError),
        (lambda payloads: [*payloads[:50], payloads[50] + b"!", *payloads[51:]], CorruptFormat),
        (lambda payloads: [*payloads[:50], payloads[50][:-1], *payloads[51:]], CorruptFormat),
        (lambda payloads: [], NotFound),
    ],
)
def test_a_ledger_that_is_not_what_its_metadata_says_is_not_copied(change, error):
    scene = Scene()
    scene.reader.payloads[ID] = change(PAYLOADS)
    with pytest.raises(error):
        scene.copy()
    assert_nothing_left(scene)


def test_a_completion_whose_answer_got_lost_is_seen_in_the_bucket():
    scene = Scene()
    scene.fail("complete_upload", Unavailable("cut"), after=True)
    copied = scene.copy()
    assert copied.data_etag == scene.objects.head(BUCKET, DATA).etag
    assert scene.data(INDEX)


def test_a_completion_that_was_not_made_is_no_copy():
    scene = Scene()
    scene.fail("complete_upload", Unavailable("cut"))
    with pytest.raises(OutcomeUnknown, match="not made, or not yet"):
        scene.copy()
    assert_nothing_left(scene)


def test_an_older_object_is_not_taken_for_the_upload():
    scene = Scene()
    scene.copy()
    scene.fail("complete_upload", Unavailable("cut"))
    with pytest.raises(OutcomeUnknown, match="not made, or not yet"):
        scene.copy()
    assert not scene.service.uploads
    assert scene.data(INDEX)


def test_another_object_is_not_taken_for_the_upload():
    scene = Scene()

    def hook(name, bucket, keys):
        if name == "complete_upload":
            scene.service.put(BUCKET, DATA, b"other")
            raise Unavailable("cut")

    scene.objects.before = hook
    with pytest.raises(OutcomeUnknown):
        scene.copy()
    assert scene.data() == b"other"
    assert INDEX not in scene.service.keys(BUCKET)


def test_an_index_that_cannot_be_put_leaves_the_data_object():
    scene = Scene()
    scene.fail("put", AccessDenied("no"))
    with pytest.raises(AccessDenied):
        scene.copy()
    assert scene.service.keys(BUCKET) == {DATA}
    assert "abort_upload" not in scene.methods
    assert scene.copy().index_etag


def test_an_index_whose_answer_got_lost_is_seen_in_the_bucket():
    scene = Scene()
    scene.fail("put", Unavailable("cut"), after=True)
    assert scene.copy().index_etag == scene.objects.head(BUCKET, INDEX).etag


@pytest.mark.parametrize("there", [None, b"other"])
def test_an_index_that_was_not_put_is_no_copy(there):
    scene = Scene()
    scene.copy()
    length = len(scene.data(INDEX))
    metadata = scene.objects.head(BUCKET, INDEX).metadata
    del scene.service.objects[BUCKET][INDEX]
    if there is not None:
        scene.service.put(BUCKET, INDEX, there.ljust(length, b"!"), metadata)
    scene.fail("put", Unavailable("cut"))
    with pytest.raises(OutcomeUnknown):
        scene.copy()


def assert_nothing_left(scene):
    assert not scene.service.uploads
    assert not scene.service.keys(BUCKET)
