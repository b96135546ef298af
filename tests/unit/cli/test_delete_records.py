"""``delete-records``: a plan and what applies it, results and exit codes, wrong usage."""

from __future__ import annotations

import json
from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any
from uuid import UUID

import pytest

from orchestration.delete_records import planned
from pulsar_lifecycle.delete_records.request import NotAsked
from pulsar_lifecycle.delete_records.requested_partitions import READ_EACH
from pulsar_lifecycle.model import Topic
from pulsar_lifecycle.ports import TopicConnections
from pulsar_lifecycle.values.codes import Code
from pulsar_lifecycle.values.outcomes import Outcome, Phase
from pulsar_lifecycle.values.plans.delete_records_plan import RecordsError
from pulsar_lifecycle.values.plans.records_table import LOST, SHOWN
from tests.kit.builders import ROW
from tests.kit.command import run
from tests.kit.fakes.metadata_store import FakeStore
from tests.kit.records.records_scene import HOUR, RecordsScene
from tests.kit.records.topic_times import BUCKET, sent
from tests.kit.simulated.cluster import data_tags

SETTINGS = """
cluster = "simulated"
zookeeper = {hosts = "simulated:2181"}
pulsar = {admin_url = "http://simulated:8080", service_url = "pulsar://simulated:6650"}
lake = {path = "/simulated"}
bookkeeper = {shared_with = []}
apply = {max_share = 1.0}
"""


class Operator:
    """Commands over a scene."""

    def __init__(self, scene: RecordsScene, folder: Path, capsys: pytest.CaptureFixture[str]) -> None:
        self.scene, self.capsys = scene, capsys
        self.file = folder / "lifecycle.toml"
        self.file.write_text(SETTINGS)
        self.offsets = folder / "offsets.json"

    def __call__(self, *arguments: str) -> tuple[int, str]:
        connect = self.scene.where.connect
        code = run("--config", str(self.file), "delete-records", *arguments, connect=connect)
        out, err = self.capsys.readouterr()
        return code, out or err

    def with_bucket(self) -> None:
        """The settings name a bucket."""
        self.scene.with_bucket()
        self.file.write_text(f'{SETTINGS}object_store = {{endpoint = "http://127.0.0.1:1", buckets = ["{BUCKET}"]}}')

    def document(self, *arguments: str) -> tuple[int, Any]:
        code, text = self(*arguments, "--json")
        return code, json.loads(text)


@pytest.fixture
def operator(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> Operator:
    return Operator(RecordsScene(2), tmp_path, capsys)


def test_a_file_is_planned_applied_and_answered(operator: Operator) -> None:
    scene = operator.scene
    for topic in scene.topics * 9:  # written so often, brokers may have made and trimmed others
        scene.cluster.topic(topic, scene.ids[topic], entries=10)
    scene.cluster.wait(25)
    scene.scan()
    entries = [{"topic": str(topic), "offset": str(scene.at(2, 0, topic))} for topic in scene.topics]
    operator.offsets.write_text(json.dumps({"partitions": entries, "version": 1}))
    code, plan = operator.document("--offset-json-file", str(operator.offsets))
    assert (code, [row["error"] for row in plan["partitions"]]) == (0, [None, None])
    assert not scene.properties()

    code, text = operator("--apply", plan["plan_id"], plan["digest"])
    assert (code, "TimeoutException" in text, "are not proven gone" in " ".join(text.split())) == (1, True, True)
    scene.delete()
    code, answer = operator.document("--apply", plan["plan_id"], plan["digest"])
    assert [one["not_asked"] for one in answer["partitions"]] == [[NotAsked.TRIMMED]] * 2
    text = " ".join(operator("--apply", plan["plan_id"], plan["digest"])[1].split())
    first = answer["partitions"][0]["partition"]
    trimmed = "what brokers trimmed and deleted before the plan, and kept scans do not show"
    assert f"nobody was asked for {trimmed}: 2 partitions, the first {first}" in text
    marks = [one["low_watermark"] for one in answer["partitions"]]
    assert (code, marks) == (0, [str(scene.at(2, 0, topic)) for topic in scene.topics])


def test_a_plan_says_how_to_apply_it_and_exits_1_for_an_error(operator: Operator) -> None:
    scene = operator.scene
    code, text = operator("--topic", str(scene.topic), "--before", "@1970-01-01T01:00:00.023Z")
    assert (code, "delete-records --apply delete-records-" in " ".join(text.split())) == (0, True)
    code, text = operator("--topic", str(scene.topic), "--before", f"{scene.ids[scene.topic][-1]}:11")
    assert (code, "OffsetOutOfRangeException" in text) == (1, True)


def test_a_plan_in_any_order_does_not_say_that_it_takes_what_was_published_later(operator: Operator) -> None:
    scene = operator.scene
    scene.cluster.reader.payloads[scene.ids[scene.topic][1]][4] = sent(HOUR + 45)
    asked = ("--topic", str(scene.topic), "--before", "@1970-01-01T01:00:00.033Z")
    code, text = operator(*asked)
    assert (code, "all stay" in text) == (1, False)
    code, text = operator(*asked, "--any-order")
    assert (code, "1 messages published at or after the time lie among older ones: all stay" in text) == (0, True)


def test_a_file_may_begin_with_a_byte_order_mark(operator: Operator, tmp_path: Path) -> None:
    file = tmp_path / "offsets.json"
    text = json.dumps({"partitions": [{"topic": str(operator.scene.topic), "offset": -1}]})
    file.write_text(text, encoding="utf-8-sig")
    code, plan = operator.document("--offset-json-file", str(file))
    assert (code, [row["asked"] for row in plan["partitions"]]) == (0, ["-1"])


def test_a_plan_says_what_no_undo_brings_back(operator: Operator) -> None:
    scene = operator.scene
    first = scene.ids[scene.topic][0]
    asked = ("--topic", str(scene.topic), "--before", str(scene.at(2, 0)))
    code, text = operator(*asked)
    assert (code, "offloaded copies" in text) == (0, False)
    scene.plan(scene.at(2, 0))
    scene.apply()
    scene.delete()
    operator.with_bucket()
    copy = {"czxid": 1, "uuid": str(UUID(int=7)), "bucket": BUCKET}
    waits = replace(ROW, cluster="simulated", topic=str(scene.topic), phase=Phase.MARK, outcome=Outcome.MARKED)
    scene.cluster.journal.record([replace(waits, ledger_id=first, detail=json.dumps(copy))])
    code, text = operator(*asked)
    said = " ".join(text.split())
    assert (code, "1 offloaded copies do not come back" in said, LOST.format(1) in said) == (0, True, True)
    _, plan = operator.document(*asked)
    assert [row["lost_copies"] for row in plan["partitions"]] == [1]
    _, answer = operator.document("--apply", plan["plan_id"], plan["digest"])
    assert [one["lost_copies"] for one in answer["partitions"]] == [1]
    assert LOST.format(1) in " ".join(operator("--apply", plan["plan_id"], plan["digest"])[1].split())
    summary, rows = scene.where.lake.delete_records_plan(plan["plan_id"])
    assert LOST.format(1) in str(planned(summary, rows.to_pylist()))


def test_a_plan_by_which_nothing_goes_promises_no_undo(operator: Operator) -> None:
    scene = operator.scene
    code, text = operator("--topic", str(scene.topic), "--before", str(scene.at(0, 4)))
    assert (code, "nothing goes that could come back" in text, "until the bookies" in text) == (0, True, False)


@pytest.mark.parametrize("partitions", [None, 1, 2])
def test_partitions_that_their_metadata_does_not_name_are_said(operator: Operator, partitions: int | None) -> None:
    scene = operator.scene
    parent = scene.topic.partitioned_parent
    if partitions is not None:
        metadata = json.dumps({"partitions": partitions}).encode()
        scene.cluster.put(f"/admin/partitioned-topics/{parent.managed_ledger}", metadata)
    asked, beside = ("--topic", str(parent), "--before=-1"), [str(topic) for topic in scene.topics[partitions or 0 :]]
    _, plan = operator.document(*asked)
    assert plan["not_asked_for"] == beside
    _, text = operator(*asked)
    said = " ".join(text.split())
    assert ([name for name in beside if name in said.partition("not asked for")[2]], bool(beside)) == (
        beside,
        "ask for each by its name" in said,
    )
    _, plan = operator.document(*asked, *(word for name in beside for word in ("--topic", name)))
    assert not plan["not_asked_for"]


def test_a_topic_beside_the_partitions_of_its_name_is_said(operator: Operator) -> None:
    """No client reads it, and its messages are there all the same."""
    scene = operator.scene
    parent = scene.topic.partitioned_parent
    scene.cluster.put(f"/admin/partitioned-topics/{parent.managed_ledger}", b'{"partitions": 2}')
    asked = ("--topic", str(parent), "--before=-1")
    _, plan = operator.document(*asked)
    named = [str(topic) for topic in scene.topics[2:]]
    assert plan["not_asked_for"] == named
    scene.cluster.topic(parent, [scene.cluster.ledger(data_tags(parent))], entries=1)
    _, plan = operator.document(*asked)
    assert plan["not_asked_for"] == [str(parent), *named]
    assert "topic beside partitions of its name" in " ".join(operator(*asked)[1].split())
    scene.cluster.remove(f"/admin/partitioned-topics/{parent.managed_ledger}")
    _, plan = operator.document(*asked)
    assert [row["topic"] for row in plan["partitions"]] == [str(parent)]


def test_of_millions_of_partitions_those_that_are_there_are_read(
    operator: Operator, monkeypatch: pytest.MonkeyPatch
) -> None:
    scene = operator.scene
    parent = scene.topic.partitioned_parent
    scene.cluster.put(f"/admin/partitioned-topics/{parent.managed_ledger}", b'{"partitions": 2000000}')
    for name in ("01", "2000000", "x", ""):  # no partitions of it
        scene.cluster.put(f"/managed-ledgers/{parent.managed_ledger}-partition-{name}", b"")
    read, most = FakeStore.read, list[int]()

    def counted(store: FakeStore, paths: Sequence[str]) -> list[Any]:
        most.append(len(paths))
        return read(store, paths)

    monkeypatch.setattr(FakeStore, "read", counted)
    _, plan = operator.document("--topic", str(parent), "--before=-1")
    assert [row["topic"] for row in plan["partitions"]] == sorted(map(str, scene.topics))
    assert max(most) < READ_EACH


@pytest.mark.parametrize("partitions", ["true", "1.9", '"2"', "-1", "null", "[]"])
def test_a_topic_whose_partitions_are_not_known_keeps_no_other_one(operator: Operator, partitions: str) -> None:
    scene = operator.scene
    unread, other = Topic.parse("persistent://acme/orders/sent"), scene.topics[0]
    metadata = f'{{"partitions": {partitions}}}'.encode()
    scene.cluster.put(f"/admin/partitioned-topics/{unread.managed_ledger}", metadata)
    code, plan = operator.document("--topic", str(unread), "--topic", str(other), "--before", f"@{HOUR + 25}")
    found = {row["topic"]: (row["error"], row["code"]) for row in plan["partitions"]}
    assert (code, found, plan["not_asked_for"]) == (
        1,
        {str(unread): (RecordsError.UNREAD, Code.TOPIC_UNREAD), str(other): (None, None)},
        [],
    )
    _, done = operator.document("--apply", plan["plan_id"], plan["digest"])
    errors = {one["partition"]: one["error"] for one in done["partitions"]}
    assert errors == {str(unread): RecordsError.UNREAD, str(other): RecordsError.TIMEOUT}


@pytest.mark.parametrize("more", [(), ("--finish",)])
def test_no_wait_is_said_of_a_plan_whose_partitions_all_have_errors(operator: Operator, more: tuple[str, ...]) -> None:
    code, plan = operator.document("--topic", "persistent://acme/orders/nowhere", "--before=-1")
    assert (code, [one["error"] for one in plan["partitions"]]) == (1, [RecordsError.UNKNOWN_PARTITION])
    code = run(
        "--config", str(operator.file), "delete-records", "--apply", plan["plan_id"], plan["digest"], "--wait", "60",
        *more, connect=operator.scene.where.connect,
    )  # fmt: skip
    assert (code, "waiting" in operator.capsys.readouterr().err) == (1, False)


def test_an_apply_that_is_interrupted_says_how_to_go_on(operator: Operator, monkeypatch: pytest.MonkeyPatch) -> None:
    def interrupted(*_: object, **__: object) -> None:
        raise KeyboardInterrupt

    monkeypatch.setattr("pulsar_lifecycle.delete_records.apply_run.apply_delete_records", interrupted)
    code, text = operator("--apply", "plan", "digest")
    assert (code, "delete-records --apply plan digest" in " ".join(text.split())) == (130, True)


@pytest.mark.parametrize(
    ("arguments", "said"),
    [
        ((), "give one of"),
        (("--topic", "persistent://a/b/c"), "go together"),
        (("--before", "-1"), "go together"),
        (("--topic", "c", "--before=-1"), "--topic: topic name"),
        (("--topic", "persistent://a/b/\udcff", "--before=-1"), "--topic: name: at byte 0"),
        (("--topic", "non-persistent://a/b/c", "--before=-1"), "--topic: non-persistent://a/b/c stores nothing"),
        (("--apply", "p", "d", "--wait", "inf"), "--wait"),
        (("--apply", "p", "d", "--timeout", "inf"), "--timeout"),
        (("--topic", "persistent://a/b/c", "--before", "x"), "--before: expected LEDGER:ENTRY"),
        (("--apply", "p", "d", "--exact"), "belong to the plan"),
        (("--apply", "p", "d", "--no-undo"), "belong to the plan"),
        (("--apply", "p", "d", "--collect"), "collect goes with finish"),
        (("--topic", "persistent://a/b/c", "--before=-1", "--wait-for-bookies"), "belong to --apply"),
        (("--topic", "persistent://a/b/c", "--before=-1", "--wait", "60"), "belong to --apply"),
        (("--offset-json-file", "/nowhere/offsets.json"), "cannot be read"),
    ],
)
def test_wrong_usage_is_named(operator: Operator, arguments: tuple[str, ...], said: str) -> None:
    code, text = operator(*arguments)
    assert code == 2
    assert said in " ".join(text.split())


def test_every_page_of_a_plan_says_the_same(operator: Operator) -> None:
    scene = operator.scene
    operator.file.write_text(f"{SETTINGS}trimming = {{loaded_topics = true}}")
    scene.load(broker="broker-1:8080")
    scene.cluster.admin.clients[scene.topic] = TopicConnections(1, {"tail": 1}, 0)
    names = [f"s{n}" for n in range(SHOWN + 2)]
    for name in names:
        scene.cursor(name, 0, 3)
    asked = ("--topic", str(scene.topic), "--before", f"@{HOUR + 33}", "--move-cursors")
    _, text = operator(*asked)
    _, plan = operator.document(*asked)
    (row,), ids = plan["partitions"], scene.ids[scene.topic]
    assert (row["error"], [one["cursor"] for one in row["moved_cursors"]]) == (None, names), row
    code = run("--config", str(operator.file), "plan", plan["plan_id"], connect=scene.where.connect)
    summary, rows = scene.where.lake.delete_records_plan(plan["plan_id"])
    page, job = operator.capsys.readouterr().out, planned(summary, rows.to_pylist())
    assert code == 0
    assert "3 ledgers of 1 partition, 0 have an error" in page
    said = (
        f"{ids[3]}:3",
        "3 messages, ",
        *(f"moves subscription {name} from {ids[0]}:3" for name in names[:SHOWN]),
        f"{len(names) - SHOWN} more subscriptions are moved: --json has all in `moved_cursors`",
        "reader tail may stand below it",
        "last message below published 1970-01-01",
        "first message kept published 1970-01-01",
        "until the bookies collect",
    )
    for shown in (text, page, str(job)):
        assert [one for one in said if one not in " ".join(shown.split())] == []
        assert f"subscription {names[SHOWN]} " not in shown
