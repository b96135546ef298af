"""Pulsar's admin REST API over HTTP, as a :class:`~pulsar_lifecycle.ports.BrokerAdmin`.

Belongs here: requests, redirects and the shapes of answers, of Pulsar 4.0 (``org.apache.pulsar.broker.admin.v2``,
``org.apache.pulsar.broker.lookup.v2``). Not here: status codes (``admin_answers.py``), nor what an answer means for a
ledger. Nothing that a broker may have got is repeated: the caller decides by the class of the error.
"""

from __future__ import annotations

import contextlib
import json
import re
from collections.abc import Callable, Iterator, Mapping, Sequence
from typing import Any
from urllib.parse import quote

import httpx

from pulsar_lifecycle.errors import (
    ConfigError,
    Conflict,
    Failed,
    LifecycleError,
    NotFound,
    OutcomeUnknown,
    StoreError,
    Unavailable,
)
from pulsar_lifecycle.io.pulsar import statistics
from pulsar_lifecycle.io.pulsar.admin_answers import (
    INTERNAL_ERROR,
    base_urls,
    broker_ids,
    checked,
    joined_url,
    json_of,
    named_url,
    no_answer,
    topic_path,
    unexpected,
)
from pulsar_lifecycle.io.tls import tls_context
from pulsar_lifecycle.model import Position, Topic, encode_name
from pulsar_lifecycle.ports import BrokerStatistics, TopicConnections, TopicInternals
from pulsar_lifecycle.settings import PulsarSettings
from pulsar_lifecycle.values.topic_load import CompactionStatus, PendingAcks

MAX_REDIRECTS = 5
_BROKERS = "/admin/v2/brokers"
_RUNTIME = "/admin/v2/brokers/configuration/runtime"


class HttpBrokerAdmin:
    """One connection pool to the brokers behind ``settings.admin_url``.

    Where that names several hosts and one does not answer, the next is asked, from then on. Redirects are followed only
    to brokers the cluster itself lists, and never from https to http, because the token goes with them. Reads raise
    Unavailable when there was no answer or a 5xx one, writes OutcomeUnknown. ``before`` is called before each request
    that may have a topic loaded, and may raise.
    """

    def __init__(
        self,
        settings: PulsarSettings,
        transport: httpx.BaseTransport | None = None,
        before: Callable[[Topic], None] = lambda topic: None,
    ) -> None:
        self._settings = settings
        self._before = before
        self._bases = base_urls(settings.admin_url)
        self._base = self._bases[0]
        self._hosts = {base.host for base in self._bases}
        self._ids = frozenset[str]()
        """Of the brokers that were listed last; hosts of ``_same_cluster`` list some of these, too."""
        self._same_cluster, self._asked = set[httpx.URL](), set[httpx.URL]()
        self._addresses: dict[str, httpx.URL] = {}
        """Of brokers by their ids, until one does not answer."""
        self._http = httpx.Client(
            transport=transport,
            verify=tls_context(settings.tls, "pulsar.tls"),
            timeout=settings.request_timeout,
            trust_env=False,  # a proxy from the environment would see the token
        )

    def close(self) -> None:
        """Close the connection pool."""
        self._http.close()

    # -------------------------------------------------------------------------------------------------- the cluster

    def brokers(self) -> list[str]:
        """Broker ids (``host:webport``) of the cluster the admin URL belongs to; never empty."""
        ids = broker_ids(self._request("GET", _BROKERS, redirects=0), _BROKERS)
        listed = (named_url(f"http://{name}", _BROKERS) for name in ids)
        self._hosts = {url.host for url in (*self._bases, *listed)}
        self._ids = frozenset(ids)
        self._same_cluster.add(self._base)
        for base in self._bases:
            if base not in self._asked:  # now, as a worker that begins with it lists no brokers
                self._asked.add(base)
                with contextlib.suppress(Failed, Unavailable):
                    self._check_same_cluster(base)
        return sorted(ids)

    def loaded_topics(self, brokers: Sequence[str] = ()) -> dict[str, str]:
        """Full topic name -> broker id, from every broker's own statistics; any failure raises."""
        return {name: broker for broker, topics in self._statistics(brokers) for name, _ in topics}

    def connections(self) -> dict[str, TopicConnections]:
        """Full topic name -> its clients, of persistent topics, from every broker's own statistics; failure raises."""
        return statistics.connections_of(said for _, topics in self._statistics() for said in topics)

    def statistics(self, broker: str) -> BrokerStatistics:
        """Of one broker, at its own address: the clients of its persistent topics, and what its configuration says."""
        address = self._web_url(broker)
        topics, said = statistics.connections_of(self._topics_at(address)), self._configuration_at(address)
        statistics.check_replicator(broker, said)
        return BrokerStatistics(topics, statistics.interval_ms(broker, said), said)

    def _statistics(self, brokers: Sequence[str] = ()) -> Iterator[tuple[str, list[tuple[str, Any]]]]:
        """Of each broker its id, and what it says of each loaded topic."""
        for broker in brokers or self.brokers():
            yield broker, self._topics_at(self._web_url(broker))

    def _topics_at(self, address: httpx.URL) -> list[tuple[str, Any]]:
        url = address.join("/admin/v2/broker-stats/topics")
        return statistics.topics_of(self._get(url), str(url))

    def stats_interval_ms(self, brokers: Sequence[str] = ()) -> int:
        """How often brokers refresh :meth:`loaded_topics`: ``statsUpdateFrequencyInSecs``, the longest of all."""
        return max(
            statistics.interval_ms(broker, self.configuration_of(broker)) for broker in brokers or self.brokers()
        )

    def configurations(self) -> dict[str, Mapping[str, str]]:
        """Broker id -> its runtime configuration, as text; any failure raises."""
        return {broker: self.configuration_of(broker) for broker in self.brokers()}

    def configuration_of(self, broker: str) -> Mapping[str, str]:
        """Of one broker, at its own address."""
        return self._configuration_at(self._web_url(broker))

    def _configuration_at(self, address: httpx.URL) -> Mapping[str, str]:
        url = address.join(_RUNTIME)
        answer = self._get(url)
        if not isinstance(answer, dict):
            raise unexpected(url, "the runtime configuration as an object")
        return {name: str(value) for name, value in answer.items() if value is not None}

    def usage(self, broker: str) -> float:
        """As its own load report says, or its metrics: with the extensible load manager it fails at the first."""
        url, other = (self._web_url(broker).join(f"/admin/v2/broker-stats/{one}") for one in ("load-report", "metrics"))
        try:
            return statistics.usage_of(self._get(url), str(url))
        except Failed as error:
            if isinstance(error.__cause__, httpx.TransportError):  # it hangs
                raise
            found = statistics.measured_usage(self._get(other), str(other))
            if found is None:
                raise error
            return found

    def _web_url(self, broker: str) -> httpx.URL:
        """Where a broker itself is reached, by looking up a topic of its heartbeat namespace, which it always owns.

        A broker id has one port only, the plain one if there are two, so it is no address for https.
        """
        if known := self._addresses.get(broker):
            return known
        path = f"/lookup/v2/topic/persistent/pulsar/{quote(broker, safe='')}/healthcheck"
        answer = self._get(path)
        key = "httpUrlTls" if self._base.scheme == "https" else "httpUrl"
        found = answer.get(key) if isinstance(answer, dict) else None
        if not isinstance(found, str) or not found:
            raise unexpected(path, f"{key} of broker {broker}")
        url = named_url(found, path)
        self._refuse_foreign(url, path)
        self._addresses[broker] = url
        return url

    # ------------------------------------------------------------------------------------------------------- topics

    def internal_stats(self, topic: Topic) -> TopicInternals:
        """What the owner broker holds in memory; loads the topic."""
        return statistics.internals_of(self._get(path := self._at(topic, "internalStats")), path)

    def fails_at(self, broker: str, topic: Topic) -> bool:
        """Whether a broker, at its own address, answers 500 to ``internalStats``, then 200 to ``internal-info``.

        The latter (``PersistentTopicsBase.internalGetManagedLedgerInfo``) needs no owner and loads nothing: the broker
        asked reads the topic's z-nodes afresh. So it is there, lets us ask and reads metadata. A redirect says that it
        does not own the topic; 502 and 504 are a proxy's.
        """
        address = self._web_url(broker)
        answer = self._send("GET", address.join(self._at(topic, "internalStats")), None)
        if answer.status_code != INTERNAL_ERROR:
            return False
        path = address.join(self._at(topic, "internal-info"))
        info = self._get(path, redirects=0)
        if not isinstance(info, dict) or not isinstance(info.get("ledgers"), list):
            raise unexpected(path, "ManagedLedgerInfo")
        return True

    def compaction_status(self, topic: Topic) -> CompactionStatus:
        """``NOT_RUN``, ``RUNNING``, ``SUCCESS`` or ``ERROR``; loads the topic."""
        answer = self._get(path := self._at(topic, "compaction"))
        status = answer.get("status") if isinstance(answer, dict) else None
        if status not in set(CompactionStatus) - {CompactionStatus.UNKNOWN}:
            raise unexpected(path, "LongRunningProcessStatus")
        return CompactionStatus(status)

    def partitions(self, topic: Topic) -> int | None:
        """Number of partitions; 0 for a non-partitioned topic, None where there is no such topic."""
        path = topic_path(topic, "partitions")
        try:
            answer = self._get(path)
        except NotFound:
            return None
        count = answer.get("partitions") if isinstance(answer, dict) else None
        if not isinstance(count, int):
            raise unexpected(path, "PartitionedTopicMetadata")
        return count

    def create_partitioned_topic(self, topic: Topic, partitions: int) -> None:
        """Create a partitioned topic, or complete one whose creation stopped half-way."""
        try:
            self._request("PUT", topic_path(topic, "partitions"), partitions)
        except Conflict as error:
            found = self.partitions(topic)
            if found != partitions:
                raise Conflict(f"{topic}: wanted {partitions} partitions, it has {found}") from error
            self._request("POST", topic_path(topic, "createMissedPartitions"))

    def create_topic(self, topic: Topic) -> None:
        """Create a non-partitioned topic; an existing one is fine, a partitioned one raises Conflict."""
        try:
            self._request("PUT", topic_path(topic))
        except Conflict as error:
            found = self.partitions(topic)
            if found:
                raise Conflict(f"{topic}: wanted a non-partitioned topic, it has {found} partitions") from error

    def create_subscription(self, topic: Topic, subscription: str, position: str = "earliest") -> None:
        """Create a durable subscription at ``earliest`` or ``latest``; an existing one is fine."""
        # The broker decodes this segment twice: once as a path, once by Codec.decode.
        name = quote(encode_name(subscription), safe="")
        try:
            self._request("PUT", self._at(topic, "subscription", name), position)
        except Conflict:
            if subscription not in self.subscriptions(topic):
                raise

    def subscriptions(self, topic: Topic) -> list[str]:
        """Names of the durable subscriptions, the broker's own ones such as ``__compaction`` included."""
        answer = self._get(path := self._at(topic, "subscriptions"))
        if not isinstance(answer, list) or not all(isinstance(name, str) for name in answer):
            raise unexpected(path, "a list of subscriptions")
        return answer

    def backlog(self, topic: Topic, subscription: str) -> int:
        """``msgBacklog``, counted precisely; NotFound when there is no such subscription."""
        path = self._at(topic, "stats?getPreciseBacklog=true&excludePublishers=true&excludeConsumers=true")
        answer = self._get(path)
        try:
            if subscription not in answer["subscriptions"]:
                raise NotFound(f"{topic}: no subscription {subscription}")
            return int(answer["subscriptions"][subscription]["msgBacklog"])
        except (KeyError, TypeError, ValueError) as error:
            raise unexpected(path, "TopicStats") from error

    def last_use(self, topic: Topic, subscription: str) -> int | None:
        """By the topic's statistics; NotFound when there is no such subscription."""
        said = self._get(self._at(topic, "stats?excludePublishers=true"))
        return statistics.last_use(said, topic, subscription)

    def pending_acks(self, topic: Topic, subscription: str) -> PendingAcks:
        """Out of its broker's memory (``internalGetPendingAckStats``), which answers 503 where transactions are off."""
        self.take_alone(topic)
        names = (*str(topic.namespace).split("/"), topic.local, subscription)  # all of them decoded once
        path = "/".join(["/admin/v3/transactions/pendingAckStats", *(quote(name, safe="") for name in names)])
        try:
            return statistics.pending_acks_of(self._get(path), path)
        except Unavailable:
            if self.configuration_of(self.owner(topic)).get("transactionCoordinatorEnabled") != "false":
                raise
            return PendingAcks.OFF

    def delete_subscription(self, topic: Topic, subscription: str) -> None:
        """Without ``force`` the broker refuses one with consumers (412, StoreError)."""
        name = quote(encode_name(subscription), safe="")
        self._request("DELETE", f"{self._at(topic, 'subscription', name)}?force=false")

    def owner(self, topic: Topic) -> str:
        """The broker id of who serves a topic's bundle, by a lookup; one without an owner gets one."""
        self.take_alone(topic)
        path = f"/lookup/v2/topic/{topic.domain}/{topic.namespace}/{quote(topic.local, safe='')}"
        answer = self._get(path)
        found = (answer.get("httpUrl") or answer.get("httpUrlTls")) if isinstance(answer, dict) else None
        if not isinstance(found, str):
            raise unexpected(path, "httpUrl")
        url = named_url(found, path)
        return f"{url.host}:{url.port}"

    def expire_messages(self, topic: Topic, subscription: str, seconds: int) -> None:
        """Have a subscription acknowledge older messages; 409 says that there are none, or that it is at it."""
        name = quote(encode_name(subscription), safe="")
        with contextlib.suppress(Conflict):
            self._request("POST", self._at(topic, "subscription", name, "expireMessages", str(seconds)))

    def trim(self, topic: Topic) -> None:
        """Have a topic trimmed by its retention; failures show only in the broker's log."""
        self._request("POST", self._at(topic, "trim"))

    def read_entry(self, topic: Topic, position: Position) -> None:
        """Have the topic's broker read one stored entry."""
        self._request("GET", self._at(topic, "ledger", str(position.ledger_id), "entry", str(position.entry_id)))

    def unload(self, topic: Topic) -> None:
        """Make its broker forget a topic; loads one that is not loaded, first, by a request of its own.

        A broker 4.0.7 lists a topic after it has told those who wait for its load (``openLedgerComplete``). An unload
        that waits for it may be over by then, and the topic is listed for good.
        """
        with contextlib.suppress(StoreError, Failed):  # the unload says what is wrong
            self._request("GET", self._at(topic, "subscriptions"))
        self._request("PUT", self._at(topic, "unload"))

    def check_admin(self, topic: Topic) -> None:
        """By reading the topic's permissions, which takes an admin of its tenant (``getPermissionsOnTopic``)."""
        self._get(topic_path(topic, "permissions"))

    def set_properties(self, topic: Topic, properties: Mapping[str, str]) -> None:
        """Add these to the properties of a topic or one partition; loads it."""
        self._request("PUT", self._at(topic, "properties"), dict(properties))

    def remove_property(self, topic: Topic, name: str) -> None:
        """Remove one of the properties of a topic or one partition, if it has it; loads it."""
        self._request("DELETE", f"{self._at(topic, 'properties')}?key={quote(name, safe='')}")

    def move_cursor(self, topic: Topic, subscription: str, past: Position) -> None:
        """Have a subscription acknowledge all up to an entry (``expireMessagesByPosition``).

        A reset would forget what it acknowledged beyond, and deliver that again.
        """
        name = quote(encode_name(subscription), safe="")
        number = -1 if topic.partition is None else topic.partition  # the broker compares it with the topic's name
        place = {"ledgerId": past.ledger_id, "entryId": past.entry_id, "partitionIndex": number, "batchIndex": -1}
        self._request("POST", self._at(topic, "subscription", name, "expireMessages"), place | {"excluded": False})

    def delete_topic(self, topic: Topic, force: bool) -> None:
        """The broker's own DELETE; without ``force`` it refuses a topic with connected clients (412, StoreError)."""
        self._request("DELETE", f"{self._at(topic)}?force={'true' if force else 'false'}")

    # ----------------------------------------------------------------------------------------------------- requests

    def take_alone(self, topic: Topic) -> None:
        """What ``before`` does."""
        self._before(topic)

    def _at(self, topic: Topic, *rest: str) -> str:
        """As :func:`topic_path`, for a request that may have the topic loaded."""
        self.take_alone(topic)
        return topic_path(topic, *rest)

    def _get(self, where: str | httpx.URL, redirects: int = MAX_REDIRECTS) -> Any:
        """The JSON answer of a read; None for an empty body, which is how the API says "unset"."""
        return json_of(self._request("GET", where, redirects=redirects))

    def _request(
        self, method: str, where: str | httpx.URL, body: object = None, redirects: int = MAX_REDIRECTS
    ) -> httpx.Response:
        response = self._send_first(method, where, body)
        for _ in range(redirects):
            if response.status_code not in (307, 308):
                break
            target = joined_url(response.url, response.headers.get("location", ""))
            self._refuse_foreign(target, str(response.url))
            response = self._send(method, target, body)
        return checked(method, response, self._settings.token)

    def _send_first(self, method: str, where: str | httpx.URL, body: object) -> httpx.Response:
        """At a URL; for a path at the configured host, and at the next where this one has not got it, or read it."""
        if isinstance(where, httpx.URL):
            return self._send(method, where, body)
        first, count = self._bases.index(self._base), len(self._bases)
        failure: LifecycleError | None = None
        for at in range(first, first + count):
            base = self._bases[at % count]
            self._asked.add(base)
            sending = "GET"
            try:
                self._check_same_cluster(base)
                sending = method
                response = self._send(method, joined_url(base, where), body)
            except LifecycleError as error:
                if not isinstance(error.__cause__, httpx.TransportError):
                    raise
                self._base = self._bases[(at + 1) % count]
                unsent = isinstance(error.__cause__, httpx.ConnectError | httpx.ConnectTimeout)
                failure = failure if failure and unsent else error  # one that may have got it says more
                if sending != "GET" and not unsent:
                    raise
            else:
                self._base = base
                return response
        assert failure
        raise failure

    def _check_same_cluster(self, base: httpx.URL) -> None:
        """Raise StoreError for a configured host that lists none of the brokers that another one listed last."""
        if base in self._same_cluster or not self._ids:
            return
        url = base.join(_BROKERS)
        if self._ids.isdisjoint(broker_ids(checked("GET", self._send("GET", url, None)), url)):
            raise StoreError(f"pulsar.admin_url: {base} lists none of {', '.join(sorted(self._ids))}: another cluster?")
        self._same_cluster.add(base)

    def _send(self, method: str, url: httpx.URL, body: object) -> httpx.Response:
        headers = {"Accept": "application/json", **self._authorization()}
        content = None
        if body is not None:
            headers["Content-Type"] = "application/json"
            content = json.dumps(body)
        try:
            return self._http.request(method, url, headers=headers, content=content)
        except httpx.ReadTimeout as error:
            self._addresses.clear()
            message = f"{method} {url}: {type(error).__name__}: {error}"
            raise (Failed(message) if method == "GET" else OutcomeUnknown(message)) from error
        except (httpx.HTTPError, httpx.InvalidURL) as error:
            self._addresses.clear()
            raise no_answer(method, f"{method} {url}: {type(error).__name__}: {error}") from error

    def _authorization(self) -> dict[str, str]:
        """Read for each request, because token files are rotated."""
        if self._settings.token is None:
            return {}
        token = self._settings.token.resolve("pulsar.token")
        if not re.fullmatch(r"[\x21-\x7e]+", token):  # else the HTTP library's error would quote it
            raise ConfigError("pulsar.token: the secret is no token: expected printable ASCII without spaces")
        return {"Authorization": f"Bearer {token}"}

    def _refuse_foreign(self, target: httpx.URL, source: str) -> None:
        """The token goes only to the configured host and to hosts the cluster lists as its brokers."""
        if target.scheme not in ("http", "https") or (self._base.scheme == "https" and target.scheme != "https"):
            raise StoreError(f"{source}: refused to go on to {target}: not {self._base.scheme}")
        if target.host not in self._hosts:  # a broker may have joined since
            self.brokers()
        if target.host not in self._hosts:
            raise StoreError(f"{source}: refused to go on to {target}: {target.host} is no broker of this cluster")
