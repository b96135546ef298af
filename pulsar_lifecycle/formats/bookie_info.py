"""How to reach a bookie: the z-nodes ``/ledgers/available/BOOKIEID`` and ``/ledgers/available/readonly/BOOKIEID``.

Belongs here: where the z-nodes are, and their bytes as a value. Upstream: ``DataFormats.BookieServiceInfoFormat`` and
``BookieServiceInfoUtils``, bookkeeper-server 4.17.2.
"""

from __future__ import annotations

import re
from collections.abc import Mapping
from dataclasses import dataclass

from pulsar_lifecycle._pb import bookkeeper_metadata_pb2 as pb
from pulsar_lifecycle.errors import CorruptFormat
from pulsar_lifecycle.formats import _wire

WHAT = "bookie service info"
READ_ONLY = "readonly"
"""The child of ``available`` below which bookies register that take no entries; itself no bookie."""
PROTOCOL_RPC = "bookie-rpc"
PROTOCOL_HTTP = "http"
_HOST_PORT = re.compile(r"([^\s/]+):([0-9]{1,5})")
_MAX_PORT = 65535


def folders(ledgers_root: str) -> list[str]:
    """Where bookies register: the writable ones, among them the folder ``READ_ONLY``; and the read-only ones."""
    available = f"{ledgers_root}/available"
    return [available, f"{available}/{READ_ONLY}"]


def paths(ledgers_root: str, bookie: str) -> list[str]:
    """Where one bookie is registered: as writable, and as read-only."""
    return [f"{folder}/{bookie}" for folder in folders(ledgers_root)]


@dataclass(frozen=True, slots=True)
class Endpoint:
    """One address that a bookie listens on."""

    id: str
    protocol: str
    host: str
    port: int


@dataclass(frozen=True, slots=True)
class BookieServiceInfo:
    """A registered bookie; ids need not be ``host:port``, so connect to an endpoint."""

    endpoints: tuple[Endpoint, ...]
    properties: Mapping[str, str]

    @property
    def rpc(self) -> Endpoint | None:
        """Where entries are read and written."""
        return self._first(PROTOCOL_RPC)

    @property
    def http(self) -> Endpoint | None:
        """The HTTP admin server, if it is on."""
        return self._first(PROTOCOL_HTTP)

    def _first(self, protocol: str) -> Endpoint | None:
        return next((endpoint for endpoint in self.endpoints if endpoint.protocol == protocol), None)


def decode(data: bytes, bookie_id: str) -> BookieServiceInfo:
    """The z-node's bytes; 0 bytes is the legacy form, in which the bookie's id is ``host:port``.

    Raises CorruptFormat, also for a legacy node whose id is no address.
    """
    if data:
        return _wire.decode(pb.BookieServiceInfoFormat, bytes(data), WHAT, _build)
    address = _HOST_PORT.fullmatch(bookie_id)
    if address is None or not 0 < int(address[2]) <= _MAX_PORT:
        raise CorruptFormat(WHAT, 0, f"endpoints, or a bookie id of the form host:port, found {bookie_id!r}")
    return BookieServiceInfo((Endpoint("bookie", PROTOCOL_RPC, address[1], int(address[2])),), {})


def _build(message: pb.BookieServiceInfoFormat) -> BookieServiceInfo:
    properties = _wire.known(message).properties
    return BookieServiceInfo(
        tuple(_endpoint(_wire.known(endpoint)) for endpoint in message.endpoints),
        {_wire.text(key): _wire.text(value) for key, value in properties.items()},
    )


def _endpoint(message: pb.BookieServiceInfoFormat.Endpoint) -> Endpoint:
    if not 0 <= message.port <= _MAX_PORT:
        raise _wire.MalformedError(f"a port, found {message.port}")
    return Endpoint(_wire.text(message.id), _wire.text(message.protocol), _wire.text(message.host), message.port)
