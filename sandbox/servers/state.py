"""``state.json``: what a sandbox consists of and where everything listens.

Belongs here: the file and its values. Not here: whether the servers run (:mod:`sandbox.cluster`).
"""

from __future__ import annotations

import json
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from sandbox.servers.kinds import Server

CLUSTER = "sandbox"


@dataclass
class State:
    """What ``state.json`` holds."""

    data: Path
    gc_wait: float = 60.0
    offloader: bool = False
    """Whether its brokers have an offloader."""
    production: bool = False
    """Whether its brokers do by themselves what production's do."""
    servers: dict[str, Server] = field(default_factory=dict)

    def of_kind(self, kind: str) -> list[Server]:
        """The servers of one kind, by number."""
        return [server for server in self.servers.values() if server.kind == kind]

    def as_json(self) -> dict[str, Any]:
        """The file's document: where everything listens, for people, tests and scripts."""
        brokers, bookies = self.of_kind("broker"), self.of_kind("bookie")
        return {
            "cluster": CLUSTER,
            "data": str(self.data),
            "zookeeper": self.servers["zookeeper"].address,
            "admin_url": brokers[0].http,
            "service_url": "pulsar://" + ",".join(broker.address for broker in brokers),
            "bookies": [{"id": bookie.address, "http": bookie.http} for bookie in bookies],
            "brokers": [{"service_url": f"pulsar://{broker.address}", "admin_url": broker.http} for broker in brokers],
            "s3": {
                "endpoint": f"http://{self.servers['s3proxy'].address}",
                "credentials_file": str(self.data / "s3-credentials.json"),
            },
            "lifecycle_toml": str(self.data / "lifecycle.toml"),
            "gc_wait": self.gc_wait,
            "offloader": self.offloader,
            "production": self.production,
            "servers": {name: server.as_json() for name, server in self.servers.items()},
        }

    @classmethod
    def load(cls, path: Path) -> State | None:
        """Read the file; None if there is none."""
        try:
            document = json.loads(path.read_text())
        except FileNotFoundError:
            return None
        known = {name: Server(**entry) for name, entry in document["servers"].items()}
        production = document.get("production", False)
        return cls(Path(document["data"]), document["gc_wait"], document.get("offloader", False), production, known)

    def save(self, path: Path) -> None:
        """Replace the file in one step."""
        temporary = path.with_suffix(".tmp")
        temporary.write_text(json.dumps(self.as_json(), indent=2) + "\n")
        temporary.replace(path)
