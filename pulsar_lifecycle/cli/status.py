"""``pause``, ``resume``, ``status``, ``accept-restore``: may anything act, does anything act, on what evidence.

Belongs here: the commands. Not here: the z-nodes (``runs/control.py``).
"""

from __future__ import annotations

import getpass
from collections.abc import Sequence
from dataclasses import asdict, dataclass, replace
from typing import TYPE_CHECKING, Annotated, Any

import typer

from pulsar_lifecycle.cli import show
from pulsar_lifecycle.cli.options import AsJson, cluster_of
from pulsar_lifecycle.cli.our_znodes import (
    Note,
    OpenAttempts,
    ShownLocation,
    ShownUnload,
    note,
    open_attempts,
    pending_unloads,
    refusals,
    refusals_document,
    unread_locations,
)

if TYPE_CHECKING:
    from pulsar_lifecycle.inspect.unmatched_names import UnmatchedName
    from pulsar_lifecycle.lifecycle.bookies.suspension import Suspended
    from pulsar_lifecycle.runs.cluster import Cluster
    from pulsar_lifecycle.values.codes import Why
    from pulsar_lifecycle.values.epoch import Epoch
    from pulsar_lifecycle.values.known_words import KnownWord
    from pulsar_lifecycle.values.plans.plan_summary import PlanSummary


def pause(
    context: typer.Context,
    reason: Annotated[str, typer.Argument(help="Why; `status` shows it to whoever wonders.")] = "",
) -> None:
    """Stop every effect on this cluster within one batch, until `resume`."""
    from pulsar_lifecycle.runs import control

    where = cluster_of(context)
    settings = where.settings
    with where.ports() as ports:
        store = ports.store
        before = note(store, control.PAUSE)
        control.pause(store, reason)
    if before:
        show.text(f"{settings.cluster} was paused already, {before}", "bold")
    else:
        show.text(f"{settings.cluster} is paused: every effect stops within one batch", "bold")


def resume(context: typer.Context) -> None:
    """Let effects go on."""
    from pulsar_lifecycle.runs import control

    where = cluster_of(context)
    settings = where.settings
    with where.ports() as ports:
        store = ports.store
        before = note(store, control.PAUSE)
        control.resume(store)
    was = f"; it was paused {before}" if before else ", and was not paused"
    show.text(f"{settings.cluster} is not paused{was}", "bold")


def accept_restore(
    context: typer.Context,
    reason: Annotated[
        str, typer.Argument(help="What was restored, from when; it is journalled and shown by `status`.")
    ],
    by: Annotated[str, typer.Option("--by", help="Who says so (default: the user of this machine).")] = "",
    anyway: Annotated[
        bool, typer.Option("--anyway", help="Although no scan found that anything was restored.")
    ] = False,
) -> None:
    """Set aside every scan made so far: for a metadata store that was restored and is now known to be right.

    Writes to the lake and its journal, nothing to the cluster. Plans made of those scans cannot be applied any more;
    two new scans, orphans.confirm_after apart, begin afresh. What the queue holds is judged by them.
    """
    from pulsar_lifecycle.cli.plans import known_restore
    from pulsar_lifecycle.errors import RefusedBy, UsageError
    from pulsar_lifecycle.journal.operator_words import journal_row
    from pulsar_lifecycle.values.known_words import KnownWord
    from pulsar_lifecycle.values.refusals import RefusalCode
    from pulsar_lifecycle.words import WordKind

    if not reason.strip():
        raise UsageError("accept-restore: say what was restored, and from when")
    where = cluster_of(context)
    settings, lake = where.settings, where.lake
    aside = lake.epochs(cluster=settings.cluster)
    known = known_restore(lake, settings)
    broken = known.text if known else ""
    if not broken and not anyway:  # as `status` sees it, which may say so before any scan does
        with where.ports(read_only=True) as ports:
            found = refusals(settings, ports.store, aside)
        broken = next((why.text for why in found if why.code is RefusalCode.STORE_WENT_BACK), None)
    if not broken and not anyway:
        raise RefusedBy(
            RefusalCode.NOTHING_RESTORED,
            f"nothing says that the metadata store of {settings.cluster} was restored, so its scans are good evidence: "
            "run the job scan and look; if you know better, give --anyway",
        )
    now, who = where.clock.now_ms(), by.strip() or _user()
    word = KnownWord(WordKind.ACCEPTED_RESTORE, settings.cluster, who, reason.strip(), "", now)
    where.journal.record([journal_row("accept-restore", settings.cluster, word, now)])
    lake.set_scans_aside(settings.cluster, now, reason.strip(), who)
    show.text(f"{show.counted(len(aside), 'scan')} of {settings.cluster} set aside", "bold")
    if broken:
        show.text(f"what was found: {broken}")
    again = "run the job `scan` now, and again orphans.confirm_after later"
    show.text(f"{again}; until then plans that need two scans are report-only")


def _user() -> str:
    from pulsar_lifecycle.errors import UsageError

    try:
        return getpass.getuser()
    except (OSError, KeyError, ImportError):  # a container's user may have no name
        raise UsageError("accept-restore: this machine's user has no name, say who you are with --by") from None


def status(context: typer.Context, as_json: AsJson = False) -> None:
    """Paused? Who acts? How good is the evidence? What waits? Can the lake be written?

    Exit code 1 if some of it could not be asked, and if the lake cannot be written: no run could journal what it does.
    """
    where = cluster_of(context)
    found = _status(where)
    if as_json:
        show.json_document(found.to_json())
    else:
        _print(found, where)
    if isinstance(found.queue, str) or found.unwritable:
        raise typer.Exit(1)


@dataclass(frozen=True)
class Status:
    """What the command tells. ``scan``: the newest; ``unfinished_scan``: one begun since, its id and when (ms).

    ``queue``: how many intents are in flight, or why that is not known; so with ``unmatched_names``.
    ``lake_exists``: whether anything is there yet; ``unwritable``: why it cannot be written, empty if it can, or if
    nothing is there.
    """

    cluster: str
    fingerprint: str
    zookeeper_latency_ms: float
    paused: Note | None
    refused: list[Why]
    lease: Note | None
    offload_lease: Note | None
    offload_attempts: OpenAttempts
    collection_lease: Note | None
    compaction_suspended: list[Suspended]
    pending_unloads: list[ShownUnload]
    unread_locations: list[ShownLocation]
    scan: Epoch | None
    unfinished_scan: tuple[str, int] | None
    plan: PlanSummary | None
    words: list[ShownWord]
    unmatched_names: list[UnmatchedName] | str
    broken_plans: list[str]
    queue: int | str
    lake: str
    lake_exists: bool
    unwritable: str

    def to_json(self) -> dict[str, Any]:
        """The document of ``--json``."""
        scan, begun = self.scan, self.unfinished_scan
        return {
            "cluster": self.cluster,
            "fingerprint": self.fingerprint,
            "zookeeper_latency_ms": self.zookeeper_latency_ms,
            "paused": self.paused and asdict(self.paused),
            "refused": refusals_document(self.refused),
            "lease": self.lease and asdict(self.lease),
            "offload_lease": self.offload_lease and asdict(self.offload_lease),
            "offload_attempts": asdict(self.offload_attempts),
            "collection_lease": self.collection_lease and asdict(self.collection_lease),
            "compaction_suspended": [asdict(one) for one in self.compaction_suspended],
            "pending_unloads": [one.to_json() for one in self.pending_unloads],
            "unread_locations": [one.to_json() for one in self.unread_locations],
            "scan": scan
            and {
                "epoch_id": scan.epoch_id,
                "started_at": scan.started_at,
                "finished_at": scan.finished_at,
                "covered": scan.covered,
                "gaps": [asdict(gap) for gap in scan.gaps],
                "listed": _listed(scan),
            },
            "unfinished_scan": begun and dict(zip(("epoch_id", "started_at"), begun, strict=True)),
            "plan": self.plan and self.plan.to_json(),
            "words": [one.to_json() for one in self.words],
            "unmatched_names": {"error": self.unmatched_names}
            if isinstance(self.unmatched_names, str)
            else [asdict(one) for one in self.unmatched_names],
            "broken_plans": self.broken_plans,
            "queue": {"error": self.queue} if isinstance(self.queue, str) else {"pending": self.queue},
            "lake": {"location": self.lake, "exists": self.lake_exists}
            | ({"error": self.unwritable} if self.unwritable else {}),
        }


@dataclass(frozen=True)
class ShownWord:
    """A word of the operator against, or beyond, the safety rules; ``met``: a run knows it, as of its ``since``."""

    word: KnownWord
    met: bool

    def to_json(self) -> dict[str, Any]:
        """``since`` (ms) is null where no run has met it yet."""
        return {**asdict(self.word), "since": self.word.since if self.met else None}

    def __str__(self) -> str:
        """Who said what, since when, and why."""
        word = self.word
        who = f" by {word.by}" if word.by else ""
        until = f", until {word.until}" if word.until else ""
        since = f"since {show.moment(word.since)}" if self.met and word.since else "no run has met it yet"
        text = f"{word.kind} {word.subject}{who}, {since}{until}: {word.why or 'no reason given'}"
        return f"{word.how.upper()} {show.moment(word.ended)}: {text}" if word.ended else text


def _listed(scan: Epoch) -> dict[str, int]:
    """How many z-nodes each table of our own root lists."""
    return {c.table: c.listed for c in scan.census if not c.root}


def lake_state(where: Cluster) -> tuple[bool, str]:
    """Whether anything is at ``lake.path``, and why it cannot be written; empty if it can, or if nothing is there."""
    from pulsar_lifecycle.errors import LifecycleError

    exists = True
    try:
        if exists := where.lake.exists():  # to look makes none where the path is mistyped
            where.journal.check_writable()
    except LifecycleError as error:
        return exists, str(error)
    return exists, ""


def _status(where: Cluster) -> Status:
    from pulsar_lifecycle.deletion_queue.queue_topics import pending
    from pulsar_lifecycle.errors import LifecycleError, NotFound
    from pulsar_lifecycle.inspect.unmatched_names import unmatched_names
    from pulsar_lifecycle.lifecycle.bookies.suspension import suspended_bookies
    from pulsar_lifecycle.metastore.fingerprint import cluster_fingerprint
    from pulsar_lifecycle.runs import control

    settings, lake = where.settings, where.lake
    scans, root = lake.epochs(cluster=settings.cluster), settings.bookkeeper.ledgers_root
    with where.ports(read_only=True) as ports:
        store = ports.store
        fingerprint = cluster_fingerprint(store, root)
        refused = refusals(settings, store, scans)
        paused, holder = note(store, control.PAUSE), note(store, control.holder_of(control.LEASE))
        offloading, attempts = note(store, control.holder_of(control.OFFLOAD_LEASE)), open_attempts(store)
        collecting = note(store, control.holder_of(control.COLLECTION_LEASE))
        unloads, unread = pending_unloads(store), unread_locations(store)
        latency = store.latency_ms()
    epochs = [e for e in scans if e.fingerprint == fingerprint]
    now, counted = where.clock.now_ms(), {epoch.epoch_id for epoch in scans}
    mine = [plan for plan in lake.plans() if plan.fingerprint == fingerprint]
    plans = [plan for plan in mine if plan.created_at <= now or plan.epoch_id in counted]  # else it hides newer ones
    newest = epochs[-1] if epochs else None
    try:
        begun = lake.open_epoch("")
    except NotFound:
        begun = "", 0
    unmatched: list[UnmatchedName] | str
    try:
        unmatched = unmatched_names(lake, newest, settings, now) if newest else []
    except LifecycleError as error:
        unmatched = str(error)
    queue: int | str
    exists, unwritable = lake_state(where)
    try:
        with where.ports(read_only=True) as ports:
            queue = pending(ports.admin)
    except LifecycleError as error:
        queue = str(error)
    return Status(
        cluster=settings.cluster,
        fingerprint=fingerprint,
        zookeeper_latency_ms=latency,
        paused=paused,
        refused=refused,
        lease=holder,
        offload_lease=offloading,
        offload_attempts=attempts,
        collection_lease=collecting,
        compaction_suspended=list(suspended_bookies(where)),
        pending_unloads=unloads,
        unread_locations=unread,
        scan=newest,
        unfinished_scan=begun if newest is None or begun[1] > newest.started_at else None,
        plan=plans[-1] if plans else None,
        words=words_in_force(where, scans),
        unmatched_names=unmatched,
        broken_plans=[str(error) for error in lake.broken_plans()],
        queue=queue,
        lake=lake.location,
        lake_exists=exists,
        unwritable=unwritable,
    )


def _print(found: Status, where: Cluster) -> None:
    from pulsar_lifecycle.cli.plans import condition
    from pulsar_lifecycle.inspect.settled import ended_plans

    now, scan = where.clock.now_ms(), found.scan
    lines = ["none yet: run the job `scan`"]
    if scan:
        covered = (
            "covered" if scan.covered else f"NOT COVERED, {show.counted(len(scan.gaps), 'gap')}: plans are report-only"
        )
        listed = _listed(scan).get("bookkeeper_ledgers", 0)
        lines = [f"{scan.epoch_id}, begun {show.ago(scan.started_at, now)}, {covered}, {listed} ledgers listed"]
        lines += [f"gap {gap.line}" for gap in scan.gaps[:5]]
        lines += [f"... {len(scan.gaps) - 5} more gaps; --json has all of them"] if len(scan.gaps) > 5 else []
    if found.unfinished_scan and found.unfinished_scan[0]:
        epoch_id, begun_at = found.unfinished_scan
        lines.append(f"{epoch_id}, begun {show.ago(begun_at, now)}, has not finished")
    effects = [f"PAUSED {found.paused}"] if found.paused else []
    effects += [f"REFUSED: {why.text}" for why in found.refused]
    plan = "none of leaked ledgers; `pulsar-lifecycle plans` has those of every kind"
    broken = [f"broken: {why}" for why in found.broken_plans]
    if newest := found.plan:
        plan = f"{newest.plan_id}: {show.counted(newest.ledgers, 'ledger')}, {show.size(newest.physical_bytes)}"
        scans = {epoch.epoch_id for epoch in where.lake.epochs(cluster=newest.cluster)}
        plan += f", {condition(newest, where.settings, now, ended_plans(where, [newest], now), scans=scans)}"
    waiting, unmatched = found.queue, found.unmatched_names
    show.facts(
        [
            ("cluster", f"{found.cluster} (fingerprint {found.fingerprint})"),
            ("effects", effects or ["not paused"]),
            ("acting", _holder(found.lease, "lease")),
            ("offloading", _offloading(found)),
            ("collecting", _holder(found.collection_lease, "collection lease")),
            ("bookies", [_suspended(one) for one in found.compaction_suspended]),
            ("pending unloads", list(map(str, found.pending_unloads))),
            ("unread", list(map(str, found.unread_locations))),
            ("your words", list(map(str, found.words))),
            ("unmatched", [f"UNKNOWN: {unmatched}"] if isinstance(unmatched, str) else list(map(str, unmatched))),
            ("last scan", lines),
            ("last plan", [plan, *broken]),
            (
                "queue",
                f"UNKNOWN: {waiting}" if isinstance(waiting, str) else f"{show.counted(waiting, 'intent')} in flight",
            ),
            ("lake", _lake(found)),
            ("ZooKeeper", f"answers in {found.zookeeper_latency_ms:.0f} ms"),
        ]
    )


def _lake(found: Status) -> str:
    if found.unwritable:
        return f"UNWRITABLE: {found.unwritable}"
    missing = ": NOTHING IS THERE YET, the first scan makes it; if there were scans, lake.path is wrong"
    return found.lake if found.lake_exists else f"{found.lake}{missing}"


def words_in_force(where: Cluster, scans: Sequence[Epoch]) -> list[ShownWord]:
    """What the operator said against, or beyond, the safety rules: in force now, or ended in the last 30 days.

    An accepted restore is in force until two covered scans since then are ``orphans.confirm_after`` apart. ``scans``:
    the finished ones that count.
    """
    from pulsar_lifecycle.values.known_words import meet
    from pulsar_lifecycle.values.outcomes import Outcome

    settings, lake, now = where.settings, where.lake, where.clock.now_ms()
    known = lake.words(settings.cluster)
    stand, _ = meet(known, settings.words(), now)
    met = {word.key for word in known if word.how == Outcome.IN_FORCE}
    accepted = lake.accepted_restore(settings.cluster)
    covered = [e.started_at for e in scans if e.covered]
    if accepted and max(covered, default=0) - min(covered, default=0) < settings.orphans.confirm_after * 1000:
        stand, met = [accepted, *stand], met | {accepted.key}
    return [ShownWord(word, word.key in met or word.how != Outcome.IN_FORCE) for word in stand]


def _holder(lease: Note | None, what: str) -> str:
    if lease is None:
        return "nobody"
    if lease.since is None:
        return f"somebody holds the {what} {lease}"
    return f"{lease.text} holds the {what}, {replace(lease, text='')}"


def _suspended(one: Suspended) -> str:
    """A bookie whose disk fills up until somebody resumes its compaction."""
    why = f": {one.why}" if one.why else ""
    has = "has" if one.sure else "may have"
    return f"{one.bookie} {has} compaction suspended, as of {show.moment(one.since)}{why}"


def _offloading(found: Status) -> list[str]:
    """Who offloads, and what is open."""
    attempts = found.offload_attempts
    lines = [_holder(found.offload_lease, "offload lease")]
    if attempts.open:
        then = "" if found.offload_lease else ": the next run of job offload finishes or removes them"
        lines.append(f"{show.counted(attempts.open, 'attempt')} open{then}")
    return [*lines, *(f"UNREADABLE: {why}" for why in attempts.broken)]
