"""One sandbox for the whole test session, one Spark session where a test asks for it; sessions on queue and bucket.

The sandbox is unseeded, in a folder of its own, ended afterwards. ``PULSAR_LIFECYCLE_TEST_SANDBOX`` names the data
folder of a sandbox to use instead; it is left running. A test that kills servers uses one of :data:`SHARED`, which
expect that, and leaves all running; one that needs a cluster with exactly known content starts its own. Spark allows
one session per process, whose master is that of the first settings it was started with: all pipelines of
:mod:`tests.integration.pipeline` name the same.
"""

from __future__ import annotations

import json
import os
import sys
from collections.abc import Callable, Iterator
from contextlib import ExitStack, closing, contextmanager
from pathlib import Path
from typing import Any

import pulsar
import pytest
from pyspark.sql import SparkSession
from xdist.scheduler import LoadScopeScheduling

from pulsar_lifecycle.deletion_queue.missing_topics import Subscribed, create_missing
from pulsar_lifecycle.io.pulsar.admin import HttpBrokerAdmin
from pulsar_lifecycle.io.pulsar.queue import PulsarDeadLetterQueue, PulsarDeletionQueue, PulsarQueueReader
from pulsar_lifecycle.io.s3.objects import S3ObjectStore
from pulsar_lifecycle.settings import ObjectStoreSettings, PulsarSettings
from sandbox.cluster import Cluster
from tests.integration import pipeline as driving
from tests.integration.pipeline import Pipeline
from tests.integration.tiered.offloads import s3_client
from tests.kit.contracts.object_contract import BUCKET, GONE_BUCKET

LONG = (
    *("test_by_itself", "test_two_clusters", "test_delete_records", "test_production"),
    *("test_kills", "test_offload_kills", "test_offload_faults", "test_broker_offloader_schedules"),
    *("test_pipeline", "test_retention_plan", "test_sandbox", "test_pipeline_executors"),
    *("test_offload_run", "test_bookkeeper_entries", "test_retry_topics", "test_object_sweep"),
    *("test_trimming", "test_undo", "test_waiting", "test_rollback", "test_topic_policies"),
    *("test_delayed_snapshots", "test_pipeline_coverage", "test_wheel", "test_pipeline_crash"),
    *("test_retention_differential", "test_bookie_disk", "test_load_run", "test_collection_faults"),
    *("test_pipeline_jobs", "test_queue_contract", "test_objects_faults", "test_broker_offloader"),
)
"""Modules that take minutes, the longest first: begun last, one would run alone at the end."""


SELDOM = 3600.0
"""Seconds between two collections of a bookie: none comes unless it is forced."""
SHARED = {
    "production": (
        *("test_production", "test_inactive_topics", "test_load_unanswered", "test_load_subscriptions"),
        *("test_load_inactive", "test_retention_changes", "test_retention_plan", "test_storage_report"),
        "test_trim_alone",
    ),
    "offloading": ("test_offload_kills", "test_broker_offloader_schedules", "test_broker_offloader"),
    "three_bookies": ("test_offload_faults", "test_bookkeeper_entries", "test_writer_bookie_lost"),
    "two_bookies": ("test_undo", "test_finish_kills"),
    "seldom": ("test_bookie_disk", "test_collection_faults"),
}
"""Fixture of the session -> the modules that use it. One worker takes them all, so each cluster is started once."""
RUNNING = pytest.StashKey[dict[str, ExitStack]]()
"""By fixture: what ends it."""
TOGETHER = {module: fixture for fixture, modules in SHARED.items() for module in modules}


class ByCluster(LoadScopeScheduling):
    """Gives parallel workers whole modules, and all that share a cluster to one."""

    def _split_scope(self, nodeid: str) -> str:
        module = Path(nodeid.partition("::")[0]).stem
        return TOGETHER.get(module, module)


def pytest_xdist_make_scheduler(config: pytest.Config, log: Any) -> ByCluster:
    return ByCluster(config, log)


def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    """Parallel workers take modules in the order of :data:`LONG`, those that share a cluster after its first."""
    for item in items:
        for fixture in SHARED.keys() & set(item.fixturenames):  # type: ignore[attr-defined]
            if item.path.stem not in SHARED[fixture]:
                raise pytest.UsageError(f"{item.path.name} uses {fixture}: say so in SHARED of {__name__}")
    order = {name: place for place, name in enumerate(LONG)}
    modules = sorted({item.path.stem for item in items}, key=lambda name: (order.get(name, len(LONG)), name))
    first = {TOGETHER.get(name, name): place for place, name in reversed(list(enumerate(modules)))}
    place = {name: (first[TOGETHER.get(name, name)], at) for at, name in enumerate(modules)}
    items.sort(key=lambda item: place[item.path.stem])


@pytest.hookimpl(trylast=True)
def pytest_runtest_teardown(item: pytest.Item, nextitem: pytest.Item | None) -> None:
    """A cluster of :data:`SHARED` ends with the last of its modules: servers take CPU also when nobody asks."""
    fixture = TOGETHER.get(item.path.stem)
    if fixture and (nextitem is None or TOGETHER.get(nextitem.path.stem) != fixture):
        item.session.stash.setdefault(RUNNING, {}).pop(fixture, ExitStack()).close()


@pytest.fixture(scope="session")
def sandbox(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Cluster]:
    with _started(tmp_path_factory) as cluster:
        yield cluster


@pytest.fixture(scope="session")
def production(request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory) -> Cluster:
    """A sandbox of its own: two brokers with production's habits."""
    return _shared(request, tmp_path_factory, "-production", brokers=2, production=True)


@pytest.fixture(scope="session")
def offloading(request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory) -> Cluster:
    """A sandbox of its own whose brokers have an offloader."""
    return _shared(request, tmp_path_factory, "-offloader", offloader=True)


@pytest.fixture(scope="session")
def three_bookies(request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory) -> Cluster:
    """A sandbox of its own: three bookies that collect only when told to, which may be killed and started again."""
    return _shared(request, tmp_path_factory, "-three-bookies", bookies=3, gc_wait=SELDOM)


@pytest.fixture(scope="session")
def two_bookies(request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory) -> Cluster:
    """As ``three_bookies``, with two: each has every ledger."""
    return _shared(request, tmp_path_factory, "-two-bookies", bookies=2, gc_wait=SELDOM)


@pytest.fixture(scope="session")
def seldom(request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory) -> Cluster:
    """As ``production``, with a bookie that collects only when told to; ``test_collection_faults`` adds a second."""
    return _shared(request, tmp_path_factory, "-seldom", brokers=2, gc_wait=SELDOM, production=True)


def _shared(request: pytest.FixtureRequest, folders: pytest.TempPathFactory, beside: str, **how: Any) -> Cluster:
    """The sandbox of a fixture in :data:`SHARED`."""
    ends = request.session.stash.setdefault(RUNNING, {}).setdefault(request.fixturename or "", ExitStack())
    request.addfinalizer(ends.close)
    return ends.enter_context(_started(folders, beside, **how))


@contextmanager
def _started(folders: pytest.TempPathFactory, beside: str = "", **how: Any) -> Iterator[Cluster]:
    """A sandbox of its own. PULSAR_LIFECYCLE_TEST_SANDBOX, with ``beside`` after it, is one that stays."""
    reused = os.environ.get("PULSAR_LIFECYCLE_TEST_SANDBOX")
    cluster = Cluster(Path(reused + beside) if reused else folders.mktemp(f"cluster{beside}") / "sandbox")
    try:
        cluster.start(**how)
        yield cluster
    finally:
        if not reused:
            cluster.stop(purge=True)


@pytest.fixture(scope="session")
def spark() -> Iterator[None]:
    """Whoever starts Spark needs it: its executors run this Python, and its JVM ends with the tests."""
    os.environ["PYSPARK_PYTHON"] = sys.executable
    yield
    session = SparkSession.getActiveSession()
    if session is not None:
        session.stop()


@pytest.fixture(scope="module")
def pipelines(sandbox: Cluster, spark: None, tmp_path_factory: pytest.TempPathFactory) -> Callable[..., Pipeline]:
    """Makes pipelines, each with a lake of its own; the deletion queue is empty when a module begins."""
    driving.drain(sandbox)

    def make(overrides: dict[str, dict[str, Any]] | None = None, lake: str = "", *, on_spark: bool = False) -> Pipeline:
        folder = tmp_path_factory.mktemp("pipeline")
        made = {section: dict(values) for section, values in (overrides or {}).items()}
        if lake:
            made.setdefault("lake", {})["path"] = lake
        return Pipeline(driving.settings_file(sandbox, folder, made), on_spark=on_spark)

    return make


# ------------------------------------------------------------------------------------------------------------ the queue


@pytest.fixture
def settings(sandbox: Cluster) -> PulsarSettings:
    return PulsarSettings(admin_url=sandbox.admin_url, service_url=sandbox.service_url)


@pytest.fixture
def admin(settings: PulsarSettings) -> Iterator[HttpBrokerAdmin]:
    with closing(HttpBrokerAdmin(settings)) as opened:
        yield opened


@pytest.fixture
def open_queue(
    sandbox: Cluster, settings: PulsarSettings, admin: HttpBrokerAdmin
) -> Iterator[Callable[[], PulsarDeletionQueue]]:
    """Opens sessions on the deletion queue, which is empty before and after."""
    driving.drain(sandbox)
    with ExitStack() as stack:
        look = stack.enter_context(driving.subscriptions_of(sandbox))
        yield lambda: stack.enter_context(closing(PulsarDeletionQueue(settings, admin, Subscribed(admin, 4, look))))
    driving.drain(sandbox)


@pytest.fixture
def open_letters(
    settings: PulsarSettings, admin: HttpBrokerAdmin, open_queue: object
) -> Iterator[Callable[[], PulsarDeadLetterQueue]]:
    """Opens sessions on the dead letters of that queue."""
    with ExitStack() as stack:
        yield lambda: stack.enter_context(
            closing(PulsarDeadLetterQueue(settings, admin, lambda: create_missing(admin, 4)))
        )


@pytest.fixture
def reader(settings: PulsarSettings, admin: HttpBrokerAdmin) -> Iterator[PulsarQueueReader]:
    with closing(PulsarQueueReader(settings, admin)) as opened:
        yield opened


@pytest.fixture
def client(settings: PulsarSettings) -> Iterator[pulsar.Client]:
    """A client that is not the product's."""
    with closing(pulsar.Client(settings.service_url, logger=pulsar.ConsoleLogger(pulsar.LoggerLevel.Error))) as opened:
        yield opened


# -------------------------------------------------------------------------------------------------------------- objects


@pytest.fixture
def service(sandbox: Cluster) -> dict[str, str]:
    """Where the S3 server is and the keys to it, from the sandbox's state file."""
    where = sandbox.state.as_json()["s3"]
    return {"endpoint": where["endpoint"], **json.loads(Path(where["credentials_file"]).read_text())}


@pytest.fixture
def s3(sandbox: Cluster) -> Iterator[Any]:
    with s3_client(sandbox) as opened:
        yield opened


@pytest.fixture
def open_store(service: dict[str, str], monkeypatch: pytest.MonkeyPatch) -> Iterator[Callable[..., S3ObjectStore]]:
    """Opens stores of the contract's buckets; takes other settings, and another ``secret``."""
    with ExitStack() as stack:

        def make(**changes: Any) -> S3ObjectStore:
            monkeypatch.setenv("TEST_S3_ACCESS", service["access_key"])
            monkeypatch.setenv("TEST_S3_SECRET", changes.pop("secret", service["secret_key"]))
            keys = {"access_key": {"env": "TEST_S3_ACCESS"}, "secret_key": {"env": "TEST_S3_SECRET"}}
            given = {"endpoint": service["endpoint"], **keys, "buckets": [BUCKET, GONE_BUCKET], **changes}
            return stack.enter_context(closing(S3ObjectStore(ObjectStoreSettings.model_validate(given))))

        yield make
