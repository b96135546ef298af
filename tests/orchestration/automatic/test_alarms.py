"""What tells somebody: failed runs are posted to the webhook, a bookie that becomes read-only turns its check."""

from __future__ import annotations

import json
import logging
import socket
from collections.abc import Callable, Iterator
from contextlib import closing, suppress
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from threading import Event, Thread
from typing import Any

import dagster as dg
import httpx
import pytest

from assets.names import PLAN, READER
from orchestration.automatic.alerts import LONGEST_MESSAGE, failed_runs_sensor
from orchestration.definitions import build_defs
from pulsar_lifecycle.errors import ConfigError, StoreError, Unavailable
from pulsar_lifecycle.io.webhook import Webhook
from pulsar_lifecycle.runs.cluster import Cluster
from resources.lifecycle import LifecycleResource
from tests.kit.scenes.retention_scene import RetentionScene

KEY = "secret-key"


class Posted(ThreadingHTTPServer):
    """Somebody's webhook: what it was sent, the status that it answers with, and whether its answer does not end."""

    def __init__(self) -> None:
        documents: list[Any] = []
        self.documents, self.status = documents, 204
        self.unended, self.asked_for_more = False, Event()
        server = self

        class Handler(BaseHTTPRequestHandler):
            def do_POST(self) -> None:
                body = self.rfile.read(int(self.headers["Content-Length"]))
                documents.append((self.path, json.loads(body)))
                self.send_response(server.status)
                if server.unended:
                    self.send_header("Content-Length", "1")
                self.end_headers()
                server.asked_for_more.wait(timeout=60 if server.unended else 0)

            def log_message(self, format: str, *args: Any) -> None: ...

        super().__init__(("127.0.0.1", 0), Handler)

    @property
    def url(self) -> str:
        return f"http://127.0.0.1:{self.server_port}/{KEY}"


@pytest.fixture
def hook() -> Iterator[Posted]:
    with Posted() as server:
        Thread(target=server.serve_forever, daemon=True).start()
        yield server
        server.asked_for_more.set()
        server.shutdown()


@pytest.fixture
def scene(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> RetentionScene:
    return RetentionScene(tmp_path, monkeypatch)


def told(
    scene: RetentionScene,
    monkeypatch: pytest.MonkeyPatch,
    webhook: Any,
    error: Exception | None = None,
    *,
    file_is_wrong: bool = False,
) -> Any:
    """What the sensor does about a run that failed by an error."""

    @dg.op
    def ends_badly() -> None:
        raise error or dg.Failure("x" * 9_000)

    @dg.job(tags={PLAN: "orphans-1", "other": "not told"})
    def failing() -> None:
        ends_badly()

    automation = scene.settings.automation.model_validate({"alert_webhook": webhook} if webhook else {})
    settings = scene.settings.model_copy(update={"automation": automation})
    where = Cluster(settings, connect=scene.cluster.connect)

    def read_now(_: LifecycleResource) -> Cluster:
        if file_is_wrong:
            raise ConfigError("apply.max_ledger: unknown")
        return where

    monkeypatch.setattr(LifecycleResource, "without_spark", read_now)
    monkeypatch.setattr(LifecycleResource, "opener", lambda self: scene.cluster.connect)
    with dg.DagsterInstance.ephemeral() as instance:
        done = failing.execute_in_process(instance=instance, raise_on_error=False)
        context = dg.build_run_status_sensor_context(
            sensor_name="failed_runs",
            dagster_event=done.get_run_failure_event(),
            dagster_instance=instance,
            dagster_run=done.dagster_run,
            resources={"lifecycle": LifecycleResource()},
        ).for_run_failure()
        return done.run_id, failed_runs_sensor("test", settings)(context)


def test_a_run_that_fails_is_posted_to_the_webhook(
    scene: RetentionScene, monkeypatch: pytest.MonkeyPatch, hook: Posted, tmp_path: Path
) -> None:
    """Its URL is a secret like any other: by the name of a variable, or of a file."""
    monkeypatch.setenv("HOOK", hook.url)
    (tmp_path / "hook").write_text(hook.url + "\n")
    for webhook in ({"env": "HOOK"}, {"file": str(tmp_path / "hook")}):
        run_id, _ = told(scene, monkeypatch, webhook)
        path, document = hook.documents[-1]
        assert path == f"/{KEY}"
        assert (document["cluster"], document["job"], document["run_id"]) == ("test", "failing", run_id)
        assert document[PLAN] == "orphans-1"
        assert document["error"] == "x" * LONGEST_MESSAGE
        assert "not told" not in str(document)


def test_a_settings_file_that_is_wrong_by_now_hides_no_alert(
    scene: RetentionScene, monkeypatch: pytest.MonkeyPatch, hook: Posted
) -> None:
    """It is why the run failed, perhaps."""
    monkeypatch.setenv("HOOK", hook.url)
    run_id, _ = told(scene, monkeypatch, {"env": "HOOK"}, file_is_wrong=True)
    assert hook.documents[-1][1]["run_id"] == run_id


def test_without_a_webhook_nothing_is_posted_and_the_tick_says_so(
    scene: RetentionScene, monkeypatch: pytest.MonkeyPatch
) -> None:
    _, skipped = told(scene, monkeypatch, None)
    assert "alert_webhook is not set" in skipped.skip_message


@pytest.mark.parametrize("status", [301, 400, 503])
def test_what_the_webhook_refuses_is_an_error_that_names_no_secret(hook: Posted, status: int) -> None:
    hook.status = status
    with closing(Webhook(hook.url)) as webhook, pytest.raises(Unavailable, match=str(status)) as refused:
        webhook.send({"text": "x"})
    assert KEY not in str(refused.value)


def test_a_webhook_that_has_taken_an_alert_may_take_its_time_with_the_rest(hook: Posted) -> None:
    hook.status, hook.unended = 200, True
    with closing(Webhook(hook.url)) as webhook:
        webhook.send({"text": "x"})
    assert len(hook.documents) == 1


def test_a_webhook_whose_answer_comes_in_drops_holds_no_tick_up() -> None:
    """Each drop comes in time; its header has no end."""
    gone = Event()

    def drip(listener: socket.socket) -> None:
        connection, _ = listener.accept()
        with connection, suppress(OSError):
            connection.sendall(b"HTTP/1.1 200 OK\r\n")
            while not gone.wait(0.02):
                connection.sendall(b"X-more: 1\r\n")
        gone.set()

    with socket.create_server(("127.0.0.1", 0)) as listener:
        Thread(target=drip, args=(listener,), daemon=True).start()
        url = f"http://127.0.0.1:{listener.getsockname()[1]}/{KEY}"
        with (
            closing(Webhook(url, timeout=0.3)) as webhook,
            pytest.raises(Unavailable, match="no answer within") as refused,
        ):
            webhook.send({"text": "x"})
        assert gone.wait(timeout=60)  # its connection has ended
    assert KEY not in str(refused.value)


def test_the_webhooks_url_is_not_logged(hook: Posted, caplog: pytest.LogCaptureFixture) -> None:
    with caplog.at_level(logging.DEBUG), closing(Webhook(hook.url)) as webhook:
        webhook.send({"text": "x"})
        assert KEY not in caplog.text
        httpx.post(hook.url, json={})
    assert KEY in caplog.text


@pytest.mark.parametrize("error", [StoreError("z-node /a: no answer"), dg.Failure("refused: paused")])
def test_an_alert_has_the_cause(
    scene: RetentionScene, monkeypatch: pytest.MonkeyPatch, hook: Posted, error: Exception
) -> None:
    monkeypatch.setenv("HOOK", hook.url)
    told(scene, monkeypatch, {"env": "HOOK"}, error)
    assert hook.documents[-1][1]["error"].endswith(str(getattr(error, "description", error)))


@pytest.mark.parametrize("message", ["This run has been marked as failed from outside the execution context.", None])
def test_an_alert_of_a_run_that_was_killed_says_where_what_it_did_is(
    scene: RetentionScene, monkeypatch: pytest.MonkeyPatch, hook: Posted, message: str | None
) -> None:
    """No step of it failed, and Dagster knows no more than that."""
    monkeypatch.setenv("HOOK", hook.url)
    monkeypatch.setattr(dg.RunFailureSensorContext, "get_step_failure_events", lambda self: [])
    monkeypatch.setattr(dg.DagsterEvent, "message", message, raising=False)
    run_id, _ = told(scene, monkeypatch, {"env": "HOOK"})
    error = hook.documents[-1][1]["error"]
    assert error.startswith(message or "no step says why")
    assert f"`pulsar-lifecycle journal --run {run_id}`" in error


@pytest.mark.parametrize("url", ["http://127.0.0.1:1/" + KEY, "nonsense " + KEY])
def test_a_webhook_that_is_not_there_names_no_secret(url: str) -> None:
    with closing(Webhook(url)) as webhook, pytest.raises(Unavailable) as refused:
        webhook.send({"text": "x"})
    assert KEY not in str(refused.value)


def read_only_alarm(scene: RetentionScene, monkeypatch: pytest.MonkeyPatch) -> Callable[[str | None], Any]:
    """A tick of the sensor by its cursor; it posts to ``$HOOK``, and starts `report_storage` alone."""
    automation = scene.settings.automation.model_validate({"alert_webhook": {"env": "HOOK"}})
    where = Cluster(scene.settings.model_copy(update={"automation": automation}), connect=scene.cluster.connect)
    monkeypatch.setattr(LifecycleResource, "without_spark", lambda self: where)
    repository = build_defs().get_repository_def()
    sensor = repository.get_sensor_def("bookie_read_only")
    assert [target.job_name for target in sensor.targets] == ["report_storage"]

    def rung(cursor: str | None) -> Any:
        resources = {"lifecycle": LifecycleResource()}
        return sensor.evaluate_tick(
            dg.build_sensor_context(cursor=cursor, resources=resources, repository_def=repository)
        )

    return rung


def test_a_bookie_that_becomes_read_only_is_posted_turns_its_check_and_has_the_disks_looked_at_once(
    scene: RetentionScene, monkeypatch: pytest.MonkeyPatch, hook: Posted
) -> None:
    monkeypatch.setenv("HOOK", hook.url)
    rung = read_only_alarm(scene, monkeypatch)
    store, path = scene.servers.open_store(), "/ledgers/available/readonly/bookie-1:3181"
    assert "0 bookies are read-only" in rung(None).skip_message
    store.create(path, b"", parents=True)
    hook.status = 503
    found = rung(None)  # the check does not wait for the webhook
    (request,), (check,) = found.run_requests, found.asset_events
    assert READER in request.tags
    assert (check.check_name, check.passed, check.severity) == ("bookies_writable", False, dg.AssetCheckSeverity.ERROR)
    assert "bookie-1:3181" in check.description
    with pytest.raises(Unavailable):  # the next tick posts it again
        rung(found.cursor)
    hook.status = 204
    posted = rung(found.cursor)
    assert [document["bookies"] for _, document in hook.documents] == [["bookie-1:3181"]] * 3
    assert not posted.run_requests
    assert not rung(posted.cursor).run_requests  # as before
    store.delete(path, 0)
    again = rung(posted.cursor)
    assert len(again.run_requests) == 1  # it may be writable by now, or gone: that is the report's to tell
    assert not again.asset_events
    assert len(hook.documents) == 3
    assert not rung(again.cursor).run_requests
    store.create(path, b"", parents=True)
    assert len(rung(again.cursor).asset_events) == 1
    assert len(hook.documents) == 4


def test_bookies_that_an_older_version_saw_are_posted_once(
    scene: RetentionScene, monkeypatch: pytest.MonkeyPatch, hook: Posted
) -> None:
    monkeypatch.setenv("HOOK", hook.url)
    rung = read_only_alarm(scene, monkeypatch)
    scene.servers.open_store().create("/ledgers/available/readonly/bookie-1:3181", b"", parents=True)
    found = rung('["bookie-1:3181"]')
    assert "as before" in found.skip_message
    assert "as before" in rung(found.cursor).skip_message
    assert [document["bookies"] for _, document in hook.documents] == [["bookie-1:3181"]]
