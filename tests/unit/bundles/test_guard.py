"""What a request about a topic would have brokers load besides: asked for alone first, or the request is not made."""

from __future__ import annotations

import json
from collections.abc import Iterator, Mapping
from contextlib import nullcontext
from itertools import count, islice

import pytest

from pulsar_lifecycle.bundles.guard import BROKERS_OWN, TAKEN_FOR, BundleGuard
from pulsar_lifecycle.bundles.placing import AT_ONCE, BROKERS_ROOT, BUNDLES_ROOT, LOCKS_ROOT, TRANSACTION_BUFFERS
from pulsar_lifecycle.errors import BundleShared, NotFound, Unavailable
from pulsar_lifecycle.formats.topic_policies import CHANGE_EVENTS
from pulsar_lifecycle.model import MANAGED_LEDGERS_ROOT, PARTITIONED_ROOT, POLICIES_ROOT, Topic
from tests.kit.fakes.metadata_store import FakeZooKeeper
from tests.kit.simulated.cluster import BROKER, SimulatedCluster, half_of

NAMESPACE = "acme/orders"
LOCKS = {0: "0x00000000_0x80000000", 1: "0x80000000_0xffffffff"}
EXTENSIBLE = "org.apache.pulsar.broker.loadbalance.extensions.ExtensibleLoadManagerImpl"


def named(local: str) -> Topic:
    return Topic.parse(f"persistent://{NAMESPACE}/{local}")


def in_half(half: int) -> Iterator[Topic]:
    return (topic for topic in map(named, map("t-{}".format, count())) if half_of(topic) == half)


EVENTS, SNAPSHOTS = named(CHANGE_EVENTS), named(TRANSACTION_BUFFERS[0])
THERE = half_of(EVENTS)
ASKED, OWN = islice(in_half(1 - THERE), 2)
BESIDE = next(in_half(THERE))


class Guarded:
    """A namespace of two bundles: policies, and a topic ``beside`` them, in one; ``ASKED`` is in the other."""

    def __init__(self, **said: str) -> None:
        self.cluster = SimulatedCluster()
        self.cluster.halve(NAMESPACE)
        for topic in (ASKED, OWN, BESIDE, EVENTS):
            self.cluster.topic(topic, [])
        self.say(transactionCoordinatorEnabled="false", **said)
        self.configuration: FakeZooKeeper | None = None
        """One of its own, of several clusters."""
        self.broker = self.cluster.open_store()
        self.broker.create(f"{BROKERS_ROOT}/{BROKER}", ephemeral=True, parents=True)

    def say(self, **said: str) -> None:
        self.cluster.admin.configuration[BROKER] = {"replicatorPrefix": "pulsar.repl", **said}

    def own(self, *halves: int) -> None:
        for half in halves:
            self.broker.create(f"{LOCKS_ROOT}/{NAMESPACE}/{LOCKS[half]}", ephemeral=True, parents=True)

    def guard(self, *, takes: bool = True) -> BundleGuard:
        store = self.cluster.open_store(read_only=True)
        configuration = self.configuration.session(read_only=True) if self.configuration else store
        return BundleGuard(lambda: (store, configuration), self.cluster.admin, self.cluster.clock, takes=takes)

    @property
    def asked(self) -> list[Topic]:
        return self.cluster.admin.touched


@pytest.fixture
def here() -> Guarded:
    return Guarded()


def test_policies_whose_bundle_nobody_owns_are_asked_for_first(here: Guarded) -> None:
    here.cluster.admin.topics[EVENTS] = {}
    here.guard().check(ASKED)
    assert here.asked == [EVENTS]


def test_policies_that_are_not_there_yet_too_as_brokers_make_them(here: Guarded) -> None:
    here.cluster.remove(here.cluster.topic_path(EVENTS))
    asked: list[Topic] = []

    def unknown(topic: Topic) -> list[str]:
        asked.append(topic)
        raise NotFound("404")

    here.cluster.admin.subscriptions = unknown  # type: ignore[method-assign]
    here.guard().check(ASKED)
    assert asked == [EVENTS]


@pytest.mark.parametrize("takes", [True, False])
def test_nothing_is_asked_for_where_all_bundles_have_owners(here: Guarded, takes: bool) -> None:
    here.own(0, 1)
    here.guard(takes=takes).check(ASKED)
    assert here.asked == []


@pytest.mark.parametrize("takes", [True, False])
def test_a_lock_of_a_broker_that_died_is_waited_for(here: Guarded, takes: bool) -> None:
    """It is back at the same address, and takes over with all in it what its earlier session had."""
    here.own(THERE)
    here.cluster.remove(f"{BROKERS_ROOT}/{BROKER}")
    here.cluster.open_store().create(f"{BROKERS_ROOT}/{BROKER}", ephemeral=True)
    with pytest.raises(BundleShared, match="its session has not ended: run again"):
        here.guard(takes=takes).check(ASKED)
    assert here.asked == []


def test_who_only_looks_asks_for_nothing_and_is_refused(here: Guarded) -> None:
    with pytest.raises(BundleShared, match=f"{ASKED}: not asked for: .*{CHANGE_EVENTS}.*{BESIDE}"):
        here.guard(takes=False).check(ASKED)
    here.own(1 - THERE)  # somebody has the topic, and has read what is read for it
    here.guard(takes=False).check(ASKED)
    assert here.asked == []


def test_nothing_is_loaded_with_policies_that_are_alone_in_their_bundle(here: Guarded) -> None:
    here.cluster.remove(here.cluster.topic_path(BESIDE))
    here.guard(takes=False).check(ASKED)
    assert here.asked == []


def test_a_namespace_without_topics_has_none_to_load(here: Guarded) -> None:
    here.guard(takes=False).check(Topic.parse("persistent://acme/deleted/t"))
    assert here.asked == []


def test_topics_that_cannot_be_listed_may_be_in_any_bundle(here: Guarded) -> None:
    here.cluster.zookeeper.unreadable.add(f"{MANAGED_LEDGERS_ROOT}/{NAMESPACE}/persistent")
    with pytest.raises(BundleShared, match="cannot be listed"):
        here.guard().check(ASKED)
    assert here.asked == []


def test_what_is_in_its_own_bundle_is_not_loaded_with_it(here: Guarded) -> None:
    here.guard(takes=False).check(BESIDE)
    here.cluster.remove(f"{BUNDLES_ROOT}/{NAMESPACE}")  # now nobody knows which is its own
    with pytest.raises(BundleShared):
        here.guard(takes=False).check(BESIDE)


@pytest.mark.parametrize("switch", ["topicLevelPoliciesEnabled", "systemTopicEnabled"])
def test_what_no_broker_reads_is_not_asked_for(switch: str) -> None:
    here = Guarded(**{switch: "false"})
    here.guard().check(ASKED)
    assert here.asked == []


@pytest.mark.parametrize("segmented", [True, False])
def test_with_transactions_their_snapshots_are_asked_for_after_the_policies(here: Guarded, segmented: bool) -> None:
    """Also after those in the topic's own bundle: who takes another one reads them, as a client."""
    here.say(transactionCoordinatorEnabled="true", transactionBufferSegmentedSnapshotEnabled=str(segmented).lower())
    here.cluster.topic(next(in_half(1 - half_of(SNAPSHOTS))), [])
    wanted = [named(name) for name in (TRANSACTION_BUFFERS[1:] if segmented else TRANSACTION_BUFFERS[:1])]
    for topic in (EVENTS, *wanted):
        here.cluster.admin.topics[topic] = {}
    asked = BESIDE if half_of(wanted[0]) != THERE else ASKED
    here.guard().check(asked)
    assert here.asked == [EVENTS, *(one for one in wanted if half_of(one) != half_of(asked))]


def test_brokers_that_do_not_say_what_they_are_configured_with_may_read_all(here: Guarded) -> None:
    here.cluster.admin.refusing.add(BROKER)
    for topic in map(named, (CHANGE_EVENTS, *TRANSACTION_BUFFERS)):
        here.cluster.admin.owners[topic] = "other:8080"
        here.cluster.admin.topics[topic] = {}
    here.guard().check(ASKED)
    assert EVENTS in here.asked


@pytest.mark.parametrize("there", [True, False])
def test_policies_in_two_bundles_with_others_are_never_asked_for(here: Guarded, there: bool) -> None:
    """Who takes one of the bundles reads the other part, as a client. Brokers may be about to make such."""
    here.cluster.remove(here.cluster.topic_path(EVENTS))
    if there:
        path = f"{PARTITIONED_ROOT}/{EVENTS.managed_ledger}"
        here.cluster.put(path, json.dumps({"partitions": 9}).encode())
    else:
        here.say(allowAutoTopicCreationType="partitioned", defaultNumPartitions="9")
    parts = [named(f"{CHANGE_EVENTS}-partition-{number}") for number in range(9)]
    assert {half_of(one) for one in parts} == {0, 1}
    with pytest.raises(BundleShared):
        here.guard().check(next(one for one in parts if half_of(one) != THERE))
    assert here.asked == []


def test_partitions_that_brokers_are_about_to_make_of_snapshots_are_asked_for(here: Guarded) -> None:
    """Policies are there, in a bundle with an owner."""
    on = {"transactionCoordinatorEnabled": "true", "transactionBufferSegmentedSnapshotEnabled": "false"}
    here.say(**on, allowAutoTopicCreationType="partitioned", defaultNumPartitions="9")
    here.own(half_of(EVENTS))
    asked = next(in_half(half_of(EVENTS)))
    parts = [named(f"{SNAPSHOTS.local}-partition-{number}") for number in range(9)]
    here.cluster.topic(next(in_half(1 - half_of(EVENTS))), [])
    for one in parts:
        here.cluster.admin.topics[one] = {}
    here.guard().check(asked)
    assert here.asked == [one for one in parts if half_of(one) != half_of(EVENTS)]


@pytest.mark.parametrize(
    ("kind", "asked"), [("non-partitioned", [EVENTS]), ("none", [EVENTS]), ("partitioned", None), ("", None)]
)
def test_a_namespace_says_itself_how_its_topics_are_made(here: Guarded, kind: str, asked: list[Topic] | None) -> None:
    """Over what brokers say."""
    here.cluster.remove(here.cluster.topic_path(EVENTS))
    here.say(allowAutoTopicCreationType="partitioned", defaultNumPartitions="1" if kind else "9")
    here.cluster.admin.topics[EVENTS] = {}
    override = {"allowAutoTopicCreation": True, "topicType": kind, "defaultNumPartitions": 9}
    if kind == "none":
        override = {"allowAutoTopicCreation": False}  # nobody says the others then
    policies = {"autoTopicCreationOverride": override if kind else None}
    here.cluster.put(f"{POLICIES_ROOT}/{NAMESPACE}", json.dumps(policies).encode())
    with nullcontext() if asked else pytest.raises(BundleShared, match=f"{CHANGE_EVENTS}-partition-"):
        here.guard().check(ASKED)
    assert here.asked == (asked or [])


@pytest.mark.parametrize("said", [b"[]", b'{"autoTopicCreationOverride": 1}', b"{"])
def test_policies_that_do_not_say_so_in_a_form_that_is_known_are_refused(here: Guarded, said: bytes) -> None:
    """Where brokers make a topic that they read."""
    path = f"{POLICIES_ROOT}/{NAMESPACE}"
    here.cluster.remove(here.cluster.topic_path(EVENTS))
    here.cluster.put(path, said)
    with pytest.raises(BundleShared, match=f"{path}.*autoTopicCreationOverride"):
        here.guard().check(ASKED)
    assert here.asked == []


def test_how_many_partitions_there_are_stands_in_the_configuration_store(here: Guarded) -> None:
    here.cluster.remove(here.cluster.topic_path(EVENTS))
    here.configuration = FakeZooKeeper()
    path = f"{PARTITIONED_ROOT}/{EVENTS.managed_ledger}"
    here.configuration.session().create(path, b'{"partitions": 9}', parents=True)
    with pytest.raises(BundleShared, match=f"{CHANGE_EVENTS}-partition-"):
        here.guard().check(ASKED)
    here.configuration.session().write(path, b"{}", -1)
    with pytest.raises(BundleShared, match=path):
        here.guard().check(ASKED)
    assert here.asked == []


def test_a_broker_that_does_not_take_it_keeps_the_request_back(here: Guarded) -> None:
    here.cluster.admin.topics[EVENTS] = {}
    here.cluster.admin.unreachable.add("gone:8080")
    here.cluster.admin.owners[EVENTS] = "gone:8080"
    with pytest.raises(BundleShared, match=r"no broker takes it alone: .*gone:8080"):
        here.guard().check(ASKED)


def test_a_lock_that_cannot_be_read_is_nobodys(here: Guarded) -> None:
    here.own(0, 1)
    here.cluster.zookeeper.unreadable.add(f"{LOCKS_ROOT}/{NAMESPACE}/{LOCKS[THERE]}")
    with pytest.raises(BundleShared, match=LOCKS[THERE]):
        here.guard().check(ASKED)


@pytest.mark.parametrize("path", [f"{LOCKS_ROOT}/{NAMESPACE}", f"{PARTITIONED_ROOT}/{EVENTS.managed_ledger}"])
def test_what_cannot_be_looked_up_keeps_the_request_back(here: Guarded, path: str) -> None:
    here.cluster.put(path, b"{}")
    here.cluster.zookeeper.unreadable.add(path)
    with pytest.raises(BundleShared):
        here.guard().check(ASKED)
    assert here.asked == []


def test_where_brokers_keep_no_locks_their_lists_count_and_what_was_asked_for_a_moment_ago() -> None:
    here = Guarded(loadManagerClassName=EXTENSIBLE)
    here.cluster.admin.topics[EVENTS] = {}
    guard = here.guard()
    guard.check(ASKED)
    assert here.asked == [EVENTS]
    here.cluster.admin.loaded.clear()  # lists lag
    guard.check(ASKED)
    assert here.asked == [EVENTS]
    here.cluster.clock.advance(TAKEN_FOR / 1000)
    guard.check(ASKED)
    assert here.asked == [EVENTS, EVENTS]
    here.cluster.clock.advance(TAKEN_FOR / 1000)
    here.cluster.load(BESIDE)
    guard.check(ASKED)
    assert here.asked == [EVENTS, EVENTS]
    here.cluster.admin.failure = Unavailable("down")
    guard.check(ASKED)  # by the lists of a moment ago


def test_where_brokers_keep_no_locks_who_only_looks_asks_about_what_they_list() -> None:
    here = Guarded(loadManagerClassName=EXTENSIBLE)
    here.guard(takes=False).check(ASKED)
    assert here.asked == []


def test_system_topics_have_no_transactions(here: Guarded) -> None:
    here.say(transactionCoordinatorEnabled="true")
    here.own(THERE)
    here.cluster.remove(f"{LOCKS_ROOT}/{NAMESPACE}")
    here.guard(takes=False).check(EVENTS)
    assert here.asked == []


def test_topics_of_brokers_themselves_are_asked_about_without_a_look(here: Guarded) -> None:
    here.cluster.zookeeper.unreadable.add(f"{LOCKS_ROOT}/{BROKERS_OWN}")
    here.guard(takes=False).check(Topic.parse(f"persistent://{BROKERS_OWN}/__ledger_deletion"))
    assert here.asked == []


def test_what_was_looked_up_before_brokers_kept_us_waiting_is_looked_up_anew(here: Guarded) -> None:
    """A broker that hangs until its session ends: all its bundles are without an owner then."""
    here.own(0, 1)
    here.cluster.remove(f"{LOCKS_ROOT}/{NAMESPACE}/{LOCKS[half_of(SNAPSHOTS)]}")
    here.cluster.topic(next(in_half(half_of(SNAPSHOTS))), [])
    here.cluster.admin.topics[EVENTS] = {}
    real = here.cluster.admin.configurations

    def late() -> dict[str, Mapping[str, str]]:
        here.cluster.remove(f"{LOCKS_ROOT}/{NAMESPACE}")
        return real()

    here.cluster.admin.configurations = late  # type: ignore[method-assign]
    here.guard().check(ASKED)
    assert here.asked == [EVENTS]


def test_of_a_namespace_of_many_topics_few_are_looked_at(here: Guarded, monkeypatch: pytest.MonkeyPatch) -> None:
    """Each topic that a run loads or unloads is asked about: else a run would take as long as its square."""
    many = 10 * AT_ONCE
    for number in range(many):
        here.cluster.put(f"{MANAGED_LEDGERS_ROOT}/{NAMESPACE}/persistent/t-{number}", b"")
    here.cluster.admin.topics[EVENTS] = {}
    looked_at = list[str]()
    real = Topic.from_managed_ledger

    def counted(name: str) -> Topic:
        looked_at.append(name)
        return real(name)

    monkeypatch.setattr(Topic, "from_managed_ledger", counted)
    here.guard().check(ASKED)
    assert here.asked == [EVENTS]
    assert len(looked_at) < many / 2
