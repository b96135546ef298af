"""``plans``, ``plan ID``, ``journal``: what would be deleted and how to say so, and what was.

Belongs here: the pages. Not here: applying a plan, which is a Dagster job for each kind.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Collection, Mapping
from typing import TYPE_CHECKING, Annotated, Any

import typer

from pulsar_lifecycle.cli import show
from pulsar_lifecycle.cli.options import AsJson, cluster_of
from pulsar_lifecycle.formats.ledger_path import MAX_LEDGER_ID

if TYPE_CHECKING:
    import pyarrow as pa

    from pulsar_lifecycle.cli.plan_page import PlanPage
    from pulsar_lifecycle.inspect.kept_plans import Plan
    from pulsar_lifecycle.inspect.settled import PlanEnd
    from pulsar_lifecycle.ports import JournalReader, Lake
    from pulsar_lifecycle.settings import Settings
    from pulsar_lifecycle.values.codes import Why
    from pulsar_lifecycle.values.gaps import Gap

SAMPLE = 20
JOURNAL_ROWS = 50


def plans(context: typer.Context, as_json: AsJson = False) -> None:
    """List the stored plans of all kinds, newest first."""
    from pulsar_lifecycle.cli.plan_pages import PAGES
    from pulsar_lifecycle.inspect.kept_plans import every_plan, known_kind
    from pulsar_lifecycle.inspect.settled import ended_plans

    where = cluster_of(context)
    settings, lake = where.settings, where.lake
    found, unknown = every_plan(lake)
    for broken in lake.broken_plans():
        show.note(f"left out: {broken}")
    for one in unknown:
        show.note(f"left out: plan {one.plan_id}: of a kind that this version does not know")
    if as_json:
        show.json_document([plan.to_json() for plan in found])
        return
    now = where.clock.now_ms()
    ended = ended_plans(where, found, now)
    ours = [plan for plan in found if plan.cluster == settings.cluster]
    newest = {known_kind(plan.plan_id): plan.plan_id for plan in reversed(ours)}
    scans = {epoch.epoch_id for epoch in lake.epochs(cluster=settings.cluster)}
    rows = [
        (
            plan.plan_id,
            show.ago(plan.created_at, now),
            *PAGES[known_kind(plan.plan_id)].brief(plan),
            condition(plan, settings, now, ended, newest.get(known_kind(plan.plan_id), ""), scans),
        )
        for plan in found
    ]
    if rows:
        show.table(["plan", "made", "what", "share", "frees", "condition"], rows)
    else:
        show.text("no plan yet: run the job `scan`")
    if broken := known_restore(lake, settings):
        show.text(f"every run with effects is refused: {broken.text}")


def plan(
    context: typer.Context,
    plan_id: Annotated[str, typer.Argument(help="As `plans` lists it.")],
    run_config: Annotated[
        bool, typer.Option("--run-config", help="Print only the run configuration for the job that applies it.")
    ] = False,
    as_json: AsJson = False,
) -> None:
    """What a plan would delete, whether it can be applied, and how. Exit code 1 if applying it would be refused."""
    from pulsar_lifecycle.cli.plan_pages import PAGES
    from pulsar_lifecycle.inspect.kept_plans import known_kind, stored_plan
    from pulsar_lifecycle.inspect.settled import ended_plans, settled_ledgers
    from pulsar_lifecycle.journal.queries import journal_rows

    where = cluster_of(context)
    settings, lake = where.settings, where.lake
    page = PAGES[known_kind(plan_id)]
    summary, rows = stored_plan(lake, plan_id)
    now = where.clock.now_ms()
    refusal = refusal_of(summary, rows, lake, settings, now)
    journalled = journal_rows(where.journal_reader, plan_id=plan_id)
    done = Counter(journalled.column("outcome").to_pylist())
    settled = settled_ledgers(plan_id, rows, journalled)
    config = page.run_config(summary)
    if run_config:
        show.json_document(config)
    elif as_json:
        show.json_document(
            {
                **summary.to_json(),
                "refusal": refusal.text if refusal else None,
                "refusal_code": refusal.code.value if refusal else None,
                "journal": dict(done),
                "settled": settled,
                "run_config": config,
                "rows": rows.to_pylist(),
            }
        )
    else:
        end = ended_plans(where, [summary], now).get(plan_id)
        _print_plan(page, summary, rows, refusal, done, settled, end, settings, now)
    if refusal:
        if run_config:
            show.note(f"applying it would be refused: {refusal.text}")
        raise typer.Exit(1)


def journal(
    context: typer.Context,
    ledger: Annotated[
        int | None, typer.Option("--ledger", min=0, max=MAX_LEDGER_ID, help="What was done with a ledger.")
    ] = None,
    run: Annotated[str | None, typer.Option("--run", help="What a run did.")] = None,
    plan: Annotated[str | None, typer.Option("--plan", help="What became of a plan.")] = None,
    code: Annotated[str | None, typer.Option("--code", help="Only rows with this code, such as still_in_use.")] = None,
    outcome: Annotated[str | None, typer.Option("--outcome", help="Only rows with this outcome, such as kept.")] = None,
    as_json: AsJson = False,
) -> None:
    """What was decided and done on this cluster, oldest first, by ledger, run, plan, code, outcome or several."""
    import pyarrow.compute as pc

    from pulsar_lifecycle.cli import journal_codes
    from pulsar_lifecycle.errors import UsageError
    from pulsar_lifecycle.journal.queries import journal_rows

    if all(one is None for one in (ledger, run, plan, code, outcome)):
        raise UsageError("journal: name at least one of --ledger, --run, --plan, --code, --outcome")
    journal_codes.check(code, outcome)
    where = cluster_of(context)
    settings, journal = where.settings, where.journal_reader
    every = journal_rows(journal, ledger_id=ledger, run_id=run, plan_id=plan, code=code, outcome=outcome)
    rows = every.filter(pc.field("cluster") == settings.cluster)
    if rows.num_rows < every.num_rows:
        others = show.counted(every.num_rows - rows.num_rows, "row")
        show.note(f"{others} of other clusters in this lake left out")
    if as_json:
        show.json_document(rows.to_pylist())
        return
    if not rows.num_rows:
        show.text("the journal has nothing of that")
        if code and outcome is None and journal_codes.is_outcome(code):
            show.text(f"{code} is an outcome, too: --outcome {code}")
        if code is not None and outcome is not None:
            _say_what_there_is(journal, settings.cluster, code, outcome)
        return
    kinds = ["action", "phase", "outcome", "code", "reason"]
    shown = rows.slice(max(0, rows.num_rows - JOURNAL_ROWS)).to_pylist()
    if len(shown) < rows.num_rows:
        counts = Counter(zip(*(rows.column(c).to_pylist() for c in kinds), strict=True))
        show.table([*kinds, "rows"], [(*key, count) for key, count in counts.most_common()])
        show.text(f"the last {len(shown)} of {rows.num_rows}; --json has all of them")
    columns = [
        "at",
        "ledger",
        "component",
        "topic",
        "action",
        "phase",
        "outcome",
        "code",
        "reason",
        "size",
        "run",
        "plan",
    ]
    show.table(columns, [_journal_line(row) for row in shown])


def _say_what_there_is(journal: JournalReader, cluster: str, code: str, outcome: str) -> None:
    """No row has both: which codes the outcome has in this journal, and which outcomes the code has."""
    from pulsar_lifecycle.journal.queries import having

    codes = journal.find(having({"cluster": cluster, "outcome": outcome}), ["code"])
    outcomes = journal.find(having({"cluster": cluster, "code": code}), ["outcome"])
    for what, found in ((f"outcome {outcome}, by code", codes), (f"code {code or '(none)'}, by outcome", outcomes)):
        names = Counter(found.column(0).to_pylist()).most_common()
        counts = ", ".join(f"{name or '(none)'} {count}" for name, count in names)
        show.text(f"{what}: {counts or 'no row'}")


def condition(
    summary: Plan,
    settings: Settings,
    now: int,
    ended: Mapping[str, PlanEnd] | None = None,
    newest: str = "",
    scans: Collection[str] | None = None,
) -> str:
    """Whether a plan can still be applied, in few words.

    ``ended``: by id plans with nothing left to apply; ``newest``: that of the newest of its kind, if known;
    ``scans``: ids of the scans that count, if known.
    """
    from pulsar_lifecycle.values.plans import age_text

    if end := (ended or {}).get(summary.plan_id):
        return end.text
    left = summary.created_at + settings.orphans.plan_valid_for * 1000 - now
    if summary.cluster != settings.cluster:
        return f"of another cluster: {summary.cluster}"
    if not summary.actionable:
        return f"report-only, {show.counted(len(summary.gaps), 'gap')}"
    if left < 0:
        return "expired"
    if summary.created_at > now:
        return age_text(summary.created_at, now, 0)
    if scans is not None and summary.epoch_id not in scans:
        return "its scan was set aside, or is gone"
    if not summary.rows:
        return "holds nothing"
    newer = "" if newest in ("", summary.plan_id) else "; a newer one is there"
    return f"actionable for {show.span(left)}{newer}"


def known_restore(lake: Lake, settings: Settings) -> Gap | None:
    """What a scan found that says that the metadata store was restored, until that is accepted."""
    from pulsar_lifecycle.scan.coverage import known_break

    return known_break(lake.epochs(cluster=settings.cluster))


def refusal_of(summary: Plan, rows: pa.Table, lake: Lake, settings: Settings, now: int) -> Why | None:
    """Why applying the whole plan now would be refused; None if it would not, as far as the lake can tell."""
    from pulsar_lifecycle.cli.plan_pages import PAGES
    from pulsar_lifecycle.errors import RefusedBy
    from pulsar_lifecycle.inspect.kept_plans import KEPT, known_kind
    from pulsar_lifecycle.values.codes import Why
    from pulsar_lifecycle.values.plans import check_applicable
    from pulsar_lifecycle.values.refusals import RefusalCode

    kind = known_kind(summary.plan_id)
    try:
        check_applicable(
            summary,
            KEPT[kind].digest(rows, summary.to_json()),
            digest_given=summary.digest,
            cluster=settings.cluster,
            fingerprint=summary.fingerprint,
            now=now,
            valid_for_ms=int(settings.orphans.plan_valid_for * 1000),
        )
        PAGES[kind].check(summary, rows, lake, settings, now)
    except RefusedBy as refused:
        return Why(refused.code, str(refused))
    broken = known_restore(lake, settings)
    return Why(RefusalCode.STORE_WENT_BACK, broken.text) if broken else None


def _print_plan(
    page: PlanPage,
    summary: Any,
    rows: pa.Table,
    refusal: Why | None,
    done: Counter[str],
    settled: int,
    end: PlanEnd | None,
    settings: Settings,
    now: int,
) -> None:
    from pulsar_lifecycle.inspect.settled import PlanEnd

    left = rows.num_rows - settled
    nothing_left = "" if left else f": {PlanEnd.SETTLED.text}"
    shown = condition(summary, settings, now, {summary.plan_id: end} if end else None)
    confirmed = [f"confirmed by {summary.confirmed_by or 'none'}"] if page.needs_two_scans else []
    show.facts(
        [
            ("plan", summary.plan_id),
            ("condition", f"refused: {refusal.text}" if refusal else shown),
            ("made", f"{show.moment(summary.created_at)} ({show.ago(summary.created_at, now)})"),
            ("scans", ", ".join([summary.epoch_id, *confirmed])),
            *page.facts(summary, rows),
            ("digest", summary.digest),
            ("journal", ", ".join(f"{count} {outcome}" for outcome, count in sorted(done.items())) or "not applied"),
            ("settled", f"{settled} of its {page.what}s{nothing_left}" if settled else None),
            ("gaps", [gap.line for gap in summary.gaps[:SAMPLE]]),
        ]
    )
    if rows.num_rows:
        for name, groups in page.groups(rows).items():
            show.text(f"by {name.replace('_', ' ')}", "bold cyan")
            show.table([name.replace("_", " "), f"{page.what}s", page.measure], groups, 2)
        show.text(f"sample ({min(SAMPLE, rows.num_rows)} of {rows.num_rows})", "bold cyan")
        sample = rows.slice(0, SAMPLE).to_pylist()
        show.table(list(page.columns), [page.line(row) for row in sample], 2)
        for note in (note for row in sample for note in page.notes(row)):
            show.text(f"  {note}")
    if not refusal and left and not end:
        show.text("to apply it", "bold cyan")
        show.text(f"  pulsar-lifecycle plan {summary.plan_id} --run-config > apply.json")
        show.text(f"  dagster job execute -m orchestration.definitions -a defs -j {page.job} -c apply.json")
        show.text(f"  or paste that file into the launchpad of the job {page.job} in the Dagster UI")


def _journal_line(row: dict[str, Any]) -> tuple[Any, ...]:
    return (
        show.moment(row["at"]),
        row["ledger_id"] if row["ledger_id"] >= 0 else None,
        row["component"],
        row["topic"],
        row["action"],
        row["phase"],
        row["outcome"],
        row["code"],
        row["reason"],
        show.size(row["bytes"]),
        row["run_id"],
        row["plan_id"],
    )
