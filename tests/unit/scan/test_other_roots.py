"""What stands on our ZooKeeper beside us is found, and what no setting speaks of is a gap."""

from __future__ import annotations

from collections.abc import Collection

import pytest

from pulsar_lifecycle.scan.neighbours import undeclared
from pulsar_lifecycle.scan.other_roots import look_around
from pulsar_lifecycle.settings import ZooKeeperSettings
from pulsar_lifecycle.values.gaps import GapCode
from tests.kit.fakes.metadata_store import FakeStore, FakeZooKeeper


def cluster(store: FakeStore, root: str = "", *, bookie: str = "b1", instance: str = "i1") -> None:
    for path in ("/managed-ledgers/acme/orders/persistent", "/schemas", "/loadbalance/brokers"):
        store.create(f"{root}{path}", parents=True)
    store.create(f"{root}/ledgers/INSTANCEID", instance.encode(), parents=True)
    cookie = f'5\nbookieHost: "{bookie}"\ninstanceId: "{instance}"\n'
    store.create(f"{root}/ledgers/cookies/{bookie}", cookie.encode(), parents=True)


def gaps(store: FakeStore, chroot: str = "", not_sharing: Collection[str] = ()) -> list[tuple[GapCode, str]]:
    found = look_around(store, chroot, "/ledgers")
    return [(gap.code, gap.where) for gap in undeclared(found, [], [], not_sharing)]


@pytest.mark.parametrize(
    ("ours", "theirs"),
    [
        *[("", "/two"), ("", "/pulsar/two"), ("/one", "/two"), ("/one", ""), ("/a/one", "/a/two")],
        *[("/one", "/one/two"), ("/a/one", "/a/one/x/two"), ("/a/b/c/one", "/a/b/c/two"), ("/a/one", "/a")],
    ],
)
def test_a_second_root_is_found_wherever_it_is(ours: str, theirs: str) -> None:
    store = FakeZooKeeper().session()
    cluster(store, ours)
    assert gaps(store, ours) == []
    cluster(store, theirs, bookie="b2", instance="i2")
    assert gaps(store, ours) == [(GapCode.OTHER_ROOT, theirs or "/")]
    assert gaps(store, ours, [theirs or "/"]) == []


@pytest.mark.parametrize("sign", ["/managed-ledgers", "/schemas", "/loadbalance/brokers", "/ledgers/cookies/b1"])
def test_one_sign_of_a_cluster_is_enough(sign: str) -> None:
    store = FakeZooKeeper().session()
    cluster(store)
    store.create(f"/two{sign}", parents=True)
    assert gaps(store) == [(GapCode.OTHER_ROOT, "/two")]


def test_other_systems_and_a_configuration_store_are_no_gap() -> None:
    store = FakeZooKeeper().session()
    cluster(store)
    store.create("/managed-ledgers/schemas/orders/persistent", parents=True)  # a tenant of ours
    for path in ("/kafka/brokers/ids", "/config/admin/clusters/west", "/bk/ledgers/cookies/b9", "/zookeeper/quota"):
        store.create(path, parents=True)
    assert gaps(store) == []


def test_a_declared_root_is_known_by_its_birth_and_one_without_topics_by_its_chroot() -> None:
    store = FakeZooKeeper().session()
    cluster(store)
    cluster(store, "/two", bookie="b2")
    store.create("/three/schemas", parents=True)
    found = look_around(store, "", "/ledgers")
    births = {root.born for root in found.roots if root.born}
    assert [gap.where for gap in undeclared(found, births, [], [])] == ["/three"]
    assert [gap.where for gap in undeclared(found, [], ["/two", "/three"], [])] == ["/two"]


def test_what_may_not_be_listed_is_a_gap_until_somebody_says_that_he_looked() -> None:
    store = FakeZooKeeper().session()
    cluster(store)
    cluster(store, "/two")
    store.server.unreadable |= {"/", "/two/managed-ledgers"}
    assert gaps(store) == [(GapCode.OTHER_ROOT_UNLISTED, "/")]
    assert gaps(store, not_sharing=["/"]) == []
    store.server.unreadable.remove("/")
    assert gaps(store, not_sharing=["/"]) == [(GapCode.OTHER_ROOT, "/two")]
    store.server.unreadable = {"/two"}
    assert gaps(store) == [(GapCode.OTHER_ROOT, "/two"), (GapCode.OTHER_ROOT_UNLISTED, "/two")]


def test_who_may_not_list_the_top_still_sees_what_is_beside_us() -> None:
    store = FakeZooKeeper().session()
    cluster(store, "/a/one")
    cluster(store, "/a/two")
    store.server.unreadable |= {"/"}
    assert gaps(store, "/a/one", not_sharing=["/"]) == [(GapCode.OTHER_ROOT, "/a/two")]


def test_bookies_of_another_instance_below_our_root_are_a_gap() -> None:
    store = FakeZooKeeper().session()
    cluster(store)
    store.create("/ledgers/cookies/b2", b'5\nbookieHost: "b2"\ninstanceId: "i2"\n')
    assert gaps(store, not_sharing=["b2"]) == [(GapCode.OTHER_BOOKIES, "b2")]


def test_the_whole_of_a_zookeeper_is_reached_without_the_chroot() -> None:
    settings = ZooKeeperSettings(hosts="a:1,b:2/one/two", session_timeout=3)
    assert settings.without_chroot() == (settings.model_copy(update={"hosts": "a:1,b:2"}), "/one/two")
    assert ZooKeeperSettings(hosts="a:1").without_chroot()[1] == ""
    assert ZooKeeperSettings(hosts="a:1/").without_chroot()[1] == ""
