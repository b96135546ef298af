"""Delete records over TLS, beside a broker that asks for tokens and keeps transactions' snapshots in segments.

Roles of one tenant, transactions below a position, a topic that is deleted and created again after its plan.
"""

from __future__ import annotations

import base64
import hashlib
import hmac
import json
import subprocess
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any
from uuid import uuid4

import pytest

from pulsar_lifecycle.delete_records.request import END, DeleteRecordsResult
from pulsar_lifecycle.model import MessagePosition
from pulsar_lifecycle.values.codes import Code
from pulsar_lifecycle.values.plans.delete_records_plan import RecordsError
from sandbox.clients import Admin
from sandbox.cluster import Cluster
from sandbox.servers.processes import free_ports
from sandbox.servers.toolchain import find_tools
from tests.integration.delete_records.record_requests import CONTENTS, SETTINGS, Records, publish, read_all
from tests.integration.pipeline import Pipeline, drain, new_namespace, settings_file, wait_listed
from tests.kit.certificates import Certificate, make_certificate

pytestmark = pytest.mark.integration

KEY = b"of the tokens, 32 bytes or more of it"


def token(role: str) -> str:
    """A JWT (HS256)."""

    def encoded(data: bytes) -> str:
        return base64.urlsafe_b64encode(data).rstrip(b"=").decode()

    head, claims = b'{"alg":"HS256"}', json.dumps({"sub": role}).encode()
    signed = f"{encoded(head)}.{encoded(claims)}"
    return f"{signed}.{encoded(hmac.new(KEY, signed.encode(), hashlib.sha256).digest())}"


BROKER = {
    "authenticationEnabled": "true",
    "authenticationProviders": "org.apache.pulsar.broker.authentication.AuthenticationProviderToken",
    "tokenSecretKey": f"data:;base64,{base64.b64encode(KEY).decode()}",
    "authorizationEnabled": "true",
    "anonymousUserRole": "anonymous",  # who has no token: the sandbox itself
    "superUserRoles": "anonymous,broker",
    "brokerClientAuthenticationPlugin": "org.apache.pulsar.client.impl.auth.AuthenticationToken",
    "brokerClientAuthenticationParameters": f"token:{token('broker')}",
    "transactionBufferSegmentedSnapshotEnabled": "true",
}

ZOOKEEPER = {
    "secureClientPortAddress": "127.0.0.1",
    "serverCnxnFactory": "org.apache.zookeeper.server.NettyServerCnxnFactory",
    "ssl.clientAuth": "need",
}


def stores_of(tls: Certificate) -> dict[str, str]:
    """What ZooKeeper shows and trusts."""
    files = {"ssl.keyStore": tls.both, "ssl.trustStore": tls.file}
    return {
        f"{name}.{key}": value for name, file in files.items() for key, value in (("location", file), ("type", "PEM"))
    }


@pytest.fixture(scope="module")
def guarded(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Cluster]:
    folder = tmp_path_factory.mktemp("guarded")
    cluster, tls = Cluster(folder / "sandbox"), make_certificate(folder)
    zookeeper, http, binary = map(str, free_ports(3))
    try:
        cluster.start()
        cluster.restart("zookeeper", ZOOKEEPER | {"secureClientPort": zookeeper} | stores_of(tls))
        ports = {"webServicePortTls": http, "brokerServicePortTls": binary}
        files = {"tlsCertificateFilePath": tls.file, "tlsKeyFilePath": tls.key, "tlsTrustCertsFilePath": tls.file}
        cluster.restart("broker-1", BROKER | ports | files)
        drain(cluster)
        yield cluster
    finally:
        cluster.stop(purge=True)


def records_of(sandbox: Cluster, folder: Path, role: str = "") -> Records:
    """Requests of a role; of a superuser without one, over TLS. All have one lake."""
    zookeeper, broker = (sandbox.state.servers[name].settings for name in ("zookeeper", "broker-1"))
    client = {"cert_file": broker["tlsCertificateFilePath"], "key_file": broker["tlsKeyFilePath"]}
    tls = {"ca_file": broker["tlsTrustCertsFilePath"], **client}
    pulsar = {
        "admin_url": f"https://127.0.0.1:{broker['webServicePortTls']}",
        "service_url": f"pulsar+ssl://127.0.0.1:{broker['brokerServicePortTls']}",
        "tls": tls,
    }
    settings: dict[str, Any] = {
        **SETTINGS,
        "lake": {"path": str(folder / "lake")},
        "zookeeper": {"hosts": f"127.0.0.1:{zookeeper['secureClientPort']}", "tls": tls},
        "pulsar": {**SETTINGS["pulsar"], **pulsar},
    }
    if role:
        file = folder / f"{role}.jwt"
        file.touch(mode=0o600)
        file.write_text(token(role))
        settings["pulsar"]["token"] = {"file": str(file)}
    return Records(sandbox, Pipeline(settings_file(sandbox, folder / (role or "anyone"), settings)))


def of_tenant(sandbox: Cluster, role: str) -> str:
    """A topic with messages, of a tenant that the role is admin of."""
    tenant = f"{role}-{uuid4().hex[:6]}"
    with Admin(sandbox.admin_url) as admin:
        admin.create_namespace(f"{tenant}/orders")
        clusters = admin.call("GET", "/v2/clusters")
        admin.call("POST", f"/v2/tenants/{tenant}", {"adminRoles": [role], "allowedClusters": clusters})
    topic = f"persistent://{tenant}/orders/placed"
    publish(sandbox, topic)
    wait_listed(sandbox, topic)
    return topic


def test_a_role_of_one_tenant_is_told_so_for_each_partition(guarded: Cluster, tmp_path: Path) -> None:
    own, foreign = of_tenant(guarded, "us"), of_tenant(guarded, "them")
    anyone, us = records_of(guarded, tmp_path), records_of(guarded, tmp_path, "us")
    anyone.pipeline.scan()
    rows = us.plan({own: END, foreign: END})
    assert {row["error"] for row in rows.values()} == {RecordsError.NOT_AUTHORIZED}
    assert [rows[topic]["code"] for topic in (own, foreign)] == [Code.BROKERS_DENIED, Code.TENANT_DENIED]

    anyone.plan({own: END, foreign: END})
    us.summary = anyone.summary  # the plan of a superuser is none that everybody may apply
    assert {one.error for one in us.apply().values()} == {RecordsError.NOT_AUTHORIZED}
    assert [len(read_all(guarded, topic)) for topic in (own, foreign)] == [len(CONTENTS)] * 2

    anyone.apply()
    assert [one.error for one in anyone.answered().values()] == [None, None]
    assert [read_all(guarded, topic) for topic in (own, foreign)] == [[], []]


@contextmanager
def open_transaction(sandbox: Cluster, topic: str, each: int) -> Iterator[subprocess.Popen[bytes]]:
    """A client that has published and not ended its transaction."""
    tools = find_tools(lambda _: None)
    program = Path(__file__).parent / "OpenTransaction.java"
    java = [tools.java, "-Xmx128m", "-XX:+UseSerialGC", "-XX:TieredStopAtLevel=1", "-cp", tools.pulsar, str(program)]
    with subprocess.Popen(
        [*java, sandbox.service_url, topic, str(each)], stdin=subprocess.PIPE, stdout=subprocess.PIPE
    ) as client:
        try:
            assert client.stdout is not None
            while (line := client.stdout.readline()) != b"open\n":
                assert line, f"the client ended: {client.wait(10)}"
            yield client
        finally:
            client.kill()


def ended(client: subprocess.Popen[bytes], how: str) -> None:
    said, _ = client.communicate(how.encode(), timeout=60)
    assert b"ended" in said.splitlines()  # it logs there, too


@pytest.mark.parametrize("how", ["commit", "abort"])
def test_a_transaction_with_messages_below_must_have_ended(guarded: Cluster, tmp_path: Path, how: str) -> None:
    topic = f"persistent://{new_namespace(guarded, 'transactions')}/moved"
    records = records_of(guarded, tmp_path)
    with open_transaction(guarded, topic, 40) as client:  # of three ledgers, the first two with messages of it
        wait_listed(guarded, topic)
        records.pipeline.scan()
        row = records.plan({topic: END})[topic]
        assert (row["error"], "1 transactions" in row["reason"]) == (RecordsError.TRANSACTION_BELOW, True), row
        first, second, third = listed(guarded, topic)
        assert records.plan({topic: MessagePosition(first, 40)})[topic]["error"] is None  # none of it is below
        assert records.plan({topic: MessagePosition(second, 0)})[topic]["error"] == RecordsError.TRANSACTION_BELOW
        ended(client, how)
    mark = MessagePosition(third, 0)
    row = records.plan({topic: mark})[topic]
    assert (row["error"], row["ledgers"]) == (None, [first, second]), row
    records.apply()
    assert records.answered() == {topic: DeleteRecordsResult(mark)}
    assert len(read_all(guarded, topic)) == 20
    with Admin(guarded.admin_url) as admin:
        admin.unload(topic)  # the broker reads its transactions anew
    assert len(read_all(guarded, topic)) == 20


def listed(sandbox: Cluster, topic: str) -> list[int]:
    with Admin(sandbox.admin_url) as admin:
        return [one["ledgerId"] for one in admin.topic("GET", topic, "/internalStats")["ledgers"]]


def test_a_topic_that_was_created_again_keeps_all_and_is_another_one(guarded: Cluster, tmp_path: Path) -> None:
    topic = f"persistent://{new_namespace(guarded, 'again')}/placed"
    records = records_of(guarded, tmp_path)
    publish(guarded, topic)
    wait_listed(guarded, topic)
    records.pipeline.scan()
    records.plan({topic: END})
    with Admin(guarded.admin_url) as admin:
        admin.topic("DELETE", topic, "?force=true")
    publish(guarded, topic)
    for dry_run in (False, True):
        assert records.apply(dry_run=dry_run)[topic].error is RecordsError.REPLACED
    assert read_all(guarded, topic) == CONTENTS
