"""The broker's settings of delayed delivery that decide what a bucket index looks like.

Belongs here: their names, defaults and checks. Not here: this project's own settings (``run_settings.py``).
Source: PIP-195, and ``ServiceConfiguration`` of pulsar-broker 4.0.7.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, fields
from typing import Any

from pulsar_lifecycle.errors import ConfigError

IN_MEMORY_FACTORY = "org.apache.pulsar.broker.delayed.InMemoryDelayedDeliveryTrackerFactory"
BUCKET_FACTORY = "org.apache.pulsar.broker.delayed.BucketDelayedDeliveryTrackerFactory"


@dataclass(frozen=True, slots=True)
class DelayedIndexSettings:
    """Named as ``broker.conf`` names them; the defaults are those of PIP-195, whose tracker this is."""

    delayed_delivery_enabled: bool = True
    """Whether messages are delayed at all."""
    delayed_delivery_tracker_factory_class_name: str = BUCKET_FACTORY
    """Which tracker: brokers default to ``InMemoryDelayedDeliveryTrackerFactory``, which keeps no buckets."""
    delayed_delivery_tick_time_millis: int = 1000
    """A message may go this much early, unless delivery is strict (ms)."""
    is_delayed_delivery_deliver_at_time_strict: bool = False
    """Whether no message may go early."""
    delayed_delivery_min_index_count_per_bucket: int = 50_000
    """A bucket is sealed at the first ledger change after it has as many messages."""
    delayed_delivery_max_time_step_per_bucket_snapshot_segment_seconds: int = 300
    """A segment has messages due within so long (s)."""
    delayed_delivery_max_indexes_per_bucket_snapshot_segment: int = 5_000
    """A segment has at most as many messages; -1: any number."""
    delayed_delivery_max_num_buckets: int = -1
    """More buckets than these are merged; -1: never."""
    delayed_delivery_shared_index_enabled: bool = False
    """Whether a topic has one index for all its subscriptions; no broker has built it."""
    delayed_delivery_max_delay_in_millis: int = 0
    """A publisher may ask for no longer delay (ms); 0: for any."""
    delayed_delivery_fixed_delay_detection_lookahead: int = 50_000
    """Of the tracker in memory alone: brokers stop reading ahead after so many messages of one fixed delay."""

    def __post_init__(self) -> None:
        """Raises ConfigError for a value that no broker could run with."""
        for name, minimum, or_else in _LIMITS:
            value = getattr(self, name)
            if value < minimum and value != or_else:
                raise ConfigError(f"{broker_name(name)}: {value}, at least {minimum} is needed{_unless(or_else)}")

    @property
    def time_step_ms(self) -> int:
        """A segment has messages due within so many ms."""
        return self.delayed_delivery_max_time_step_per_bucket_snapshot_segment_seconds * 1000

    @property
    def max_indexes_per_segment(self) -> int:
        """A segment has at most as many messages; -1: any number."""
        return self.delayed_delivery_max_indexes_per_bucket_snapshot_segment

    def cutoff(self, now_ms: int) -> int:
        """What is due by then may go now (ms)."""
        return now_ms if self.is_delayed_delivery_deliver_at_time_strict else now_ms + self.tick_ms

    @property
    def tick_ms(self) -> int:
        """How often a broker looks for messages that are due (ms)."""
        return self.delayed_delivery_tick_time_millis

    @classmethod
    def from_broker_conf(cls, properties: Mapping[str, str]) -> DelayedIndexSettings:
        """Out of ``broker.conf``, or a broker's runtime configuration; other settings are passed over.

        What is not there has the broker's default. Raises ConfigError, which names the setting.
        """
        found: dict[str, Any] = {"delayed_delivery_tracker_factory_class_name": IN_MEMORY_FACTORY}
        for one in fields(cls):
            text = properties.get(broker_name(one.name))
            if text is not None:
                found[one.name] = _value(one.name, str(one.type), text.strip())
        return cls(**found)

    @classmethod
    def from_settings(cls, properties: Mapping[str, str]) -> DelayedIndexSettings:
        """Out of ``delayed_index.brokers``, which somebody typed: as :meth:`from_broker_conf`, with no other names.

        Raises ConfigError, which names the setting.
        """
        known = {broker_name(one.name) for one in fields(cls)}
        if unknown := sorted(properties.keys() - known):
            raise ConfigError(
                f"delayed_index.brokers: {unknown[0]}: brokers have no such setting of delayed delivery; they have "
                f"{', '.join(sorted(known))}"
            )
        try:
            return cls.from_broker_conf(properties)
        except ConfigError as error:
            raise ConfigError(f"delayed_index.brokers: {error}") from None


_LIMITS = (
    ("delayed_delivery_tick_time_millis", 1, None),
    ("delayed_delivery_min_index_count_per_bucket", 0, None),
    ("delayed_delivery_max_time_step_per_bucket_snapshot_segment_seconds", 1, None),
    ("delayed_delivery_max_indexes_per_bucket_snapshot_segment", 1, -1),
    ("delayed_delivery_max_num_buckets", 1, -1),
    ("delayed_delivery_max_delay_in_millis", 0, None),
    ("delayed_delivery_fixed_delay_detection_lookahead", 0, None),
)


def broker_name(field: str) -> str:
    """A field's name in ``broker.conf``: ``delayedDeliveryEnabled``."""
    first, *rest = field.split("_")
    return first + "".join(word.capitalize() for word in rest)


def _value(field: str, kind: str, text: str) -> bool | int | str:
    if kind == "str":
        return text
    if kind == "bool":
        if text not in ("true", "false"):
            raise ConfigError(f"{broker_name(field)}: {text!r}, true or false is needed")
        return text == "true"
    try:
        return int(text)
    except ValueError:
        raise ConfigError(f"{broker_name(field)}: {text!r}, a whole number is needed") from None


def _unless(or_else: int | None) -> str:
    return "" if or_else is None else f", or {or_else}"
