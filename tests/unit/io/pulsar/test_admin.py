"""None"""

import json
import logging

import httpx
import pytest

from pulsar_lifecycle.errors import (
    AccessDenied,
    ConfigError,
    Conflict,
    Failed,
    LifecycleError,
    NotFound,
    OutcomeUnknown,
    StoreError,
    Unavailable,
)
from pulsar_lifecycle.model import Namespace, Position, Topic
from pulsar_lifecycle.ports import Acknowledged
from pulsar_lifecycle.setting_types import SecretRef
from pulsar_lifecycle.values.topic_load import PendingAcks
from tests.kit.contracts.admin_answers import AnsweringCluster, heartbeat
from tests.kit.contracts.admin_contract import BrokerAdminContract
from tests.kit.fakes.broker_admin import FakeBrokerAdmin


class TestFakeBrokerAdmin(BrokerAdminContract):
    @pytest.fixture
    def admin(self):
        return FakeBrokerAdmin()

    @pytest.fixture
    def topic(self):
        return Topic(Namespace("public", "default"), "fresh")


TOPIC = Topic(Namespace("acme", "orders"), "a+b c/ü%")
TOPIC_PATH = "/admin/v2/persistent/acme/orders/a%2Bb%20c%2F%C3%BC%25"
TOKEN = "eyJhbGciOiJIUzI1NiJ9.secret.signature"


def redirect(target: str) -> httpx.Response:
    return httpx.Response(307, headers={"location": target})


def test_names_are_percent_encoded_once_and_subscriptions_for_a_second_decoding():
    cluster = AnsweringCluster({("PUT", f"{TOPIC_PATH}/subscription/a%252Bb%2Bc%257E%252F"): httpx.Response(204)})
    cluster.admin.create_subscription(TOPIC, "a+b c~/")
    assert json.loads(cluster.requests[-1].content) == "earliest"


@pytest.mark.parametrize(
    ("method", "more"),
    [
        *((name, ()) for name in ("unload", "trim", "subscriptions", "internal_stats", "compaction_status", "owner")),
        *((name, ("s",)) for name in ("create_subscription", "delete_subscription", "backlog", "last_use")),
        *(("pending_acks", ("s",)), ("remove_property", ("p",)), ("set_properties", ({},)), ("delete_topic", (False,))),
        *(("expire_messages", ("s", 1)), ("move_cursor", ("s", Position(1, 1))), ("read_entry", (Position(1, 1),))),
    ],
)
def test_no_request_that_may_have_a_topic_loaded_goes_out_before_a_look(method, more):
    def refuse(topic: Topic) -> None:
        raise Unavailable(f"{topic}: not asked for")

    cluster = AnsweringCluster(before=refuse)
    with pytest.raises(Unavailable, match="not asked for"):
        getattr(cluster.admin, method)(TOPIC, *more)
    assert cluster.requests == []


def test_an_unload_looks_again_once_its_first_request_took_its_time():
    looked: list[Topic] = []
    cluster = AnsweringCluster(
        {("GET", f"{TOPIC_PATH}/subscriptions"): httpx.ReadTimeout("30 s")}, before=looked.append
    )
    with pytest.raises(NotFound):
        cluster.admin.unload(TOPIC)
    assert looked == [TOPIC, TOPIC]


ACKS = ("GET", "/admin/v3/transactions/pendingAckStats/acme/orders/a%2Bb%20c%2F%C3%BC%25/a%2Bb%2Fc")


def test_names_are_percent_encoded_once_where_transactions_are_asked_about():
    cluster = AnsweringCluster({ACKS: {"state": "Ready", "ongoingTxnSize": 0}})
    assert cluster.admin.pending_acks(TOPIC, "a+b/c") is PendingAcks.READY


@pytest.mark.parametrize("answer", [None, [], {}, {"state": None}, {"state": "off"}, {"state": "ready"}, {"state": []}])
def test_another_state_of_transactions_than_pulsars_is_an_error(answer):
    with pytest.raises(StoreError):
        AnsweringCluster({ACKS: httpx.Response(200, json=answer)}).admin.pending_acks(TOPIC, "a+b/c")


@pytest.mark.parametrize("on", ["false", "true", None])
def test_a_broker_without_transactions_reads_none_and_any_other_503_is_no_answer(on):
    lookup = ("GET", "/lookup/v2/topic/persistent/acme/orders/a%2Bb%20c%2F%C3%BC%25")
    runtime = ("GET", "http://b2:8080/admin/v2/brokers/configuration/runtime")
    there = {"httpUrl": "http://b2:8080"}
    said = {"transactionCoordinatorEnabled": on, "clusterName": "c"}
    admin = AnsweringCluster(
        {ACKS: httpx.Response(503), lookup: there, heartbeat("b2:8080"): there, runtime: said}
    ).admin
    if on == "false":
        assert admin.pending_acks(TOPIC, "a+b/c") is PendingAcks.OFF
    else:
        with pytest.raises(Unavailable):
            admin.pending_acks(TOPIC, "a+b/c")


def test_a_v1_topic_has_the_v1_path():
    topic = Topic.parse("persistent://acme/us-west/orders/placed")
    cluster = AnsweringCluster({("GET", "/admin/persistent/acme/us-west/orders/placed/partitions"): {"partitions": 4}})
    assert cluster.admin.partitions(topic) == 4


def test_a_redirect_keeps_method_body_and_token(monkeypatch):
    monkeypatch.setenv("TOKEN", TOKEN)
    path = f"{TOPIC_PATH}/partitions"
    cluster = AnsweringCluster(
        {
            ("PUT", path): redirect(f"http://b2:8080{path}?authoritative=true"),
            ("PUT", f"http://b2:8080{path}?authoritative=true"): httpx.Response(204),
        },
        token=SecretRef(env="TOKEN"),
    )
    cluster.admin.create_partitioned_topic(TOPIC, 4)
    first, *_, last = cluster.requests
    assert last.url.host == "b2"
    assert (last.method, last.content) == (first.method, first.content) == ("PUT", b"4")
    assert last.headers["authorization"] == first.headers["authorization"] == f"Bearer {TOKEN}"


@pytest.mark.parametrize(
    ("url", "target"),
    [
        ("http://b1:8080", "http://evil:8080/x"),
        ("http://b1:8080", "ftp://b2/x"),
        ("http://b1:8080", "http://b2:port/x"),
        ("https://b1:8443", "http://b2:8080/x"),
    ],
)
def test_the_token_is_not_carried_to_another_host(monkeypatch, url, target):
    monkeypatch.setenv("TOKEN", TOKEN)
    cluster = AnsweringCluster(
        {("GET", f"{TOPIC_PATH}/partitions"): redirect(target)}, url, token=SecretRef(env="TOKEN")
    )
    with pytest.raises((StoreError, Unavailable)):
        cluster.admin.partitions(TOPIC)
    assert {request.url.host for request in cluster.requests} == {"b1"}
    assert {request.url.scheme for request in cluster.requests} == {httpx.URL(url).scheme}


def test_a_redirected_broker_list_makes_no_other_host_known():
    cluster = AnsweringCluster({("GET", "/admin/v2/brokers"): redirect("http://evil:8080/admin/v2/brokers")})
    with pytest.raises(StoreError):
        cluster.admin.brokers()
    assert len(cluster.requests) == 1


def test_endless_redirects_end():
    path = f"{TOPIC_PATH}/partitions"
    cluster = AnsweringCluster({("GET", path): redirect(f"http://b2:8080{path}")})
    with pytest.raises(StoreError, match="307"):
        cluster.admin.partitions(TOPIC)


@pytest.mark.parametrize(
    ("answer", "read", "write"),
    [
        (httpx.Response(401), AccessDenied, AccessDenied),
        (httpx.Response(403, json={"reason": "no permission"}), AccessDenied, AccessDenied),
        (httpx.Response(404, json={"reason": "Topic not found"}), NotFound, NotFound),
        (httpx.Response(409), Conflict, Conflict),
        (httpx.Response(405), StoreError, StoreError),
        (httpx.Response(412), StoreError, StoreError),
        (httpx.Response(429), Unavailable, Unavailable),
        (httpx.Response(500, html="<html><b>Server Error</b></html>"), Failed, OutcomeUnknown),
        (httpx.Response(503), Unavailable, OutcomeUnknown),
        (httpx.ConnectError("refused"), Unavailable, OutcomeUnknown),
        (httpx.Response(502), Failed, OutcomeUnknown),
        (httpx.Response(504), Failed, OutcomeUnknown),
        (httpx.ReadTimeout("slow"), Failed, OutcomeUnknown),
        (httpx.RemoteProtocolError("cut"), Unavailable, OutcomeUnknown),
    ],
)
def test_every_failure_has_its_class(answer, read, write):
    cluster = AnsweringCluster(
        {
            ("GET", f"{TOPIC_PATH}/subscriptions"): answer,
            ("PUT", f"{TOPIC_PATH}/subscription/s"): answer,
        }
    )
    with pytest.raises(read) as caught:
        cluster.admin.subscriptions(TOPIC)
    assert type(caught.value) is read
    assert f"GET http://b1:8080{TOPIC_PATH}/subscriptions" in str(caught.value)
    assert "<" not in str(caught.value)
    with pytest.raises((write, read)) as caught:
        cluster.admin.create_subscription(TOPIC, "s")
    assert type(caught.value) is write


@pytest.mark.parametrize("content", [b"", b"<html>a proxy</html>", b"[1]", b"{}", b'"x"', b"null", b"[" * 100_000])
@pytest.mark.parametrize(
    ("path", "ask"),
    [
        ("/admin/v2/brokers", lambda admin: admin.brokers()),
        (f"{TOPIC_PATH}/partitions", lambda admin: admin.partitions(TOPIC)),
        (f"{TOPIC_PATH}/subscriptions", lambda admin: admin.subscriptions(TOPIC)),
        (f"{TOPIC_PATH}/internalStats", lambda admin: admin.internal_stats(TOPIC)),
        (f"{TOPIC_PATH}/compaction", lambda admin: admin.compaction_status(TOPIC)),
        (
            f"{TOPIC_PATH}/stats?getPreciseBacklog=true&excludePublishers=true&excludeConsumers=true",
            lambda admin: admin.backlog(TOPIC, "s"),
        ),
    ],
)
def test_a_success_with_another_body_than_pulsars_is_an_error(path, ask, content):
    cluster = AnsweringCluster({("GET", path): httpx.Response(200, content=content)})
    with pytest.raises(StoreError):
        ask(cluster.admin)


def test_a_name_that_no_address_holds_is_an_error_of_its_own():
    with pytest.raises(StoreError, match="no address"):
        AnsweringCluster({}).admin.check_admin(Topic.parse(f"persistent://a/b/{'c' * 100_000}"))


def own_answer(stats: object, info: object) -> AnsweringCluster:
    """A cluster whose broker ``b2`` answers so for a topic's internals and for its z-nodes."""
    return AnsweringCluster(
        {
            heartbeat("b2:8080"): {"httpUrl": "http://b2:8080"},
            ("GET", f"http://b2:8080{TOPIC_PATH}/internalStats"): stats,
            ("GET", f"http://b2:8080{TOPIC_PATH}/internal-info"): info,
        }
    )


INFO = {"version": 3, "ledgers": [], "cursors": {}}


def test_a_broker_fails_at_a_topic_if_it_answers_500_itself_and_then_what_metadata_says():
    cluster = own_answer(httpx.Response(500, text="<html>the schema locator</html>"), INFO)
    assert cluster.admin.fails_at("b2:8080", TOPIC)
    assert [r.url.path.rpartition("/")[2] for r in cluster.requests[-2:]] == ["internalStats", "internal-info"]


@pytest.mark.parametrize("status", [200, 307, 401, 403, 404, 409, 412, 429, 502, 503, 504])
def test_any_other_answer_is_not_a_failure_at_one_topic(status):
    headers = {"location": f"http://b1:8080{TOPIC_PATH}/internalStats"}
    assert not own_answer(httpx.Response(status, headers=headers), INFO).admin.fails_at("b2:8080", TOPIC)


@pytest.mark.parametrize("info", [*map(httpx.Response, (200, 307, 401, 403, 404, 500, 503)), {}, [], {"ledgers": None}])
def test_a_broker_that_fails_at_a_topic_and_at_its_metadata_is_not_well(info):
    with pytest.raises(LifecycleError):
        own_answer(httpx.Response(500), info).admin.fails_at("b2:8080", TOPIC)


@pytest.mark.parametrize("error", [httpx.ReadTimeout("slow"), httpx.ConnectError("gone")])
def test_a_broker_that_does_not_answer_does_not_fail_at_one_topic(error):
    with pytest.raises(Unavailable):
        own_answer(error, INFO).admin.fails_at("b2:8080", TOPIC)


def test_internal_stats_keeps_the_names_of_cursor_z_nodes_and_leaves_out_what_is_not_there():
    answer = {
        "state": "LedgerOpened",
        "ledgers": [{"ledgerId": 3}, {"ledgerId": 7}],
        "cursors": {
            "a%2Bb+c": {
                "cursorLedger": 9,
                "properties": {},
                "markDeletePosition": "3:8",
                "individuallyDeletedMessages": "[(3:9..3:10],(7:-1..7:0]]",
            },
            "pulsar.repl.eu:1": {
                "cursorLedger": 10,
                "properties": {},
                "markDeletePosition": "3:8",
                "individuallyDeletedMessages": "[]",
            },
            "__compaction": {
                "cursorLedger": -1,
                "properties": {"CompactedTopicLedger": 5},
                "markDeletePosition": "3:-1",
                "individuallyDeletedMessages": "[]",
            },
        },
        "lastConfirmedEntry": "7:4",
        "schemaLedgers": [{"ledgerId": 8}],
        "compactedLedger": {"ledgerId": 5},
    }
    found = AnsweringCluster({("GET", f"{TOPIC_PATH}/internalStats"): answer}).admin.internal_stats(TOPIC)
    assert found.ledgers == (3, 7)
    assert found.cursor_ledgers == {"a%2Bb+c": 9, "pulsar.repl.eu:1": 10}
    assert found.cursor_properties == {
        "a%2Bb+c": {},
        "pulsar.repl.eu:1": {},
        "__compaction": {"CompactedTopicLedger": 5},
    }
    assert found.compacted_ledger == 5
    assert found.schema_ledgers == (8,)
    assert found.last_confirmed == Position(7, 4)
    assert found.acknowledged["__compaction"] == Acknowledged(Position(3, -1))
    acknowledged = found.acknowledged["a%2Bb+c"]
    positions = [Position(3, n) for n in range(7, 12)] + [Position(7, n) for n in range(2)]
    assert [p in acknowledged for p in positions] == [True, True, False, True, False, True, False]


def test_a_refused_subscription_is_no_existing_one():
    cluster = AnsweringCluster(
        {
            ("PUT", f"{TOPIC_PATH}/subscription/s"): httpx.Response(409, json={"reason": "Illegal partition"}),
            ("GET", f"{TOPIC_PATH}/subscriptions"): ["__compaction"],
        }
    )
    with pytest.raises(Conflict, match="Illegal partition"):
        cluster.admin.create_subscription(TOPIC, "s")


def test_the_token_is_read_again_for_each_request_and_never_shown(tmp_path, caplog):
    caplog.set_level(logging.DEBUG)
    file = tmp_path / "token"
    file.write_text(TOKEN + "\n")
    cluster = AnsweringCluster(
        {("GET", f"{TOPIC_PATH}/subscriptions"): httpx.Response(500)}, token=SecretRef(file=str(file))
    )
    with pytest.raises(Unavailable) as caught:
        cluster.admin.subscriptions(TOPIC)
    file.write_text("other")
    cluster.admin.brokers()
    assert [request.headers["authorization"] for request in cluster.requests] == [f"Bearer {TOKEN}", "Bearer other"]
    assert "secret" not in caplog.text + str(caught.value) + repr(cluster.admin)


def test_who_is_denied_with_an_expired_token_is_told_so(tmp_path):
    """The broker's HTTP server says only that authentication is required."""
    file = tmp_path / "token"
    file.write_text("head.eyJleHAiOiA5OX0.signature")
    denied = httpx.Response(401, json={"servlet": "s", "message": "Authentication required", "status": "401"})
    cluster = AnsweringCluster({("GET", f"{TOPIC_PATH}/permissions"): denied}, token=SecretRef(file=str(file)))
    with pytest.raises(AccessDenied) as told:
        cluster.admin.check_admin(TOPIC)
    assert str(told.value).startswith("pulsar.token expired at 1970-01-01 00:01:39+00:00: GET ")
    assert str(told.value).endswith(": 401: Authentication required")


@pytest.mark.parametrize("token", ["sécret", "two secret words", "secret\nline"])
def test_a_token_that_is_none_is_refused_without_being_shown(monkeypatch, token):
    monkeypatch.setenv("TOKEN", token)
    with pytest.raises(ConfigError) as caught:
        AnsweringCluster(token=SecretRef(env="TOKEN")).admin.brokers()
    assert "secret" not in str(caught.value).replace("the secret is", "")


@pytest.mark.parametrize("url", ["b1:8080", "pulsar://b1:6650", "http://", "http://b1:x"])
def test_an_admin_url_that_is_none_names_its_key(url):
    with pytest.raises(ConfigError, match=r"pulsar\.admin_url"):
        AnsweringCluster(url=url)


def test_certificates_that_cannot_be_read_name_their_key(tmp_path):
    with pytest.raises(ConfigError, match=r"pulsar\.tls"):
        AnsweringCluster(tls={"ca_file": str(tmp_path / "none.pem")})


def test_unload_and_delete_name_the_topic_once_encoded_and_say_force():
    cluster = AnsweringCluster(
        {
            ("PUT", f"{TOPIC_PATH}/unload"): httpx.Response(204),
            ("DELETE", f"{TOPIC_PATH}?force=false"): httpx.Response(412, json={"reason": "Topic has active producers"}),
            ("DELETE", f"{TOPIC_PATH}?force=true"): httpx.Response(204),
        }
    )
    cluster.admin.unload(TOPIC)
    with pytest.raises(StoreError, match="active producers"):
        cluster.admin.delete_topic(TOPIC, force=False)
    cluster.admin.delete_topic(TOPIC, force=True)


@pytest.mark.parametrize("load", [[], httpx.Response(403), httpx.Response(404), httpx.Response(412)])
def test_a_topic_is_loaded_by_a_request_of_its_own_before_its_unload(load):
    """One that an unload loads may be listed for good, as the broker lists it after it told the unload to go on."""
    loads, unloads = ("GET", f"{TOPIC_PATH}/subscriptions"), ("PUT", f"{TOPIC_PATH}/unload")
    cluster = AnsweringCluster({loads: load, unloads: httpx.Response(204)})
    cluster.admin.unload(TOPIC)
    assert [(one.method, one.url.raw_path.decode()) for one in cluster.requests] == [loads, unloads]


@pytest.mark.parametrize("answer", [httpx.Response(500), httpx.Response(503), httpx.ReadTimeout("slow")])
def test_an_unload_and_a_deletion_without_answer_may_have_happened(answer):
    cluster = AnsweringCluster(
        {("PUT", f"{TOPIC_PATH}/unload"): answer, ("DELETE", f"{TOPIC_PATH}?force=false"): answer}
    )
    with pytest.raises(OutcomeUnknown):
        cluster.admin.unload(TOPIC)
    with pytest.raises(OutcomeUnknown):
        cluster.admin.delete_topic(TOPIC, force=False)
