"""Configuration files: everything listens on the loopback address only."""

from __future__ import annotations

import re
from pathlib import Path

import pytest

from sandbox.servers import kinds
from sandbox.servers.kinds import Server

VALUES = {
    "cluster": "sandbox",
    "zookeeper": "127.0.0.1:2181",
    "quorum": "1",
    "gc_wait_ms": "60000",
    "access_key": "key",
    "secret_key": "secret",
}


@pytest.mark.parametrize("kind", kinds.KINDS)
def test_a_server_is_told_its_ports_and_to_listen_on_loopback(kind: str, tmp_path: Path) -> None:
    ports = dict(zip(kinds.port_names(kind), (20_001, 20_002), strict=False))
    server = Server(f"{kind}-1", kind, ports)
    conf = tmp_path / "conf" / "server.conf"
    kinds.write_configuration(server, conf, tmp_path / "data", VALUES)
    written = conf.read_text()
    assert all(str(port) in written for port in ports.values())
    listening = {
        "zookeeper": ["clientPortAddress=127.0.0.1"],
        "bookie": [r"listeningInterface=lo\d*", "httpServerHost=127.0.0.1"],
        "broker": ["bindAddress=127.0.0.1"],
        "s3proxy": ["s3proxy.endpoint=http://127.0.0.1:"],
    }[kind]
    assert all(re.search(f"^{line}", written, re.MULTILINE) for line in listening)
    assert "0.0.0.0" not in written
    assert "$" not in written


def test_the_secret_is_readable_by_its_owner_only(tmp_path: Path) -> None:
    conf = tmp_path / "s3proxy.conf"
    kinds.write_configuration(Server("s3proxy", "s3proxy", {"main": 20_001}), conf, tmp_path / "data", VALUES)
    assert conf.stat().st_mode & 0o077 == 0
