"""Offload runs beside an object store that is busy, slow, unreachable, forgetful or closed to us, and data that rotted.

Three bookies and an S3 server: files of the S3 server and of its bookies are changed, a bookie is killed.
"""

from __future__ import annotations

import re
import signal
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import pytest

from pulsar_lifecycle.copies.object_pairs import ObjectKind
from pulsar_lifecycle.journal.offloads import failed_proofs_now
from pulsar_lifecycle.tiered.buckets.bucket_runs import take_inventory
from pulsar_lifecycle.tiered.offload_run import OffloadOrder, offload_now
from pulsar_lifecycle.tiered.outcome import OffloadOutcome
from pulsar_lifecycle.values.codes import Code
from pulsar_lifecycle.values.outcomes import Outcome
from pulsar_lifecycle.values.plans.offload_plan import OffloadPlan
from sandbox.clients import Admin, pulsar_client
from sandbox.cluster import Cluster
from sandbox.planting import topics
from tests.integration.pipeline import Pipeline, drain, existing, new_namespace, settings_file
from tests.integration.tiered import offloads
from tests.integration.tiered.offloads import check_finished, check_ledgers, contexts, keys, messages, planned
from tests.kit.fakes.http_proxy import Answer, CutAnswer, CutRequest, Fault, FaultyHttpProxy, Hang, Replace

pytestmark = pytest.mark.integration

FOREVER = 1 << 30
BLOCK = 5 << 20
LARGE = 220_000
"""Bytes of a message; fifty of them are a ledger of three blocks."""

SLOW_DOWN = Answer(503, "<Error><Code>SlowDown</Code><Message>Reduce your request rate</Message></Error>")
DONE = Answer(200, "<CompleteMultipartUploadResult><ETag>&quot;0-3&quot;</ETag></CompleteMultipartUploadResult>")


@dataclass(frozen=True)
class Scene:
    """A topic of three ledgers, two of which are to be offloaded."""

    topic: str
    payloads: list[bytes]
    ledgers: list[int]
    plan: OffloadPlan


@dataclass(frozen=True)
class Case:
    """What is wrong with the object store, and what the outcome says of it; an empty ``said``: nothing failed.

    ``faults``: fault, method, part of the URL, how often.
    """

    faults: tuple[tuple[Fault, str, str, int], ...] = ()
    said: str = ""
    settings: Mapping[str, Any] = field(default_factory=dict[str, Any])


def everywhere(fault: Fault, times: int) -> tuple[tuple[Fault, str, str, int], ...]:
    return tuple((fault, method, "", times) for method in ("HEAD", "POST", "PUT", "GET"))


CASES = {
    "busy for a while": Case(everywhere(SLOW_DOWN, 2), settings={"tries": 5}),
    "busy for good": Case(((SLOW_DOWN, "PUT", "", FOREVER),), "SlowDown"),
    "does not answer for a while": Case(everywhere(Hang(), 1), settings={"read_timeout": "3s", "tries": 5}),
    "never answers": Case(
        ((Hang(), "PUT", "partNumber", FOREVER),), "Read timeout", {"read_timeout": "3s", "tries": 1}
    ),
    "cuts connections for a while": Case(
        ((CutRequest(100_000), "PUT", "partNumber", 2), (CutAnswer(1_000), "GET", "", 2), (Replace(0), "POST", "", 2)),
        settings={"tries": 5},
    ),
    "cuts connections for good": Case(((CutAnswer(1_000), "GET", "", FOREVER),), "broke off"),
    "cuts uploads for good": Case(((CutRequest(100_000), "PUT", "partNumber", FOREVER),), "part 1"),
    "loses a part": Case(((Answer(200, ""), "PUT", "partNumber=2", FOREVER),), "InvalidPart"),
    "loses a data object": Case(((DONE, "POST", "uploadId=", FOREVER),), "there is no such object"),
    "loses an index object": Case(((Answer(200, ""), "PUT", "-index", FOREVER),), "-index"),
}
PERSISTENCE = {"rotten": (3, 3, 2), "lost": (3, 3, 2), "bookie": (3, 3, 2), "striped": (3, 2, 2)}
"""Ensemble, write quorum and ack quorum where they matter."""
THREE_BLOCKS = ("never answers", "cuts connections for a while", "loses a part", "flipped")
"""Where the first ledger has so many; all others have one."""
SCENES = (*CASES, "refused", "short", "flipped", "flipped later", *PERSISTENCE)


@pytest.fixture(scope="module")
def cluster(three_bookies: Cluster) -> Cluster:
    drain(three_bookies)
    return three_bookies


@pytest.fixture(scope="module")
def lake(tmp_path_factory: pytest.TempPathFactory) -> str:
    return str(tmp_path_factory.mktemp("lake"))


Operator = Callable[..., Pipeline]


@pytest.fixture
def operator(cluster: Cluster, lake: str, tmp_path: Path) -> Operator:
    """A pipeline, all with the same lake, with some settings of the object store changed."""

    def make(*, revert_unproven: bool = False, **object_store: Any) -> Pipeline:
        own = {"block_size": BLOCK, "revert_unproven": revert_unproven}
        sections = offloads.with_bucket(cluster, loaded_topics=True, **own)
        sections["object_store"] |= object_store
        where = tmp_path / f"{len(object_store)}{revert_unproven}"
        return Pipeline(settings_file(cluster, where, {"lake": {"path": lake}} | sections))

    return make


@pytest.fixture(scope="module")
def scenes(cluster: Cluster, lake: str, tmp_path_factory: pytest.TempPathFactory) -> dict[str, Scene]:
    """A namespace with a topic for each test, and a plan for it; all by one scan."""
    sections = offloads.with_bucket(cluster, loaded_topics=True) | {"lake": {"path": lake}}
    pipeline = Pipeline(settings_file(cluster, tmp_path_factory.mktemp("settings"), sections))
    written: dict[str, tuple[str, list[bytes], list[int]]] = {}
    with pulsar_client(cluster.service_url) as client, Admin(cluster.admin_url) as admin:
        for name in SCENES:
            namespace = new_namespace(cluster, "offload-faults")
            if name in PERSISTENCE:
                ensemble, write, ack = PERSISTENCE[name]
                policy = {"bookkeeperEnsemble": ensemble, "bookkeeperWriteQuorum": write, "bookkeeperAckQuorum": ack}
                admin.call(
                    "POST", f"/v2/namespaces/{namespace}/persistence", policy | {"managedLedgerMaxMarkDeleteRate": 0}
                )
            size = LARGE if name in THREE_BLOCKS else 100
            payloads = [
                text.ljust(size if number < 50 else 100) for number, text in enumerate(topics.payloads(110, name))
            ]
            topic = f"persistent://{namespace}/t"
            ledgers = list(dict.fromkeys(topics.publish(client, topic, payloads)))
            assert len(ledgers) == 3
            written[name] = topic, payloads, ledgers[:2]
    epoch = pipeline.scan()
    made: dict[str, Scene] = {}
    for name, (topic, payloads, ledgers) in written.items():
        plan, rows = planned(pipeline, topic.removeprefix("persistent://").rpartition("/")[0], epoch=epoch)
        assert plan.actionable, plan.gaps
        assert [row["ledger_id"] for row in rows] == ledgers
        made[name] = Scene(topic, payloads[:100], ledgers, plan)
    return made


@pytest.fixture
def s3(cluster: Cluster) -> Iterator[Any]:
    with offloads.s3_client(cluster) as client:
        yield client


@pytest.fixture
def proxy(cluster: Cluster) -> Iterator[FaultyHttpProxy]:
    with FaultyHttpProxy(cluster.state.as_json()["s3"]["endpoint"]) as running:
        yield running


@dataclass(frozen=True)
class Tried:
    """A scene after a run that met a fault."""

    cluster: Cluster
    scene: Scene
    s3: Any
    said: dict[int, OffloadOutcome]

    @property
    def failed(self) -> list[int]:
        return [ledger for ledger in self.scene.ledgers if self.said[ledger].outcome == Outcome.FAILED]

    def check_kept(self, direct: Pipeline) -> None:
        """Nothing is lost, and what failed is nowhere said to be offloaded."""
        settings = direct.where.settings
        assert existing(self.cluster, self.scene.ledgers) == set(self.scene.ledgers)
        check_ledgers(settings, self.scene.topic)
        made = contexts(self.cluster, self.scene.topic)
        assert [made[ledger] for ledger in self.failed] == [None] * len(self.failed)

    def check_finished(self, direct: Pipeline) -> None:
        """A run without the fault goes on with the same attempts, and leaves nothing but what it should."""
        settings = direct.where.settings
        begun = offloads.open_attempts(settings)
        before = {ledger: begun[ledger] for ledger in self.failed}
        if self.failed:
            said = offloads.offload(direct, self.scene.plan, "rerun")
            assert {said[ledger].outcome for ledger in self.failed} == {Outcome.OFFLOADED}, said
        check_finished(self.cluster, settings, self.scene.topic, self.scene.ledgers, self.s3)
        made = contexts(self.cluster, self.scene.topic)
        assert {ledger: made[ledger].uuid for ledger in before} == before


def through(proxy: FaultyHttpProxy, operator: Operator, **settings: Any) -> Pipeline:
    """A pipeline that reaches the object store through the proxy."""
    return operator(endpoint=f"http://127.0.0.1:{proxy.port}", **{"tries": 3} | settings)


# ---------------------------------------------------------------------------------------------------- the object store


@pytest.mark.parametrize("name", CASES)
def test_an_object_store_that_fails_costs_a_rerun_at_most(
    cluster: Cluster, scenes: dict[str, Scene], operator: Operator, proxy: FaultyHttpProxy, s3: Any, name: str
) -> None:
    case, scene = CASES[name], scenes[name]
    for fault, method, part, times in case.faults:
        proxy.next(fault, method, part, times)
    tried = Tried(cluster, scene, s3, offloads.offload(through(proxy, operator, **case.settings), scene.plan))
    assert bool(tried.failed) == bool(case.said), tried.said
    for ledger in tried.failed:
        assert tried.said[ledger].why.code is Code.NOT_COPIED
        assert re.search(case.said, tried.said[ledger].reason), tried.said[ledger]
        assert "run again" in tried.said[ledger].reason
    direct = operator()
    tried.check_kept(direct)
    tried.check_finished(direct)
    assert messages(direct, scene.topic) == scene.payloads


def test_an_object_store_that_knows_us_no_more_is_said_to(
    cluster: Cluster, scenes: dict[str, Scene], operator: Operator, s3: Any, tmp_path: Path
) -> None:
    scene = scenes["refused"]
    (tmp_path / "wrong").write_text("wrong")
    tried = Tried(
        cluster, scene, s3, offloads.offload(operator(secret_key={"file": str(tmp_path / "wrong")}), scene.plan)
    )
    assert tried.failed == scene.ledgers
    assert {one.why.code for one in tried.said.values()} == {Code.NOT_COPIED}
    assert all("403" in one.reason or "SignatureDoesNotMatch" in one.reason for one in tried.said.values()), tried.said
    direct = operator()
    tried.check_kept(direct)
    assert [keys(s3, ledger) for ledger in scene.ledgers] == [[], []]
    tried.check_finished(direct)


# ------------------------------------------------------------------------------------------------------- data that rots


def damaged(proxy: FaultyHttpProxy, damage: Callable[[str], None]) -> None:
    """Damage every data object before its index object is written."""
    usual = proxy.fault

    def fault(method: str, url: str) -> Fault | None:
        if method == "PUT" and url.endswith("-index"):
            damage(url.rpartition("/")[2].removesuffix("-index"))
        return usual(method, url)

    proxy.fault = fault


@pytest.mark.parametrize("name", ["short", "flipped"])
def test_an_object_that_is_not_what_was_sent_is_never_committed(
    cluster: Cluster, scenes: dict[str, Scene], operator: Operator, proxy: FaultyHttpProxy, s3: Any, name: str
) -> None:
    scene = scenes[name]

    def damage(key: str) -> None:
        file = offloads.object_file(cluster, key)
        if name == "short":
            with file.open("r+b") as stream:
                stream.truncate(file.stat().st_size - 1)
        else:
            offloads.flip(file, file.stat().st_size // 2)

    damaged(proxy, damage)
    tried = Tried(cluster, scene, s3, offloads.offload(through(proxy, operator), scene.plan))
    assert tried.failed == scene.ledgers
    for ledger in tried.failed:
        assert re.search(rf"s3://\S+-ledger-{ledger}", tried.said[ledger].reason), tried.said
        assert tried.said[ledger].why.code is Code.NOT_COPIED
    direct = operator()
    tried.check_kept(direct)
    tried.check_finished(direct)
    assert messages(direct, scene.topic) == scene.payloads


def test_a_copy_that_rotted_since_keeps_the_one_in_bookkeeper(
    cluster: Cluster, scenes: dict[str, Scene], operator: Operator, s3: Any
) -> None:
    scene, pipeline = scenes["flipped later"], operator()
    said = offloads.offload(pipeline, scene.plan)
    assert {said[ledger].outcome for ledger in scene.ledgers} == {Outcome.OFFLOADED}
    bad, good = scene.ledgers
    file = offloads.object_file(cluster, keys(s3, bad)[0])
    offloads.flip(file, file.stat().st_size // 2)
    drain(cluster)
    plan, rows = planned(pipeline, scene.topic.removeprefix("persistent://").rpartition("/")[0])
    assert {row["ledger_id"]: row["action"] for row in rows} == {bad: "delete_copy", good: "delete_copy"}
    said = offloads.offload(pipeline, plan, "delete-copies")
    assert said[bad].outcome == Outcome.PROOF_FAILED
    assert said[bad].why.code is Code.NOT_PROVEN
    assert "revert_offloads" in said[bad].reason
    assert keys(s3, bad)[0] in said[bad].reason
    assert said[good].outcome == Outcome.BOOKKEEPER_DELETED
    made = contexts(cluster, scene.topic)
    assert [made[ledger].bookkeeper_deleted for ledger in (bad, good)] == [False, True]
    epoch = pipeline.scan()
    take_inventory(pipeline.where, epoch)
    kinds = {
        row["ledger_id"]: row["kind"]
        for row in pipeline.where.lake.read_epoch_table(epoch.epoch_id, "objects").to_pylist()
    }
    assert (kinds[bad], kinds[good]) == (ObjectKind.BROKEN, ObjectKind.COMPLETE)
    (alarm,) = [row for row in failed_proofs_now(pipeline.where, epoch.epoch_id) if row.topic == scene.topic]
    assert (alarm.ledger_id, alarm.outcome) == (bad, Outcome.PROOF_FAILED)
    pipeline.scan_and_delete()
    assert existing(cluster, scene.ledgers) == {bad}
    # where the settings say so, the next run lets the topic read it from BookKeeper again
    drain(cluster)
    reverting = operator(revert_unproven=True)
    plan, _ = planned(reverting, scene.topic.removeprefix("persistent://").rpartition("/")[0])
    outcomes = offload_now(reverting.where, "revert", OffloadOrder(plan.plan_id, plan.digest), lambda _: None)
    assert [one.outcome for one in outcomes if one.ledger_id == bad] == [Outcome.PROOF_FAILED, Outcome.REVERTED]
    assert contexts(cluster, scene.topic)[bad] is None
    assert failed_proofs_now(pipeline.where, pipeline.scan().epoch_id) == []


def entry_logs(cluster: Cluster, bookie: str) -> list[Path]:
    folder = cluster.data / bookie
    return [*folder.glob("ledgers/current/*.log"), *folder.glob("journal/current/*.txn")]


def rot(cluster: Cluster, bookie: str, marks: list[bytes]) -> set[bytes]:
    """Change a bit of every copy that a bookie has of entries that contain ``marks``; returns those it had."""
    cluster.kill(bookie, signal.SIGTERM)
    found: set[bytes] = set()
    for file in entry_logs(cluster, bookie):
        data = file.read_bytes()
        for mark in marks:
            at = data.find(mark)
            while at >= 0:
                found.add(mark)
                offloads.flip(file, at)
                at = data.find(mark, at + 1)
    cluster.start_server(bookie)
    return found


def test_an_entry_that_rotted_is_read_from_another_bookie_and_what_none_has_is_not_offloaded(
    cluster: Cluster, scenes: dict[str, Scene], operator: Operator, s3: Any
) -> None:
    rotten, lost = scenes["rotten"], scenes["lost"]
    at = 20
    one, every = rotten.payloads[at], lost.payloads[at]
    assert rot(cluster, "bookie-1", [one, every]) == {one, every}
    for bookie in ("bookie-2", "bookie-3"):
        assert rot(cluster, bookie, [every]) == {every}
    pipeline = operator()
    said = offloads.offload(pipeline, rotten.plan)
    assert {said[ledger].outcome for ledger in rotten.ledgers} == {Outcome.OFFLOADED}, said
    check_finished(cluster, pipeline.where.settings, rotten.topic, rotten.ledgers, s3)
    assert messages(pipeline, rotten.topic) == rotten.payloads
    said = offloads.offload(pipeline, lost.plan)
    bad, good = lost.ledgers
    assert said[good].outcome == Outcome.OFFLOADED
    assert said[bad].outcome == Outcome.FAILED
    assert f"{bad}:{at}" in said[bad].reason
    assert contexts(cluster, lost.topic)[bad] is None
    assert existing(cluster, lost.ledgers) == set(lost.ledgers)
    assert keys(s3, bad) == []
    assert offloads.uploads(s3) == []


def test_a_bookie_that_is_gone_is_not_needed(
    cluster: Cluster, scenes: dict[str, Scene], operator: Operator, s3: Any
) -> None:
    cluster.kill("bookie-2")
    try:
        for name in ("bookie", "striped"):
            scene = scenes[name]
            said = offloads.offload(operator(), scene.plan)
            assert {said[ledger].outcome for ledger in scene.ledgers} == {Outcome.OFFLOADED}, said
            assert messages(operator(), scene.topic) == scene.payloads
    finally:
        cluster.start_server("bookie-2")
    for name in ("bookie", "striped"):
        check_finished(cluster, operator().where.settings, scenes[name].topic, scenes[name].ledgers, s3)
