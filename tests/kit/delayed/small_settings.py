"""Settings of the delayed index so small that a few messages seal, cut and merge."""

from __future__ import annotations

from hypothesis import strategies as st

from pulsar_lifecycle.delayed_index.broker_settings import DelayedIndexSettings

SMALL_SETTINGS = st.builds(
    DelayedIndexSettings,
    delayed_delivery_min_index_count_per_bucket=st.integers(0, 12),
    delayed_delivery_max_time_step_per_bucket_snapshot_segment_seconds=st.integers(1, 3),
    delayed_delivery_max_indexes_per_bucket_snapshot_segment=st.sampled_from([-1, 1, 3, 50]),
    delayed_delivery_max_num_buckets=st.sampled_from([-1, -1, 1, 2, 4]),
    delayed_delivery_tick_time_millis=st.just(200),
    is_delayed_delivery_deliver_at_time_strict=st.booleans(),
)
