"""By which name a function subscribes, out of bytes that the function workers' own classes wrote."""

from __future__ import annotations

import pytest

from pulsar_lifecycle._pb import pulsar_functions_pb2 as pb
from pulsar_lifecycle.errors import CorruptFormat
from pulsar_lifecycle.formats.function_metadata import subscription_of
from pulsar_lifecycle.formats.message import Message, decode
from tests.golden.files import GOLDEN, entries
from tests.kit.simulated.functions import metadata, request

FOLDER = GOLDEN / "functions"
REQUESTS, COMPACTED = (entries(FOLDER / f"{name}.values.bin") for name in ("requests", "compacted"))
KEY = "t/n/f"


def test_requests_say_the_name_deletions_too() -> None:
    found = [subscription_of(Message(value)) for value in REQUESTS]
    assert found == ["enriching", None, "s3-sink", "s3-größer", "enriching"]


def test_messages_of_a_real_worker_say_it() -> None:
    """Three functions, one deleted and one changed since; compressed."""
    messages = [one for data in entries(FOLDER / "metadata.entries.bin") for one in decode(data).messages]
    assert [subscription_of(one) for one in messages] == ["enriching", None, "by-pattern", "by-pattern", None]


def test_values_of_the_compacted_topic_say_it() -> None:
    assert [subscription_of(Message(value, key=KEY)) for value in COMPACTED] == ["enriching", None, "s3-größer"]


@pytest.mark.parametrize("value", [None, b""])
def test_the_compacted_topics_deletions_say_nothing(value: bytes | None) -> None:
    assert subscription_of(Message(value, key=KEY)) is None


@pytest.mark.parametrize("value", REQUESTS)
def test_a_request_is_no_value_of_the_compacted_topic(value: bytes) -> None:
    with pytest.raises(CorruptFormat):
        subscription_of(Message(value, key=KEY))


@pytest.mark.parametrize("value", COMPACTED)
def test_a_value_of_the_compacted_topic_is_no_request(value: bytes) -> None:
    with pytest.raises(CorruptFormat):
        subscription_of(Message(value))


@pytest.mark.parametrize("kind", [2, 7])
def test_a_request_of_another_kind_need_have_no_function(kind: int) -> None:
    """FunctionMetaDataManager passes over it."""
    assert subscription_of(Message(pb.ServiceRequest(serviceRequestType=kind).SerializeToString())) is None


def _nameless(said: pb.FunctionMetaData) -> bytes:
    said.functionDetails.ClearField("name")
    return pb.ServiceRequest(functionMetaData=said).SerializeToString()


@pytest.mark.parametrize(
    ("value", "offset"),
    [
        (None, 0),
        (b"", 0),
        (pb.ServiceRequest(serviceRequestType=1).SerializeToString(), 0),
        (pb.ServiceRequest(functionMetaData=pb.FunctionMetaData(version=1)).SerializeToString(), 0),
        (_nameless(metadata("s")), 0),
        (request("s")[:-1], 0),
        (request("subscription").replace(b"subscription", b"\xffubscription"), None),
    ],
)
def test_what_no_worker_writes_is_refused(value: bytes | None, offset: int | None) -> None:
    with pytest.raises(CorruptFormat) as caught:
        subscription_of(Message(value))
    assert offset is None or caught.value.offset == offset
