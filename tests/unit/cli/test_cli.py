"""The command line: dumped files, usage and settings, topics, the journal, layout."""

from __future__ import annotations

import json
import subprocess
import sys
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import Any
from uuid import UUID

import pytest

from pulsar_lifecycle.cli import journal_codes, main, show
from pulsar_lifecycle.errors import CorruptFormat, Unavailable
from pulsar_lifecycle.formats.managed_ledger import OffloadContext
from pulsar_lifecycle.formats.plain_data import describe
from pulsar_lifecycle.io.lake.journal import FileJournal
from pulsar_lifecycle.model import Topic
from pulsar_lifecycle.ports import JournalRow
from pulsar_lifecycle.settings import CONFIG_VARIABLE, load_settings
from tests.golden.files import GOLDEN, entries
from tests.kit.command import command_over, run
from tests.kit.scenes.stored_plan import TOPIC
from tests.kit.simulated.cluster import SimulatedCluster, data_tags

# ------------------------------------------------------------------------------------------------------ inspect file

DUMPS = {
    "managed-ledger": "znodes/zstd/cursor/zk_ml_closed.bin",
    "cursor": "delayed/unmerged/zk_cursor_open.bin",
    "cursor-entry": "znodes/plain/cursor/cursor_ledger_last_entry.bin",
    "ledger-metadata": "znodes/plain/schema/zk_bkledger_schemaL52.bin",
    "schema-locator": "znodes/plain/schema/zk_schema.bin",
    "schema-entry": "znodes/plain/schema/schema_L53_E0.bin",
    "bucket-metadata": "delayed/unmerged/L237.entries.bin",
    "bucket-segment": "delayed/unmerged/L237.entries.bin",
    "message": "offload/g-batch-zstd/L30.first_entry.bin",
    "offload-data": "offload/g-large/object_data.bin",
    "offload-index": "offload/g-large/object_index.bin",
}


def dumped(format_name: str, folder: Path) -> Path:
    source = GOLDEN / DUMPS[format_name]
    if not source.name.endswith(".entries.bin"):
        return source
    number = 1 if format_name == "bucket-segment" else 0
    target = folder / "entry.bin"
    target.write_bytes(entries(source)[number])
    return target


@pytest.mark.parametrize("format_name", DUMPS)
def test_a_dump_is_one_json_document_under_upstream_names(
    format_name: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    path = dumped(format_name, tmp_path)
    assert run("inspect", "file", str(path), "--as", format_name, "--json") == 0
    assert json.loads(capsys.readouterr().out) == describe(format_name, path.read_bytes())


@pytest.mark.parametrize("format_name", DUMPS)
def test_a_dump_as_a_table_shows_every_field(
    format_name: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    path = dumped(format_name, tmp_path)
    assert run("inspect", "file", str(path), "--as", format_name) == 0
    out = capsys.readouterr().out
    assert all(name in out for name in describe(format_name, path.read_bytes()))
    assert not any(line.endswith(" ") for line in out.splitlines())


def test_a_dump_that_does_not_decode_is_one_line_with_the_byte(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    broken = tmp_path / "broken"
    broken.write_bytes(b"BookieMetadataFormatVersion\t3\n\x7f")
    assert run("inspect", "file", str(broken), "--as", "ledger-metadata") == 1
    captured = capsys.readouterr()
    assert captured.out == ""
    assert captured.err.startswith("pulsar-lifecycle: ledger metadata: at byte 30: ")
    assert captured.err.count("\n") == 1


@pytest.mark.parametrize("format_name", DUMPS)
def test_an_empty_dump_is_refused(format_name: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    (tmp_path / "empty").touch()
    assert run("inspect", "file", str(tmp_path / "empty"), "--as", format_name) == 1
    captured = capsys.readouterr()
    assert captured.out == ""
    assert captured.err.startswith("pulsar-lifecycle: ")


def test_an_offload_object_that_was_truncated_is_a_finding(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    broken = tmp_path / "broken"
    for name in ("data", "index"):
        broken.write_bytes((GOLDEN / f"offload/g-tiny/object_{name}.bin").read_bytes()[:-1])
        assert run("inspect", "file", str(broken), "--as", f"offload-{name}") == 1
        captured = capsys.readouterr()
        assert captured.out == ""
        assert captured.err.startswith(f"pulsar-lifecycle: offload {name}")


def test_verbose_raises_for_a_traceback(tmp_path: Path) -> None:
    (tmp_path / "broken").write_bytes(b"\xff")
    with pytest.raises(CorruptFormat):
        main(["-v", "inspect", "file", str(tmp_path / "broken"), "--as", "cursor"])


# ------------------------------------------------------------------------------------------------- usage and settings


@pytest.mark.parametrize(
    "arguments",
    [
        ("inspect", "file", __file__, "--as", "parquet"),
        ("inspect", "file", "/no/such/file", "--as", "cursor"),
        ("inspect", "znode", "ledgers"),
        ("inspect", "topic", "nonsense"),
        ("inspect", "ledger", "-1"),
        ("explain", "4711x"),
        ("journal",),
        ("journal", "--ledger", "99999999999999999999"),
        ("journal", "--code", "nonsense"),
        ("journal", "--outcome", "DELETED"),
        ("journal", "--outcome", ""),
        ("no-such-command",),
    ],
)
def test_wrong_usage_ends_with_2(
    arguments: tuple[str, ...], settings_file: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    assert run(*arguments) == 2
    captured = capsys.readouterr()
    assert captured.out == ""
    assert "Traceback" not in captured.err


def test_missing_and_wrong_settings_end_with_2(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.delenv(CONFIG_VARIABLE, raising=False)
    assert run("status") == 2
    assert CONFIG_VARIABLE in capsys.readouterr().err
    (tmp_path / "wrong.toml").write_text('cluster = "x"\nshoes = 3\n')
    assert run("--config", str(tmp_path / "wrong.toml"), "status") == 2
    assert "shoes" in capsys.readouterr().err


@pytest.mark.parametrize("command", ["status", "pause", "resume"])
def test_a_cluster_that_does_not_answer_is_one_line(
    command: str, settings_file: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    assert run(command) == 1
    captured = capsys.readouterr()
    assert captured.err.startswith("pulsar-lifecycle: zookeeper.hosts: ")
    assert captured.err.count("\n") == 1


def test_help_loads_neither_spark_nor_dagster() -> None:
    code = (
        "import sys, pulsar_lifecycle.cli\n"
        "print([m for m in ('pyspark', 'dagster', 'pyarrow', 'pandas', 'pydantic') if m in sys.modules])"
    )
    found = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert found.stdout.strip() == "[]"


# ----------------------------------------------------------------------------------------------------- inspect topic


@pytest.mark.parametrize(
    ("brokers", "said"),
    [
        ({"failure": Unavailable("timed out")}, "unknown, counts as loaded: the brokers did not answer: timed out"),
        ({"stats_interval": 10**9}, "unknown, counts as loaded: its z-node was written too recently to know"),
        ({"loaded": {TOPIC: "broker-1"}}, "loaded: listed by broker-1"),
        ({"stats_interval": -1}, "unloaded: on no broker's list"),
    ],
)
def test_a_topic_of_which_no_broker_says_so_is_not_shown_as_loaded(
    settings_file: Path, capsys: pytest.CaptureFixture[str], brokers: dict[str, Any], said: str
) -> None:
    cluster = SimulatedCluster()
    topic = cluster.topic(Topic.parse(TOPIC), [cluster.ledger(data_tags(Topic.parse(TOPIC)))])
    vars(cluster.admin).update(brokers)
    run = looked_at(cluster)
    assert run("inspect", "topic", str(topic)) == 0
    assert f" {said}" in " ".join(capsys.readouterr().out.split())


def test_a_topic_that_cannot_be_read_whole_ends_with_1(
    settings_file: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    cluster = SimulatedCluster()
    topic = cluster.topic(Topic.parse(TOPIC), [cluster.ledger(data_tags(Topic.parse(TOPIC)))])
    held = cluster.ledger(data_tags(topic), entries=[b"\xff"])
    cluster.cursor(topic, "billing", ledger=held)
    run = looked_at(cluster)
    for options in ((), ("--json",)):
        assert run("inspect", "topic", TOPIC, *options) == 1
        assert f"cursor ledger {held}: " in capsys.readouterr().out


@pytest.mark.parametrize(("data", "error", "raw"), [(b"", "half-deleted", ""), (b"\xff", "at byte 0", "0xff")])
def test_a_ledger_without_metadata_says_what_is_wrong_and_ends_with_1(
    settings_file: Path, capsys: pytest.CaptureFixture[str], data: bytes, error: str, raw: str
) -> None:
    cluster = SimulatedCluster()
    cluster.put(cluster.path(7), data)
    run = looked_at(cluster)
    assert run("inspect", "ledger", "7", "--json") == 1
    shown = json.loads(capsys.readouterr().out)
    assert (shown["ledgerId"], shown["metadata"], shown["raw"]) == (7, None, raw)
    assert error in shown["error"]
    assert run("inspect", "ledger", "7") == 1
    assert shown["error"] in capsys.readouterr().out


def test_a_ledger_may_be_absent_only_where_its_copy_is_listed_as_deleted(
    settings_file: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    cluster = SimulatedCluster()
    run = looked_at(cluster)
    for bookkeeper_deleted, code in ((True, 0), (False, 1)):
        offload = OffloadContext(UUID(int=1), True, bookkeeper_deleted, 1, "aws-s3", {"bucket": "b"})
        cluster.topic(Topic.parse(TOPIC), [900], offloaded={900: offload})
        assert run("inspect", "topic", TOPIC) == code


def test_a_partition_that_was_never_created_is_shown_and_one_that_cannot_be_read_ends_with_1(
    settings_file: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    cluster = SimulatedCluster()
    topic = Topic.parse("persistent://acme/orders/parted")
    store = cluster.open_store()
    store.create(f"/admin/partitioned-topics/{topic.managed_ledger}", b'{"partitions": 2}', parents=True)
    run = looked_at(cluster)
    assert run("inspect", "topic", str(topic)) == 0
    store.create(f"/managed-ledgers/{topic.managed_ledger}-partition-1", b"no list", parents=True)
    assert run("inspect", "topic", str(topic)) == 1


def looked_at(cluster: SimulatedCluster) -> Callable[..., int]:
    """The command line over this cluster."""
    return command_over(
        stores=lambda *_, **__: cluster.open_store(read_only=True),
        admin=lambda: cluster.admin,
        reader=lambda: cluster.reader,
        clock=lambda: cluster.clock,
    )


@pytest.mark.parametrize("path", ["foo://x", "s3://"])
def test_a_lake_that_cannot_be_opened_is_a_wrong_setting(
    settings_file: Path, capsys: pytest.CaptureFixture[str], path: str
) -> None:
    lake = load_settings(settings_file).lake.path
    settings_file.write_text(settings_file.read_text().replace(lake, path))
    assert run("plans") == 2
    captured = capsys.readouterr()
    assert "lake.path" in captured.err
    assert captured.err.count("\n") == 1


def test_an_unknown_plan_ends_with_1(settings_file: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert run("plan", "orphans-2") == 1
    assert "orphans-2" in capsys.readouterr().err


def test_the_journal_is_asked_by_ledger_run_or_plan(settings_file: Path, capsys: pytest.CaptureFixture[str]) -> None:
    rows = [
        JournalRow("run-1", "test", "p1", 7, "ML", TOPIC, "delete-ledger", "send", "sent", "planned", 5, "", "{}", 1),
        JournalRow("run-2", "test", "p1", 7, "ML", TOPIC, "delete-ledger", "delete", "deleted", "", 5, "", "{}", 2),
        JournalRow("run-2", "test", "p2", 8, "ML", TOPIC, "delete-ledger", "delete", "kept", "in use", 5, "", "{}", 3),
    ]
    rows[2] = replace(rows[2], code="twin")
    FileJournal(load_settings(settings_file).lake.path).record(rows)

    def asked(*arguments: str) -> list[tuple[int, str]]:
        assert run("journal", *arguments, "--json") == 0
        return [(row["ledger_id"], row["outcome"]) for row in json.loads(capsys.readouterr().out)]

    assert asked("--ledger", "7") == [(7, "sent"), (7, "deleted")]
    assert asked("--run", "run-2") == [(7, "deleted"), (8, "kept")]
    assert asked("--plan", "p2") == [(8, "kept")]
    assert asked("--run", "run-2", "--ledger", "8") == [(8, "kept")]
    assert asked("--code", "twin") == asked("--outcome", "kept") == [(8, "kept")]
    assert asked("--run", "run-3") == asked("--code", "twin", "--outcome", "sent") == []
    assert run("journal", "--code", "twin", "--outcome", "sent") == 0
    out = capsys.readouterr().out
    assert "outcome sent, by code: (none) 1" in out
    assert "code twin, by outcome: kept 1" in out
    assert run("journal", "--ledger", "7") == 0
    out = capsys.readouterr().out
    assert "deleted" in out
    assert "action" in out
    FileJournal(load_settings(settings_file).lake.path).record([replace(rows[1], cluster="other", run_id="run-9")])
    assert run("journal", "--ledger", "7", "--json") == 0
    captured = capsys.readouterr()
    assert [row["run_id"] for row in json.loads(captured.out)] == ["run-1", "run-2"]
    assert "1 row of other clusters" in captured.err


@pytest.mark.parametrize(
    ("option", "given", "near"),
    [
        ("--code", "still_in_us", "still_in_use"),
        ("--outcome", "DELETED", "deleted"),
        ("--code", "zzz", "known are"),
        ("--outcome", "not_confirmed", "is no outcome but a code: use --code not_confirmed"),
        ("--outcome", "max_ledgers", "use --code max_ledgers"),
    ],
)
def test_an_unknown_word_of_the_journal_is_told_those_near_it(
    settings_file: Path, capsys: pytest.CaptureFixture[str], option: str, given: str, near: str
) -> None:
    assert run("journal", "--run", "run-1", option, given) == 2
    assert near in capsys.readouterr().err


def test_an_outcome_that_is_asked_for_as_a_code_is_told_its_option(
    settings_file: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    assert run("journal", "--run", "run-1", "--code", "unconfirmed") == 0
    assert "unconfirmed is an outcome, too: --outcome unconfirmed" in capsys.readouterr().out


@pytest.mark.parametrize("code", [code for codes in journal_codes.CODES for code in codes])
def test_every_code_that_a_row_may_have_can_be_asked_for(code: str) -> None:
    journal_codes.check(code, None)


def test_what_a_cluster_holds_cannot_steer_the_terminal(
    settings_file: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    bad = "persistent://shop/orders/\x1b[2J[red]x"
    row = JournalRow("r", "test", "", 7, "ML", bad, "delete-ledger", "delete", "refused", "\x07", 0, "", "{}", 1)
    FileJournal(load_settings(settings_file).lake.path).record([row])
    assert run("journal", "--ledger", "7") == 0
    out = capsys.readouterr().out
    assert "\x1b" not in out
    assert "\x07" not in out
    assert "\\x1b[2J[red]x" in out


# ------------------------------------------------------------------------------------------------------------- layout


@pytest.mark.parametrize(
    ("ms", "expected"),
    [(0, "0 s"), (119_999, "119 s"), (120_000, "2 min"), (7_200_000, "2 h 0 min"), (180_000_000, "2 d 2 h")],
)
def test_spans(ms: int, expected: str) -> None:
    assert show.span(ms) == expected


@pytest.mark.parametrize(("count", "expected"), [(0, "0 B"), (1023, "1023 B"), (1536, "1.5 KB"), (1 << 50, "1.0 PB")])
def test_sizes(count: int, expected: str) -> None:
    assert show.size(count) == expected
