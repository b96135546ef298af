"""The policy in force, field by field as brokers merge it, and whether it makes sense beside its retention."""

from __future__ import annotations

from typing import Any

import pytest

from pulsar_lifecycle.errors import CorruptFormat
from pulsar_lifecycle.topics.offload_policy import (
    ACTING_DRIVERS,
    KNOWN_DRIVERS,
    OffloadPolicy,
    in_force,
    refusal,
    warning,
)
from pulsar_lifecycle.topics.retention_policy import RetentionPolicy
from pulsar_lifecycle.values.plans.offload_plan import OffloadCode
from tests.kit.scenes.tiered.offload_candidates import kept

BYTES = "managedLedgerOffloadThresholdInBytes"
SECONDS = "managedLedgerOffloadThresholdInSeconds"
LAG = "managedLedgerOffloadDeletionLagInMillis"
DRIVER = "managedLedgerOffloadDriver"
AUTO = "managedLedgerOffloadAutoTriggerSizeThresholdBytes"
LAG_MS = "managedLedgerOffloadDeletionLagMs"
BLOCK = "s3ManagedLedgerOffloadMaxBlockSizeInBytes"
DEFAULT_BLOCK = 64 << 20
PRIORITY = "managedLedgerOffloadedReadPriority"
BROKER_PRIORITY = "managedLedgerDataReadPriority"

BROKER = {DRIVER: "aws-s3", AUTO: "-1", SECONDS: "-1", LAG_MS: "14400000", "s3ManagedLedgerOffloadBucket": "b"}


def policy(**fields: Any) -> OffloadPolicy:
    return in_force(None, None, {DRIVER: "aws-s3", **{name: str(value) for name, value in fields.items()}})


def namespace(**fields: Any) -> dict[str, Any]:
    return {"offload_policies": fields, "offload_threshold": -1, "offload_threshold_in_seconds": -1}


# -------------------------------------------------------------------------------------------------------------- layers


@pytest.mark.parametrize(
    ("field", "broker_name", "attribute"),
    [
        (DRIVER, DRIVER, "driver"),
        (BYTES, AUTO, "threshold_bytes"),
        (SECONDS, SECONDS, "threshold_seconds"),
        (LAG, LAG_MS, "deletion_lag_ms"),
        ("s3ManagedLedgerOffloadBucket", "s3ManagedLedgerOffloadBucket", "bucket"),
        ("s3ManagedLedgerOffloadRegion", "s3ManagedLedgerOffloadRegion", "region"),
        ("s3ManagedLedgerOffloadServiceEndpoint", "s3ManagedLedgerOffloadServiceEndpoint", "endpoint"),
        (BLOCK, BLOCK, "block_size"),
    ],
)
def test_each_field_is_the_first_that_is_set(field: str, broker_name: str, attribute: str) -> None:
    text = attribute in ("driver", "bucket", "region", "endpoint")
    names = ("AWS-s3", "Aws-S3", "aws-S3") if field == DRIVER else ("3", "4", "5")
    topic, middle, broker = (name if text else int(name) for name in names)
    base = {DRIVER: "aws-s3", broker_name: str(broker)}
    others: dict[str, Any] = {"managedLedgerOffloadMaxThreads": 2, field: None}
    for of_topic, of_namespace, expected, source in (
        ({field: topic}, namespace(**{field: middle}), topic, "topic"),
        ({**others, BLOCK: None}, namespace(**{field: middle}), middle, "namespace"),
        ({**others, BLOCK: None}, namespace(**{**others, BLOCK: None}), broker, "broker"),
        (None, None, broker, "broker"),
        ({}, {}, broker, "broker"),
        (None, {"offload_policies": None}, broker, "broker"),
    ):
        found = in_force(of_topic, of_namespace, base)
        assert getattr(found, attribute) == expected
        assert found.sources[field] == source


def test_fields_come_from_different_layers() -> None:
    found = in_force({BYTES: 1}, namespace(**{SECONDS: 2, BYTES: 9}), BROKER)
    assert (found.threshold_bytes, found.threshold_seconds, found.deletion_lag_ms) == (1, 2, 14_400_000)
    assert (found.driver, found.bucket) == ("aws-s3", "b")
    assert {found.sources[name] for name in (DRIVER, LAG)} == {"broker"}


def test_nothing_at_all() -> None:
    found = in_force(None, None, {})
    assert found == OffloadPolicy("", "", "", "", -1, -1, None, None, True, {})
    assert (found.automatic, found.acts) == (False, False)


def test_what_a_broker_is_configured_with_by_default_offloads_nothing() -> None:
    found = in_force(None, None, {DRIVER: "", AUTO: "-1", SECONDS: "-1", LAG_MS: "14400000", BLOCK: "67108864"})
    assert (found.driver, found.automatic, found.deletion_lag_ms) == ("", False, 14_400_000)


@pytest.mark.parametrize("value", [0, -1, -2])
def test_zero_and_negative_numbers_are_set(value: int) -> None:
    found = in_force({BYTES: value, SECONDS: value, LAG: value}, namespace(**{BYTES: 5, SECONDS: 5, LAG: 5}), BROKER)
    assert (found.threshold_bytes, found.threshold_seconds, found.deletion_lag_ms) == (value, value, value)
    assert found.automatic == (value >= 0)


def test_the_own_name_in_a_brokers_configuration_comes_before_broker_confs() -> None:
    found = in_force(None, None, {BYTES: "1", AUTO: "2", LAG: "3", LAG_MS: "4"})
    assert (found.threshold_bytes, found.deletion_lag_ms) == (1, 3)


@pytest.mark.parametrize(
    ("topic", "of_namespace", "broker", "tiered_first"),
    [
        (None, None, {}, True),
        (None, None, {BROKER_PRIORITY: ""}, True),
        (None, None, {BROKER_PRIORITY: "tiered-storage-first"}, True),
        (None, None, {BROKER_PRIORITY: "bookkeeper-first"}, False),
        (None, None, {BROKER_PRIORITY: "something new"}, False),
        (None, None, {PRIORITY: "bookkeeper-first", BROKER_PRIORITY: "tiered-storage-first"}, False),
        (None, {PRIORITY: "BOOKKEEPER_FIRST"}, {}, False),
        (None, {PRIORITY: "TIERED_STORAGE_FIRST"}, {BROKER_PRIORITY: "bookkeeper-first"}, True),
        (None, {PRIORITY: None}, {BROKER_PRIORITY: "bookkeeper-first"}, False),
        ({PRIORITY: "bookkeeper-first"}, {PRIORITY: "TIERED_STORAGE_FIRST"}, {}, False),
        ({PRIORITY: "TIERED_STORAGE_FIRST"}, {PRIORITY: "BOOKKEEPER_FIRST"}, {}, True),
        ({PRIORITY: ""}, None, {}, False),
        ({PRIORITY: 1}, None, {}, False),
    ],
)
def test_which_copy_brokers_read_first(topic: Any, of_namespace: Any, broker: Any, tiered_first: bool) -> None:
    assert in_force(topic, of_namespace and namespace(**of_namespace), BROKER | broker).tiered_first == tiered_first


@pytest.mark.parametrize(("lag", "keeps_both"), [("", True), ("-1", True), ("0", False), ("5", False)])
def test_without_a_deletion_lag_both_copies_stay(lag: str, keeps_both: bool) -> None:
    assert in_force(None, None, BROKER | {LAG_MS: lag}).keeps_both == keeps_both


# ------------------------------------------------------------------------------------------------------- old namespaces


def test_the_old_fields_fill_what_is_not_set() -> None:
    old = {"offload_threshold": 7, "offload_threshold_in_seconds": 8, "offload_deletion_lag_ms": 9}
    found = in_force(None, old, BROKER)
    assert (found.threshold_bytes, found.threshold_seconds, found.deletion_lag_ms) == (7, 8, 9)
    assert {found.sources[name] for name in (BYTES, SECONDS, LAG)} == {"namespace"}
    found = in_force(None, {**old, "offload_policies": {BYTES: 1, SECONDS: None}}, BROKER)
    assert (found.threshold_bytes, found.threshold_seconds, found.deletion_lag_ms) == (1, 8, 9)


def test_old_fields_that_are_not_set_hide_nothing() -> None:
    old = {"offload_threshold": -1, "offload_threshold_in_seconds": -1, "offload_deletion_lag_ms": None}
    found = in_force(None, old, {AUTO: "5", SECONDS: "6", LAG_MS: "7"})
    assert (found.threshold_bytes, found.threshold_seconds, found.deletion_lag_ms) == (5, 6, 7)


def test_an_old_lag_of_minus_one_is_set() -> None:
    assert in_force(None, {"offload_deletion_lag_ms": -1}, BROKER).deletion_lag_ms == -1
    assert in_force(None, {"offload_deletion_lag_ms": 0}, BROKER).deletion_lag_ms == 0


def test_an_old_threshold_of_zero_is_set() -> None:
    assert in_force(None, {"offload_threshold": 0}, BROKER).threshold_bytes == 0


# ------------------------------------------------------------------------------------------- what a policy brings along


@pytest.mark.parametrize(
    ("topic", "of_namespace", "expected"),
    [
        ({BYTES: 1}, None, DEFAULT_BLOCK),
        (None, namespace(**{BYTES: 1}), DEFAULT_BLOCK),
        (None, {"offload_threshold": 1}, DEFAULT_BLOCK),
        ({BYTES: 1}, namespace(**{BLOCK: 6 << 20}), DEFAULT_BLOCK),
        ({BYTES: 1, BLOCK: None}, namespace(**{BLOCK: 6 << 20}), 6 << 20),
        ({BYTES: 1, BLOCK: 7 << 20}, namespace(**{BLOCK: 6 << 20}), 7 << 20),
        (None, namespace(), 5 << 20),
        (None, {"offload_threshold": -1}, 5 << 20),
        (None, None, 5 << 20),
    ],
)
def test_a_policy_brings_its_block_size(topic: Any, of_namespace: Any, expected: int) -> None:
    assert in_force(topic, of_namespace, {**BROKER, BLOCK: str(5 << 20)}).block_size == expected


# -------------------------------------------------------------------------------------------------------- drivers' keys

GENERIC = {
    "managedLedgerOffloadBucket": "generic",
    "managedLedgerOffloadRegion": "generic-r",
    "managedLedgerOffloadServiceEndpoint": "http://generic",
    "managedLedgerOffloadMaxBlockSizeInBytes": "11",
}
OWN = {
    "s3ManagedLedgerOffloadBucket": "own",
    "s3ManagedLedgerOffloadRegion": "own-r",
    "s3ManagedLedgerOffloadServiceEndpoint": "http://own/",
    BLOCK: "12",
}


def location(found: OffloadPolicy) -> tuple[str, str, str, int | None]:
    return found.bucket, found.region, found.endpoint, found.block_size


@pytest.mark.parametrize("driver", ["aws-s3", "AWS-S3", "Aws-s3"])
def test_aws_s3_has_keys_of_its_own_which_come_first(driver: str) -> None:
    assert location(in_force(None, None, {DRIVER: driver, **OWN, **GENERIC})) == ("own", "own-r", "http://own", 12)
    assert location(in_force(None, None, {DRIVER: driver, **GENERIC})) == ("generic", "generic-r", "http://generic", 11)


@pytest.mark.parametrize("driver", ["S3", "s3", "azureblob", "aliyun-oss"])
def test_other_drivers_know_the_generic_keys_alone(driver: str) -> None:
    assert location(in_force(None, None, {DRIVER: driver, **OWN, **GENERIC})) == (
        "generic",
        "generic-r",
        "http://generic",
        11,
    )
    assert location(in_force(None, None, {DRIVER: driver, **OWN})) == ("", "", "", None)


def test_an_own_key_of_the_brokers_comes_before_a_topics_generic_one() -> None:
    """The layers are merged first, and keys looked up afterwards."""
    found = in_force({"managedLedgerOffloadBucket": "topic"}, None, {DRIVER: "aws-s3", **OWN})
    assert found.bucket == "own"


def test_the_driver_that_decides_on_keys_is_the_one_in_force() -> None:
    assert in_force({DRIVER: "S3"}, None, {DRIVER: "aws-s3", **OWN, **GENERIC}).bucket == "generic"


@pytest.mark.parametrize(
    ("driver", "acts", "known"),
    [
        ("aws-s3", True, True),
        ("AWS-S3", True, True),
        ("S3", True, True),
        ("google-cloud-storage", False, True),
        ("azureblob", False, True),
        ("aliyun-oss", False, True),
        ("filesystem", False, True),
        ("transient", False, False),
        ("", False, False),
    ],
)
def test_which_drivers_act(driver: str, acts: bool, known: bool) -> None:
    found = in_force({DRIVER: driver}, None, {})
    assert (found.acts, found.driver.lower() in KNOWN_DRIVERS) == (acts, known)
    assert set(ACTING_DRIVERS) <= KNOWN_DRIVERS


def test_a_driver_that_a_policy_sets_to_nothing_is_none() -> None:
    """A broker merges what is null, not what is empty."""
    assert in_force({DRIVER: ""}, None, BROKER).driver == ""
    assert in_force(None, namespace(**{DRIVER: ""}), BROKER).driver == ""
    assert in_force({"s3ManagedLedgerOffloadBucket": ""}, None, BROKER).bucket == ""


def test_an_empty_number_is_not_set() -> None:
    assert in_force({BYTES: "", LAG: ""}, namespace(**{BYTES: 3}), BROKER).threshold_bytes == 3
    assert in_force(None, None, {**BROKER, SECONDS: ""}).threshold_seconds == -1


@pytest.mark.parametrize("value", ["x", "1e3", [1], {}])
@pytest.mark.parametrize("field", [BYTES, SECONDS, LAG, BLOCK])
def test_a_field_that_is_no_number(field: str, value: Any) -> None:
    with pytest.raises(CorruptFormat, match=f"offload policy of the topic.*{field}"):
        in_force({DRIVER: "aws-s3", field: value}, None, BROKER)
    with pytest.raises(CorruptFormat, match="offload policy of the namespace"):
        in_force(None, namespace(**{field: value}), BROKER)


@pytest.mark.parametrize("value", [[], "x", 7, [1]])
def test_namespace_policies_that_are_none(value: Any) -> None:
    if not value:
        assert in_force(None, {"offload_policies": value}, BROKER).driver == "aws-s3"
        return
    with pytest.raises(CorruptFormat, match="an object as offload_policies"):
        in_force(None, {"offload_policies": value}, BROKER)


# ----------------------------------------------------------------------------------------------------------- retention


@pytest.mark.parametrize(
    ("seconds", "minutes", "refused"),
    [
        (59, 1, False),
        (60, 1, True),
        (61, 1, True),
        (0, 1, False),
        (-1, 1, False),
        (10**9, -1, False),
        (10**9, 0, False),
        (60, 0, False),
    ],
)
def test_a_threshold_in_seconds_must_be_below_a_finite_retention(seconds: int, minutes: int, refused: bool) -> None:
    found = refusal(policy(**{SECONDS: seconds}), kept(minutes, -1))
    assert (found and found.code) == (OffloadCode.RETENTION_FIRST if refused else None)
    assert found is None or (SECONDS in found.text and "retentionTimeInMinutes" in found.text)


@pytest.mark.parametrize(
    ("size", "megabytes", "refused"),
    [
        ((1 << 20) - 1, 1, False),
        (1 << 20, 1, True),
        ((1 << 20) + 1, 1, True),
        (0, 1, False),
        (-1, 1, False),
        (1 << 60, -1, False),
        (1 << 60, 0, False),
    ],
)
def test_a_threshold_in_bytes_must_be_below_a_finite_retention(size: int, megabytes: int, refused: bool) -> None:
    found = refusal(policy(**{AUTO: size}), kept(-1, megabytes))
    assert (found and found.code) == (OffloadCode.RETENTION_FIRST if refused else None)
    assert found is None or (BYTES in found.text and "retentionSizeInMB" in found.text)


def test_one_dimension_that_makes_no_sense_is_enough() -> None:
    both = policy(**{AUTO: 0, SECONDS: 60})
    found = refusal(both, kept(1, 5))
    assert found
    assert "retentionTimeInMinutes" in found.text
    assert refusal(both, kept(2, 5)) is None
    assert refusal(policy(), kept(1, 1)) is None


@pytest.mark.parametrize(
    ("fields", "retention", "warned"),
    [
        ({AUTO: 0}, kept(0, 0), True),
        ({SECONDS: 5}, kept(0, -1), True),
        ({AUTO: 0}, kept(5, 0), True),
        ({AUTO: 0}, kept(-1, -1), False),
        ({AUTO: 0}, kept(1, 1), False),
        ({}, kept(0, 0), False),
    ],
)
def test_what_is_worth_a_word_without_retention(fields: Any, retention: RetentionPolicy, warned: bool) -> None:
    assert bool(warning(policy(**fields), retention)) == warned
