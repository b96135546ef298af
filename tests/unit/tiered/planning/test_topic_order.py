"""Plans by order: topics, a position up to which, namespaces; and a cluster that has nothing to offload."""

from __future__ import annotations

import json
from collections.abc import Callable
from functools import partial
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from pulsar_lifecycle.deletion.planning import judged_scan
from pulsar_lifecycle.errors import UsageError
from pulsar_lifecycle.model import Topic
from pulsar_lifecycle.runs.cluster import Cluster
from pulsar_lifecycle.settings import ObjectStoreSettings
from pulsar_lifecycle.tiered.planning.offload_planning import TABLE, make_offload_plan, policies_now
from pulsar_lifecycle.topics.load_losses import LoadLoss
from pulsar_lifecycle.topics.offload_policy import OffloadPolicy
from pulsar_lifecycle.values.plans.offload_plan import OffloadChoice, OffloadCode
from tests.kit.command import run
from tests.kit.scenes.retention_scene import NAMESPACE, RetentionScene
from tests.kit.scenes.tiered.offload_candidates import LAST, complete, judged, ledger, state

OWN = f"persistent://{NAMESPACE}/"
BUCKET, ENDPOINT = "tiered", "http://s3"


class Offloading:
    """A scene whose namespace has a driver and, unless it is said, no threshold."""

    def __init__(self, scene: RetentionScene) -> None:
        self.scene = scene
        policies = {
            "managedLedgerOffloadDriver": "aws-s3",
            "managedLedgerOffloadBucket": BUCKET,
            "managedLedgerOffloadServiceEndpoint": ENDPOINT,
            "managedLedgerOffloadedReadPriority": "tiered-storage-first",
        }
        scene.servers.put(f"/admin/policies/{NAMESPACE}", json.dumps({"offload_policies": policies}).encode())
        store = ObjectStoreSettings(buckets=(BUCKET,), endpoint=ENDPOINT, pulsar_cluster="fake")
        settings = scene.settings.model_copy(update={"object_store": store})
        self.cluster = Cluster(settings, connect=scene.cluster.connect, given=scene.cluster.given)

    def planned(self, **order: Any) -> list[int]:
        """The ledgers that a plan of a new scan offloads."""
        epoch = judged_scan.scan(self.cluster, "run")
        self.epoch_id = epoch.epoch_id
        plan, rows = make_offload_plan(self.cluster, epoch, **order)
        assert rows.num_rows == plan.ledgers + plan.copies
        assert plan.ordered == bool(order.get("topics") or order.get("everything"))
        return [row["ledger_id"] for row in rows.to_pylist() if row["action"] == OffloadChoice.OFFLOAD]

    def codes(self) -> dict[int, str]:
        """Of every ledger that the plan judged."""
        return {
            row["ledger_id"]: row["code"]
            for row in self.cluster.lake.read_epoch_table(self.epoch_id, TABLE).to_pylist()
        }


@pytest.fixture
def scene(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> RetentionScene:
    return RetentionScene(tmp_path, monkeypatch)


@pytest.fixture
def offloading(scene: RetentionScene) -> Offloading:
    return Offloading(scene)


def test_a_topic_goes_by_order_whatever_the_thresholds(offloading: Offloading) -> None:
    ids, others = offloading.scene.topic("a", 9, 8, 7), offloading.scene.topic("b", 9, 8)
    assert offloading.planned() == []
    assert offloading.planned(topics=[f"{OWN}a"]) == ids[:2]
    assert offloading.codes() == {
        ids[0]: OffloadCode.ASKED_FOR,
        ids[1]: OffloadCode.ASKED_FOR,
        ids[2]: OffloadCode.LAST_LEDGER,
    }
    assert offloading.planned(namespaces=[NAMESPACE], everything=True) == sorted([*ids[:2], others[0]])


def test_up_to_a_position_its_own_ledger_stays(offloading: Offloading) -> None:
    ids = offloading.scene.topic("a", 9, 8, 7, 6)
    assert offloading.planned(topics=[f"{OWN}a"], upto=f"{ids[2]}:0") == ids[:2]
    assert offloading.codes()[ids[2]] == OffloadCode.BEYOND_POSITION
    assert offloading.planned(topics=[f"{OWN}a"], upto=f"{ids[2]}:17:3") == ids[:2]
    assert offloading.planned(topics=[f"{OWN}a"], upto=f"{ids[0]}:5") == []
    assert offloading.planned(topics=[f"{OWN}a"], upto=f"{ids[3]}:0") == ids[:3]


def test_a_partitioned_topic_stands_for_its_partitions(offloading: Offloading) -> None:
    zero, one = (offloading.scene.topic(f"a-partition-{n}", 9, 8) for n in range(2))
    offloading.scene.topic("a-b", 9, 8)
    assert offloading.planned(topics=[f"{OWN}a"]) == sorted([zero[0], one[0]])
    assert offloading.planned(topics=[f"{OWN}a-partition-1"]) == one[:1]


@pytest.mark.parametrize(
    ("order", "said"),
    [
        ({"topics": [f"{OWN}none"]}, "no such topic in scan"),
        ({"topics": ["acme/orders/a"]}, "topics: topic name"),
        ({"topics": ["non-persistent://acme/orders/a"]}, "only persistent topics"),
        ({"topics": [f"{OWN}a"], "upto": "4711:0"}, "has no ledger 4711"),
        ({"topics": [f"{OWN}a"], "upto": "latest"}, "upto: position"),
        ({"topics": [f"{OWN}a", f"{OWN}b"], "upto": "1:0"}, "2 are named"),
        ({"upto": "1:0"}, "name it in topics"),
        ({"namespaces": ["acme/gone"]}, "acme/gone: no such namespace"),
        ({"topics": [f"{OWN}a"], "namespaces": [NAMESPACE]}, "exclude each other"),
    ],
)
def test_what_is_no_order_is_refused_by_name(offloading: Offloading, order: dict[str, Any], said: str) -> None:
    offloading.scene.topic("a", 9, 8)
    offloading.scene.topic("b", 9, 8)
    with pytest.raises(UsageError, match=said):
        offloading.planned(**order)


def test_a_cluster_where_no_namespace_has_an_offload_policy_has_an_empty_plan(scene: RetentionScene) -> None:
    scene.topic("a", 9, 8)
    plan, rows = make_offload_plan(scene.cluster, judged_scan.scan(scene.cluster, "run"))
    assert (rows.num_rows, plan.ledgers, plan.copies) == (0, 0, 0)


def test_policies_that_cannot_be_decoded_leave_out_their_own_namespace_alone(offloading: Offloading) -> None:
    ids = offloading.scene.topic("a", 9, 8)
    bad = "/admin/policies/acme/bad"
    offloading.scene.servers.put(bad, b"\xff")
    epoch = judged_scan.scan(offloading.cluster, "run")
    plan, rows = make_offload_plan(offloading.cluster, epoch, [NAMESPACE], everything=True)
    assert (rows.column("ledger_id").to_pylist(), plan.gaps, plan.warnings) == (ids[:1], (), ())
    for named in ((), ("acme/bad",)):
        plan, _ = make_offload_plan(offloading.cluster, epoch, named)
        assert (len(plan.warnings), plan.gaps) == (1, ())
        assert bad in plan.warnings[0]


def test_a_plan_warns_where_brokers_write_another_clusters_name(offloading: Offloading) -> None:
    offloading.scene.topic("a", 9, 8)
    admin = offloading.scene.servers.admin
    admin.configuration = {one: {"clusterName": "other", "replicatorPrefix": "pulsar.repl"} for one in admin.broker_ids}
    epoch = judged_scan.scan(offloading.cluster, "run")
    plan, _ = make_offload_plan(offloading.cluster, epoch, [NAMESPACE], everything=True)
    (said,) = plan.warnings
    assert "clusterName is 'other'" in said
    assert plan.actionable


def test_a_topic_whose_policies_cannot_be_decoded_by_now_is_left_alone(offloading: Offloading) -> None:
    topic = f"{OWN}a"
    assert isinstance(policies_now(offloading.cluster, [topic]).of_topics[topic], OffloadPolicy)
    offloading.scene.servers.put(f"/admin/policies/{NAMESPACE}", b"\xff")
    left_out = policies_now(offloading.cluster, [topic, "persistent://gone/ns/a"]).of_topics
    assert list(left_out) == [topic]
    assert f"/admin/policies/{NAMESPACE}" in str(left_out[topic])


def test_the_command_plans_by_order(offloading: Offloading, capsys: pytest.CaptureFixture[str]) -> None:
    ids = offloading.scene.topic("a", 9, 8, 7)
    config = Path(offloading.cluster.settings.lake.path).parent / "lifecycle.toml"
    command = command_of(offloading, config)
    judged_scan.scan(offloading.cluster, "run")
    assert command("--topic", f"{OWN}a", "--upto", f"{ids[1]}:0", "--json") == 0
    shown = json.loads(capsys.readouterr().out)
    assert ([row["ledger_id"] for row in shown["rows"]], shown["gaps"]) == (ids[:1], [])
    assert offloading.cluster.lake.offload_plan(shown["plan_id"])[0].digest == shown["digest"]
    assert command("--namespace", NAMESPACE) == 0
    assert "2 ledgers" in capsys.readouterr().out
    assert command("--namespace", NAMESPACE, "--thresholds", "--json") == 0
    assert json.loads(capsys.readouterr().out)["rows"] == []
    assert command() == command("--topic", f"{OWN}a", "--thresholds") == command("--topic", "x") == 2


def command_of(offloading: Offloading, config: Path) -> Callable[..., int]:
    store = f'object_store = {{ endpoint = "{ENDPOINT}", buckets = ["{BUCKET}"] }}\n'
    config.write_text(store + config.read_text())
    return partial(run, "offload", "plan", connect=offloading.cluster.connect)


topics = st.lists(st.tuples(st.booleans(), st.integers(0, 30)), min_size=1, max_size=8)


@given(topics, st.integers(0, 9))
def test_nothing_is_done_from_the_position_on_and_all_before_it_as_without(
    found: list[tuple[bool, int]], upto: int
) -> None:
    items = [(complete if done else ledger)(n, size=size) for n, (done, size) in enumerate(found)]
    whole = judged(state(*items, LAST), everything=True)
    asked = judged(state(*items, LAST), everything=True, upto=upto)
    doing = (OffloadChoice.OFFLOAD, OffloadChoice.DELETE_COPY, OffloadChoice.BROKERS_DELETE)
    assert {i: row for i, row in asked.items() if i < upto} == {i: row for i, row in whole.items() if i < upto}
    assert not [i for i, row in asked.items() if i >= upto and row["action"] in doing]


@pytest.mark.parametrize("lazy", ["true", "false"])
def test_a_run_knows_by_the_layers_that_it_has_what_topics_lose_by_a_load(offloading: Offloading, lazy: str) -> None:
    admin = offloading.scene.servers.admin
    said = {"replicatorPrefix": "pulsar.repl", "lazyCursorRecovery": lazy}
    admin.configuration = dict.fromkeys(admin.broker_ids, said)
    topic = Topic.parse(f"{OWN}a")
    lost = policies_now(offloading.cluster, [str(topic)]).losses[NAMESPACE].of(topic, ["s"])
    assert lost is (LoadLoss.CURSORS_COME_LATER if lazy == "true" else None)
