"""Bookies of two racks in memory that collect for a few looks, and a run that has them collect."""

from __future__ import annotations

from dataclasses import replace

from pulsar_lifecycle.formats.bookie_status import LedgerDirectory
from pulsar_lifecycle.lifecycle.bookies.bookie_disk import judge
from pulsar_lifecycle.lifecycle.bookies.collection import plan_collection
from pulsar_lifecycle.lifecycle.bookies.collection_run import CollectionRun
from pulsar_lifecycle.lifecycle.bookies.placement import Placed, Placement
from pulsar_lifecycle.run_settings import CollectionSettings
from pulsar_lifecycle.runs import control
from tests.kit.fakes.bookie_admin import IDLE, FakeBookieAdmin, status
from tests.kit.fakes.clock import FakeClock
from tests.kit.fakes.journal import FakeJournal
from tests.kit.fakes.metadata_store import FakeZooKeeper

GB = 1 << 30


def full(bookie, usage=0.5, live=10 * GB, logs=40, **changes):
    """40 logs of 1 GB, of which 10 are live and 5 are placed there by metadata."""
    return status(bookie, free=10 * GB, directories=(LedgerDirectory("/l", logs, live, 100, usage),), **changes)


def plan(said, racks=None, min_bytes=GB):
    placement = Placement(dict.fromkeys(said, Placed(5 * GB, 100)))
    return plan_collection(judge(dict.fromkeys(said, False), said, placement, 5), racks or {}, min_bytes)


class Scene:
    """Bookies of two racks that collect for two looks each: ``a`` and ``b`` in one, ``c`` in the other."""

    def __init__(self, **settings):
        self.clock, self.journal, self.store = FakeClock(), FakeJournal(), FakeZooKeeper().session()
        self.bookies = FakeBookieAdmin("a", "b", "c")
        for bookie, usage in (("a", 0.9), ("b", 0.8), ("c", 0.7)):
            self.bookies.statuses[bookie] = full(bookie, usage)
        self.bookies.on_collect = self.begin
        self.left, self.most, self.lasts = {}, 0, 2
        self.said: list[str] = []
        self.settings = CollectionSettings(min_bytes=GB, **settings)
        sleep = self.clock.sleep

        def sleeps(seconds):
            sleep(seconds)
            self.tick()

        self.clock.sleep = sleeps

    def begin(self, bookie, major):
        self.left[bookie] = (self.lasts, major)
        self.most = max(self.most, len(self.left))
        self.set(bookie, collecting=True)

    def set(self, bookie, **changes):
        self.bookies.statuses[bookie] = replace(self.bookies.statuses[bookie], **changes)

    def counts_collections(self):
        """The bookies have a metric that does."""
        for bookie, said in self.bookies.statuses.items():
            self.set(bookie, directories=(replace(said.directories[0], collections=3),))

    def tick(self):
        for bookie, (looks, major) in list(self.left.items()):
            if looks > 1:
                self.left[bookie] = (looks - 1, major)
                continue
            del self.left[bookie]
            said = self.bookies.statuses[bookie]
            logs = 10 if major else 20
            done = replace(IDLE, majors=said.compactions[0].majors + major, minors=said.compactions[0].minors + 1)
            count = said.directories[0].collections
            collections = None if count is None else count + 1
            directory = replace(said.directories[0], entry_logs=logs, live_bytes=5 * GB, collections=collections)
            self.set(
                bookie, collecting=False, compactions=(done,), directories=(directory,), free=(90 - logs) * GB,
                entry_log_ids=tuple(range(logs + 1)),
            )  # fmt: skip

    def run(self):
        said = {bookie: self.bookies.statuses[bookie] for bookie in "abc"}
        rows = plan(said, {"a": "/1", "b": "/1", "c": "/2"})
        self.lease = control.take_lease(self.store, "collection", self.clock, 0, control.COLLECTION_LEASE)
        ports = self.store, self.bookies, self.journal, self.clock
        run = CollectionRun("r", "test", self.settings, rows, self.lease.guard, *ports, self.said.append)
        return {one.bookie: one for one in run.all()}

    @property
    def rows(self):
        return [(row.reason.split(":")[0], row.outcome, row.code) for row in self.journal.rows]


def outcomes(found):
    return {bookie: one.outcome for bookie, one in found.items()}


def spoil(scene, bookie, **changes):
    """``bookie`` changes so as soon as it collects."""

    def begin(one, major):
        Scene.begin(scene, one, major)
        if one == bookie:
            scene.set(bookie, **changes)

    scene.bookies.on_collect = begin
