"""TLS material of the settings against a server that asks for a client's certificate, over real sockets."""

from __future__ import annotations

import gc
import socket
import ssl
import threading
from collections.abc import Callable, Iterator
from contextlib import closing, contextmanager
from pathlib import Path

import pytest

from pulsar_lifecycle.errors import LifecycleError
from pulsar_lifecycle.io.pulsar.admin import HttpBrokerAdmin
from pulsar_lifecycle.io.s3.objects import S3ObjectStore
from pulsar_lifecycle.io.zookeeper.store import KazooStore
from pulsar_lifecycle.setting_types import Tls
from pulsar_lifecycle.settings import ObjectStoreSettings, PulsarSettings, ZooKeeperSettings
from tests.kit.certificates import make_certificate

# kazoo leaves sockets open whose handshake failed
pytestmark = pytest.mark.filterwarnings("ignore::pytest.PytestUnraisableExceptionWarning")


@pytest.fixture(autouse=True)
def _collected() -> Iterator[None]:
    """What a failed handshake left is collected here, where that is forgiven, and not amid a test of another module."""
    yield
    gc.collect()


def ask_zookeeper(port: int, tls: Tls) -> None:
    with KazooStore(ZooKeeperSettings(hosts=f"127.0.0.1:{port}", tls=tls, session_timeout=2.0)) as store:
        store.read(["/"])


def ask_broker(port: int, tls: Tls) -> None:
    url = f"https://127.0.0.1:{port}"
    with closing(HttpBrokerAdmin(PulsarSettings(admin_url=url, service_url="pulsar://h:1", tls=tls))) as admin:
        admin.brokers()


def ask_object_store(port: int, tls: Tls) -> None:
    url = f"https://127.0.0.1:{port}"
    settings = {"endpoint": url, "buckets": ["b"], "tries": 1, "tls": tls.model_dump()}
    with closing(S3ObjectStore(ObjectStoreSettings.model_validate(settings))) as store:
        store.head("b", "k")


CLIENTS = [ask_zookeeper, ask_broker, ask_object_store]
Ask = Callable[[int, Tls], None]


@pytest.fixture(scope="module")
def certificate(tmp_path_factory: pytest.TempPathFactory) -> str:
    """A file with a certificate and its key."""
    return make_certificate(tmp_path_factory.mktemp("tls")).both


@contextmanager
def serving(certificate: str) -> Iterator[tuple[int, list[bool]]]:
    """A server that asks for a certificate and hangs up: its port, and whether each connection came to a request."""
    context = ssl.create_default_context(ssl.Purpose.CLIENT_AUTH, cafile=certificate)
    context.load_cert_chain(certificate)
    context.verify_mode = ssl.CERT_REQUIRED
    seen: list[bool] = []
    with socket.create_server(("127.0.0.1", 0)) as server:

        def serve() -> None:
            while True:
                try:
                    connection, _ = server.accept()
                except OSError:
                    return
                try:
                    with context.wrap_socket(connection, server_side=True) as secured:
                        seen.append(bool(secured.recv(1)))
                except OSError:
                    seen.append(False)

        thread = threading.Thread(target=serve)
        thread.start()
        try:
            yield server.getsockname()[1], seen
        finally:
            server.shutdown(socket.SHUT_RDWR)
            thread.join()


@pytest.fixture
def ask_once(monkeypatch: pytest.MonkeyPatch) -> Callable[[Ask, int, Tls], None]:
    monkeypatch.setenv("AWS_ACCESS_KEY_ID", "a")
    monkeypatch.setenv("AWS_SECRET_ACCESS_KEY", "s")

    def ask(client: Ask, port: int, tls: Tls) -> None:
        with pytest.raises(LifecycleError):  # nobody answers
            client(port, tls)

    return ask


@pytest.mark.parametrize("client", CLIENTS)
def test_the_key_may_be_in_the_file_of_the_certificate(client: Ask, certificate: str, ask_once) -> None:
    with serving(certificate) as (port, seen):
        ask_once(client, port, Tls(ca_file=certificate, cert_file=certificate))
    assert any(seen)


@pytest.mark.parametrize("client", [ask_zookeeper, ask_broker])
def test_another_authority_is_refused_also_without_the_check_of_host_names(
    client: Ask, certificate: str, tmp_path: Path, ask_once
) -> None:
    other = make_certificate(tmp_path).both
    with serving(certificate) as (port, seen):
        ask_once(client, port, Tls(ca_file=other, cert_file=certificate, verify=False))
    assert seen
    assert not any(seen)


@pytest.mark.filterwarnings("ignore::urllib3.exceptions.InsecureRequestWarning")
@pytest.mark.parametrize("client", CLIENTS)
def test_a_certificate_of_another_host_passes_without_the_check_of_host_names_only(
    client: Ask, tmp_path: Path, ask_once
) -> None:
    elsewhere = make_certificate(tmp_path, "DNS:elsewhere").both
    for verify in (True, False):
        with serving(elsewhere) as (port, seen):
            ask_once(client, port, Tls(ca_file=elsewhere, cert_file=elsewhere, verify=verify))
        assert any(seen) is not verify
