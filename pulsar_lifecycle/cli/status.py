"""``pause``, ``resume``, ``status``, ``accept-restore``: may anything act, does anything act, on what evidence.

Belongs here: the commands. Not here: the z-nodes (``runs/control.py``).
"""

from __future__ import annotations

import getpass
from collections.abc import Sequence
from dataclasses import asdict
from typing import TYPE_CHECKING, Annotated, Any

import typer

from pulsar_lifecycle.cli import show
from pulsar_lifecycle.cli.options import AsJson, cluster_of

if TYPE_CHECKING:
    from pulsar_lifecycle.ports import MetadataStore
    from pulsar_lifecycle.records.epoch import Epoch
    from pulsar_lifecycle.runs.cluster import Cluster
    from pulsar_lifecycle.settings import Settings


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
        show.text(f"{settings.cluster} was paused already, {since(before)}", "bold")
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
    was = f"; it was paused {since(before)}" if before else ", and was not paused"
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
    from pulsar_lifecycle.records.known_words import KnownWord
    from pulsar_lifecycle.records.refusals import RefusalCode
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
        broken = next((one["text"] for one in found if one["code"] == RefusalCode.STORE_WENT_BACK), None)
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
    show.text("run the job `scan` now, and again orphans.confirm_after later; until then plans are report-only")


def _user() -> str:
    from pulsar_lifecycle.errors import UsageError

    try:
        return getpass.getuser()
    except (OSError, KeyError, ImportError):  # a container's user may have no name
        raise UsageError("accept-restore: this machine's user has no name, say who you are with --by") from None


def status(context: typer.Context, as_json: AsJson = False) -> None:
    """Paused? Who acts? How good is the evidence? What waits? Exit code 1 if some of it could not be asked."""
    where = cluster_of(context)
    document = _status(where)
    if as_json:
        show.json_document(document)
    else:
        _print(document, where)
    if "error" in document["queue"]:
        raise typer.Exit(1)


def _status(where: Cluster) -> dict[str, Any]:
    from pulsar_lifecycle.deletion_queue.queue_topics import pending
    from pulsar_lifecycle.errors import LifecycleError, NotFound
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
        begun, begun_at = lake.open_epoch("")
    except NotFound:
        begun, begun_at = "", 0
    try:
        with where.ports(read_only=True) as ports:
            queue: dict[str, Any] = {"pending": pending(ports.admin)}
    except LifecycleError as error:
        queue = {"error": str(error)}
    return {
        "cluster": settings.cluster,
        "fingerprint": fingerprint,
        "zookeeper_latency_ms": latency,
        "paused": paused,
        "refused": refused,
        "lease": holder,
        "offload_lease": offloading,
        "offload_attempts": attempts,
        "collection_lease": collecting,
        "compaction_suspended": [asdict(one) for one in suspended_bookies(where)],
        "pending_unloads": unloads,
        "unread_locations": unread,
        "scan": newest
        and {
            "epoch_id": newest.epoch_id,
            "started_at": newest.started_at,
            "finished_at": newest.finished_at,
            "covered": newest.covered,
            "gaps": [asdict(gap) for gap in newest.gaps],
            "listed": {c.table: c.listed for c in newest.census if not c.root},
        },
        "unfinished_scan": {"epoch_id": begun, "started_at": begun_at}
        if newest is None or begun_at > newest.started_at
        else None,
        "plan": plans[-1].to_json() if plans else None,
        "words": words_in_force(where, scans),
        "broken_plans": [str(error) for error in lake.broken_plans()],
        "queue": queue,
    }


def _print(document: dict[str, Any], where: Cluster) -> None:
    from pulsar_lifecycle.cli.plans import condition
    from pulsar_lifecycle.inspect.settled import ended_plans
    from pulsar_lifecycle.records.plans.plan_summary import PlanSummary

    now = where.clock.now_ms()
    scan, begun, lease, queue = document["scan"], document["unfinished_scan"], document["lease"], document["queue"]
    lines = ["none yet: run the job `scan`"]
    if scan:
        covered = (
            "covered"
            if scan["covered"]
            else f"NOT COVERED, {show.counted(len(scan['gaps']), 'gap')}: plans are report-only"
        )
        listed = scan["listed"].get("bookkeeper_ledgers", 0)
        begun_ago = show.ago(scan["started_at"], now)
        lines = [f"{scan['epoch_id']}, begun {begun_ago}, {covered}, {listed} ledgers listed"]
        lines += [f"gap {gap['code']}: {gap['text']}" for gap in scan["gaps"][:5]]
        lines += [f"... {len(scan['gaps']) - 5} more gaps; --json has all of them"] if len(scan["gaps"]) > 5 else []
    if begun and begun["epoch_id"]:
        lines.append(f"{begun['epoch_id']}, begun {show.ago(begun['started_at'], now)}, has not finished")
    effects = [f"PAUSED {since(document['paused'])}"] if document["paused"] else []
    effects += [f"REFUSED: {why['text']}" for why in document["refused"]]
    plan = "none of leaked ledgers; `pulsar-lifecycle plans` has those of every kind"
    broken = [f"broken: {why}" for why in document["broken_plans"]]
    if document["plan"]:
        newest = PlanSummary.from_json(document["plan"])
        plan = f"{newest.plan_id}: {show.counted(newest.ledgers, 'ledger')}, {show.size(newest.physical_bytes)}"
        scans = {epoch.epoch_id for epoch in where.lake.epochs(cluster=newest.cluster)}
        plan += f", {condition(newest, where.settings, now, ended_plans(where, [newest], now), scans=scans)}"
    show.facts(
        [
            ("cluster", f"{document['cluster']} (fingerprint {document['fingerprint']})"),
            ("effects", effects or ["not paused"]),
            ("acting", _holder(lease, "lease")),
            ("offloading", _offloading(document)),
            ("collecting", _holder(document["collection_lease"], "collection lease")),
            ("bookies", [_suspended(one) for one in document["compaction_suspended"]]),
            ("pending unloads", [show_pending_unloads(one) for one in document["pending_unloads"]]),
            ("unread", [show_unread(one) for one in document["unread_locations"]]),
            ("your words", [show_word(word) for word in document["words"]]),
            ("last scan", lines),
            ("last plan", [plan, *broken]),
            (
                "queue",
                f"{show.counted(queue['pending'], 'intent')} in flight"
                if "pending" in queue
                else f"UNKNOWN: {queue['error']}",
            ),
            ("ZooKeeper", f"answers in {document['zookeeper_latency_ms']:.0f} ms"),
        ]
    )


def words_in_force(where: Cluster, scans: Sequence[Epoch]) -> list[dict[str, Any]]:
    """What the operator said against, or beyond, the safety rules: in force now, or ended in the last 30 days.

    ``since`` (ms) is when a run first met it, None if none has yet. An accepted restore is in force until two covered
    scans since then are ``orphans.confirm_after`` apart. ``scans``: the finished ones that count.
    """
    from pulsar_lifecycle.records.known_words import meet
    from pulsar_lifecycle.records.outcomes import Outcome

    settings, lake, now = where.settings, where.lake, where.clock.now_ms()
    known = lake.words(settings.cluster)
    stand, _ = meet(known, settings.words(), now)
    met = {word.key for word in known if word.how == Outcome.IN_FORCE}
    accepted = lake.accepted_restore(settings.cluster)
    covered = [e.started_at for e in scans if e.covered]
    if accepted and max(covered, default=0) - min(covered, default=0) < settings.orphans.confirm_after * 1000:
        stand, met = [accepted, *stand], met | {accepted.key}
    return [
        {**asdict(word), "since": word.since if word.key in met or word.how != Outcome.IN_FORCE else None}
        for word in stand
    ]


def show_word(word: dict[str, Any]) -> str:
    """One of :func:`words_in_force` in words."""
    who = f" by {word['by']}" if word["by"] else ""
    until = f", until {word['until']}" if word["until"] else ""
    since = f"since {show.moment(word['since'])}" if word["since"] else "no run has met it yet"
    text = f"{word['kind']} {word['subject']}{who}, {since}{until}: {word['why'] or 'no reason given'}"
    return f"{word['how'].upper()} {show.moment(word['ended'])}: {text}" if word["ended"] else text


def _holder(lease: dict[str, Any] | None, what: str) -> str:
    if lease is None:
        return "nobody"
    if lease["since"] is None:
        return f"somebody holds the {what} {since(lease)}"
    return f"{lease['text']} holds the {what}, {since({**lease, 'text': ''})}"


def _suspended(one: dict[str, Any]) -> str:
    """A bookie whose disk fills up until somebody resumes its compaction."""
    why = f": {one['why']}" if one["why"] else ""
    has = "has" if one["sure"] else "may have"
    return f"{one['bookie']} {has} compaction suspended, as of {show.moment(one['since'])}{why}"


def _offloading(document: dict[str, Any]) -> list[str]:
    """Who offloads, and what is open."""
    lease, attempts = document["offload_lease"], document["offload_attempts"]
    lines = [_holder(lease, "offload lease")]
    if attempts["open"]:
        then = "" if lease else ": the next run of job offload finishes or removes them"
        lines.append(f"{show.counted(attempts['open'], 'attempt')} open{then}")
    return [*lines, *(f"UNREADABLE: {why}" for why in attempts["broken"])]


def refusals(settings: Settings, store: MetadataStore, scans: Sequence[Epoch]) -> list[dict[str, str]]:
    """Why every run with effects would refuse before it begins: code and text of each.

    ``scans`` are the finished ones of this cluster.
    """
    from pulsar_lifecycle.metastore.fingerprint import cluster_fingerprint
    from pulsar_lifecycle.records.refusals import RefusalCode
    from pulsar_lifecycle.runs.plan_checks import SWITCHED_OFF
    from pulsar_lifecycle.scan import history_check

    root = settings.bookkeeper.ledgers_root
    broken = history_check.broken_since(store, scans, cluster_fingerprint(store, root), root) if scans else None
    found = [] if settings.deletion.topicTwoPhaseDeletionEnabled else [(RefusalCode.SWITCHED_OFF, SWITCHED_OFF)]
    found += [(RefusalCode.STORE_WENT_BACK, broken.text)] if broken else []
    return [{"code": code.value, "text": text} for code, text in found]


def open_attempts(store: MetadataStore) -> dict[str, Any]:
    """How many of our offload attempts are open, and what cannot be read of them."""
    from pulsar_lifecycle.copies.attempts import Attempt, BrokenAttempt
    from pulsar_lifecycle.copies.attempts import open_attempts as found_in
    from pulsar_lifecycle.errors import LifecycleError

    try:
        found = found_in(store)
    except LifecycleError as error:
        return {"open": 0, "broken": [str(error)]}
    broken = [f"{one.path}: {one.reason}" for one in found if isinstance(one, BrokenAttempt)]
    return {"open": sum(isinstance(one, Attempt) for one in found), "broken": broken}


def note(store: MetadataStore, path: str) -> dict[str, Any] | None:
    """Text and creation time of one of our z-nodes; one that cannot be read counts as there, since None."""
    from pulsar_lifecycle.ports import Node, Unread

    node = store.read([path])[0]
    if isinstance(node, Unread):
        return {"text": f"{path}: {node.reason}", "since": None}
    if isinstance(node, Node):
        return {"text": node.data.decode(errors="replace"), "since": node.stat.ctime}
    return None


def since(noted: dict[str, Any]) -> str:
    """Since when one of our z-nodes is there, and its text."""
    if noted["since"] is None:
        return f"(unreadable: {noted['text']})"
    told = f": {noted['text']}" if noted["text"] else ""
    return f"since {show.moment(noted['since'])} ({show.ago(noted['since'])}){told}"


def pending_unloads(store: MetadataStore) -> list[dict[str, Any]]:
    """Topics that a run wrote and must still unload or watch, and, with an ``error``, what cannot be read of them.

    ``at_work``: the run that left it may be at it now, and no other makes it.
    """
    from pulsar_lifecycle.errors import LifecycleError
    from pulsar_lifecycle.runs import control

    try:
        found = control.pending_unloads(store)
    except LifecycleError as error:
        return [{"path": control.ROOT, "topic": None, "error": str(error)}]
    held = {lease for lease in control.PENDING_UNLOADS if control.is_held(store, lease)}
    return [
        {"path": one.path, "topic": one.topic and str(one.topic), "error": one.reason}
        if isinstance(one, control.BrokenPendingUnload)
        else {
            "path": one.path,
            "topic": str(one.topic),
            "loaded": one.loaded,
            "since": one.since,
            "lease": one.lease,
            "at_work": one.lease in held,
        }
        for one in found
    ]


def show_pending_unloads(one: dict[str, Any]) -> str:
    """One of :func:`pending_unloads` in words."""
    if "error" in one:
        return f"UNREADABLE: {one['error']}"
    what = "must be unloaded" if one["loaded"] else "must be unloaded if a broker has loaded it meanwhile"
    if one["at_work"]:
        return f"{one['topic']} {what}: its run is at work"
    return (
        f"{one['topic']} {what}: the next run that trims, loads, offloads or deletes does it; "
        "where that fails, the run's log says why"
    )


def unread_locations(store: MetadataStore) -> list[dict[str, Any]]:
    """Locations where a broker could not read an offloaded ledger, and none has since; an ``error`` is not readable.

    ``since`` (ms): the newest failed read, by ZooKeeper's clock.
    """
    from pulsar_lifecycle.copies.unread_locations import NAMES, UNREAD_LOCATIONS, all_held
    from pulsar_lifecycle.errors import LifecycleError

    try:
        found = all_held(store)
    except LifecycleError as error:
        return [{"path": UNREAD_LOCATIONS, "error": str(error)}]
    return [
        {"path": one.path, "error": f"{one.path} {one.error}"}
        if one.where is None
        else {
            "path": one.path,
            **dict(zip(NAMES, one.where, strict=True)),
            "run_id": one.run_id,
            "said": one.error,
            "since": one.since,
        }
        for one in found
    ]


def show_unread(one: dict[str, Any]) -> str:
    """One of :func:`unread_locations` in words, with what to do."""
    keeps = "no copy in BookKeeper of what is offloaded there is deleted"
    if "error" in one:
        return f"UNREADABLE: {one['error']}: whether brokers can read at its location is not known, and {keeps}"
    where = f"{one['driver']} bucket {one['bucket']}"
    where += "".join(f", {name} {one[name]}" for name in ("region", "endpoint") if one[name])
    told = since({"since": one["since"], "text": " ".join(one["said"].split())})
    return (
        f"{where}: a broker could not read there {told}; {keeps}: mend the brokers, then plan and launch an offload; "
        "if no read there can work any more, revert_offloads (docs/howto/unread-location.md)"
    )
