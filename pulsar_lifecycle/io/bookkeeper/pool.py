"""A connection to each bookie, and waiting for all of them at once.

Belongs here: finding bookies, connecting, noticing timeouts and loss, asking again after a bookie's restart. Not here:
what is asked (``stream.py``, ``replica_check.py``) and frames (``connection.py``).
"""

from __future__ import annotations

import select
import time
from collections.abc import Sequence

from pulsar_lifecycle.errors import CorruptFormat, LifecycleError, Unavailable
from pulsar_lifecycle.formats import bookie_info
from pulsar_lifecycle.io.bookkeeper.connection import BookieConnection, BookieRequest, BookieResponse
from pulsar_lifecycle.io.tls import tls_context
from pulsar_lifecycle.ports import MetadataStore, Node
from pulsar_lifecycle.settings import BookKeeperSettings

DOWN_SECONDS = 10.0
"""A bookie that could not be reached, or timed out, is not tried again for so long."""
_TRIES = 2
"""How often a request is sent if connections break that had answered others."""


class BookiePool:
    """One thread at a time.

    Requests are answered, with a BookieResponse or an error, inside :meth:`ask` and :meth:`wait`.

    ``single_reads_only`` are the bookies that closed a fresh connection on BATCH_READ, as those before 4.17 do.
    """

    def __init__(self, store: MetadataStore, settings: BookKeeperSettings) -> None:
        self.single_reads_only: set[str] = set()
        self._store = store
        self._settings = settings
        self._tls = tls_context(settings.tls, "bookkeeper.tls") if settings.tls else None
        self._connections: dict[str, BookieConnection] = {}
        self._down: dict[str, tuple[float, str]] = {}

    def ask(self, bookie: str, request: BookieRequest) -> None:
        """Send a request with the next :meth:`wait`; answered with Unavailable at once if the bookie is down."""
        try:
            connection = self._connection(bookie)
        except Unavailable as error:
            request.answer(error)
        else:
            connection.ask(request)

    def wait(self, only: str | None = None) -> None:
        """Wait until a bookie, or the ``only`` one, has sent something or failed; at once if no answer is due.

        Only time spent in here counts towards a bookie's timeout.
        """
        poll = select.poll()
        waiting: dict[int, tuple[str, BookieConnection]] = {}
        for bookie, connection in list(self._connections.items()):
            if connection.busy and only in (None, bookie):
                try:
                    connection.flush()
                except OSError as error:
                    self._lost(bookie, connection, error)
                    return
                waiting[connection.fileno()] = bookie, connection
                poll.register(connection, select.POLLIN | (select.POLLOUT if connection.stuck else 0))
        if not waiting:
            return
        left = min(self._settings.read_timeout - connection.waited for _, connection in waiting.values())
        began = time.monotonic()
        ready = {number for number, _ in poll.poll(max(0.0, left) * 1000)}
        waited = time.monotonic() - began
        for number, (bookie, connection) in waiting.items():
            try:
                if number in ready:
                    connection.waited = 0.0
                    connection.receive()
                else:
                    connection.waited += waited
                    if connection.waited >= self._settings.read_timeout:
                        raise TimeoutError("timed out")
            except (OSError, CorruptFormat) as error:
                self._lost(bookie, connection, error)

    def exchange(self, questions: Sequence[tuple[str, int, int]]) -> list[BookieResponse | LifecycleError]:
        """Single reads of (bookie id, ledger id, entry id), all at once; an answer or an error for each, in order."""
        results: dict[int, BookieResponse | LifecycleError] = {}
        for i, (bookie, ledger_id, entry_id) in enumerate(questions):
            self.ask(bookie, BookieRequest(ledger_id, entry_id, lambda answer, i=i: results.__setitem__(i, answer)))
        while len(results) < len(questions):
            self.wait()
        return [results[i] for i in range(len(questions))]

    def batch(self, bookie: str, ledger_id: int, first: int, count: int) -> BookieResponse | LifecycleError:
        """Up to ``count`` consecutive entries from ``first`` on that one bookie has; fewer is normal."""
        results: list[BookieResponse | LifecycleError] = []
        self.ask(bookie, BookieRequest(ledger_id, first, results.append, count))
        while not results:
            self.wait(bookie)
        return results[0]

    def close(self) -> None:
        """Close all connections."""
        for connection in self._connections.values():
            connection.close()
        self._connections.clear()

    # -------------------------------------------------------------------------------------------------------- private

    def _lost(self, bookie: str, connection: BookieConnection, error: OSError | CorruptFormat) -> None:
        """Drop a connection; ask again on a new one what may only have met a restart of the bookie."""
        del self._connections[bookie]
        connection.close()
        failure = Unavailable(f"bookie {bookie}: {error}")
        requests = [request for request in connection.unanswered() if request.wanted]
        if isinstance(error, TimeoutError):
            self._down[bookie] = (time.monotonic() + DOWN_SECONDS, str(failure))
        elif isinstance(error, ConnectionError) and not connection.used and any(r.count is not None for r in requests):
            self.single_reads_only.add(bookie)
        for request in requests:
            request.tries += 1
            if isinstance(error, TimeoutError) or request.tries >= _TRIES or self._refused(bookie, connection, request):
                request.answer(failure)
            else:
                self.ask(bookie, request)

    def _refused(self, bookie: str, connection: BookieConnection, request: BookieRequest) -> bool:
        """Whether a connection that broke without an answer was broken by, or tells enough about, this request."""
        return not connection.used and (bookie not in self.single_reads_only or request.count is not None)

    def _connection(self, bookie: str) -> BookieConnection:
        if bookie in self._connections:
            return self._connections[bookie]
        until, reason = self._down.get(bookie, (0.0, ""))
        if time.monotonic() < until:
            raise Unavailable(reason)
        try:
            endpoint = self._endpoint(bookie)
            connection = BookieConnection(endpoint.host, endpoint.port, self._settings.read_timeout, self._tls)
        except (OSError, CorruptFormat, Unavailable) as error:
            reason = f"bookie {bookie}: {error}"
            self._down[bookie] = (time.monotonic() + DOWN_SECONDS, reason)
            raise Unavailable(reason) from error
        self._connections[bookie] = connection
        return connection

    def _endpoint(self, bookie: str) -> bookie_info.Endpoint:
        root = self._settings.ledgers_root
        nodes = self._store.read(bookie_info.paths(root, bookie))
        node = next((node for node in nodes if isinstance(node, Node)), None)
        if node is None:
            raise Unavailable(f"is not registered below {root}/available")
        endpoint = bookie_info.decode(node.data, bookie).rpc
        if endpoint is None:
            raise Unavailable(f"registered no {bookie_info.PROTOCOL_RPC} endpoint")
        return endpoint
