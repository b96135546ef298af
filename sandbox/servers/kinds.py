"""How each server is configured, started and known to be ready.

Belongs here: one :class:`Server` per kind, its configuration file (``conf/``), its java command and its readiness
probe. Not here: which servers a cluster has and whether they run (:mod:`sandbox.cluster`).
Main classes and properties: ZooKeeper 3.9, BookKeeper 4.17, Pulsar 4.0.7, S3Proxy 4.1.0.
"""

from __future__ import annotations

import re
import socket
from collections.abc import Mapping
from contextlib import closing
from dataclasses import asdict, dataclass, field
from http.client import HTTPConnection, HTTPException
from pathlib import Path
from string import Template
from typing import Any

from sandbox.servers import archives
from sandbox.servers.processes import LOOPBACK
from sandbox.servers.toolchain import Tools

CONF = Path(__file__).parent / "conf"
KINDS = ("zookeeper", "s3proxy", "bookie", "broker")

PULSAR_JVM = (
    "-XX:+UseSerialGC",
    "-XX:TieredStopAtLevel=1",
    "-Djava.net.preferIPv4Stack=true",
    "-Dio.netty.leakDetectionLevel=disabled",
    "-Dio.netty.tryReflectionSetAccessible=true",
    "-Dbookkeeper.metadata.bookie.drivers=org.apache.pulsar.metadata.bookkeeper.PulsarMetadataBookieDriver",
    "-Dbookkeeper.metadata.client.drivers=org.apache.pulsar.metadata.bookkeeper.PulsarMetadataClientDriver",
    *(
        option
        for package in ("java.lang", "java.nio", "java.util", "java.util.zip", "sun.net", "jdk.internal.misc")
        for option in ("--add-opens", f"java.base/{package}=ALL-UNNAMED")
    ),
    "--add-opens",
    "jdk.management/com.sun.management.internal=ALL-UNNAMED",
    "--add-opens",
    "java.base/jdk.internal.platform=ALL-UNNAMED",
)
"""What every java process with Pulsar's jars is started with."""

MEMORY = {
    "zookeeper": ("-Xmx256m", "-XX:MaxDirectMemorySize=64m"),
    "s3proxy": ("-Xmx192m", "-XX:MaxDirectMemorySize=64m"),
    "bookie": ("-Xmx256m", "-XX:MaxDirectMemorySize=256m"),
    "broker": ("-Xmx512m", "-XX:MaxDirectMemorySize=256m"),
    "setup": ("-Xmx256m", "-XX:MaxDirectMemorySize=64m"),
}
"""Heap and direct memory by kind; a larger data set than a laptop's needs more."""


@dataclass
class Server:
    """One server as the state file records it. ``ports`` maps ``main`` (and ``http``) to a loopback port."""

    name: str
    kind: str
    ports: dict[str, int]
    pid: int | None = None
    started: str | None = None
    """The process's start time as the system tells it: together with the pid it names one process for good."""
    command: list[str] = field(default_factory=list)
    settings: dict[str, str] = field(default_factory=dict)
    """What its configuration says beside the template, or instead of it."""

    @property
    def address(self) -> str:
        """``host:port`` of the server's main port; for a bookie this is its bookie id."""
        return f"{LOOPBACK}:{self.ports['main']}"

    @property
    def http(self) -> str:
        """Base URL of the server's HTTP port (bookie admin, broker admin)."""
        return f"http://{LOOPBACK}:{self.ports['http']}"

    def as_json(self) -> dict[str, Any]:
        """The state file's entry."""
        return asdict(self)


def port_names(kind: str) -> tuple[str, ...]:
    """Which ports a server of this kind listens on."""
    return ("main", "http") if kind in ("bookie", "broker") else ("main",)


def write_configuration(
    server: Server, conf: Path, data: Path, values: dict[str, str], more: Mapping[str, str] | None = None
) -> None:
    """Render the server's configuration into ``conf`` for its data folder ``data``; values fill the template.

    ``more``, then the server's own settings, replace lines of the template: of a name that is there twice, brokers take
    the last and bookies the first.
    """
    template = next(CONF.glob(f"{server.kind}.*"))
    data.mkdir(parents=True, exist_ok=True)
    conf.parent.mkdir(parents=True, exist_ok=True)
    filled = {
        **values,
        "data": str(data),
        "port": str(server.ports["main"]),
        "http_port": str(server.ports.get("http", 0)),
        "loopback_interface": _loopback_interface(),
    }
    conf.touch(mode=0o600)  # one of them holds a secret
    others = {**(more or {}), **server.settings}
    lines = Template(template.read_text()).substitute(filled).splitlines()
    kept = [line for line in lines if line.partition("=")[0] not in others]
    conf.write_text("\n".join([*kept, *(f"{name}={value}" for name, value in others.items())]) + "\n")


def production_settings() -> dict[str, str]:
    """What brokers have in place of the sandbox's quiet ones, to do by themselves what production's do."""
    lines = (CONF / "broker-production.conf").read_text().splitlines()
    return dict(line.split("=", 1) for line in lines if line and not line.startswith("#"))


def give_offloader(plugin: Path, data: Path, bucket: str, s3: str) -> dict[str, str]:
    """Put the plug-in where brokers look for offloaders, and say what their configuration then has.

    ``plugin``: the folder with it; ``data``: the broker's working directory, as ``./offloaders`` is what policies say
    of themselves; ``s3``: the S3 server's URL. S3 becomes the broker-wide driver, and nothing happens by itself.
    """
    link = data / "offloaders"
    data.mkdir(parents=True, exist_ok=True)
    link.unlink(missing_ok=True)
    link.symlink_to(plugin)
    return {
        "narExtractionDirectory": str(data / "plug-ins"),
        "managedLedgerOffloadDriver": "aws-s3",
        "s3ManagedLedgerOffloadBucket": bucket,
        "s3ManagedLedgerOffloadRegion": "us-east-1",
        "s3ManagedLedgerOffloadServiceEndpoint": s3,
        "managedLedgerOffloadDeletionLagMs": "-1",
    }


def command(kind: str, tools: Tools, conf: Path, data: Path, classes: Path) -> list[str]:
    """The java command that runs a server of this kind with its rendered configuration.

    ``classes`` is where it says what it loads, if nothing is known of that yet (:mod:`sandbox.servers.archives`).
    """
    class_path = class_path_of(kind, tools)
    if kind == "s3proxy":
        logging = f"-Dlogback.configurationFile={CONF / 'logback.xml'}"
        jvm = ["-XX:+UseSerialGC", "-XX:TieredStopAtLevel=1", "-Djava.net.preferIPv4Stack=true", logging]
        main = ["org.gaul.s3proxy.Main", "--properties", str(conf)]
    else:
        jvm = [
            *PULSAR_JVM,
            f"-Dlog4j2.configurationFile={CONF / 'log4j2.xml'}",
            f"-Dvertx.cacheDirBase={data / 'vertx'}",
        ]
        main = {
            "zookeeper": ["org.apache.zookeeper.server.quorum.QuorumPeerMain", str(conf)],
            "bookie": ["org.apache.bookkeeper.server.Main", "--conf", str(conf)],
            "broker": ["org.apache.pulsar.PulsarBrokerStarter", "--broker-conf", str(conf)],
        }[kind]
    if kind == "zookeeper":
        jvm += ["-Dzookeeper.forceSync=no", "-Dzookeeper.jmx.log4j.disable=true"]
    archive = archives.options(tools.java, class_path, classes)
    return [tools.java, *MEMORY[kind], *archive, *jvm, "-cp", class_path, *main]


def class_path_of(kind: str, tools: Tools) -> str:
    """The jars of a server of this kind."""
    return tools.s3proxy if kind == "s3proxy" else tools.pulsar


def setup_command(tools: Tools, cluster: str, zookeeper: str, admin_url: str, service_url: str) -> list[str]:
    """The java command that writes a new cluster's metadata (PulsarClusterMetadataSetup); harmless if repeated."""
    return [
        tools.java,
        *MEMORY["setup"],
        *archives.options(tools.java, tools.pulsar, None),
        *PULSAR_JVM,
        f"-Dlog4j2.configurationFile={CONF / 'log4j2.xml'}",
        "-cp",
        tools.pulsar,
        "org.apache.pulsar.PulsarClusterMetadataSetup",
        *("--cluster", cluster),
        *("--metadata-store", f"zk:{zookeeper}"),
        *("--configuration-metadata-store", f"zk:{zookeeper}"),
        *("--web-service-url", admin_url),
        *("--broker-service-url", service_url),
        *("--initial-num-transaction-coordinators", "1"),
        *("--default-namespace-bundle-number", "4"),
    ]


def is_ready(server: Server) -> bool:
    """Whether the server answers as it should."""
    try:
        if server.kind == "zookeeper":
            return b"Mode: standalone" in _four_letters(server.ports["main"], b"srvr")
        if server.kind == "s3proxy":
            return _status(server.ports["main"], "/") in (200, 403)
        path = "/api/v1/bookie/is_ready" if server.kind == "bookie" else "/admin/v2/brokers/ready"
        return _status(server.ports["http"], path) == 200
    except (OSError, HTTPException):
        return False


def _status(port: int, path: str) -> int:
    """Asked ten times a second while servers start, so without httpx, which reads all certificates each time."""
    with closing(HTTPConnection(LOOPBACK, port, timeout=2)) as connection:
        connection.request("GET", path)
        return connection.getresponse().status


def _four_letters(port: int, word: bytes) -> bytes:
    with socket.create_connection((LOOPBACK, port), timeout=2) as connection:
        connection.sendall(word)
        answer = b""
        while chunk := connection.recv(4096):
            answer += chunk
    return answer


def _loopback_interface() -> str:
    return next(name for _, name in socket.if_nameindex() if re.fullmatch(r"lo\d*", name))
