"""A plan of inactive topics over fakes: what is as planned goes whole, what changed stays by its code."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from pulsar_lifecycle.errors import BundleShared, Paused
from pulsar_lifecycle.formats import cursor as cursor_format
from pulsar_lifecycle.formats import ledger_metadata
from pulsar_lifecycle.formats.ledger_metadata import LedgerState
from pulsar_lifecycle.lifecycle.activity.inactive_planning import make_inactive_plans
from pulsar_lifecycle.model import Position, Topic
from pulsar_lifecycle.runs import control
from pulsar_lifecycle.runs.caps import Lowered, Order
from pulsar_lifecycle.topics.protection import Protection
from pulsar_lifecycle.trimming.inactive_run import delete_inactive
from pulsar_lifecycle.values.codes import Code
from pulsar_lifecycle.values.outcomes import Action, Outcome
from pulsar_lifecycle.values.plans import inactive_plan
from pulsar_lifecycle.values.plans.inactive_plan import InactiveKept
from pulsar_lifecycle.values.plans.plan_summary import PlanSummary
from pulsar_lifecycle.values.refusals import RefusalCode
from tests.kit.crash import Crash, raising
from tests.kit.fakes.clock import FakeClock
from tests.kit.refused import refused_by
from tests.kit.scenes.lifecycle.activity_scene import ActivityScene, kept, never_deleted
from tests.kit.scenes.retention_scene import MB, NAMESPACE
from tests.kit.simulated.cluster import cursor_tags
from tests.kit.simulated.functions import functions_subscribe, set_functions


@pytest.fixture
def scene(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> ActivityScene:
    found = ActivityScene(tmp_path, monkeypatch)
    found.choose(period=86_400.0)
    found.work()
    found.servers.admin.on_delete = lambda topic: found.servers.remove(found.servers.topic_path(topic))
    return found


def plan(scene: ActivityScene, *names: str) -> PlanSummary:
    """The plan of topics, which has these."""
    scene.ready(*names)
    report = scene.days(2)
    assert scene.epoch
    (topics, rows), _ = make_inactive_plans(scene.cluster, scene.epoch, report)
    assert sorted(row["topic"].rpartition("/")[2] for row in rows.to_pylist()) == sorted(names)
    return topics


def apply(scene: ActivityScene, made: PlanSummary, *, dry_run: bool = False, limit: int = 0) -> dict[str, Any]:
    """Outcome and code by topic."""
    order = Order(made.plan_id, made.digest, limit=limit)
    done = delete_inactive(scene.cluster, "run", order, dry_run=dry_run)
    return {one.topic.rpartition("/")[2]: (one.outcome, one.why.code) for one in done if one.ledger_id < 0}


def there(scene: ActivityScene, name: str) -> bool:
    return scene.servers.topic_path(scene.named(name)) in scene.servers.zookeeper._nodes


def test_a_topic_that_is_put_on_hold_meanwhile_is_not_deleted(scene: ActivityScene) -> None:
    scene.used("a")
    scene.used("b")
    made = plan(scene, "a", "b")
    gone = list[str]()

    def held(topic: Topic) -> None:
        gone.append(topic.local)
        scene.servers.remove(scene.servers.topic_path(topic))
        scene.hold(NAMESPACE)

    scene.servers.admin.on_delete = held
    (first,) = (name for name, said in apply(scene, made).items() if said == (Outcome.REMOVED, Code.TOPIC_DELETED))
    assert gone == [first]
    assert [there(scene, name) for name in "ab"] == [name != first for name in "ab"]


def test_inactive_topics_of_a_plan_are_deleted_and_journalled(scene: ActivityScene) -> None:
    ids = scene.used("a", "s")
    scene.used("b")
    made = plan(scene, "a", "b")
    assert apply(scene, made, dry_run=True) == dict.fromkeys("ab", (Outcome.GOES, Code.MAY_GO))
    assert there(scene, "a")
    assert apply(scene, made) == dict.fromkeys("ab", (Outcome.REMOVED, Code.TOPIC_DELETED))
    assert not there(scene, "a")
    rows = [row for row in scene.servers.journal.rows if row.topic.endswith("/a")]
    own = [row for row in rows if row.action == Action.DELETE_TOPIC]
    assert [(row.outcome, row.code) for row in own] == [
        (Outcome.BEGUN, Code.ABOUT_TO),
        (Outcome.DONE, Code.TOPIC_DELETED),
    ]
    assert {row.ledger_id for row in rows} == {-1, *ids}
    assert {row.plan_id for row in rows} == {made.plan_id}
    assert apply(scene, made) == dict.fromkeys("ab", (Outcome.NOTHING, Code.TOPIC_GONE))
    assert scene.servers.journal.rows[-1].outcome == Outcome.NOTHING


def _loaded(scene: ActivityScene) -> None:
    scene.servers.admin.internal_stats(scene.named("a"))


def _written(scene: ActivityScene) -> None:
    scene.write("a")


def _read(scene: ActivityScene) -> None:
    ids = scene.listed("a")
    scene.at("a", "s", Position(ids[0], 0))


def _in_another_cursor_ledger(scene: ActivityScene) -> None:
    """Where it stood before: somebody had it open."""
    at = Position(scene.listed("a")[-1], 0)
    entry = cursor_format.encode_position(cursor_format.PositionInfo(at))
    ledger = scene.servers.ledger(cursor_tags(scene.named("a"), "s"), entries=[entry])
    path = f"{scene.servers.topic_path(scene.named('a'))}/s"
    scene.servers.put(path, cursor_format.encode(cursor_format.ManagedCursorInfo(ledger, at)))


def _subscribed(scene: ActivityScene) -> None:
    scene.at("a", "new", Position(scene.listed("a")[-1], 0))


def _connected(scene: ActivityScene) -> None:
    scene.clients("a", producers=1)


def _listed(scene: ActivityScene) -> None:
    scene.clients("a")


def _reopened(scene: ActivityScene) -> None:
    path = scene.servers.path(scene.listed("a")[-1])
    metadata = ledger_metadata.decode(scene.servers.zookeeper.data(path))
    unknown = replace(metadata, state=LedgerState.OPEN, length=0, last_entry_id=-1)
    scene.servers.put(path, ledger_metadata.encode(unknown))


def _created_anew(scene: ActivityScene) -> None:
    scene.servers.remove(scene.servers.topic_path(scene.named("a")))
    scene.used("a", "s")


def _retained(scene: ActivityScene) -> None:
    scene.retention(-1, -1)


def _held(scene: ActivityScene) -> None:
    section = scene.settings.orphans.model_validate({"legal_holds": [NAMESPACE], "grace_period": 0, "confirm_after": 0})
    changed = scene.settings.model_copy(update={"orphans": section})
    object.__setattr__(scene.cluster, "settings", changed)


def _named_kept(scene: ActivityScene) -> None:
    scene.choose(kept_subscriptions=("s",))


def _of_a_function(scene: ActivityScene) -> None:
    functions_subscribe(scene.servers, "s")


def _functions_unread(scene: ActivityScene) -> None:
    set_functions(scene.servers, b"no metadata")


def _system(scene: ActivityScene) -> None:
    scene.configure(additionalSystemCursorNames="[s]")


def _shared(scene: ActivityScene) -> None:
    scene.servers.admin.on_take = raising(BundleShared("beside"))


def _compacted(scene: ActivityScene) -> None:
    scene.at("a", "__compaction", Position(scene.listed("a")[-1], 0))


def _not_chosen(scene: ActivityScene) -> None:
    scene.choose(topics=())


@pytest.mark.parametrize(
    ("change", "expected"),
    [
        (_loaded, Protection.LOADED),
        (_written, Code.CHANGED_SINCE_PLAN),
        (_read, Code.CHANGED_SINCE_PLAN),
        (_in_another_cursor_ledger, Code.CHANGED_SINCE_PLAN),
        (_subscribed, Code.CHANGED_SINCE_PLAN),
        (_created_anew, Code.CHANGED_SINCE_PLAN),
        (_connected, InactiveKept.USED_LATELY),
        (_listed, Protection.LOADED),
        (_reopened, InactiveKept.LEDGER_OPEN),
        (_retained, Code.CHANGED_SINCE_PLAN),
        (_held, Protection.LEGAL_HOLD),
        (_not_chosen, InactiveKept.NOT_CHOSEN),
        (_named_kept, InactiveKept.NAMED_KEPT),
        (_system, InactiveKept.SYSTEM_CURSOR),
        (_of_a_function, InactiveKept.FUNCTION_SUBSCRIPTION),
        (_functions_unread, InactiveKept.FUNCTIONS_UNKNOWN),
        (_compacted, InactiveKept.COMPACTED),
        (_shared, Code.BUNDLE_SHARED),
    ],
)
def test_a_topic_that_is_not_as_planned_stays(
    scene: ActivityScene, change: Callable[[ActivityScene], None], expected: Any
) -> None:
    scene.used("a", "s")
    made = plan(scene, "a")
    change(scene)
    assert apply(scene, made) == {"a": (Outcome.REFUSED, expected)}
    assert there(scene, "a")


def test_a_policy_of_the_topic_since_the_plan_keeps_it(scene: ActivityScene) -> None:
    scene.used("a", "s")
    made = plan(scene, "a")
    never_deleted(scene, "a")
    assert apply(scene, made) == {"a": (Outcome.REFUSED, InactiveKept.OWNER_KEEPS)}
    assert there(scene, "a")


def test_a_topic_that_was_loaded_when_scanned_is_in_no_plan(scene: ActivityScene) -> None:
    scene.used("a", "s")
    scene.ready("a")
    scene.servers.admin.internal_stats(scene.named("a"))
    scene.clients("a")
    report = scene.days(3)
    assert kept(report.topics) == {"a": Protection.LOADED}


def test_a_topic_that_changes_between_the_messages_and_the_request_stays(scene: ActivityScene) -> None:
    scene.used("a", "s")
    made = plan(scene, "a")
    queue = scene.open_queue

    def sending() -> Any:
        _written(scene)
        scene.open_queue = queue
        return queue()

    opened = scene.servers.deletion_topics
    assert opened is not None
    scene.open_queue = sending
    found = apply(scene, made)
    assert found["a"][0] in (Outcome.FAILED, Outcome.REFUSED)
    assert found["a"][1] == Code.CHANGED_SINCE_PLAN
    assert there(scene, "a")


def test_partitions_go_together_or_not_at_all(scene: ActivityScene) -> None:
    names = [f"p-partition-{n}" for n in range(3)]
    for name in names:
        scene.used(name)
    scene.used("b")
    made = plan(scene, *names, "b")
    scene.write("p-partition-1")
    stays = (Outcome.LEFT, InactiveKept.PARTITION_STAYS)
    assert apply(scene, made) == {
        "p-partition-0": stays,
        "p-partition-1": (Outcome.REFUSED, Code.CHANGED_SINCE_PLAN),
        "p-partition-2": stays,
        "b": (Outcome.REMOVED, Code.TOPIC_DELETED),
    }
    assert all(there(scene, name) for name in names)


def test_a_partition_for_which_others_would_be_loaded_keeps_those_before_it(scene: ActivityScene) -> None:
    names = [f"p-partition-{n}" for n in range(3)]
    for name in names:
        scene.used(name)
    made = plan(scene, *names)

    def take(topic: Topic) -> None:
        if topic == scene.named(names[2]):
            raise BundleShared("beside")

    scene.servers.admin.on_take = take
    stays = (Outcome.LEFT, InactiveKept.PARTITION_STAYS)
    assert apply(scene, made) == {names[0]: stays, names[1]: stays, names[2]: (Outcome.REFUSED, Code.BUNDLE_SHARED)}
    assert all(there(scene, name) for name in names)


def test_a_launch_that_takes_some_partitions_only_takes_none(scene: ActivityScene) -> None:
    names = [f"p-partition-{n}" for n in range(3)]
    for name in names:
        scene.used(name)
    made = plan(scene, *names)
    assert set(apply(scene, made, limit=2).values()) == {(Outcome.LEFT, InactiveKept.PARTITION_STAYS)}
    assert set(apply(scene, made).values()) == {(Outcome.REMOVED, Code.TOPIC_DELETED)}


@pytest.mark.parametrize("said", [0, 2])
def test_a_partition_that_is_new_keeps_the_others(scene: ActivityScene, said: int) -> None:
    scene.used("p-partition-0")
    made = plan(scene, "p-partition-0")
    scene.used("p-partition-1")
    scene.servers.admin.partition_counts[scene.named("p")] = said
    assert apply(scene, made) == {"p-partition-0": (Outcome.LEFT, InactiveKept.PARTITION_STAYS)}


def test_a_topic_whose_name_ends_as_no_partitions_does_is_none(scene: ActivityScene) -> None:
    """Brokers take "01" for no partition's number: such a topic is one of its own."""
    for name in ("p-partition-0", "p-partition-01"):
        scene.used(name)
    scene.choose(topics=(str(scene.named("p")),))
    made = plan(scene, "p-partition-0")
    assert apply(scene, made) == {"p-partition-0": (Outcome.REMOVED, Code.TOPIC_DELETED)}


def test_an_order_of_another_topic_is_none_of_a_topic_whose_name_ends_as_no_partitions_does(
    scene: ActivityScene,
) -> None:
    scene.used("p-partition-01")
    made = plan(scene, "p-partition-01")
    scene.choose(topics=(str(scene.named("p")),))
    assert apply(scene, made) == {"p-partition-01": (Outcome.REFUSED, InactiveKept.NOT_CHOSEN)}


def test_topics_whose_namespace_is_gone_are_gone(scene: ActivityScene) -> None:
    for name in ("p-partition-0", "p-partition-1"):
        scene.used(name)
    made = plan(scene, "p-partition-0", "p-partition-1")
    scene.servers.remove(f"/managed-ledgers/{NAMESPACE}/persistent")
    assert set(apply(scene, made).values()) == {(Outcome.NOTHING, Code.TOPIC_GONE)}


@pytest.mark.parametrize("ahead", [30, 3600])
def test_a_plan_by_a_clock_that_is_ahead_waits_or_is_refused(scene: ActivityScene, ahead: int) -> None:
    scene.used("a")
    made = plan(scene, "a")
    later = replace(made, created_at=scene.now + ahead * 1000)
    rows = scene.lake.inactive_plan(made.plan_id)[1]
    later = replace(later, digest=inactive_plan.digest(rows, later.to_json()))
    scene.lake.store_inactive_plan(later, rows)
    store_time = scene.now
    scene.servers.clock.advance(ahead)
    scene.servers.zookeeper.clock = FakeClock(store_time)
    if ahead > 60:
        with refused_by(RefusalCode.CLOCKS_DIFFER):
            apply(scene, later)
        assert there(scene, "a")
    else:
        assert apply(scene, later) == {"a": (Outcome.REMOVED, Code.TOPIC_DELETED)}


def test_a_partition_that_its_broker_does_not_delete_ends_its_group(scene: ActivityScene) -> None:
    names = [f"p-partition-{n}" for n in range(3)]
    for name in names:
        scene.used(name)
    made = plan(scene, *names)
    scene.servers.admin.on_delete = lambda topic: None
    (first, *rest) = apply(scene, made).values()
    assert first[1] == Code.TOPIC_STAYS
    assert rest == [(Outcome.LEFT, InactiveKept.PARTITION_STAYS)] * 2
    assert all(there(scene, name) for name in names)


@pytest.mark.parametrize("after", [False, True])
def test_a_run_that_was_killed_is_ended_by_the_next(scene: ActivityScene, after: bool) -> None:
    for name in ("p-partition-0", "p-partition-1", "b"):
        scene.used(name)
    made = plan(scene, "p-partition-0", "p-partition-1", "b")
    delete = scene.servers.admin.on_delete

    def dying(topic: Any) -> None:
        if after:
            delete(topic)
        raise Crash

    load = scene.servers.admin.on_load
    scene.servers.admin.on_load = load if after else dying
    scene.servers.admin.on_delete = dying
    with pytest.raises(Crash):
        apply(scene, made)
    scene.servers.admin.on_load, scene.servers.admin.on_delete = load, delete
    scene.servers.wait(0.1)
    found = apply(scene, made)
    first = (Outcome.NOTHING, Code.TOPIC_GONE) if after else (Outcome.REMOVED, Code.TOPIC_DELETED)
    assert sorted(found.values()) == sorted([first, *[(Outcome.REMOVED, Code.TOPIC_DELETED)] * 2])
    assert not any(there(scene, name) for name in ("p-partition-0", "p-partition-1", "b"))


def test_a_plan_is_refused_that_is_stale_or_paused_or_beyond_the_caps(scene: ActivityScene) -> None:
    scene.used("a")
    made = plan(scene, "a")
    scene.servers.put(control.PAUSE, b"{}")
    with pytest.raises(Paused):
        apply(scene, made)
    scene.servers.remove(control.PAUSE)
    with refused_by(RefusalCode.MAX_BYTES):
        delete_inactive(scene.cluster, "run", Order(made.plan_id, made.digest, Lowered(max_bytes=1)), dry_run=False)
    scene.servers.wait(25)
    with refused_by(RefusalCode.PLAN_EXPIRED):
        apply(scene, made)
    assert there(scene, "a")


def test_the_cap_of_bytes_counts_every_replica(scene: ActivityScene) -> None:
    scene.servers.replicate(scene.used("a"), 3, MB)
    made = plan(scene, "a")
    assert (made.logical_bytes, made.physical_bytes) == (2 * MB, 6 * MB)
    caps = Lowered(max_bytes=6 * MB - 1)
    with refused_by(RefusalCode.MAX_BYTES) as refused:
        delete_inactive(scene.cluster, "run", Order(made.plan_id, made.digest, caps), dry_run=False)
    assert str(6 * MB) in str(refused.value)
    assert apply(scene, made) == {"a": (Outcome.REMOVED, Code.TOPIC_DELETED)}


def test_a_dry_run_counts_every_ledger_against_the_caps(scene: ActivityScene) -> None:
    scene.used("a")  # a topic of two ledgers
    made = plan(scene, "a")
    order = Order(made.plan_id, made.digest, Lowered(max_ledgers_per_topic=1))
    for dry_run in (True, False):
        with refused_by(RefusalCode.MAX_LEDGERS_PER_TOPIC):
            delete_inactive(scene.cluster, "run", order, dry_run=dry_run)
    assert there(scene, "a")


def test_a_period_under_a_day_is_report_only_but_for_the_sandbox(scene: ActivityScene) -> None:
    scene.choose(period=60.0)
    scene.used("a")
    assert plan(scene, "a").actionable
    scene.servers.remove(control.SANDBOX)
    assert not plan(scene, "a").actionable


def test_a_topic_that_was_never_loaded_goes_too(scene: ActivityScene) -> None:
    scene.servers.topic(scene.named("never"))
    made = plan(scene, "never")
    scene.servers.admin.on_load = lambda topic: None
    assert apply(scene, made)["never"] == (Outcome.REMOVED, Code.TOPIC_DELETED)
