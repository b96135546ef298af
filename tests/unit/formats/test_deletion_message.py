import json

import pytest
from hypothesis import example, given
from hypothesis import strategies as st

from pulsar_lifecycle.errors import CorruptFormat
from pulsar_lifecycle.formats.deletion_message import (
    LONG_MAX,
    LONG_MIN,
    LedgerComponent,
    LedgerType,
    MessageOffloadContext,
    PendingDeleteLedgerInfo,
    decode_deletion_message,
    encode_deletion_message,
)

TOPIC = "persistent://acme/orders/placed-partition-3"


def message(**changes: object) -> bytes:
    fields = {"topicName": TOPIC, "ledgerComponent": "Managed-Ledger", "ledgerType": "Ledger", "ledgerId": 4711}
    fields.update(changes)
    return json.dumps({name: value for name, value in fields.items() if value is not ...}).encode()


names = st.text(st.characters(exclude_categories=["Cs"]), min_size=1, max_size=20)
segments = st.text(st.characters(categories=["L", "N"], include_characters="-_=:.~ *+%"), min_size=1, max_size=12)
longs = st.integers(0, LONG_MAX)
signed = st.integers(LONG_MIN, LONG_MAX)
offload_contexts = st.builds(
    MessageOffloadContext, lsb=signed, msb=signed, driver_name=names, metadata=st.dictionaries(names, names, max_size=3)
)


@st.composite
def intents(draw):
    component = draw(st.sampled_from(LedgerComponent))
    can_be_offloaded = component is LedgerComponent.MANAGED_LEDGER
    ledger_type = draw(st.sampled_from(LedgerType)) if can_be_offloaded else LedgerType.LEDGER
    offloaded = ledger_type is LedgerType.OFFLOAD_LEDGER
    return PendingDeleteLedgerInfo(
        topic_name="persistent://" + "/".join(draw(st.tuples(segments, segments, segments))),
        component=component,
        ledger_id=draw(longs),
        ledger_type=ledger_type,
        cursor_name=draw(names),
        schema_id=draw(names),
        bucket_key=draw(names),
        offload_context=draw(offload_contexts if offloaded else st.none() | offload_contexts),
        plan_id=draw(st.just("") | names),
        czxid=draw(st.none() | longs),
        ctime=draw(st.none() | longs),
        sent_at=draw(st.none() | longs),
    )


@given(intents())
def test_decode_inverts_encode_and_encoding_is_canonical(info):
    data = encode_deletion_message(info)
    assert decode_deletion_message(data) == info
    assert data == encode_deletion_message(decode_deletion_message(data))
    assert list(json.loads(data)) == sorted(json.loads(data))


def test_the_bytes_are_the_fields_and_spellings_of_the_pip():
    info = PendingDeleteLedgerInfo(
        topic_name=TOPIC,
        component=LedgerComponent.MANAGED_LEDGER,
        ledger_id=12,
        ledger_type=LedgerType.OFFLOAD_LEDGER,
        offload_context=MessageOffloadContext(lsb=-1, msb=2, driver_name="aws-s3", metadata={"bucket": "b"}),
        czxid=99,
    )
    assert encode_deletion_message(info).decode() == (
        '{"cursorName":null,"czxid":99,"ledgerComponent":"Managed-Ledger","ledgerId":12,"ledgerType":"Offload-Ledger",'
        '"offloadContext":{"driverName":"aws-s3","lsb":-1,"metadata":{"bucket":"b"},"msb":2},"schemaId":null,'
        f'"topicName":"{TOPIC}"}}'
    )


@pytest.mark.parametrize(
    ("spelling", "component"),
    [
        ("Managed-Ledger", LedgerComponent.MANAGED_LEDGER),
        ("MANAGED_LEDGER", LedgerComponent.MANAGED_LEDGER),
        ("Managed-Cursor", LedgerComponent.MANAGED_CURSOR),
        ("Managed-Corsor", LedgerComponent.MANAGED_CURSOR),
        ("MANAGED_CURSOR", LedgerComponent.MANAGED_CURSOR),
        ("Schema-Storage", LedgerComponent.SCHEMA_STORAGE),
        ("SCHEMA_STORAGE", LedgerComponent.SCHEMA_STORAGE),
        ("Compacted-Ledger", LedgerComponent.COMPACTED_LEDGER),
        ("Delayed-Index-Bucket", LedgerComponent.DELAYED_INDEX_BUCKET),
    ],
)
def test_component_spellings(spelling, component):
    info = decode_deletion_message(message(ledgerComponent=spelling, cursorName="s", schemaId="a/b/c", bucketKey="k"))
    assert info.component is component


def test_a_schema_id_may_be_a_number_and_unknown_fields_are_ignored():
    info = decode_deletion_message(message(ledgerComponent="SCHEMA_STORAGE", schemaId=7, ledgerType="LEDGER", new=[{}]))
    assert info.schema_id == "7"
    assert info.ledger_type is LedgerType.LEDGER


CONTEXT = {"lsb": 1, "msb": 2, "driverName": "aws-s3", "metadata": {}}


@pytest.mark.parametrize(
    ("changes", "named"),
    [
        ({"topicName": ...}, "topicName, which is missing"),
        ({"topicName": 3}, "topicName: a string, found 3"),
        ({"topicName": "x" * 1000}, "topicName: persistent://"),
        ({"topicName": "non-persistent://a/b/c"}, "topicName: persistent://"),
        ({"topicName": "\ud800"}, "topicName: text without lone surrogates"),
        ({"ledgerComponent": ...}, "ledgerComponent, which is missing"),
        ({"ledgerComponent": "managed-ledger"}, "ledgerComponent: one of"),
        ({"ledgerComponent": "Managed-Cursor"}, "cursorName, which is missing"),
        ({"ledgerComponent": "Schema-Storage"}, "schemaId, which is missing"),
        ({"ledgerComponent": "Schema-Storage", "schemaId": True}, "schemaId: a string"),
        ({"ledgerComponent": "Schema-Storage", "schemaId": 1.5}, "schemaId: a string"),
        ({"ledgerComponent": "Delayed-Index-Bucket", "cursorName": "s"}, "bucketKey, which is missing"),
        ({"ledgerType": ...}, "ledgerType, which is missing"),
        ({"ledgerType": "Ledgers"}, "ledgerType: one of"),
        ({"ledgerType": "Offload-Ledger"}, "offloadContext, which is missing"),
        (
            {
                "ledgerType": "Offload-Ledger",
                "offloadContext": CONTEXT,
                "ledgerComponent": "Managed-Cursor",
                "cursorName": "s",
            },
            "only Managed-Ledger",
        ),
        ({"ledgerId": ...}, "ledgerId, which is missing"),
        ({"ledgerId": None}, "ledgerId, which is missing"),
        ({"ledgerId": "12"}, "ledgerId: an integer"),
        ({"ledgerId": True}, "ledgerId: an integer"),
        ({"ledgerId": 12.0}, "ledgerId: an integer"),
        ({"ledgerId": -1}, "ledgerId: an integer"),
        ({"ledgerId": 2**63}, "ledgerId: an integer"),
        ({"ledgerId": 10**3000}, "an integer of 9966 bits"),
        ({"planId": "x" * 4097}, "planId: at most 4096 bytes of text, found 4097"),
        ({"planId": "\u00e9" * 2049}, "planId: at most 4096 bytes of text, found 4098"),
        ({"topicName": "persistent://a/b/" + "c" * 5_000_000}, "topicName: at most 4096 bytes of text, found 5000017"),
        ({"schemaId": "x" * 5000}, "schemaId: at most"),
        ({"cursorName": "x" * 5000}, "cursorName: at most"),
        ({"bucketKey": "x" * 5000}, "bucketKey: at most"),
        ({"ledgerComponent": "x" * 5000}, "ledgerComponent: at most"),
        ({"offloadContext": CONTEXT | {"driverName": "x" * 5000}}, "offloadContext.driverName: at most"),
        ({"offloadContext": CONTEXT | {"metadata": {"x" * 5000: ""}}}, "offloadContext.metadata.'xxx.*: at most"),
        ({"offloadContext": CONTEXT | {"metadata": {"bucket": "x" * 5000}}}, "offloadContext.metadata.bucket: at most"),
        ({"offloadContext": CONTEXT | {"metadata": {str(i): "" for i in range(65)}}}, "at most 64 pairs, found 65"),
        ({"czxid": -1}, "czxid"),
        ({"sentAt": "now"}, "sentAt"),
        ({"offloadContext": []}, "offloadContext: a JSON object"),
        ({"offloadContext": CONTEXT | {"lsb": 2**63}}, "offloadContext.lsb"),
        ({"offloadContext": CONTEXT | {"driverName": ""}}, "offloadContext.driverName, which is missing"),
        ({"offloadContext": CONTEXT | {"metadata": []}}, "offloadContext.metadata: a JSON object"),
        ({"offloadContext": CONTEXT | {"metadata": {"bucket": 1}}}, "offloadContext.metadata.bucket: a string"),
    ],
)
def test_a_malformed_field_is_refused_by_name(changes, named):
    with pytest.raises(CorruptFormat, match=named) as caught:
        decode_deletion_message(message(**changes))
    assert len(str(caught.value)) < 300


def test_a_text_of_the_longest_length_is_read():
    assert decode_deletion_message(message(planId="x" * 4096)).plan_id == "x" * 4096


@pytest.mark.parametrize(
    ("data", "offset", "expected"),
    [
        (b"", 0, "JSON"),
        (b"\xff", 0, "UTF-8"),
        (b'{"a": \xff}', 6, "UTF-8"),
        ('{"ä": x}'.encode(), 7, "JSON"),
        (b"[]", 0, "message: a JSON object"),
        (b"null", 0, "message: a JSON object"),
        (b'{"ledgerId": 1, "ledgerId": 2}', 0, "every key once"),
        (b'{"x": {"a": 1, "a": 2}}', 0, "every key once"),
        (b'{"ledgerId": NaN}', 0, "no NaN"),
        (b'{"ledgerId": -Infinity}', 0, "no -Infinity"),
        (b'{"x": ' + b"[" * 200_000 + b"]" * 200_000 + b"}", 0, "nested"),
        (b'{"ledgerId": ' + b"9" * 100_000 + b"}", 0, "sane length"),
    ],
)
def test_bytes_that_are_no_such_json(data, offset, expected):
    with pytest.raises(CorruptFormat, match=expected) as caught:
        decode_deletion_message(data)
    assert caught.value.offset == offset


json_values = st.recursive(
    st.none() | st.booleans() | st.integers() | st.floats() | st.text(),
    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(st.text(), inner, max_size=3),
    max_leaves=5,
)
FIELDS = ["topicName", "ledgerComponent", "ledgerType", "ledgerId", "schemaId", "cursorName", "bucketKey", "czxid"]


@given(st.binary())
@example(b"{")
def test_arbitrary_bytes_raise_nothing_but_corrupt_format(data):
    with pytest.raises(CorruptFormat):
        decode_deletion_message(data)


@given(st.dictionaries(st.sampled_from([*FIELDS, "offloadContext"]), json_values | st.just(...), max_size=3))
def test_an_altered_message_decodes_or_raises_corrupt_format(changes):
    try:
        info = decode_deletion_message(message(**changes))
    except CorruptFormat:
        return
    assert decode_deletion_message(encode_deletion_message(info)) == info
