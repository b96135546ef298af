"""What every BrokerAdmin does: tests for the fake and for the real adapter."""

import pytest

from pulsar_lifecycle.errors import Conflict, Failed, LifecycleError, NotFound, StoreError
from pulsar_lifecycle.model import Namespace, Position, Topic
from pulsar_lifecycle.values.topic_load import CompactionStatus, PendingAcks


def partition(topic: Topic, number: int) -> Topic:
    return Topic(topic.namespace, f"{topic.local}-partition-{number}")


class BrokerAdminContract:
    """What the real adapter and the fake have in common; needs the fixtures ``admin`` and ``topic`` (a fresh one)."""

    def test_a_missing_topic_has_no_partitions(self, admin, topic):
        assert admin.partitions(topic) is None

    def test_what_is_read_along_is_taken_without_the_topic_itself(self, admin, topic):
        admin.take_alone(topic)
        assert admin.partitions(topic) is None
        assert str(topic) not in admin.loaded_topics()

    def test_a_partitioned_topic_is_created_once(self, admin, topic):
        admin.create_partitioned_topic(topic, 3)
        admin.create_partitioned_topic(topic, 3)
        assert admin.partitions(topic) == 3
        assert admin.partitions(partition(topic, 2)) == 0
        with pytest.raises(Conflict):
            admin.create_partitioned_topic(topic, 4)
        with pytest.raises(Conflict):
            admin.create_topic(topic)

    def test_a_topic_is_created_once(self, admin, topic):
        admin.create_topic(topic)
        admin.create_topic(topic)
        assert admin.partitions(topic) == 0
        with pytest.raises(Conflict):
            admin.create_partitioned_topic(topic, 4)

    def test_a_missing_namespace_is_not_found(self, admin):
        nowhere = Topic(Namespace("pulsar", "no-such-namespace"), "t")
        with pytest.raises(NotFound):
            admin.create_topic(nowhere)
        with pytest.raises(NotFound):
            admin.create_partitioned_topic(nowhere, 2)

    @pytest.mark.parametrize("name", ["ledger-deletion", "a+b c~%25*"])
    def test_a_subscription_is_created_once_and_empty(self, admin, topic, name):
        admin.create_partitioned_topic(topic, 2)
        for _ in range(2):
            admin.create_subscription(partition(topic, 1), name)
        assert name in admin.subscriptions(partition(topic, 1))
        assert name not in admin.subscriptions(partition(topic, 0))
        assert admin.backlog(partition(topic, 1), name) == 0

    @pytest.mark.parametrize("name", ["s", "a+b c~%25*"])
    def test_a_subscription_that_was_never_used_is_deleted_once(self, admin, topic, name):
        admin.create_topic(topic)
        admin.create_subscription(topic, name)
        assert admin.last_use(topic, name) == 0
        admin.delete_subscription(topic, name)
        assert name not in admin.subscriptions(topic)
        with pytest.raises(NotFound):
            admin.delete_subscription(topic, name)
        with pytest.raises(NotFound):
            admin.last_use(topic, name)

    @pytest.mark.parametrize("name", ["s", "a+b c~%25*"])
    def test_a_subscription_that_used_no_transactions_has_none_to_read(self, admin, topic, name):
        admin.create_topic(topic)
        admin.create_subscription(topic, name)
        assert admin.pending_acks(topic, name) is PendingAcks.NONE
        with pytest.raises(Failed):
            admin.pending_acks(topic, "none")
        admin.unload(topic)
        with pytest.raises(NotFound):
            admin.pending_acks(topic, name)

    def test_a_missing_subscription_is_not_found(self, admin, topic):
        admin.create_topic(topic)
        with pytest.raises(NotFound):
            admin.backlog(topic, "none")

    def test_the_internals_of_a_fresh_topic(self, admin, topic):
        admin.create_topic(topic)
        internals = admin.internal_stats(topic)
        assert internals.state == "LedgerOpened"
        assert internals.compacted_ledger is None
        assert admin.compaction_status(topic) is CompactionStatus.NOT_RUN

    def test_every_broker_tells_its_configuration(self, admin):
        found = admin.configurations()
        assert sorted(found) == admin.brokers()
        assert all(one["clusterName"] for one in found.values())
        assert {broker: admin.configuration_of(broker) for broker in found} == found

    def test_every_broker_tells_how_much_it_uses(self, admin):
        assert all(admin.usage(broker) >= 0 for broker in admin.brokers())

    def test_every_broker_tells_its_own_statistics(self, admin):
        for broker, configuration in admin.configurations().items():
            said = admin.statistics(broker)
            assert said.interval_ms > 0
            assert (said.cluster, said.replicator) == (configuration["clusterName"], configuration["replicatorPrefix"])

    def test_a_role_that_may_do_anything_is_admin(self, admin, topic):
        admin.create_topic(topic)
        admin.check_admin(topic)
        with pytest.raises(StoreError):
            admin.check_admin(Topic(topic.namespace, "a\0b"))

    def test_properties_are_set_any_number_of_times(self, admin, topic):
        admin.create_topic(topic)
        for _ in range(2):
            admin.set_properties(topic, {"pulsar-lifecycle.low-watermark": "7:3"})

    def test_a_property_is_removed_any_number_of_times(self, admin, topic):
        admin.create_topic(topic)
        admin.set_properties(topic, {"pulsar-lifecycle.low-watermark.7:3": "7:3"})
        for _ in range(2):
            admin.remove_property(topic, "pulsar-lifecycle.low-watermark.7:3")

    def test_only_a_subscription_that_is_there_is_moved(self, admin, topic):
        admin.create_topic(topic)
        with pytest.raises(NotFound):
            admin.move_cursor(topic, "none", Position(0, 0))

    def test_a_topic_is_served_by_a_broker(self, admin, topic):
        admin.create_topic(topic)
        assert admin.owner(topic) in admin.brokers()

    def test_a_topic_without_messages_has_none_to_expire_and_nothing_to_trim(self, admin, topic):
        admin.create_topic(topic)
        admin.create_subscription(topic, "a+b c~%25*")
        admin.expire_messages(topic, "a+b c~%25*", 1)
        admin.trim(topic)
        assert admin.backlog(topic, "a+b c~%25*") == 0
        with pytest.raises(NotFound):
            admin.expire_messages(topic, "none", 1)

    def test_a_missing_topic_is_not_trimmed(self, admin, topic):
        with pytest.raises(NotFound):
            admin.trim(topic)

    def test_an_entry_that_is_not_stored_cannot_be_read(self, admin, topic):
        admin.create_topic(topic)
        with pytest.raises(LifecycleError):
            admin.read_entry(topic, Position(0, 0))

    def test_a_topic_may_be_unloaded_twice_and_is_whole_afterwards(self, admin, topic):
        admin.create_topic(topic)
        admin.create_subscription(topic, "a+b c~%25*")
        for _ in range(2):
            admin.unload(topic)
        assert "a+b c~%25*" in admin.subscriptions(topic)

    def test_a_deleted_topic_is_gone(self, admin, topic):
        admin.create_topic(topic)
        admin.create_subscription(topic, "s")
        admin.delete_topic(topic, force=False)
        assert admin.partitions(topic) is None
        with pytest.raises(NotFound):
            admin.delete_topic(topic, force=False)
        with pytest.raises(NotFound):
            admin.unload(topic)

    def test_one_partition_is_deleted_and_the_partitioned_topic_is_not(self, admin, topic):
        admin.create_partitioned_topic(topic, 2)
        with pytest.raises(Conflict):
            admin.delete_topic(topic, force=True)
        admin.delete_topic(partition(topic, 1), force=True)
        assert admin.partitions(topic) == 2
