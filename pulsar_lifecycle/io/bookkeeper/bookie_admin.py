"""The bookies' HTTP admin API, as a :class:`~pulsar_lifecycle.ports.BookieAdmin`.

Belongs here: finding a bookie's HTTP server, requests, status codes and the shapes of answers, of BookKeeper 4.17
(``org.apache.bookkeeper.server.http.service``, ``GarbageCollectorStats``, ``LedgerDirsMonitor``). Not here: what an
answer means for a disk. Nothing is repeated: the caller decides by the class of the error.
"""

from __future__ import annotations

import re
from collections.abc import Iterable, Mapping
from ipaddress import ip_address
from typing import Any

import httpx
from prometheus_client.parser import text_string_to_metric_families

from pulsar_lifecycle.errors import AccessDenied, CorruptFormat, NotFound, OutcomeUnknown, StoreError, Unavailable
from pulsar_lifecycle.formats import bookie_info
from pulsar_lifecycle.formats.bookie_status import (
    BookieStatus,
    LedgerDirectory,
    compaction,
    directories_and_latency,
    flag,
)
from pulsar_lifecycle.io.deadline import Deadline
from pulsar_lifecycle.io.tls import tls_context
from pulsar_lifecycle.ports import MetadataStore, Node, Unread
from pulsar_lifecycle.settings import BookieAdminSettings

_API = "/api/v1"
_ENTRY_LOG = re.compile(r"(0|[1-9a-f][0-9a-f]*)\.log")
"""``Long.toHexString(logId)``; the list also has RocksDB's logs, which are padded with zeros."""
_LARGEST = 64 << 20
"""Bytes of an answer; the metrics of a bookie are the largest one, a few MiB."""
_WANTED = ("bookie_ACTIVE_", "bookie_THREAD_RUNTIME_count", "bookie_ledger_dir_", "bookie_BOOKIE_ADD_ENTRY")


class HttpBookieAdmin:
    """One connection pool to the HTTP servers that bookies register beside their own address.

    ``ledgers_root`` is where they register. Reads raise Unavailable when there was no answer or a 5xx one, writes
    OutcomeUnknown.
    """

    def __init__(
        self,
        store: MetadataStore,
        ledgers_root: str,
        settings: BookieAdminSettings,
        transport: httpx.BaseTransport | None = None,
    ) -> None:
        self._store = store
        self._root = ledgers_root
        self._scheme = "https" if settings.tls else "http"
        self._timeout = settings.request_timeout
        self._http = httpx.Client(
            transport=transport,
            verify=tls_context(settings.tls, "bookkeeper.admin.tls"),
            timeout=self._timeout,
            trust_env=False,
            limits=httpx.Limits(max_keepalive_connections=0),  # a deadline knows new connections only
        )

    def close(self) -> None:
        """Close the connection pool."""
        self._http.close()

    def bookies(self) -> dict[str, bool]:
        """Every registered bookie, and whether it is registered as read-only."""
        self._store.sync("/")
        found: dict[str, bool] = {}
        for path, read_only in zip(bookie_info.folders(self._root), (False, True), strict=True):
            children = self._store.children([path])[0]
            if isinstance(children, Unread):
                raise StoreError(f"{path}: {children.reason}")
            names = children.names if children else ()
            found |= dict.fromkeys((name for name in names if name != bookie_info.READ_ONLY), read_only)
        return dict(sorted(found.items()))

    def status(self, bookie: str) -> BookieStatus:
        """What it says of itself; eight small requests.

        Whether a forced collection runs comes first: all else is then as of after one that has ended.
        """
        base = self._base(bookie)
        forced = self._object(base, "/bookie/gc")
        info, state = self._object(base, "/bookie/info"), self._object(base, "/bookie/state")
        suspended = self._object(base, "/bookie/gc/suspend_compaction")
        details = self._get(base, "/bookie/gc_details")
        files = self._object(base, "/bookie/list_disk_file?file_type=entrylog")
        configuration = self._object(base, "/config/server_config")
        try:
            if not isinstance(details, list) or not details or not configuration:
                raise ValueError("expected a ledger directory in gc_details, and a setting in server_config")
            compactions = tuple(map(compaction, details))
            logs = str(files["entrylog files"]).split("\t")
            directories, latency = self._metrics(base)
            return BookieStatus(
                bookie=bookie,
                read_only=flag(state["readOnly"]),
                total=int(info["totalSpace"]),
                free=int(info["freeSpace"]),
                minor_suspended=flag(suspended["isMinorGcSuspended"]),
                major_suspended=flag(suspended["isMajorGcSuspended"]),
                collecting=flag(forced["is_in_force_gc"]),
                compactions=compactions,
                entry_log_ids=tuple(sorted(int(found[1], 16) for one in logs if (found := _ENTRY_LOG.fullmatch(one)))),
                directories=directories,
                add_latency_ms=latency,
                configuration={str(name): str(value) for name, value in configuration.items()},
            )
        except (KeyError, TypeError, ValueError, AttributeError) as error:
            raise StoreError(
                f"bookie {bookie}: {base}: an answer is not what BookKeeper 4.17 sends: {error!r}"
            ) from error

    def collect(self, bookie: str, *, major: bool) -> None:
        """Start a garbage collection now, with a major or a minor compaction."""
        self._put(bookie, "/bookie/gc", {"forceMajor": major, "forceMinor": not major})

    def suspend_compaction(self, bookie: str) -> None:
        """Suspend minor and major compaction."""
        self._put(bookie, "/bookie/gc/suspend_compaction", {"suspendMajor": True, "suspendMinor": True})

    def resume_compaction(self, bookie: str) -> None:
        """Resume minor and major compaction."""
        self._put(bookie, "/bookie/gc/resume_compaction", {"resumeMajor": True, "resumeMinor": True})

    # ----------------------------------------------------------------------------------------------------- requests

    def _base(self, bookie: str) -> httpx.URL:
        """The address of a bookie's HTTP server.

        A server that listens on every address registers that as its host: then the bookie's own host is asked.
        """
        nodes = self._store.read(bookie_info.paths(self._root, bookie))
        node = next((node for node in nodes if isinstance(node, Node)), None)
        if node is None:
            raise NotFound(f"bookie {bookie} is not registered below {self._root}/available")
        try:
            info = bookie_info.decode(node.data, bookie)
        except CorruptFormat as error:
            raise StoreError(f"{node.path}: {error}") from error
        if info.http is None:
            raise NotFound(f"bookie {bookie} has no HTTP server: set httpServerEnabled=true in its configuration")
        host = info.http.host
        if info.rpc is not None and (not host or _is_wildcard(host)):
            host = info.rpc.host
        return httpx.URL(scheme=self._scheme, host=host, port=info.http.port)

    def _get(self, base: httpx.URL, path: str) -> Any:
        url = base.join(_API + path)
        try:
            response = self._send("GET", url, None)
        except NotFound as error:  # it has a server, of another version or behind a proxy
            raise StoreError(f"{error}: BookKeeper 4.17 answers there") from error
        try:
            return response.json()
        except (ValueError, RecursionError) as error:
            raise StoreError(f"GET {url}: the answer is no JSON") from error

    def _object(self, base: httpx.URL, path: str) -> Mapping[str, Any]:
        answer = self._get(base, path)
        if not isinstance(answer, dict):
            raise StoreError(f"GET {base}{path}: expected a JSON object")
        return answer

    def _put(self, bookie: str, path: str, body: Mapping[str, bool]) -> None:
        self._send("PUT", self._base(bookie).join(_API + path), body)

    def _send(self, method: str, url: httpx.URL, body: Mapping[str, bool] | None) -> httpx.Response:
        lost = Unavailable if method == "GET" else OutcomeUnknown
        try:
            response = self._whole(method, url, body)
        except httpx.ConnectError as error:
            raise Unavailable(f"{method} {url}: {type(error).__name__}: {error}") from error
        except (httpx.HTTPError, httpx.InvalidURL) as error:
            raise lost(f"{method} {url}: {type(error).__name__}: {error}") from error
        if response.is_success:
            return response
        message = f"{method} {url}: {response.status_code}: {' '.join(response.text.split())[:200]}"
        if response.status_code in (401, 403):
            raise AccessDenied(message)
        if response.status_code == 404:
            raise NotFound(message)
        raise (lost if response.status_code >= 500 else StoreError)(message)

    def _whole(self, method: str, url: httpx.URL, body: object) -> httpx.Response:
        """An answer that ends in time, its head, too."""
        some, whole = bytearray(), None
        with Deadline(self._timeout) as deadline:
            try:
                with self._http.stream(method, url, json=body, extensions={"trace": deadline}) as response:
                    for piece in response.iter_bytes():
                        some += piece
                        if len(some) > _LARGEST:
                            raise httpx.ReadError(f"the answer has more than {_LARGEST} bytes")
                    whole = httpx.Response(response.status_code, content=bytes(some), request=response.request)
            except httpx.HTTPError:
                if not deadline.over:
                    raise
        if whole is None or deadline.over:  # the end of its connection may pass for that of an answer
            raise httpx.ReadTimeout(f"the answer did not end within {self._timeout:g} s")
        return whole

    def _metrics(self, base: httpx.URL) -> tuple[tuple[LedgerDirectory, ...] | None, float | None]:
        """The ledger directories, None without metrics, and the latency of adds (ms)."""
        try:
            page = self._send("GET", base.join("/metrics"), None).text
        except NotFound:
            return None, None
        wanted = [line for line in page.splitlines() if line.startswith(_WANTED)]
        return directories_and_latency(_samples(wanted))


def _samples(lines: Iterable[str]) -> list[tuple[str, Mapping[str, str], float]]:
    families = text_string_to_metric_families("".join(f"{line}\n" for line in lines))
    return [(sample.name, sample.labels, sample.value) for family in families for sample in family.samples]


def _is_wildcard(host: str) -> bool:
    try:
        return ip_address(host).is_unspecified
    except ValueError:
        return False
