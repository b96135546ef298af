"""Ledgers that a delayed message keeps: which cursor stands before one, and from which ledger on that counts."""

from __future__ import annotations

from pathlib import Path
from uuid import UUID

import pyarrow as pa
import pytest
from hypothesis import given
from hypothesis import strategies as st

from pulsar_lifecycle.copies.offloaded_ledger import Location
from pulsar_lifecycle.deletion.planning import judged_scan
from pulsar_lifecycle.errors import Unavailable
from pulsar_lifecycle.formats.ledger_metadata import LedgerState
from pulsar_lifecycle.lifecycle.held.delayed_pins import delayed_pins, first_messages
from pulsar_lifecycle.lifecycle.reasons import Reason
from pulsar_lifecycle.lifecycle.retention_inputs import POSITIONS
from pulsar_lifecycle.lifecycle.storage_run import REASONS_TABLE, build_storage_report, scanned, totals
from pulsar_lifecycle.lifecycle.verdicts import RETENTION_LEDGER
from pulsar_lifecycle.model import Topic
from pulsar_lifecycle.tiered.upload import Source, Target, copy_ledger
from tests.kit.builders import entry
from tests.kit.fakes.metadata_store import FakeZooKeeper
from tests.kit.scenes.retention_scene import NAMESPACE, RetentionScene
from tests.kit.scenes.tiered.copy_scene import BUCKET, CopyScene, source_of
from tests.kit.simulated.cluster import data_tags

TOPIC = Topic.parse(f"persistent://{NAMESPACE}/a")
YEAR = 365 * 86_400_000


@pytest.fixture
def scene(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> RetentionScene:
    return RetentionScene(tmp_path, monkeypatch)


def topic_of(
    scene: RetentionScene, *ledgers: tuple[int | None, ...], state: LedgerState = LedgerState.CLOSED
) -> list[int]:
    """A topic of ledgers of messages, each due in so many ms or at once; the last one is in ``state``."""
    ids = [
        scene.servers.ledger(
            data_tags(TOPIC),
            entries=[entry(b"m") if due is None else entry(b"m", deliver_at_time=scene.now + due) for due in some],
            state=state if some is ledgers[-1] else LedgerState.CLOSED,
        )
        for some in ledgers
    ]
    counts = {ledger: len(some) for ledger, some in zip(ids, ledgers, strict=True)}
    scene.servers.topic(TOPIC, ids, counts=counts)
    return ids


def reasons(scene: RetentionScene, ids: list[int]) -> list[str]:
    """What a report of a new scan says of ledgers; its sums are the scan's."""
    epoch = judged_scan.scan(scene.cluster, "run")
    rows, problems = build_storage_report(scene.cluster, epoch)
    assert not problems
    assert totals(rows) == scanned(scene.cluster, epoch.epoch_id)
    said = {
        row["ledger_id"]: row["reason"]
        for row in scene.lake.read_epoch_table(epoch.epoch_id, REASONS_TABLE).to_pylist()
    }
    return [said[ledger] for ledger in ids]


def test_a_message_due_in_a_year_pins_every_later_ledger(scene: RetentionScene) -> None:
    ids = topic_of(scene, (None, None), (YEAR, None), (None,), (None, None))
    scene.servers.cursor(TOPIC, "s", at=ids[1])
    scene.servers.wait(2)
    assert reasons(scene, ids) == [Reason.EXPIRED, *[Reason.PINNED] * 3]


@pytest.mark.parametrize("first", [None, 60_000])
def test_what_is_not_delayed_or_is_due_by_now_is_backlog(scene: RetentionScene, first: int | None) -> None:
    ids = topic_of(scene, (first, YEAR), (None,))
    scene.servers.cursor(TOPIC, "s", at=ids[0])
    scene.servers.wait(2)
    assert reasons(scene, ids) == [Reason.BACKLOG, Reason.BACKLOG]


def test_another_cursor_that_is_behind_keeps_what_is_before_the_pin(scene: RetentionScene) -> None:
    ids = topic_of(scene, (None,), (None,), (YEAR,), (None,))
    scene.servers.cursor(TOPIC, "behind", at=ids[0])
    scene.servers.cursor(TOPIC, "s", at=ids[2])
    scene.servers.wait(2)
    assert reasons(scene, ids) == [Reason.BACKLOG, Reason.BACKLOG, Reason.PINNED, Reason.PINNED]


def test_a_position_at_the_end_of_a_ledger_means_the_first_message_after_it(scene: RetentionScene) -> None:
    ids = topic_of(scene, (None,), (YEAR,), (None,))
    ledger = scene.servers.ledger(
        {**data_tags(TOPIC), "pulsar/cursor": "s"}, entries=[scene.servers.position_entry(at=ids[0])]
    )
    scene.servers.cursor(TOPIC, "s", ledger=ledger)
    scene.servers.wait(2)
    assert reasons(scene, ids) == [Reason.EXPIRED, Reason.PINNED, Reason.PINNED]


def test_a_message_that_cannot_be_read_pins_nothing(scene: RetentionScene) -> None:
    ids = topic_of(scene, (YEAR,), (None,))
    scene.servers.cursor(TOPIC, "s", at=ids[0])
    scene.servers.reader.failures[ids[0]] = Unavailable("its bookies are down")
    scene.servers.wait(2)
    assert reasons(scene, ids) == [Reason.BACKLOG, Reason.BACKLOG]


def test_the_last_ledger_that_is_open_stays_the_last(scene: RetentionScene) -> None:
    ids = topic_of(scene, (YEAR,), (None,), state=LedgerState.OPEN)
    scene.servers.cursor(TOPIC, "s", at=ids[0])
    scene.servers.wait(2)
    assert reasons(scene, ids)[0] == Reason.PINNED
    assert reasons(scene, ids)[1] in (Reason.LAST_LEDGER, Reason.EXPIRED_OPEN)


@pytest.mark.parametrize("complete", [True, False])
def test_a_message_that_only_the_bucket_has_is_read_from_there(complete: bool) -> None:
    held, location = CopyScene(), Location(BUCKET, UUID(int=7), 1)
    payloads = [entry(b"m"), entry(b"m", deliver_at_time=YEAR)]
    held.reader.payloads[1] = payloads
    copy_ledger(held.reader, held.objects, Source(source_of(payloads).metadata, 1), Target(location, "c", "m", 800))
    offload = {"offload_uuid": str(location.uuid), "offload_complete": complete, "offload_bucket": BUCKET}
    listed = pa.table({"managed_ledger": ["t"], "ledgers": [[{"ledger_id": 1, **offload}]]})
    messages = pa.table({"row": [0, 0, 0], "ledger": [1, 1, 1], "entry": [0, 1, 2]})
    found = delayed_pins(
        FakeZooKeeper().session(), held.reader, held.objects, listed, messages, "/ledgers", YEAR - 1
    ).to_pylist()
    assert found == ([{"managed_ledger": "t", "ledger_id": 1, "until": YEAR}] if complete else [])


LEDGERS = st.lists(st.integers(0, 3) | st.none(), min_size=1, max_size=5)


@given(
    st.lists(st.tuples(LEDGERS, st.lists(st.tuples(st.integers(-1, 6), st.integers(-1, 4)), max_size=3)), max_size=4)
)
def test_first_messages_are_those_of_a_naive_walk(topics: list[tuple[list[int | None], list[tuple[int, int]]]]) -> None:
    paths, lists, positions, expected = [], [], [], set()
    for row, (counts, cursors) in enumerate(topics):
        paths.append(f"/t{row}")
        base = 10 * (len(topics) - row)  # ids of different topics lie in any order
        lists.append([{"ledger_id": base + n, "entries": c, "size": 1, "closed_at": 1} for n, c in enumerate(counts)])
        for ledger, at in cursors:
            positions.append({"path": f"/t{row}", "ledger_id": base + ledger, "entry_id": at})
            for n, count in enumerate(counts):
                first = at + 1 if n == ledger else 0
                if n >= ledger and (count is None or first < count):
                    expected.add((row, base + n, first))
                    break
    listed = pa.table({"path": pa.array(paths, pa.string())})
    inputs = pa.table({"ledgers": pa.array(lists, pa.list_(RETENTION_LEDGER))})
    positions += [
        {"path": "/other", "ledger_id": 1, "entry_id": 1},
        {"path": "/t0", "ledger_id": None, "entry_id": None},
    ]
    found = first_messages(listed, inputs, pa.Table.from_pylist(positions, POSITIONS), [True] * len(topics))
    rows = [tuple(one.values()) for one in found.to_pylist()]
    assert sorted(rows) == sorted(expected)
