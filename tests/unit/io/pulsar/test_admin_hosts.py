"""An admin URL that names several brokers: where one does not answer the next is asked."""

import httpx
import pytest

from pulsar_lifecycle.errors import AccessDenied, ConfigError, Failed, NotFound, OutcomeUnknown, StoreError, Unavailable
from pulsar_lifecycle.model import Namespace, Topic
from tests.kit.contracts.admin_answers import AnsweringCluster

URL = "http://b1:8080,b2:8080"
TOPIC = Topic(Namespace("acme", "orders"), "t")
PATH = "/admin/v2/persistent/acme/orders/t"
UNREACHABLE = httpx.ConnectError("refused")
NO_ANSWER = httpx.ReadTimeout("timed out")


def hosts(cluster: AnsweringCluster) -> list[str]:
    return [request.url.host for request in cluster.requests]


@pytest.mark.parametrize("failure", [UNREACHABLE, NO_ANSWER, httpx.RemoteProtocolError("closed")])
def test_a_read_goes_to_the_next_host_and_stays_there(failure):
    cluster = AnsweringCluster({("GET", "http://b1:8080/admin/v2/brokers"): failure}, URL)
    assert cluster.admin.brokers() == ["b1:8080", "b2:8080"]
    assert cluster.admin.brokers() == ["b1:8080", "b2:8080"]
    assert hosts(cluster) == ["b1", "b2", "b2"]


def test_a_host_that_stops_answering_gives_way_to_the_first_again():
    cluster = AnsweringCluster({("GET", "http://b1:8080/admin/v2/brokers"): NO_ANSWER}, URL)
    cluster.admin.brokers()
    cluster.answers = {("GET", "http://b2:8080/admin/v2/brokers"): NO_ANSWER, ("GET", "/admin/v2/brokers"): ["b1:8080"]}
    assert cluster.admin.brokers() == ["b1:8080"]
    assert hosts(cluster) == ["b1", "b2", "b2", "b1", "b1"]


@pytest.mark.parametrize("of_another", [["c1:8080"], httpx.Response(401)])
def test_a_host_that_is_not_known_to_be_of_the_same_cluster_fails_the_list_of_brokers(of_another):
    """A worker that finds that the first host does not answer asks the next one, and has no list to compare."""
    cluster = AnsweringCluster({("GET", "http://c1:8080/admin/v2/brokers"): of_another}, "http://b1:8080,c1:8080")
    with pytest.raises((StoreError, AccessDenied)):
        cluster.admin.brokers()


@pytest.mark.parametrize("of_another", [["c1:8080"], httpx.Response(401)])
def test_nothing_goes_to_a_host_that_is_not_known_to_be_of_the_same_cluster(of_another):
    """It did not answer as the brokers were listed."""
    listing, delete = ("GET", "http://c1:8080/admin/v2/brokers"), ("DELETE", f"http://b1:8080{PATH}?force=true")
    cluster = AnsweringCluster({listing: NO_ANSWER}, "http://b1:8080,c1:8080")
    cluster.admin.brokers()
    cluster.admin.brokers()
    assert hosts(cluster) == ["b1", "c1", "b1"]
    cluster.answers |= {listing: of_another, delete: UNREACHABLE}
    with pytest.raises((StoreError, AccessDenied)):
        cluster.admin.delete_topic(TOPIC, force=True)
    assert [(one.method, one.url.host) for one in cluster.requests[3:]] == [("DELETE", "b1"), ("GET", "c1")]


def test_a_stuck_topic_of_one_host_is_no_outage_because_another_host_is_down():
    stats = f"{PATH}/internalStats"
    cluster = AnsweringCluster(
        {("GET", f"http://b1:8080{stats}"): NO_ANSWER, ("GET", f"http://b2:8080{stats}"): UNREACHABLE}, URL
    )
    with pytest.raises(Failed):
        cluster.admin.internal_stats(TOPIC)


def test_hosts_may_have_blanks_between_them():
    cluster = AnsweringCluster({("GET", "http://b1:8080/admin/v2/brokers"): NO_ANSWER}, "http://b1:8080, b2:8080")
    assert cluster.admin.brokers() == ["b1:8080", "b2:8080"]


@pytest.mark.parametrize(("failure", "raised"), [(UNREACHABLE, Unavailable), (NO_ANSWER, Failed)])
def test_a_read_that_no_host_answers_is_unanswered(failure, raised):
    cluster = AnsweringCluster({("GET", "/admin/v2/brokers"): failure}, URL)
    with pytest.raises(raised):
        cluster.admin.brokers()
    assert hosts(cluster) == ["b1", "b2"]


def test_a_write_that_a_host_cannot_have_got_goes_to_the_next():
    trim = {("POST", f"http://b1:8080{PATH}/trim"): UNREACHABLE, ("POST", f"{PATH}/trim"): httpx.Response(204)}
    cluster = AnsweringCluster(trim, URL)
    cluster.admin.trim(TOPIC)
    assert hosts(cluster) == ["b1", "b2"]


def test_a_write_that_a_host_may_have_got_is_not_repeated_but_the_next_request_goes_elsewhere():
    trim = {("POST", f"http://b1:8080{PATH}/trim"): NO_ANSWER, ("POST", f"{PATH}/trim"): httpx.Response(204)}
    cluster = AnsweringCluster(trim, URL)
    with pytest.raises(OutcomeUnknown):
        cluster.admin.trim(TOPIC)
    cluster.admin.trim(TOPIC)
    assert hosts(cluster) == ["b1", "b2"]


def test_an_answer_is_an_answer_whatever_it_says():
    cluster = AnsweringCluster({("GET", f"{PATH}/internalStats"): httpx.Response(404)}, URL)
    with pytest.raises(NotFound):
        cluster.admin.internal_stats(TOPIC)
    assert hosts(cluster) == ["b1"]


def test_that_a_topics_own_broker_does_not_answer_sends_nobody_to_another_host():
    stats = f"{PATH}/internalStats"
    to_owner = httpx.Response(307, headers={"location": f"http://b3:8080{stats}"})
    answers = {("GET", stats): to_owner, ("GET", f"http://b3:8080{stats}"): NO_ANSWER}
    cluster = AnsweringCluster({**answers, ("GET", "/admin/v2/brokers"): ["b1:8080", "b2:8080", "b3:8080"]}, URL)
    with pytest.raises(Failed):
        cluster.admin.internal_stats(TOPIC)
    asked = [(one.url.host, one.url.path) for one in cluster.requests]
    assert asked == [("b1", stats), ("b1", "/admin/v2/brokers"), ("b2", "/admin/v2/brokers"), ("b3", stats)]


@pytest.mark.parametrize(
    "url",
    ["http://b1:8080,", "http://b1:8080,http://b2:8080", "b1:8080,b2:8080", "http://b1:8080?x=1", "http://b1:8080/x"],
)
def test_hosts_that_are_none_name_the_key_and_the_form(url):
    with pytest.raises(ConfigError, match=r"pulsar\.admin_url"):
        AnsweringCluster(url=url)
