"""``explain LEDGER|TOPIC`` and ``findings``: why a ledger is kept or may go, one or all that a scan found.

Belongs here: gathering what the lake knows, and the pages. Not here: the answer (``inspect/explain.py``).
"""

from __future__ import annotations

from dataclasses import asdict
from typing import TYPE_CHECKING, Annotated, Any

import typer

from pulsar_lifecycle.cli import show
from pulsar_lifecycle.cli.look.inspect import MAX_LEDGER_ID
from pulsar_lifecycle.cli.options import AsJson, cluster_of
from pulsar_lifecycle.cli.plans import condition
from pulsar_lifecycle.errors import UsageError

if TYPE_CHECKING:
    from pulsar_lifecycle.inspect.explain import Explanation
    from pulsar_lifecycle.inspect.ledger_history import History
    from pulsar_lifecycle.settings import Settings

_STYLES = {"in_use": "bold green", "may_go": "bold yellow", "kept": "bold green", "dangling": "bold red"}


def explain(
    context: typer.Context,
    what: Annotated[str, typer.Argument(metavar="LEDGER|TOPIC", help="A ledger id, or persistent://tenant/ns/topic.")],
    as_json: AsJson = False,
) -> None:
    """Why a ledger is kept or may go, or who deleted it; of a topic, what keeps each of its ledgers and what frees it.

    A ledger: joins the newest scan, the plans and the journal with a fresh look at the ledger's owner. Asks no broker.
    Exit code 1 if there is no trace of it, or it is referred to and missing. A topic: judges it as it is now by the
    retention in force and its cursors' persisted positions. Loads no topic. Exit code 1 if a warning says what is not
    known, such as what brokers do not answer, or what is missing.
    """
    if not what.isdecimal():
        from pulsar_lifecycle.cli.look.explain_topic import explain_topic
        from pulsar_lifecycle.cli.look.inspect import topic_named

        subject = topic_named(what)
        if not explain_topic(cluster_of(context), subject, as_json=as_json):
            show.note("the warnings above say what is not known, or missing")
            raise typer.Exit(1)
        return
    ledger_id = int(what)
    if ledger_id > MAX_LEDGER_ID:
        raise UsageError(f"{what} is no ledger id: the highest is {MAX_LEDGER_ID}")
    from pulsar_lifecycle.inspect.explain import explain as explain_ledger
    from pulsar_lifecycle.inspect.explain_codes import Verdict
    from pulsar_lifecycle.inspect.ledger_history import history_of
    from pulsar_lifecycle.metastore.fingerprint import cluster_fingerprint

    where = cluster_of(context)
    settings = where.settings
    root = settings.bookkeeper.ledgers_root
    with where.ports(read_only=True) as ports:
        now, store = ports.clock.now_ms(), ports.store
        history = history_of(where, cluster_fingerprint(store, root), ledger_id, now)
        found = explain_ledger(ledger_id, history, store=store, reader=ports.reader, now=now, ledgers_root=root)
    if as_json:
        show.json_document(_document(found, now))
    else:
        _print(found, settings, now)
    if found.verdict in (Verdict.UNKNOWN, Verdict.DANGLING):
        raise typer.Exit(1)


def findings(
    context: typer.Context,
    code: Annotated[str | None, typer.Option("--code", help="The ledgers with this code, such as legal_hold.")] = None,
    finding: Annotated[str | None, typer.Option("--finding", help="The ledgers of this finding.")] = None,
    as_json: AsJson = False,
) -> None:
    """What the newest scan found that is not plainly in use, by finding and code; or the ledgers with one."""
    import pyarrow.compute as pc

    from pulsar_lifecycle.deletion.planning.orphans import CODES
    from pulsar_lifecycle.errors import NotFound
    from pulsar_lifecycle.values.codes import check_known
    from pulsar_lifecycle.values.findings import Finding

    if code:
        check_known("a code of a finding", code, {str(one) for codes in CODES for one in codes})
    if finding:
        check_known("a finding", finding, {str(one) for one in Finding})
    where = cluster_of(context)
    epochs = where.lake.epochs(cluster=where.settings.cluster)
    if not epochs:
        raise NotFound("there is no scan yet: run the job `scan`")
    epoch, columns = epochs[-1], [*_SAMPLE, "physical_bytes", "reason"]
    rows = where.lake.read_epoch_table(epoch.epoch_id, "findings", columns)
    for name, wanted in (("code", code), ("finding", finding)):
        rows = rows.filter(pc.field(name) == wanted) if wanted else rows
    groups = (
        rows.group_by(["finding", "code"])
        .aggregate([("finding", "count"), ("physical_bytes", "sum"), ("reason", "min")])
        .sort_by([("finding_count", "descending"), ("code", "ascending")])
        .to_pylist()
    )
    if as_json:
        scan = {"epoch_id": epoch.epoch_id, "scanned_at": epoch.started_at, "covered": epoch.covered}
        listed = {"rows": rows.to_pylist()} if code or finding else {}
        show.json_document(
            {**scan, "by_code": [dict(zip(_GROUP, _group(one), strict=True)) for one in groups], **listed}
        )
        return
    begun = show.ago(epoch.started_at, where.clock.now_ms())
    covered = "" if epoch.covered else ", which is not covered"
    show.text(f"{show.counted(rows.num_rows, 'finding')} of scan {epoch.epoch_id}, begun {begun}{covered}")
    show.table(_GROUP, [(*cells, show.size(size), said) for *cells, size, said in map(_group, groups)])
    if code or finding:
        largest = rows.sort_by([("physical_bytes", "descending")]).slice(0, LEDGERS)
        show.text(f"largest ({largest.num_rows} of {rows.num_rows}; --json has all)", "bold cyan")
        listed = [(*(row[name] for name in _SAMPLE), show.size(row["physical_bytes"])) for row in largest.to_pylist()]
        show.table([*_SAMPLE, "on disk"], listed, 2)


LEDGERS = 50
"""Ledgers that ``findings`` lists."""
_SAMPLE = ("ledger_id", "topic", "component", "cursor", "finding", "code")
_GROUP = ("finding", "code", "ledgers", "bytes", "such as")


def _group(one: dict[str, Any]) -> tuple[Any, ...]:
    return one["finding"], one["code"], one["finding_count"], one["physical_bytes_sum"] or 0, one["reason_min"]


def _document(found: Explanation, now: int) -> dict[str, Any]:
    history = found.history
    epoch = history.epoch
    return {
        "ledger_id": found.ledger_id,
        "verdict": found.verdict.value,
        "code": str(found.code),
        "answer": found.answer.why.text,
        "notes": list(found.notes),
        "path": found.path,
        "topic": found.topic,
        "ledger": found.ledger,
        "references": found.look.references.to_pylist(),
        "asked": list(found.look.asked),
        "not_read": list(found.look.trouble),
        "scan": epoch
        and {
            "epoch_id": epoch.epoch_id,
            "started_at": epoch.started_at,
            "age_ms": now - epoch.started_at,
            "covered": epoch.covered,
            "gaps": [asdict(gap) for gap in epoch.gaps],
            "references": history.references.to_pylist(),
            "finding": history.finding,
        },
        "plans": [plan.to_json() for plan in history.plans],
        "journal": list(history.journal),
        "archive": [{**row, "data": f"0x{row['data'].hex()}"} for row in history.archived],
    }


def _print(found: Explanation, settings: Settings, now: int) -> None:
    history = found.history
    code = "" if found.code == found.verdict else f" ({found.code})"
    verdict = found.verdict.replace("_", " ")
    show.text(f"Ledger {found.ledger_id}: {verdict}{code}", _STYLES.get(found.verdict, "bold"))
    show.text(f"  {found.answer.why}{_when(found, now)}")
    for note in found.notes:
        show.text(f"  - {note}")
    show.text()
    show.facts(
        [
            ("ledger", _ledger(found, now)),
            ("owner", _owner(found)),
            ("now", _now(found)),
            ("last scan", _scan(history, now)),
            ("plans", _plans(found, settings, now)),
            ("next", _next(found)),
            ("archived", [_archived(row, settings) for row in history.archived]),
        ]
    )
    if history.journal:
        show.text("journal", "bold")
        rows = [
            (show.moment(row["at"]), *(row[c] for c in ("action", "phase", "outcome", "reason", "run_id", "plan_id")))
            for row in history.journal
        ]
        show.table(["at", "action", "phase", "outcome", "reason", "run", "plan"], rows, 2)


def _when(found: Explanation, now: int) -> str:
    """When it was deleted, if it was."""
    from pulsar_lifecycle.inspect.explain_codes import Verdict

    if found.verdict is not Verdict.DELETED:
        return ""
    at = max(row["at"] for row in found.history.deletions())
    return f", {show.moment(at)} ({show.ago(at, now)})"


def _ledger(found: Explanation, now: int) -> str:
    row = found.ledger
    if row is None:
        return f"{found.path} does not exist"
    if row["problem"]:
        return f"{found.path}: {row['error']}"
    inside = (
        f", {show.counted(row['entries'], 'entry', 'entries')}, {show.size(row['length'])}"
        if row["entries"] is not None
        else ""
    )
    made = f"{show.moment(row['ctime'])} ({show.ago(row['ctime'], now)})"
    return f"{row['state']}{inside}, made {made}, {found.path}"


def _owner(found: Explanation) -> str | None:
    row = found.ledger
    if row is None or row["problem"]:
        return None
    if not found.topic:
        return "none: not tagged by Pulsar" if row["application"] != "pulsar" else "its tags name none"
    cursor = row["cursor"] or row["bucket_cursor"]
    what = "cursor ledger" if row["component"] == "managed-ledger" and cursor else row["component"]
    return f"{found.topic} ({what}{f' of {cursor}' if cursor else ''})"


def _now(found: Explanation) -> list[str]:
    from pulsar_lifecycle.scan.references import KINDS

    lines = [
        f"{row['referrer']} refers to it ({KINDS[row['kind']].name}"
        + (")" if row["keeps_bookkeeper_copy"] else "; it says the BookKeeper copy is deleted)")
        for row in found.look.references.to_pylist()
    ]
    if lines:
        return lines
    return [f"{path} does not refer to it" for path in found.look.asked] or ["it names no owner to ask"]


def _scan(history: History, now: int) -> list[str]:
    from pulsar_lifecycle.scan.references import KINDS

    epoch = history.epoch
    if epoch is None:
        return ["none of this cluster: run the job `scan`"]
    covered = "covered" if epoch.covered else f"NOT COVERED, {show.counted(len(epoch.gaps), 'gap')}"
    lines = [f"{epoch.epoch_id}, begun {show.ago(epoch.started_at, now)}, {covered}"]
    lines += [f"gap {gap.line}" for gap in epoch.gaps[:5]]
    seen = [f"saw {r['referrer']} refer to it ({KINDS[r['kind']].name})" for r in history.references.to_pylist()]
    lines += dict.fromkeys(seen)  # a broker may hold the same ledger in two places
    if history.finding:
        lines.append(f"found {history.finding['finding'].replace('_', ' ')}: {history.finding['reason']}")
    elif not history.references.num_rows:
        lines.append("did not see it")
    return lines


def _plans(found: Explanation, settings: Settings, now: int) -> list[str] | None:
    from pulsar_lifecycle.inspect.explain_codes import Verdict

    ended = found.history.ended
    lines = [f"{plan.plan_id}: {condition(plan, settings, now, ended)}" for plan in found.history.plans]
    return lines or (["in none that is still valid"] if found.verdict is Verdict.MAY_GO else None)


def _next(found: Explanation) -> str | None:
    """What to do, where there is something to do."""
    from pulsar_lifecycle.inspect.explain_codes import Verdict
    from pulsar_lifecycle.journal.intents import IntentState

    history = found.history
    ready = history.applicable()
    if found.verdict is Verdict.UNJUDGED:
        return "run the job `scan`"
    if found.verdict is Verdict.MAY_GO:
        intent = history.intent()
        if intent == IntentState.IN_FLIGHT:
            return "its intent was sent: the job `delete_pending` decides it afresh"
        if intent == IntentState.DEAD_LETTER:
            return "its intent is a dead letter: mend its reason, then run the job `redrive_dead_letters`"
        return f"`pulsar-lifecycle plan {ready[0].plan_id}` says how to apply it" if ready else "run the job `scan`"
    again = found.answer.again
    return f"it is judged again from {show.moment(again)} on" if again is not None else None


def _archived(row: dict[str, Any], settings: Settings) -> str:
    day = show.moment(row["at"])[:10]
    where = f"{settings.lake.path}/archive/date={day}"
    return f"{where}, by run {row['run_id']}: {row['path']}, version {row['version']}, {len(row['data'])} bytes"
