"""The sandbox's own way into its cluster: the real Pulsar client and the admin REST API.

Belongs here: the few calls that seeding, planting and reading back need. Not here: the product's adapters, which the
sandbox does not use, so that one cannot hide the other's mistakes.
"""

from __future__ import annotations

import json
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Any, TypeVar
from urllib.parse import quote

import httpx
import pulsar

from sandbox.servers.kinds import CONF
from sandbox.servers.toolchain import SandboxError

T = TypeVar("T")


@contextmanager
def pulsar_client(service_url: str) -> Iterator[pulsar.Client]:
    """A Pulsar client that logs errors only, and bears with brokers of a busy machine."""
    logger = pulsar.ConsoleLogger(pulsar.LoggerLevel.Error)
    client = pulsar.Client(service_url, operation_timeout_seconds=120, logger=logger)
    try:
        yield client
    finally:
        client.close()


class Admin:
    """The admin API of one sandbox; topics are full names, ``persistent://T/NS/local``. Usable in ``with``."""

    def __init__(self, admin_url: str) -> None:
        # plain HTTP on loopback: certificates would be loaded for nothing, each time
        self._http = httpx.Client(base_url=f"{admin_url}/admin", timeout=120, follow_redirects=True, verify=False)  # noqa: S501

    def __enter__(self) -> Admin:
        return self

    def __exit__(self, *_: object) -> None:
        self._http.close()

    def call(self, method: str, path: str, body: Any = None, *, accept: tuple[int, ...] = ()) -> Any:
        """One request below ``/admin``; the parsed answer, or None if it is empty or its status is in ``accept``."""
        answer = self._asked(method, path, body, accept)
        if answer.status_code in accept or not answer.content:
            return None
        return answer.json() if "json" in answer.headers.get("content-type", "") else None

    def topic(
        self, method: str, topic: str, suffix: str = "", body: Any = None, *, accept: tuple[int, ...] = ()
    ) -> Any:
        """One request about a topic: ``suffix`` is what follows its path, such as ``/unload``."""
        return self.call(method, f"/v2{topic_path(topic)}{suffix}", body, accept=accept)

    def create_namespace(self, namespace: str, bundles: int = 0) -> None:
        """Create ``tenant/namespace`` (and the tenant) with endless retention; nothing if it is there.

        ``bundles``: into how many it is divided; 0: as its brokers are configured.
        """
        tenant = namespace.partition("/")[0]
        clusters = self.call("GET", "/v2/clusters")
        self.call("PUT", f"/v2/tenants/{tenant}", {"adminRoles": [], "allowedClusters": clusters}, accept=(409,))
        policies = {"bundles": {"numBundles": bundles}} if bundles else {}
        self.call("PUT", f"/v2/namespaces/{namespace}", policies, accept=(409,))
        keep = {"retentionTimeInMinutes": -1, "retentionSizeInMB": -1}
        self.call("POST", f"/v2/namespaces/{namespace}/retention", keep)
        self.forestall_leaks(namespace)

    def forestall_leaks(self, namespace: str) -> None:
        """Register the schema of the namespace's ``__transaction_buffer_snapshot`` before a broker does.

        Brokers register it from several threads at once, and the threads that lose the race leak a schema ledger: true
        orphans, but not planted ones, and their number changes from run to run. A broker that was killed owns its
        bundles until its session ends: requests are sent on to it until then.
        """
        schema = (CONF / "transaction-buffer-snapshot.avsc").read_text()
        properties = {"__jsr310ConversionEnabled": "false", "__alwaysAllowNull": "true"}
        body = {"type": "AVRO", "schema": schema, "properties": properties}

        def registered() -> bool:
            try:
                self.call("POST", f"/v2/schemas/{namespace}/__transaction_buffer_snapshot/schema", body)
            except httpx.ConnectError:
                return False
            return True

        wait_for(f"a schema of {namespace}", registered)

    def unload(self, topic: str) -> None:
        """Unload a loaded topic; its last ledger is closed when this returns.

        While its bundle moves a topic has no owner, or not yet that one: brokers answer with 412 or 500, and are asked
        again.
        """
        path = f"/v2{topic_path(topic)}/unload"
        wait_for(f"the unload of {topic}", lambda: self._asked("PUT", path, accept=(412, 500)).is_success)

    def compact(self, topic: str) -> int:
        """Compact the topic and wait for it; returns the ledger that holds the compacted view."""
        self.topic("PUT", topic, "/compaction")
        wait_for(f"the compaction of {topic}", lambda: self._compacted(topic))
        return int(self.topic("GET", topic, "/internalStats")["compactedLedger"]["ledgerId"])

    def post_schema(self, topic: str, version: int) -> None:
        """Register the AVRO schema of a record with ``version`` fields as the topic's next schema."""
        fields = [{"name": f"field{number}", "type": "long", "default": 0} for number in range(version)]
        record = {"type": "record", "name": "Reading", "fields": fields}
        body = {"type": "AVRO", "schema": json.dumps(record), "properties": {}}
        self.call("POST", f"/v2/schemas{_schema_path(topic)}/schema", body)

    def schema_ledgers(self, topic: str) -> list[int]:
        """The ledgers that hold the versions of the topic's schema."""
        locator = self.call("GET", f"/v2/schemas{_schema_path(topic)}/metadata")
        return sorted({entry["ledgerId"] for entry in [locator["info"], *locator["index"]]})

    def schemas(self, topic: str) -> list[dict[str, Any]]:
        """Every version of the topic's schema, oldest first; none if it has none."""
        answer = self.call("GET", f"/v2/schemas{_schema_path(topic)}/schemas", accept=(404,))
        return sorted(answer["getSchemaResponses"], key=lambda schema: schema["version"]) if answer else []

    def schema(self, topic: str, version: int) -> dict[str, Any]:
        """One version of the topic's schema, looked up by number."""
        found: dict[str, Any] = self.call("GET", f"/v2/schemas{_schema_path(topic)}/schema/{version}")
        return found

    def _asked(self, method: str, path: str, body: Any = None, accept: tuple[int, ...] = ()) -> httpx.Response:
        answer = self._http.request(method, path, json=body) if body is not None else self._http.request(method, path)
        if not answer.is_success and answer.status_code not in accept:
            raise SandboxError(f"{method} {path}: {answer.status_code} {answer.text[:200]}")
        return answer

    def _compacted(self, topic: str) -> bool:
        status = self.topic("GET", topic, "/compaction")
        if status["status"] == "ERROR":
            raise SandboxError(f"compaction of {topic} failed: {status['lastError']}")
        return status["status"] == "SUCCESS"


def topic_path(topic: str) -> str:
    """``/persistent/T/NS/local`` with the local name percent-encoded once."""
    domain, _, rest = topic.partition("://")
    tenant, namespace, local = rest.split("/", 2)
    return f"/{domain}/{tenant}/{namespace}/{quote(local, safe='')}"


def _schema_path(topic: str) -> str:
    return topic_path(topic).removeprefix("/persistent")


def wait_for(what: str, ready: Callable[[], T], timeout: float = 300.0) -> T:
    """Ask ``ready`` until its answer is true and return it; SandboxError after ``timeout`` seconds."""
    deadline = time.monotonic() + timeout
    while not (answer := ready()):
        if time.monotonic() > deadline:
            raise SandboxError(f"waited {timeout:.0f} s in vain for {what}")
        time.sleep(0.1)
    return answer
