"""Topics that no broker can load, over a scan of fakes and the bookies that are registered."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

import pyarrow as pa
import pytest

from pulsar_lifecycle.formats.ledger_metadata import LedgerState
from pulsar_lifecycle.lifecycle.load.failing_loads import LoadFailure, failing_loads
from pulsar_lifecycle.model import Position, Topic
from tests.kit.fakes.bookie_admin import FakeBookieAdmin, status
from tests.kit.scenes.retention_scene import NAMESPACE, RetentionScene
from tests.kit.simulated.cluster import data_tags

BOOKIE = "bookie-1:3181"


class Loads:
    """Topics of ``acme/orders``; every ledger is on one bookie."""

    def __init__(self, folder: Path, monkeypatch: pytest.MonkeyPatch) -> None:
        self.scene = RetentionScene(folder, monkeypatch)
        self.servers = self.scene.servers
        self.after_scan: Callable[[], None] = lambda: None

    def open_topic(self, name: str, **more: Any) -> int:
        """A topic whose last ledger was never closed; that one."""
        topic = named(name)
        closed = self.servers.ledger(data_tags(topic))
        last = self.servers.ledger(data_tags(topic), state=LedgerState.OPEN)
        self.servers.topic(topic, [closed, last], **more)
        return last

    def subscribed(self, name: str, *, state: LedgerState = LedgerState.CLOSED) -> int:
        """A topic at rest with a subscription that stands in a ledger; that ledger."""
        topic = named(name)
        self.servers.topic(topic, [self.servers.ledger(data_tags(topic))])
        entry = self.servers.position_entry(at=1)
        ledger = self.servers.ledger({**data_tags(topic), "pulsar/cursor": "s"}, state=state, entries=[entry])
        self.servers.cursor(topic, "s", ledger=ledger)
        return ledger

    def found(self, *registered: str, read_only: Sequence[str] = ()) -> pa.Table:
        """While these bookies are registered."""
        epoch = self.scene.scan()
        self.after_scan()
        bookies = FakeBookieAdmin(*registered)
        bookies.statuses |= {one: status(one, read_only=True) for one in read_only}
        connect = type("WithBookies", (self.scene.cluster.connect,), {"bookies": bookies})  # type: ignore[misc]
        return failing_loads(replace(self.scene.cluster, connect=connect), epoch.epoch_id)

    def failing(self, *registered: str, read_only: Sequence[str] = ()) -> dict[str, str]:
        """Codes by the last part of a topic's name."""
        rows = self.found(*registered, read_only=read_only).to_pylist()
        assert len({row["topic"] for row in rows}) == len(rows)
        return {row["topic"].rpartition("/")[2]: row["code"] for row in rows}


def named(name: str) -> Topic:
    return Topic.parse(f"persistent://{NAMESPACE}/{name}")


@pytest.fixture
def loads(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Loads:
    return Loads(tmp_path, monkeypatch)


def test_a_last_ledger_that_no_bookie_can_close_fails_the_load(loads: Loads) -> None:
    loads.open_topic("died")
    loads.scene.topic("at-rest", 100, 100)
    assert loads.failing(BOOKIE) == {}
    assert loads.failing("another:3181") == {"died": LoadFailure.LAST_LEDGER_UNRECOVERABLE}


def test_what_a_broker_has_and_what_does_not_exist_fails_no_load(loads: Loads) -> None:
    """A broker closes the ledger of a topic that it lets go; one that does not exist it drops from the list."""
    loads.open_topic("loaded")
    loads.servers.load(named("loaded"))
    loads.servers.remove(loads.servers.path(loads.open_topic("gone")))
    loads.open_topic("shadow", shadow_of=f"persistent://{NAMESPACE}/source")
    topic = Topic.parse("persistent://pulsar/system/__transaction_log_0")
    ledger = loads.servers.ledger(data_tags(topic), state=LedgerState.OPEN)
    loads.servers.topic(topic, [ledger])
    assert loads.failing() == {}


def test_a_last_ledger_without_metadata_fails_the_load(loads: Loads) -> None:
    loads.servers.put(loads.servers.path(loads.open_topic("bare")), b"")
    assert loads.failing(BOOKIE) == {"bare": LoadFailure.LAST_LEDGER_BARE}


def test_a_cursor_whose_ledger_cannot_be_read_fails_the_load(loads: Loads) -> None:
    loads.subscribed("away")
    loads.subscribed("loaded")
    loads.servers.load(named("loaded"))
    assert loads.failing(BOOKIE) == {}
    assert loads.failing() == {"away": LoadFailure.CURSOR_LEDGER_UNREADABLE}
    loads.servers.put(loads.servers.path(loads.subscribed("bare")), b"")
    assert loads.failing(BOOKIE) == {"bare": LoadFailure.CURSOR_LEDGER_UNREADABLE}


def test_a_cursor_whose_ledger_no_bookie_can_close_would_go_back(loads: Loads) -> None:
    """Whatever brokers are configured with: they load its topic all the same."""
    never_closed = loads.subscribed("never-closed", state=LedgerState.OPEN)
    loads.subscribed("loaded", state=LedgerState.OPEN)
    loads.servers.load(named("loaded"))
    assert loads.failing(BOOKIE) == {}
    assert loads.failing() == {"never-closed": LoadFailure.CURSOR_WOULD_GO_BACK}
    (row,) = loads.found().to_pylist()
    assert (row["cursor"], row["ledger_id"], BOOKIE in row["why"]) == ("s", never_closed, True)


def test_policies_are_read_though_a_cursor_of_their_topic_would_go_back(loads: Loads) -> None:
    loads.subscribed("__change_events", state=LedgerState.OPEN)
    loads.subscribed("client")
    assert loads.failing(BOOKIE) == {}
    assert loads.failing()["__change_events"] == LoadFailure.CURSOR_WOULD_GO_BACK
    assert LoadFailure.POLICIES_UNREADABLE not in loads.failing().values()


def test_what_cannot_be_decoded_fails_the_load(loads: Loads) -> None:
    loads.subscribed("cursor")
    loads.servers.put(f"{loads.servers.topic_path(named('cursor'))}/s", b"\xff")
    loads.subscribed("topic")
    loads.servers.put(loads.servers.topic_path(named("topic")), b"\xff")
    found = {"cursor": LoadFailure.CURSOR_UNDECODABLE, "topic": LoadFailure.TOPIC_UNDECODABLE}
    assert loads.failing(BOOKIE) == found


def test_each_says_which_ledger_and_which_bookies(loads: Loads) -> None:
    died, away = loads.open_topic("died"), loads.subscribed("away")
    found = {row["topic"]: row for row in loads.found().to_pylist()}
    last, cursors = found[str(named("died"))], found[str(named("away"))]
    assert (last["ledger_id"], cursors["ledger_id"], last["cursor"], cursors["cursor"]) == (died, away, None, "s")
    assert all(BOOKIE in row["why"] for row in (last, cursors))


def test_no_topic_is_loaded_while_too_few_bookies_take_its_next_ledger(loads: Loads) -> None:
    """Read-only ones take none. One whose namespace wants fewer, a terminated one and a shadow topic need none."""
    servers = loads.servers
    servers.admin.configuration = {one: {"managedLedgerDefaultEnsembleSize": "2"} for one in servers.admin.broker_ids}
    loads.scene.topic("at-rest", 100)
    loads.open_topic("died")
    loads.open_topic("shadow", shadow_of=f"persistent://{NAMESPACE}/source")
    ended = servers.ledger(data_tags(named("ended")))
    servers.topic(named("ended"), [ended], terminated=Position(ended, 0))
    servers.topic(named("loaded"), [servers.ledger(data_tags(named("loaded")))])
    servers.load(named("loaded"))
    few = LoadFailure.TOO_FEW_BOOKIES
    assert loads.failing(BOOKIE, "another:3181") == {}
    assert loads.failing(BOOKIE, "another:3181", read_only=["another:3181"]) == {"at-rest": few, "died": few}
    why = loads.found(BOOKIE).column("why").to_pylist()
    assert set(why) == {"a load begins a ledger on 2 bookies, and 1 of 1 registered take entries"}
    servers.put(f"/admin/policies/{NAMESPACE}", b'{"persistence": {"bookkeeperEnsemble": 1}}')
    assert loads.failing(BOOKIE) == {}


def test_no_topic_is_loaded_whose_namespaces_policies_no_broker_can_load(loads: Loads) -> None:
    """System topics wait for none, and nobody does where topics have none."""
    loads.scene.topic("at-rest", 100)
    loads.scene.topic("__transaction_buffer_snapshot", 100)
    events = loads.open_topic("__change_events")
    assert loads.failing(BOOKIE) == {}
    loads.servers.put(loads.servers.path(events), b"")
    bare = {"__change_events": LoadFailure.LAST_LEDGER_BARE}
    assert loads.failing(BOOKIE) == {**bare, "at-rest": LoadFailure.POLICIES_UNREADABLE}
    admin = loads.servers.admin
    admin.configuration = {one: {"topicLevelPoliciesEnabled": "false"} for one in admin.broker_ids}
    assert loads.failing(BOOKIE) == bare


def test_what_brokers_go_on_after_fails_no_load_where_all_of_them_say_so(loads: Loads) -> None:
    """With lazy cursors they load the topic without the cursor; forced, a cursor whose ledger is lost goes back."""
    admin = loads.servers.admin
    loads.subscribed("away")
    loads.subscribed("corrupt")
    loads.servers.put(f"{loads.servers.topic_path(named('corrupt'))}/s", b"\xff")
    corrupt = {"corrupt": LoadFailure.CURSOR_UNDECODABLE}
    both = {**corrupt, "away": LoadFailure.CURSOR_LEDGER_UNREADABLE}
    first, *others = admin.broker_ids
    for name, left in (("managedLedgerForceRecovery", corrupt), ("lazyCursorRecovery", {})):
        admin.configuration = {first: {name: "true"}, **{one: {name: "true"} for one in others}}
        assert loads.failing() == left
        admin.configuration = {first: {name: "false"}, **{one: {name: "true"} for one in others}}
        assert loads.failing() == both


def test_undecodable_z_nodes_of_loaded_topics_are_named(loads: Loads) -> None:
    """The next broker cannot load them."""
    loads.subscribed("loaded")
    loads.servers.load(named("loaded"))
    loads.servers.put(f"{loads.servers.topic_path(named('loaded'))}/s", b"\xff")
    assert loads.failing(BOOKIE) == {"loaded": LoadFailure.CURSOR_UNDECODABLE}


def test_what_no_broker_says_and_odd_policies_leave_the_rest_known(loads: Loads) -> None:
    servers = loads.servers
    loads.scene.topic("at-rest", 100)
    last = loads.open_topic("bare")
    servers.put(servers.path(last), b"")
    servers.put(f"/admin/policies/{NAMESPACE}", b'{"persistence": "odd"}')
    loads.after_scan = lambda: servers.admin.refusing.update(servers.admin.broker_ids)
    assert loads.failing(BOOKIE) == {"bare": LoadFailure.LAST_LEDGER_BARE}


def test_whether_topics_have_policies_is_not_known_where_no_broker_says_its_configuration(loads: Loads) -> None:
    loads.scene.topic("at-rest", 100)
    loads.servers.put(loads.servers.path(loads.open_topic("__change_events")), b"")
    admin = loads.servers.admin
    loads.after_scan = lambda: admin.refusing.update(admin.broker_ids)
    assert loads.failing(BOOKIE) == {"__change_events": LoadFailure.LAST_LEDGER_BARE}
