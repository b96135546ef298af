"""Deliberate faults of repairs of delayed indexes, to prove that their laws bite.

Belongs here: one context manager per mutation, by what the product would do. Not here: how many seeds each may take
(``test_mutations.py``).
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from contextlib import AbstractContextManager, contextmanager
from dataclasses import replace
from itertools import pairwise
from typing import Any
from unittest.mock import patch

import numpy as np

from pulsar_lifecycle.delayed_index.broker_settings import DelayedIndexSettings
from pulsar_lifecycle.delayed_index.repair import begun_snapshots, edit, levels, repair_planning, repair_work
from pulsar_lifecycle.delayed_index.repair.repair_work import SubscriptionRepairs, _Subject
from pulsar_lifecycle.delayed_index.stored import index_findings, subscription
from pulsar_lifecycle.delayed_index.stored.index_codes import IndexFinding
from pulsar_lifecycle.delayed_index.stored.index_reading import StoredTopic
from pulsar_lifecycle.delayed_index.stored.subscription import StoredBucket
from pulsar_lifecycle.delayed_index.tracking.sealing import Snapshot, seal
from pulsar_lifecycle.formats import cursor as cursor_format
from pulsar_lifecycle.formats.delayed_indexes import Indexes, Longs
from pulsar_lifecycle.formats.ledger_path import ledger_path
from pulsar_lifecycle.ports import MetadataStore, Node
from tests.simulation.mutations.mutation import Mutation


@contextmanager
def write_whatever_the_topic_is() -> Iterator[None]:
    """The transaction checks neither the topic's z-node nor the path above it."""
    real = repair_work.write_keys

    def unchecked(store: MetadataStore, one: edit.Edit, topic: Node, checks: Sequence[tuple[str, int]]) -> edit.Edited:
        return real(store, one, replace(topic, stat=replace(topic.stat, version=-1)), checks[-1:])

    with patch.object(repair_work, "write_keys", unchecked):
        yield


@contextmanager
def delete_the_old_first() -> Iterator[None]:
    """Old snapshots go before the cursor names the new ones."""
    real = SubscriptionRepairs._exchange

    def exchange(self: SubscriptionRepairs, subject: _Subject, one: edit.Edit, *more: Any) -> Any:
        for key, value in one.before.items():
            (node,) = self.ports.store.read([ledger_path(int(value))])
            if isinstance(node, Node) and one.after.get(key) != value:
                self.ports.store.delete(node.path, node.stat.version)
        return real(self, subject, one, *more)

    with patch.object(SubscriptionRepairs, "_exchange", exchange):
        yield


@contextmanager
def make_them_overlap() -> Iterator[None]:
    """A new bucket begins where the one before it ends."""
    real = levels.rebuilt

    def wide(waiting: Indexes, ledgers: Longs, settings: DelayedIndexSettings) -> list[Snapshot]:
        made = real(waiting, ledgers, settings)
        cut = settings.time_step_ms, settings.max_indexes_per_segment
        return made[:1] + [
            seal(one.indexes, *cut, before.end_ledger_id, one.end_ledger_id) for before, one in pairwise(made)
        ]

    with patch.object(levels, "rebuilt", wide), patch.object(repair_work, "_check_ranges", lambda keys: None):
        yield


@contextmanager
def take_another_position() -> Iterator[None]:
    """What counts as acknowledged is by another subscription: all but the newest ledger."""
    real = subscription.outstanding

    def of_another(one: Any, entries: Any, **options: Any) -> Indexes:
        left = real(one, entries, **options)
        return left[left.ledgers >= left.ledgers.max()] if len(left) else left

    with patch.object(levels, "outstanding", of_another), patch.object(index_findings, "outstanding", of_another):
        yield


@contextmanager
def merge_as_upstream() -> Iterator[None]:
    """A merged bucket lacks the first segment of each (apache/pulsar#26251)."""

    def lacking(group: Sequence[Any], settings: DelayedIndexSettings) -> Snapshot:
        parts = [one.indexes[int(one.bounds[1]) :] for one in group]
        cut = settings.time_step_ms, settings.max_indexes_per_segment
        return seal(Indexes.concatenate(parts), *cut, group[0].start, max(one.end for one in group))

    with patch.object(levels, "_merged", lacking):
        yield


@contextmanager
def name_it_before_it_is_written() -> Iterator[None]:
    """A cursor names a snapshot whose ledger is not there yet."""

    def written(self: SubscriptionRepairs, _: _Subject, wanted: Sequence[Any], kept: Mapping[str, str]) -> Any:
        return {**kept, **{key: str(self.writer.reserve()) for key, *_ in wanted}}

    with (
        patch.object(SubscriptionRepairs, "_written", written),
        patch.object(SubscriptionRepairs, "_snapshots", lambda self, keys: list[str]()),
    ):
        yield


def discard_whatever_is_new() -> AbstractContextManager[Any]:
    """A new snapshot counts as named by no cursor."""
    return patch.object(begun_snapshots, "_named", lambda store, topic: set[int]())


@contextmanager
def see_no_loss() -> Iterator[None]:
    """Messages that a bitmap has and no segment are no finding."""
    real = levels.level_of
    unseen = {IndexFinding.LOST, IndexFinding.MERGED_AND_LOST, IndexFinding.BITMAP_UNLIKE_SEGMENTS}

    def deaf(codes: Any, *more: Any, **options: Any) -> Any:
        return real(set(codes) - unseen, *more, **options)

    with patch.object(repair_planning, "level_of", deaf):
        yield


@contextmanager
def come_a_day_early() -> Iterator[None]:
    """New snapshots say that messages are due a day before they are."""
    real = levels.rebuilt

    def early(waiting: Indexes, ledgers: Longs, settings: DelayedIndexSettings) -> list[Snapshot]:
        return real(replace(waiting, timestamps=np.maximum(waiting.timestamps - 86_400_000, 1)), ledgers, settings)

    with patch.object(levels, "rebuilt", early):
        yield


def take_what_merges_lost_for_late() -> AbstractContextManager[Any]:
    """What a merged bucket lacks counts as if it had come after the bucket was sealed."""
    return patch.object(index_findings, "_before_merged", lambda buckets, truth: np.zeros(len(truth), np.bool_))


@contextmanager
def find_what_the_first_lost() -> Iterator[None]:
    """Of what a merge lost only that is found which was due before all that the merged bucket has."""

    def before_all(buckets: Sequence[StoredBucket], truth: Indexes) -> Any:
        found = np.zeros(len(truth), np.bool_)
        for one in buckets:
            if one.start < one.end and len(one.indexes):
                inside = (truth.ledgers >= one.start) & (truth.ledgers <= one.end)
                found |= inside & (truth.timestamps < one.indexes.timestamps.min())
        return found

    with patch.object(index_findings, "_before_merged", before_all):
        yield


@contextmanager
def repair_other_buckets() -> Iterator[None]:
    """A repair takes the buckets that the cursor has, whatever its plan names."""
    real = SubscriptionRepairs._kept

    def kept(self: SubscriptionRepairs, subject: _Subject, stored: StoredTopic) -> Any:
        found = stored.subscriptions[0].buckets if stored.subscriptions else ()
        return real(self, replace(subject, before={one.key: str(one.ledger_id) for one in found}), stored)

    with patch.object(SubscriptionRepairs, "_kept", kept):
        yield


@contextmanager
def exchange_other_buckets() -> Iterator[None]:
    """The transaction takes the buckets that the cursor has by then for those that were read."""
    real = repair_work.write_keys

    def unchecked(store: MetadataStore, one: edit.Edit, *more: Any) -> edit.Edited:
        (node,) = store.read([one.path])
        keys = edit.bucket_keys(cursor_format.decode(node.data)) if isinstance(node, Node) else one.before
        return real(store, replace(one, before=keys), *more)

    with patch.object(repair_work, "write_keys", unchecked):
        yield


DELAYED: Mapping[str, Mutation] = {
    "exchange buckets without the version of the topic": write_whatever_the_topic_is,
    "delete old snapshots before the new ones are named": delete_the_old_first,
    "rebuild buckets that overlap": make_them_overlap,
    "rebuild by the position of another subscription": take_another_position,
    "merge buckets without the segments that were loaded": merge_as_upstream,
    "name snapshots that are not written": name_it_before_it_is_written,
    "discard new snapshots that a cursor names": discard_whatever_is_new,
    "merge and drop buckets beside those that lost messages": see_no_loss,
    "rebuild buckets that are early": come_a_day_early,
    "take what merges lost for late arrivals": take_what_merges_lost_for_late,
    "find what a merge lost of its first bucket alone": find_what_the_first_lost,
    "repair buckets that the plan does not name": repair_other_buckets,
    "exchange buckets that another has written meanwhile": exchange_other_buckets,
}
