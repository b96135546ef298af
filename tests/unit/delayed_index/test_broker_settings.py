"""The broker's settings of delayed delivery."""

import pytest

from pulsar_lifecycle.delayed_index.broker_settings import BUCKET_FACTORY, IN_MEMORY_FACTORY, DelayedIndexSettings
from pulsar_lifecycle.errors import ConfigError

PIP_195 = {
    "delayedDeliveryTrackerFactoryClassName": BUCKET_FACTORY,
    "delayedDeliveryMinIndexCountPerBucket": "50000",
    "delayedDeliveryMaxTimeStepPerBucketSnapshotSegmentSeconds": "300",
    "delayedDeliveryMaxIndexesPerBucketSnapshotSegment": "5000",
    "delayedDeliveryMaxNumBuckets": "-1",
    "delayedDeliverySharedIndexEnabled": "false",
}
"""As the proposal's broker.conf has them."""


def test_the_defaults_are_those_of_the_proposal():
    assert DelayedIndexSettings.from_broker_conf(PIP_195) == DelayedIndexSettings()


def test_brokers_without_a_setting_have_the_tracker_in_memory():
    found = DelayedIndexSettings.from_broker_conf({"managedLedgerDefaultEnsembleSize": "2"})
    assert found.delayed_delivery_tracker_factory_class_name == IN_MEMORY_FACTORY


def test_what_was_typed_wrong_is_named():
    with pytest.raises(
        ConfigError, match=r"delayed_index\.brokers: delayedDeliveryMinIndexCount: brokers have no such"
    ):
        DelayedIndexSettings.from_settings({"delayedDeliveryMinIndexCount": "20"})
    with pytest.raises(ConfigError, match=r"delayed_index\.brokers: delayedDeliveryMinIndexCountPerBucket: 'x'"):
        DelayedIndexSettings.from_settings({"delayedDeliveryMinIndexCountPerBucket": "x"})


def test_settings_are_read_by_their_names_in_broker_conf():
    found = DelayedIndexSettings.from_broker_conf(
        {
            "delayedDeliveryTickTimeMillis": "500",
            "isDelayedDeliveryDeliverAtTimeStrict": "true",
            "delayedDeliveryMaxTimeStepPerBucketSnapshotSegmentSeconds": "7",
            "delayedDeliverySharedIndexEnabled": "true",
        }
    )
    assert (found.tick_ms, found.time_step_ms, found.delayed_delivery_shared_index_enabled) == (500, 7_000, True)
    assert found.cutoff(10_000) == 10_000


def test_what_is_due_within_a_tick_may_go_unless_delivery_is_strict():
    assert DelayedIndexSettings().cutoff(10_000) == 11_000


@pytest.mark.parametrize(
    ("name", "text"),
    [
        ("delayedDeliveryMaxNumBuckets", "0"),
        ("delayedDeliveryMaxNumBuckets", "many"),
        ("delayedDeliveryMaxIndexesPerBucketSnapshotSegment", "-2"),
        ("delayedDeliveryMaxTimeStepPerBucketSnapshotSegmentSeconds", "0"),
        ("delayedDeliverySharedIndexEnabled", "yes"),
    ],
)
def test_a_wrong_value_is_named(name, text):
    with pytest.raises(ConfigError, match=rf"^{name}: "):
        DelayedIndexSettings.from_broker_conf({name: text})
