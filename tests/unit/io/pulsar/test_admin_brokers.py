"""What each broker says of itself by its admin API: loaded topics, CPU, statistics interval, clients."""

from typing import Any

import httpx
import pytest

from pulsar_lifecycle.errors import Failed, StoreError, Unavailable
from pulsar_lifecycle.io.pulsar.statistics import connections_of
from pulsar_lifecycle.metastore.load_state import ask_brokers
from pulsar_lifecycle.ports import TopicConnections
from tests.kit.contracts.admin_answers import AnsweringCluster, heartbeat
from tests.kit.fakes.metadata_store import FakeZooKeeper

WEB = {heartbeat(f"{b}:8080"): {"httpUrl": f"http://{b}:8080"} for b in ("b1", "b2")}
STATS = {"a/b": {"0x0_0xf": {"persistent": {"persistent://a/b/c": {}}, "non-persistent": {}}}}


def test_loaded_topics_asks_every_broker_itself():
    cluster = AnsweringCluster(
        {
            heartbeat("b1:8080"): {"httpUrl": "http://b1:8080"},
            heartbeat("b2:8080"): {"httpUrl": "http://b2:8080"},
            ("GET", "http://b1:8080/admin/v2/broker-stats/topics"): {},
            ("GET", "http://b2:8080/admin/v2/broker-stats/topics"): STATS,
        }
    )
    assert cluster.admin.loaded_topics() == {"persistent://a/b/c": "b2:8080"}


def test_brokers_that_are_known_are_not_listed_again():
    runtime = ("GET", "http://b2:8080/admin/v2/brokers/configuration/runtime")
    stats = ("GET", "http://b2:8080/admin/v2/broker-stats/topics")
    cluster = AnsweringCluster(WEB | {stats: STATS, runtime: {"statsUpdateFrequencyInSecs": "60"}})
    assert cluster.admin.loaded_topics(["b2:8080"]) == {"persistent://a/b/c": "b2:8080"}
    assert cluster.admin.stats_interval_ms(["b2:8080"]) == 60_000
    asked = [request.url.path for request in cluster.requests]
    assert asked.count("/admin/v2/brokers") == 1  # where b2 is reached


def test_where_a_broker_is_reached_is_asked_once_until_one_does_not_answer():
    topics = ("GET", "http://b2:8080/admin/v2/broker-stats/topics")
    answers = {("GET", "http://b1:8080/admin/v2/broker-stats/topics"): {}, topics: STATS}
    cluster = AnsweringCluster(WEB | answers)

    def lookups():
        before = len(cluster.requests)
        try:
            cluster.admin.loaded_topics()
        finally:
            asked = [request.url.path for request in cluster.requests[before:]]
            looked_up = sum(path.startswith("/lookup/") for path in asked)
        return looked_up, len(asked) - looked_up

    assert [lookups(), lookups()] == [(2, 3), (0, 3)]
    cluster.answers[topics] = httpx.ReadTimeout("slow")
    with pytest.raises(Unavailable):
        lookups()
    cluster.answers |= {topics: httpx.ConnectError("gone"), ("GET", "http://b2:81/admin/v2/broker-stats/topics"): STATS}
    cluster.answers[heartbeat("b2:8080")] = {"httpUrl": "http://b2:81"}
    assert lookups() == (2, 3)


def said(producers: int, published: int, **consumers: int):
    subscriptions = {name: {"consumers": [{}] * count} for name, count in consumers.items()}
    return {"persistent://a/b/c": {"producerCount": producers, "msgInCount": published, "subscriptions": subscriptions}}


@pytest.mark.parametrize("stale_at", ["b1", "b2"])
def test_a_topic_on_two_lists_has_the_clients_of_both(stale_at: str):
    used = {"0x0_0x7": {"persistent": said(2, 7, mine=1)}, "0x0_0xf": {"persistent": said(0, 3, mine=0, old=0)}}
    stale = {"0x0_0xf": {"persistent": said(0, 4, old=0)}}
    lists = {
        ("GET", f"http://{b}:8080/admin/v2/broker-stats/topics"): {"a/b": stale if b == stale_at else used}
        for b in ("b1", "b2")
    }
    runtime = {
        ("GET", f"http://{b}:8080/admin/v2/brokers/configuration/runtime"): {
            "statsUpdateFrequencyInSecs": "60",
            "replicatorPrefix": "pulsar.repl",
        }
        for b in ("b1", "b2")
    }
    cluster = AnsweringCluster(WEB | lists | runtime)
    both = {"persistent://a/b/c": TopicConnections(2, {"mine": 1, "old": 0}, 7)}
    assert cluster.admin.connections() == both
    assert ask_brokers(FakeZooKeeper().session(), cluster.admin).connections == both


def test_with_https_each_broker_is_asked_on_its_https_address():
    cluster = AnsweringCluster(
        {
            heartbeat("b1:8080"): {"httpUrl": "http://b1:8080", "httpUrlTls": "https://b1:8443"},
            heartbeat("b2:8080"): {"httpUrl": "http://b2:8080", "httpUrlTls": "https://b2:9443"},
            ("GET", "https://b1:8443/admin/v2/broker-stats/topics"): STATS,
            ("GET", "https://b2:9443/admin/v2/broker-stats/topics"): {},
        },
        url="https://b1:8443",
    )
    assert cluster.admin.loaded_topics() == {"persistent://a/b/c": "b1:8080"}
    assert {request.url.scheme for request in cluster.requests} == {"https"}


@pytest.mark.parametrize(
    "broken",
    [
        {("GET", "http://b2:8080/admin/v2/broker-stats/topics"): httpx.Response(503)},
        {("GET", "http://b2:8080/admin/v2/broker-stats/topics"): httpx.ConnectError("gone")},
        {("GET", "http://b2:8080/admin/v2/broker-stats/topics"): httpx.Response(200)},
        {("GET", "http://b2:8080/admin/v2/broker-stats/topics"): {"a/b": []}},
        {heartbeat("b2:8080"): httpx.Response(404)},
        {heartbeat("b2:8080"): {}},
        {heartbeat("b2:8080"): {"httpUrl": "http://evil:8080"}},
        {("GET", "/admin/v2/brokers"): []},
        {("GET", "/admin/v2/brokers"): httpx.Response(403)},
    ],
)
def test_loaded_topics_fails_when_any_broker_does(broken):
    answers = {
        heartbeat("b1:8080"): {"httpUrl": "http://b1:8080"},
        heartbeat("b2:8080"): {"httpUrl": "http://b2:8080"},
        ("GET", "http://b1:8080/admin/v2/broker-stats/topics"): STATS,
        ("GET", "http://b2:8080/admin/v2/broker-stats/topics"): {},
    }
    with pytest.raises((StoreError, Unavailable)):
        AnsweringCluster(answers | broken).admin.loaded_topics()


def resources(cpu: float, network: float) -> dict[str, dict[str, float]]:
    none, some = {"usage": 7.0, "limit": -1.0}, {"usage": network, "limit": 1000.0}
    return {"cpu": {"usage": cpu, "limit": 200.0}, "directMemory": none, "bandwidthIn": some, "bandwidthOut": none}


def test_a_broker_that_has_not_measured_its_cpu_counts_as_using_all():
    cluster = AnsweringCluster(
        {
            heartbeat("b1:8080"): {"httpUrl": "http://b1:8080"},
            heartbeat("b2:8080"): {"httpUrl": "http://b2:8080"},
            ("GET", "http://b1:8080/admin/v2/broker-stats/load-report"): resources(50.0, 600.0),
            ("GET", "http://b2:8080/admin/v2/broker-stats/load-report"): resources(0.0, 0.0),
        }
    )
    assert [cluster.admin.usage(broker) for broker in ("b1:8080", "b2:8080")] == [0.6, 1.0]


def balancing(feature: str, **metrics: float) -> dict[str, Any]:
    named = {"feature": feature} if feature else {}
    return {"metrics": metrics, "dimensions": {"broker": "b1", "metric": "loadBalancing", **named}}


@pytest.mark.parametrize(("cpu", "used"), [(0.3, 0.6), (0.0, 1.0)])
def test_a_broker_that_can_make_no_load_report_says_its_usage_in_its_metrics(cpu: float, used: float):
    """As one with the extensible load manager."""
    metrics = [
        {"metrics": {"brk_lb_resource_usage": 9.0}, "dimensions": {"broker": "b1", "metric": "assign"}},
        balancing("max_ema", brk_lb_resource_usage=0.1),
        balancing("", brk_lb_cpu_usage=cpu),
        balancing("max", brk_lb_resource_usage=0.6),
    ]
    answers = {
        heartbeat("b1:8080"): {"httpUrl": "http://b1:8080"},
        ("GET", "http://b1:8080/admin/v2/broker-stats/load-report"): httpx.Response(500),
        ("GET", "http://b1:8080/admin/v2/broker-stats/metrics"): metrics,
    }
    assert AnsweringCluster(answers).admin.usage("b1:8080") == used


@pytest.mark.parametrize(
    ("metrics", "error"),
    [([], Failed), ([balancing("", brk_lb_cpu_usage=0.3)], Failed), ({}, Failed), ([{}], StoreError)],
)
def test_what_a_broker_uses_that_says_it_nowhere_is_not_known(metrics: object, error: type[Exception]):
    answers = {
        heartbeat("b1:8080"): {"httpUrl": "http://b1:8080"},
        ("GET", "http://b1:8080/admin/v2/broker-stats/load-report"): httpx.Response(500),
        ("GET", "http://b1:8080/admin/v2/broker-stats/metrics"): metrics,
    }
    with pytest.raises(error):
        AnsweringCluster(answers).admin.usage("b1:8080")


RUNTIME = "/admin/v2/brokers/configuration/runtime"


def test_the_statistics_interval_is_that_of_the_slowest_broker():
    """A topic is unloaded only once the broker that might have it must have listed it."""
    answers = {
        ("GET", f"http://b1:8080{RUNTIME}"): {"statsUpdateFrequencyInSecs": "60"},
        ("GET", f"http://b2:8080{RUNTIME}"): {"statsUpdateFrequencyInSecs": "600"},
    }
    assert AnsweringCluster(WEB | answers).admin.stats_interval_ms() == 600_000


@pytest.mark.parametrize("second", [{"statsUpdateFrequencyInSecs": "0"}, {}, [], httpx.Response(403)])
def test_the_statistics_interval_is_unknown_when_one_broker_does_not_say(second):
    answers = {
        ("GET", f"http://b1:8080{RUNTIME}"): {"statsUpdateFrequencyInSecs": "60"},
        ("GET", f"http://b2:8080{RUNTIME}"): second,
    }
    with pytest.raises(StoreError):
        AnsweringCluster(WEB | answers).admin.stats_interval_ms()


def test_the_clients_of_every_broker_are_told_by_topic():
    said = {"producerCount": 2, "msgInCount": 7, "subscriptions": {"s": {"consumers": [{}]}, "idle": {"consumers": []}}}
    topics = {"persistent": {"persistent://a/b/c": said}, "non-persistent": {"non-persistent://a/b/c": {}}}
    cluster = AnsweringCluster(
        {
            heartbeat("b1:8080"): {"httpUrl": "http://b1:8080"},
            heartbeat("b2:8080"): {"httpUrl": "http://b2:8080"},
            ("GET", "http://b1:8080/admin/v2/broker-stats/topics"): {},
            ("GET", "http://b2:8080/admin/v2/broker-stats/topics"): {"a/b": {"0x0_0xf": topics}},
        }
    )
    assert cluster.admin.connections() == {"persistent://a/b/c": TopicConnections(2, {"s": 1, "idle": 0}, 7)}


@pytest.mark.parametrize("missing", ["producerCount", "msgInCount", "subscriptions"])
def test_statistics_without_clients_are_refused(missing):
    said = {"producerCount": 0, "msgInCount": 0, "subscriptions": {}}
    del said[missing]
    with pytest.raises(StoreError):
        connections_of([("persistent://a/b/c", said)])
