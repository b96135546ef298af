"""A deletion run's last look at the objects of ledgers whose copy in BookKeeper is listed as deleted."""

from __future__ import annotations

from collections.abc import Mapping, Sequence

from pulsar_lifecycle.copies import failed_proofs, unread_locations
from pulsar_lifecycle.copies.offloaded_ledger import Location
from pulsar_lifecycle.copies.proven_copies import are_whole
from pulsar_lifecycle.deletion.decision import Decision, Run
from pulsar_lifecycle.deletion.run_evidence import OffloadEvidence
from pulsar_lifecycle.errors import AccessDenied, LifecycleError, NotFound, Refused
from pulsar_lifecycle.ports import MetadataStore
from pulsar_lifecycle.ports.bundle import Ports
from pulsar_lifecycle.runs import control
from pulsar_lifecycle.values.codes import Code, Why
from pulsar_lifecycle.values.copies import OffloadLocation, Verified
from pulsar_lifecycle.values.outcomes import Outcome, Waiting


def look_at_copies(run: Run, ports: Ports, live: Sequence[Decision]) -> None:
    """The last look before a copy in BookKeeper is deleted: the objects are as they were proven, brokers read there.

    A proof that failed since, or a read at its location, keeps it. Of both this very moment's z-nodes are asked. The
    journal as it was when the run began counts too: z-nodes cannot be written while the store denies, and older
    versions wrote none.
    """
    live = [d for d in live if d.copy_deletion]
    if not live:
        return
    if ports.objects is None:
        for d in live:
            d.wait(Waiting.NO_OBJECT_STORE, NO_OBJECT_STORE)
        return
    control.check_lease(ports.store, run.guard)
    for d, found in zip(live, are_whole(ports.objects, [_proven(d) for d in live]), strict=True):
        if isinstance(found, AccessDenied | NotFound | Refused):
            d.wait(Waiting.OBJECT_STORE_DENIES, f"object_store may not look at its offloaded copy: {found}")
        elif isinstance(found, LifecycleError):
            d.decide(Outcome.RETRYING, Code.OBJECTS_UNREAD, f"its offloaded copy could not be looked at: {found}")
        elif found:
            d.decide(Outcome.KEPT, Code.NOT_PROVEN, f"its offloaded copy is not what was proven: {found}")
    live = [d for d in live if not d.outcome]
    if not live:
        return
    sites: dict[int, OffloadLocation] = {}
    for d in live:
        assert d.site is not None
        sites[d.info.ledger_id] = d.site
    holds = holds_of(ports.store, sites, run.evidence.offloads)
    for d in live:
        why = holds.get(d.info.ledger_id)
        if why and isinstance(why.code, Waiting):
            d.wait(why.code, why.text)
        elif why:
            d.decide(Outcome.RETRYING, Code.NOT_PROVEN, why.text)


def holds_of(store: MetadataStore, sites: Mapping[int, OffloadLocation], evidence: OffloadEvidence) -> dict[int, Why]:
    """Why such copies stay: of those ledgers (id -> where brokers read it) that a failed proof or read holds."""
    disproved = failed_proofs.held(store, sites)
    unread = unread_locations.held(store, set(sites.values()))
    found: dict[int, Why] = {}
    for ledger_id, where in sites.items():
        if ledger_id in disproved:
            path = failed_proofs.path_of(ledger_id)
            found[ledger_id] = Why(Code.NOT_PROVEN, f"its offloaded copy failed a proof, and none since ({path})")
        elif where in unread:
            text = f"{UNREAD_OF_LATE} ({unread_locations.path_of(where)})"
            found[ledger_id] = Why(Waiting.UNREAD_LOCATION, text)
        elif where in evidence.failed_locations:
            found[ledger_id] = Why(Waiting.UNREAD_LOCATION, UNREAD_OF_LATE)
    return found


NO_OBJECT_STORE = "object_store is not set: whether its offloaded copy is there cannot be known"
UNREAD_OF_LATE = (
    "a broker could not read an offloaded ledger of the same location (driver, bucket, region, endpoint), and none has "
    "read one there since: mend that, and let an offload run have one read again"
)


def _proven(d: Decision) -> tuple[Location, Verified]:
    deletion = d.copy_deletion
    assert deletion is not None
    return Location(deletion.bucket, deletion.uuid, d.info.ledger_id), deletion.proof
