"""What one task does with a copy that is to be the only one: read back whole, whoever wrote it, and journalled."""

import pickle
from dataclasses import replace
from uuid import uuid4

import pytest

from pulsar_lifecycle.copies.attempts import Attempt
from pulsar_lifecycle.errors import CorruptFormat, LifecycleError, Unavailable
from pulsar_lifecycle.formats import ledger_metadata
from pulsar_lifecycle.io.lake.journal import FileJournal
from pulsar_lifecycle.journal.offloads import verified_copies
from pulsar_lifecycle.model import Topic
from pulsar_lifecycle.ports import Node
from pulsar_lifecycle.runs.journal_rows import Writer
from pulsar_lifecycle.settings import load_settings
from pulsar_lifecycle.tiered.offload_tasks import Item, Task
from pulsar_lifecycle.tiered.proof import OriginalUnread, disproves
from pulsar_lifecycle.tiered.upload import Source, Target, copy_ledger
from pulsar_lifecycle.values.codes import Code
from tests.kit.fakes.connections import connecting
from tests.kit.fakes.object_store import FakeBuckets, FakeObjectStore
from tests.kit.scenes.tiered.copy_scene import BUCKET, PAYLOADS
from tests.kit.settings import write_settings
from tests.kit.simulated.cluster import SimulatedCluster, data_tags

TOPIC = Topic.parse("persistent://acme/orders/a+b c~é-partition-0")


class Scene:
    """A ledger that its broker, of a cluster of this name, has offloaded."""

    def __init__(self, settings, broker="standalone", topic=TOPIC):
        self.settings = settings
        self.cluster = SimulatedCluster()
        self.ledger = self.cluster.ledger(data_tags(TOPIC), entries=PAYLOADS)
        self.buckets = FakeBuckets(self.cluster.clock, part_minimum=1)
        self.buckets.create(BUCKET)
        self.objects = FakeObjectStore(self.buckets)
        attempt = Attempt(self.ledger, str(TOPIC), uuid4(), "aws-s3", (("bucket", BUCKET),), 5 << 20, "", 0)
        self.item = Item(attempt, True, True)
        (node,) = self.cluster.open_store().read([self.cluster.path(self.ledger)])
        assert isinstance(node, Node)
        source = Source(ledger_metadata.decode(node.data), node.stat.ctime)
        target = Target(self.item.location, broker, topic.managed_ledger, 400)
        copy_ledger(self.cluster.reader, self.objects, source, target)
        self.buckets.uploads.clear()

    def task(self, item=None):
        """Prove it; then what the journal says of it."""
        task = self.new_task()
        return task._one(item or self.item, task.connect(self.settings), lambda size: None)

    def new_task(self):
        connect = connecting(
            store=self.cluster.open_store, reader=lambda: self.cluster.reader, objects=lambda: self.objects
        )
        return Task(self.settings, Writer("run", self.settings.cluster, "offload-1"), ("/lease", 1), 1, connect)

    @property
    def journalled(self):
        return verified_copies(FileJournal(self.settings.lake.path), self.settings.cluster, [self.ledger])

    def spoil(self):
        """One byte of one entry is another."""
        key = self.item.location.data_key
        data, head = bytearray(self.buckets.data[BUCKET, key]), self.buckets.objects[BUCKET][key]
        data[200] ^= 1
        self.buckets.put(BUCKET, key, bytes(data), head.metadata)


@pytest.fixture
def settings(tmp_path, monkeypatch):
    write_settings(tmp_path, monkeypatch, [BUCKET])
    return load_settings().model_copy(update={"cluster": "standalone"})


def test_a_copy_of_a_broker_is_compared_with_bookkeeper_entry_by_entry(settings):
    scene = Scene(settings)
    verified = scene.task()
    assert verified.entries == len(PAYLOADS)
    assert scene.journalled == {(scene.ledger, scene.item.attempt.uuid): verified}
    assert FileJournal(settings.lake.path).find().column("plan_id").to_pylist() == ["offload-1"]


def test_a_copy_that_differs_in_one_byte_is_not_proven_and_not_made_anew(settings):
    scene = Scene(settings)
    scene.spoil()
    before = dict(scene.buckets.data)
    with pytest.raises(CorruptFormat):
        scene.task()
    assert (scene.journalled, scene.buckets.data) == ({}, before)


def test_a_copy_that_was_proven_is_read_back_without_bookkeeper(settings):
    scene = Scene(settings)
    known = scene.task()
    scene.cluster.reader.payloads[scene.ledger] = []
    again = replace(scene.item, known=known)
    assert scene.task(again) == known
    scene.spoil()
    with pytest.raises(CorruptFormat):
        scene.task(again)


def test_a_ledger_in_recovery_says_nothing_against_its_copy(settings):
    """Found by the simulator: its state differs from that in the index, and the copy was taken for a damaged one."""
    scene = Scene(settings)
    scene.cluster.ledger(
        data_tags(TOPIC), entries=PAYLOADS, ledger_id=scene.ledger, state=ledger_metadata.LedgerState.IN_RECOVERY
    )
    with pytest.raises(OriginalUnread, match="IN_RECOVERY") as raised:
        scene.task()
    assert not disproves(raised.value)


@pytest.mark.parametrize(
    ("named", "broker", "proven"),
    [
        ("", "standalone", True),
        ("", "pulsar-one", False),
        ("pulsar-one", "pulsar-one", True),
        ("pulsar-one", "standalone", False),
    ],
)
def test_objects_must_be_of_the_cluster_as_its_brokers_call_it(settings, named, broker, proven):
    declared = settings.object_store.model_copy(update={"pulsar_cluster": named})
    scene = Scene(settings.model_copy(update={"object_store": declared}), broker)
    if proven:
        scene.task()
    else:
        with pytest.raises(CorruptFormat, match=r"(?i)clustername"):
            scene.task()


@pytest.mark.parametrize(
    ("block_size", "copy_deletion", "code"),
    [(141, False, Code.BLOCKS_TOO_SMALL), (5 << 20, False, Code.NOT_COPIED), (5 << 20, True, Code.OBJECTS_UNREAD)],
)
def test_a_failure_has_the_code_of_what_refused_it_also_from_an_executor(settings, block_size, copy_deletion, code):
    scene = Scene(settings)
    scene.cluster.reader.failures[scene.ledger] = Unavailable("bookie b1: timed out")
    attempt = replace(
        scene.item.attempt, block_size=block_size, uuid=uuid4() if not copy_deletion else scene.item.attempt.uuid
    )
    (answer,) = scene.new_task().work([Item(attempt, False, copy_deletion)])
    answer = pickle.loads(pickle.dumps(answer))
    assert (answer.verified, answer.why.code, answer.refused) == (None, code, code is Code.BLOCKS_TOO_SMALL)


def test_objects_of_another_topic_are_not_proven(settings):
    with pytest.raises(CorruptFormat):
        Scene(settings, topic=TOPIC.partitioned_parent).task()


def test_a_ledger_that_bookkeeper_does_not_have_is_not_proven(settings):
    scene = Scene(settings)
    scene.cluster.remove(scene.cluster.path(scene.ledger))
    with pytest.raises(OriginalUnread) as unread:
        scene.task()
    assert not disproves(unread.value)


@pytest.mark.parametrize("spoil", ["flip", "data", "index"])
def test_what_is_wrong_with_an_object_disproves_its_copy(settings, spoil):
    scene = Scene(settings)
    if spoil == "flip":
        scene.spoil()
    else:
        key = scene.item.location.data_key if spoil == "data" else scene.item.location.index_key
        del scene.buckets.objects[BUCKET][key]
    with pytest.raises(LifecycleError) as wrong:
        scene.task()
    assert disproves(wrong.value)


@pytest.mark.parametrize("error", [Unavailable("no bookie answers"), CorruptFormat("entry 1:0", 0, "its digest")])
def test_what_is_wrong_with_bookkeeper_disproves_no_copy(settings, error):
    scene = Scene(settings)
    scene.cluster.reader.failures[scene.ledger] = error
    with pytest.raises(Unavailable) as unread:
        scene.task()
    assert not disproves(unread.value)


def test_a_bucket_that_does_not_answer_disproves_no_copy(settings):
    scene = Scene(settings)

    def unanswered(name, bucket, keys):
        raise Unavailable("503")

    scene.objects.before = unanswered
    with pytest.raises(Unavailable) as unread:
        scene.task()
    assert not disproves(unread.value)
