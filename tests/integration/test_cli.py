"""The command line on a real cluster: it decodes what is there, explains it, stops it, and touches no topic."""

from __future__ import annotations

import json
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any
from uuid import uuid4

import pytest

from pulsar_lifecycle.settings import CONFIG_VARIABLE
from sandbox.clients import Admin, pulsar_client
from sandbox.cluster import Cluster
from sandbox.planting import plant, topics, znodes
from sandbox.planting.plant import Planted
from tests.kit.command import run

pytestmark = pytest.mark.integration

Ask = Callable[..., Any]
"""Runs a command with --json and gives its document."""


@pytest.fixture(scope="module")
def namespace(sandbox: Cluster) -> str:
    name = f"cli/n{uuid4().hex[:8]}"
    with Admin(sandbox.admin_url) as admin:
        admin.create_namespace(name)
    return name


@pytest.fixture(scope="module")
def orphans(sandbox: Cluster, namespace: str) -> list[Planted]:
    return plant.orphan_data(sandbox, f"persistent://{namespace}/orphaned")


@pytest.fixture(scope="module")
def topic(sandbox: Cluster, namespace: str) -> str:
    """An unloaded topic of 120 messages with a cursor that has holes."""
    name = f"persistent://{namespace}/50% *off*~+ü"
    with pulsar_client(sandbox.service_url) as client, Admin(sandbox.admin_url) as admin:
        topics.acknowledge_with_holes(sandbox, client, name, "billing", topics.payloads(120))
        admin.unload(name)
    return name


@pytest.fixture(autouse=True)
def settings_file(sandbox: Cluster, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """The sandbox's cluster with an empty lake."""
    path = tmp_path / "lifecycle.toml"
    path.write_text(
        f"""
        cluster = "sandbox"
        zookeeper = {{ hosts = "{sandbox.zookeeper}", slow_above = "2s", stop_above = "20s" }}
        pulsar = {{ admin_url = "{sandbox.admin_url}", service_url = "{sandbox.service_url}" }}
        bookkeeper = {{ shared_with = [] }}
        lake = {{ path = "{tmp_path / "lake"}" }}
        """
    )
    monkeypatch.setenv(CONFIG_VARIABLE, str(path))
    return path


@pytest.fixture
def ask(capsys: pytest.CaptureFixture[str]) -> Ask:
    def asked(*arguments: str, code: int = 0) -> Any:
        capsys.readouterr()
        assert run(*arguments, "--json") == code
        return json.loads(capsys.readouterr().out)

    return asked


def listed(sandbox: Cluster, topic: str) -> list[int]:
    with sandbox.metadata() as zk:
        return znodes.listed_ledgers(zk, topic)


@pytest.fixture
def untouched(sandbox: Cluster, topic: str) -> Iterator[None]:
    """The topic is not loaded while the test runs: each load rewrites its z-node."""

    def written() -> int:
        with sandbox.metadata() as zk:
            stat: Any = zk.exists(znodes.topic_znode(topic))
            return stat.mzxid

    before = written()
    yield
    assert written() == before


def test_a_topic_is_shown_without_being_loaded(sandbox: Cluster, topic: str, ask: Ask, untouched: None) -> None:
    shown = ask("inspect", "topic", topic)
    assert [item["ledgerId"] for item in shown["ledgerInfo"]] == sorted(listed(sandbox, topic))
    assert {item["bookkeeper"]["state"] for item in shown["ledgerInfo"]} == {"CLOSED"}
    (billing,) = (item for item in shown["cursors"] if item["name"] == "billing")
    assert billing["markDelete"]
    assert billing["individualDeletedRanges"] > 0
    assert shown["schema"] is None


def test_a_cursor_of_a_loaded_topic_is_read_from_its_open_ledger(sandbox: Cluster, namespace: str, ask: Ask) -> None:
    name = f"persistent://{namespace}/loaded"
    with pulsar_client(sandbox.service_url) as client:
        topics.acknowledge_with_holes(sandbox, client, name, "billing", topics.payloads(60))
        shown = ask("inspect", "topic", name)
    (billing,) = (item for item in shown["cursors"] if item["name"] == "billing")
    assert billing["positionFrom"].startswith(f"cursor ledger {billing['cursorsLedgerId']}, entry ")
    last = shown["ledgerInfo"][-1]["bookkeeper"]
    assert last["state"] == "OPEN"
    assert last["lastEntryId"] >= 0


def test_a_partitioned_topic_shows_its_partitions(sandbox: Cluster, namespace: str, ask: Ask) -> None:
    name = f"persistent://{namespace}/parted"
    with Admin(sandbox.admin_url) as admin:
        admin.topic("PUT", name, "/partitions", 2)
    found = ask("inspect", "topic", name.removeprefix("persistent://"))["partitions"]
    assert [item["topic"] for item in found] == [f"{name}-partition-0", f"{name}-partition-1"]


def test_a_topic_that_is_not_there_ends_with_1(namespace: str) -> None:
    assert run("inspect", "topic", f"{namespace}/none") == 1


def test_znodes_are_decoded_by_where_they_lie(topic: str, namespace: str, ask: Ask, untouched: None) -> None:
    path = znodes.topic_znode(topic)
    shown = ask("inspect", "znode", path)
    assert shown["format"] == "managed-ledger"
    assert shown["value"]["ledgerInfo"]
    assert shown["children"] == ["billing"]
    assert shown["stat"]["numChildren"] == 1
    assert "markDeleteLedgerId" in ask("inspect", "znode", f"{path}/billing")["value"]
    assert ask("inspect", "znode", f"/admin/policies/{namespace}")["value"]["replication_clusters"]
    bookie = ask("inspect", "znode", "/ledgers/available")["children"][0]
    assert ask("inspect", "znode", f"/ledgers/available/{bookie}")["value"]["endpoints"]
    assert run("inspect", "znode", "/no/such") == 1


def test_a_ledger_shows_its_owner_replicas_and_references(
    sandbox: Cluster, topic: str, orphans: list[Planted], ask: Ask, untouched: None
) -> None:
    ledger = listed(sandbox, topic)[0]
    shown = ask("inspect", "ledger", str(ledger))
    assert shown["owner"]["topic"] == topic
    assert shown["lastEntry"]["entryId"] == shown["metadata"]["lastEntryId"]
    assert [found["referrer"] for found in shown["references"]] == [znodes.topic_znode(topic)]
    assert {replica["state"] for replica in shown["replicas"]} == {"writable"}
    assert ask("inspect", "ledger", str(orphans[0].ledger_id))["references"] == []


def test_a_half_deleted_ledger_is_said_to_be_one(sandbox: Cluster, ask: Ask) -> None:
    (empty,) = plant.empty(sandbox)
    assert "empty" in ask("inspect", "ledger", str(empty.ledger_id), code=1)["error"]


def test_explain_knows_what_is_in_use_and_what_only_a_scan_can_tell(
    sandbox: Cluster, topic: str, orphans: list[Planted], ask: Ask, untouched: None
) -> None:
    assert ask("explain", str(listed(sandbox, topic)[0]))["verdict"] == "in_use"
    assert ask("explain", str(orphans[0].ledger_id))["verdict"] == "unjudged"
    assert ask("explain", str(2**40), code=1)["verdict"] == "unknown"


def test_every_page_can_be_printed(
    sandbox: Cluster, topic: str, orphans: list[Planted], capsys: pytest.CaptureFixture[str]
) -> None:
    ledger = str(listed(sandbox, topic)[0])
    pages = [
        ("inspect", "topic", topic),
        ("inspect", "ledger", ledger),
        ("inspect", "znode", znodes.topic_znode(topic)),
        ("explain", ledger),
        ("status",),
    ]
    for page in pages:
        assert run(*page) == 0
        captured = capsys.readouterr()
        assert captured.out
        assert captured.err == ""


def test_pause_and_resume(sandbox: Cluster, ask: Ask, capsys: pytest.CaptureFixture[str]) -> None:
    assert ask("status")["paused"] is None
    try:
        assert run("pause", "bookie-3 is being replaced") == 0
        assert run("pause", "again") == 0
        assert "was paused already" in capsys.readouterr().out
        assert ask("status")["paused"]["text"] == "bookie-3 is being replaced"
    finally:
        assert run("resume") == 0
    assert run("resume") == 0
    assert "was not paused" in capsys.readouterr().out
    assert ask("status")["paused"] is None
