"""A run of the product in a process of its own, in which a fault strikes at chosen steps: ``strike(...)``.

The run is the one the jobs take, on real servers. Its tasks are threads of that process; only where an executor is to
die are they Spark's. Where it was struck is written down by the process itself just before the damage, and told by
:meth:`Running.end`. Not here: what must be true afterwards.
"""

from __future__ import annotations

import json
import multiprocessing
import os
import signal
import sys
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from multiprocessing.process import BaseProcess
from pathlib import Path
from typing import Any

from pyspark import cloudpickle

from pulsar_lifecycle.delayed_index.repair.repair_run import repair
from pulsar_lifecycle.delete_records.apply_run import NO_PATIENCE, Patience, apply_delete_records
from pulsar_lifecycle.deletion import deletion_run
from pulsar_lifecycle.io.bookkeeper.bookie_admin import HttpBookieAdmin
from pulsar_lifecycle.io.bookkeeper.reader import BookieReader
from pulsar_lifecycle.io.bookkeeper.writer import BookieWriter
from pulsar_lifecycle.io.lake.artefacts import FileLake
from pulsar_lifecycle.io.lake.journal import FileJournal
from pulsar_lifecycle.io.pulsar.admin import HttpBrokerAdmin
from pulsar_lifecycle.io.pulsar.queue import PulsarDeletionQueue
from pulsar_lifecycle.io.s3.objects import S3ObjectStore
from pulsar_lifecycle.io.zookeeper.store import KazooStore
from pulsar_lifecycle.lifecycle.load.load_run import load_topics
from pulsar_lifecycle.model import Topic
from pulsar_lifecycle.runs.caps import AS_SET, Order
from pulsar_lifecycle.runs.cluster import Cluster
from pulsar_lifecycle.runs.tasks import Counter, LocalTasks, Tasks
from pulsar_lifecycle.tiered import offload_run
from pulsar_lifecycle.trimming import trim_run
from pulsar_lifecycle.trimming.retention_run import apply_retention
from pulsar_lifecycle.trimming.trim import TrimOrder
from sandbox.clients import wait_for
from tests.kit.local_cluster import AT_ONCE, local_cluster

PORTS: dict[str, type] = {
    "admin": HttpBrokerAdmin,
    "store": KazooStore,
    "writer": BookieWriter,
    "reader": BookieReader,
    "bookies": HttpBookieAdmin,
    "lake": FileLake,
    "journal": FileJournal,
    "queue": PulsarDeletionQueue,
    "objects": S3ObjectStore,
}
RUN, EXECUTOR, NOBODY = "run", "executor", "nobody"
"""Victims: the whole run, the executor that does the step, or nothing: the step waits while a test kills a server."""
EXECUTORS = "local-cluster[2,1,1024]"
"""The Spark master that a settings file needs whose run is to lose an executor."""
FORKS = multiprocessing.get_context("forkserver")
"""A process that has imported all that a run needs, and is forked for each: importing takes longer than most runs."""
FORKS.set_forkserver_preload([__name__])
PAUSE = 5.0
"""Seconds that the step of a run without a victim waits."""


@dataclass(frozen=True)
class Step:
    """The first call of a port's method whose arguments, written out, contain ``about``: before it, or ``after``."""

    port: str
    method: str
    after: bool
    about: str = ""

    @property
    def name(self) -> str:
        return f"{'after' if self.after else 'before'} {self.port}.{self.method}"


@dataclass(frozen=True)
class Struck:
    """Where a run was struck, as it wrote down itself."""

    step: str
    arguments: str


# --------------------------------------------------------------------------------------------------------- for the test


@dataclass(frozen=True)
class Running:
    """A run that was begun; ``steps`` by the file that says that it was struck there."""

    process: BaseProcess
    steps: Mapping[Path, Step]
    victim: str
    log: Path

    def reached(self) -> bool:
        """Whether all its steps were reached."""
        return all(file.exists() for file in self.steps)

    def wait_until_reached(self) -> None:
        alive = self.process.is_alive
        wait_for(f"the run to come to {self._names}", lambda: self.reached() or not alive(), 300)

    def end(self) -> list[Struck]:
        """Wait for the end; nothing if it ended well and did not come to each step. A victim must have been killed.

        A run that loses executors must end well; one beside which a server dies may end as it likes.
        """
        self.process.join(900)
        code = self.process.exitcode
        log = f"it ended with {code}: {self._said()}"
        if not self.reached():
            assert code == 0, log
            return []
        assert (code == -signal.SIGKILL) == (self.victim == RUN), log
        assert self.victim != EXECUTOR or code == 0, log
        found = [Struck(**json.loads(file.read_text())) for file in self.steps]
        for step, struck in zip(self.steps.values(), found, strict=True):
            assert struck.step == step.name
            assert step.about in struck.arguments
        return found

    def struck(self) -> list[Struck]:
        """:meth:`end` of a run that must come to each of its steps."""
        found = self.end()
        assert found, f"it never came to {self._names}: {self._said()}"
        return found

    def _said(self) -> str:
        return self.log.read_text(errors="replace")[-4000:]

    @property
    def _names(self) -> str:
        return ", ".join(step.name for step in self.steps.values())


def strike(
    settings: Path, task: str, arguments: Mapping[str, Any], *steps: Step, victim: str = RUN, tasks: int = AT_ONCE
) -> Running:
    """Begin a run of ``task`` (``delete``, ``apply``, ``offload``, ``trim``, ``retention``, ``load``,
    ``records``, ``repair``) that is struck.

    It is struck once at each of ``steps``; only executors can be so more than once. ``tasks``: how many work at once.
    """
    folder = settings.parent / f"struck-{time.time_ns()}"
    folder.mkdir()
    (folder / "log").touch()
    files = {folder / f"step-{number}.json": step for number, step in enumerate(steps)}
    faults = [Fault(step, victim, str(file)) for file, step in files.items()]
    given = (str(settings), task, dict(arguments), faults, tasks, folder / "log")
    process = FORKS.Process(target=begin, args=given)
    process.start()
    return Running(process, files, victim, folder / "log")


def killed_after(seconds: float, settings: Path, task: str, arguments: Mapping[str, Any]) -> bool:
    """Whether a run of ``task`` (as in :func:`strike`) was killed so long after its begin, wherever it was then.

    One that is over by then must have ended well.
    """
    running = strike(settings, task, arguments)
    running.process.join(seconds)
    if killed := running.process.exitcode is None:
        assert running.process.pid is not None
        os.killpg(running.process.pid, signal.SIGKILL)
    running.process.join(60)
    assert running.process.exitcode == (-signal.SIGKILL if killed else 0), running.log.read_text()[-4000:]
    return killed


# ------------------------------------------------------------------------------------------------------ in its process


@dataclass(frozen=True)
class Fault:
    """Strikes once in all processes of a run: whoever makes ``file`` first does the damage."""

    step: Step
    victim: str
    file: str

    def arm(self) -> None:
        """Put the fault into this process."""
        step, port = self.step, PORTS[self.step.port]
        original = getattr(port, step.method)
        armed = getattr(original, "armed", frozenset[str]())
        if self.file in armed:  # by another task of this process
            return

        def struck(*args: Any, **options: Any) -> Any:
            written = repr(args[1:])
            if step.about not in written:
                return original(*args, **options)
            if step.after:
                result = original(*args, **options)  # one that fails is no step to strike after
                self.strike(written)
                return result
            self.strike(written)
            return original(*args, **options)

        struck.armed = armed | {self.file}  # type: ignore[attr-defined]
        setattr(port, step.method, struck)

    def strike(self, arguments: str) -> None:
        """Write down where this is and do the damage, unless it was done already."""
        partial = Path(f"{self.file}.{os.getpid()}.{time.time_ns()}")
        partial.write_text(json.dumps({"step": self.step.name, "arguments": arguments}))
        try:
            os.link(partial, self.file)
        except FileExistsError:
            return
        if self.victim == NOBODY:
            time.sleep(PAUSE)
            return
        if self.victim == RUN:
            os.killpg(0, signal.SIGKILL)
        else:
            daemon = os.getppid()
            os.kill(_parent(daemon), signal.SIGKILL)
        os.kill(os.getpid(), signal.SIGKILL)


@dataclass(frozen=True)
class StruckTasks:
    """Tasks, each of which arms the faults in the process it comes to."""

    tasks: Tasks
    faults: Sequence[Fault]

    @property
    def at_once(self) -> int:
        return self.tasks.at_once

    def map(self, work: Callable[[Any], Any], pieces: Sequence[Any]) -> Iterator[Any]:
        faults = self.faults

        def struck(piece: Any) -> Any:
            for fault in faults:
                fault.arm()
            return work(piece)

        return self.tasks.map(struck, pieces)

    def counter(self) -> Counter:
        return self.tasks.counter()


def cluster_of(file: str, faults: Sequence[Fault], tasks: int) -> Cluster:
    """Where the run works; Spark starts only if an executor is to die."""
    if faults and faults[0].victim == EXECUTOR:
        from resources.lifecycle import LifecycleResource

        on = LifecycleResource(config_file=file).cluster()
        return replace(on, given=StruckTasks(on.tasks, faults))
    return local_cluster(file, StruckTasks(LocalTasks(tasks), faults))


def _parent(pid: int) -> int:
    return int(Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[1])


def begin(file: str, task: str, arguments: dict[str, Any], faults: Sequence[Fault], tasks: int, log: Path) -> None:
    """What the new process does: one run in a session of its own, which says in ``log`` what it has to say."""
    os.setsid()
    with log.open("w") as said:
        os.dup2(said.fileno(), 1)
        os.dup2(said.fileno(), 2)
    cloudpickle.register_pickle_by_value(sys.modules[__name__])  # executors have the library alone
    main(file, task, arguments, faults, tasks)
    sys.stdout.flush()


def main(file: str, task: str, arguments: dict[str, Any], faults: Sequence[Fault], tasks: int) -> None:
    """Run one task."""
    where = cluster_of(file, faults, tasks)
    if task == "delete":  # the faults are the tasks' alone: the driver deletes nothing but its lease
        print(deletion_run.delete_pending(where, arguments["run_id"]))
        return
    for fault in faults:
        fault.arm()
    if task == "apply":
        order = Order(arguments["plan_id"], arguments["digest"], AS_SET)
        print(deletion_run.apply_plan(where, arguments["run_id"], order, print))
    elif task == "offload":
        wanted = offload_run.OffloadOrder(arguments["plan_id"], arguments["digest"])
        print(offload_run.offload_now(where, arguments["run_id"], wanted, print))
    elif task == "trim":
        orders = [TrimOrder(Topic.parse(arguments["topic"]), up_to=arguments["up_to"])]
        print(trim_run.trim(where, arguments["run_id"], orders, dry_run=False))
    elif task == "retention":
        order = Order(arguments["plan_id"], arguments["digest"])
        print(apply_retention(where, arguments["run_id"], order, dry_run=False))
    elif task == "repair":
        order = Order(arguments["plan_id"], arguments["digest"])
        print(repair(where, arguments["run_id"], order, dry_run=False))
    elif task == "load":
        order = Order(arguments["plan_id"], arguments["digest"])
        print(load_topics(where, arguments["run_id"], order, dry_run=False))
    elif task == "records":
        order = Order(arguments["plan_id"], arguments["digest"])
        patience: Patience = arguments.get("patience", NO_PATIENCE)
        print(apply_delete_records(where, arguments["run_id"], order, dry_run=False, patience=patience))
    else:
        raise SystemExit(f"unknown task {task}")
