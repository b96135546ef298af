"""``inactive``: topics and subscriptions that nobody uses, as the newest report says.

Belongs here: the page. Not here: making a report, which is the Dagster job ``report_activity``.
"""

from __future__ import annotations

from typing import Annotated, Any

import typer

from pulsar_lifecycle.cli import show
from pulsar_lifecycle.cli.options import AsJson, cluster_of

SAMPLE = 20


def inactive(
    context: typer.Context,
    subscriptions: Annotated[bool, typer.Option("--subscriptions", help="Subscriptions instead of topics.")] = False,
    code: Annotated[
        str | None, typer.Option("--code", help="Only what this code keeps, such as retained; none for what may go.")
    ] = None,
    as_json: AsJson = False,
) -> None:
    """Topics, or subscriptions, that nobody used for `inactivity.period`, what they hold and what keeps them."""
    import pyarrow.compute as pc

    from pulsar_lifecycle.lifecycle.activity.activity_run import (
        DISAGREEING,
        IDLE_CURSORS,
        IDLE_TOPICS,
        brokers_answered,
        history_since,
        newest_activity,
        rows_of,
    )
    from pulsar_lifecycle.topics.protection import Protection
    from pulsar_lifecycle.values.codes import check_known
    from pulsar_lifecycle.values.plans.inactive_plan import InactiveKept, counted_once

    where = cluster_of(context)
    epoch = newest_activity(where.lake, where.settings.cluster)
    stored = rows_of(where.lake, epoch.epoch_id, IDLE_CURSORS if subscriptions else IDLE_TOPICS)
    partitions = rows_of(where.lake, epoch.epoch_id, DISAGREEING).to_pylist()
    if code is not None:
        of_scan = (one for one in pc.unique(stored.column("kept")).to_pylist() if one)  # an earlier version's words
        check_known("a code that keeps", code, [NOTHING, *map(str, InactiveKept), *map(str, Protection), *of_scan])
        stored = stored.filter(pc.equal(pc.fill_null(stored.column("kept"), NOTHING), code))
    rows = stored.to_pylist()
    answered = brokers_answered(where.lake, epoch)
    since, period = history_since(where.lake, epoch.epoch_id), where.settings.inactivity.period
    if as_json:
        history = {
            "epoch_id": epoch.epoch_id,
            "history_since": since,
            "period_seconds": period,
            "brokers_answered": answered,
        }
        show.json_document({**history, "rows": rows, "partitioned_topics": partitions})
        return
    now = where.clock.now_ms()
    what = "subscription" if subscriptions else "topic"
    total, disk = (show.size(pc.sum(counted_once(stored, n)).as_py() or 0) for n in ("bytes", "physical_bytes"))
    begun = show.ago(epoch.started_at, now)
    show.text(
        f"{show.counted(len(rows), f'inactive {what}')}, {total}, {disk} on disk, by scan {epoch.epoch_id}, {begun}"
    )
    if since is not None:
        show.text(f"our history begins {show.ago(since, now)}; what nobody used for {show.span(period * 1000)} counts")
    if not answered:
        show.text(
            "the brokers did not answer: what may have clients is left out, and the next report passes this one over"
        )
    largest = sorted(rows, key=lambda row: (-row["bytes"], row["topic"], row.get("cursor", "")))[:SAMPLE]
    show.table(
        ["topic", *(["subscription"] if subscriptions else []), "unused for", "evidence", "bytes", "kept by"],
        (_cells(row, now, subscriptions) for row in largest),
    )
    if len(rows) > SAMPLE:
        show.text(f"... {len(rows) - SAMPLE} more; --json has all of them")
    if partitions:
        show.text()
        show.table(
            ["partitioned topic", "code", "partitions said", "there"],
            ((p["topic"], p["code"], p["partitions_said"], p["partitions_there"]) for p in partitions[:SAMPLE]),
        )


NOTHING = "none"
"""Stands for no code."""


def _cells(row: dict[str, Any], now: int, subscriptions: bool) -> tuple[Any, ...]:
    own = (row["cursor"],) if subscriptions else ()
    unused = show.span(now - row["inactive_since"])
    return row["topic"], *own, unused, row["evidence"], show.size(row["bytes"]), row["kept"]
