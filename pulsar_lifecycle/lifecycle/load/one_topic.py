"""What a load plan would say of one topic now: ``explain TOPIC``.

Belongs here: judging it alone, read afresh. Not here: the rule (``lifecycle/load/load_rules.py``), a plan over a scan
(``lifecycle/load/load_planning.py``). Loads no topic, and writes nothing.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace
from typing import Any

import pyarrow as pa

from pulsar_lifecycle.lifecycle.held.open_sizes import open_sizes
from pulsar_lifecycle.lifecycle.load.fresh import read_now
from pulsar_lifecycle.lifecycle.load.load_planning import choice_of, functions_now
from pulsar_lifecycle.lifecycle.load.load_rules import LoadKept, last_of, topics_to_load
from pulsar_lifecycle.lifecycle.load.monitors import monitors_in_force
from pulsar_lifecycle.lifecycle.retention_inputs import with_shadow_sources
from pulsar_lifecycle.lifecycle.verdicts import RetentionVerdict
from pulsar_lifecycle.metastore.load_state import Brokers
from pulsar_lifecycle.model import Topic
from pulsar_lifecycle.ports import LedgerReader, MetadataStore
from pulsar_lifecycle.runs.cluster import Cluster
from pulsar_lifecycle.topics.load_losses import LoadLoss
from pulsar_lifecycle.topics.policies import Layers
from pulsar_lifecycle.topics.protection import Protection
from pulsar_lifecycle.topics.retention_policy import policies_in_force
from pulsar_lifecycle.topics.snapshot import ShadowSources
from pulsar_lifecycle.values.findings import Context


def load_row(
    store: MetadataStore,
    reader: LedgerReader,
    cluster: Cluster,
    topic: Topic,
    layers: Layers,
    context: Context,
    brokers: Brokers,
    shadows: ShadowSources,
    now: int,
) -> Mapping[str, Any] | None:
    """The topic's row of ``TOPICS_TO_LOAD`` at ``now`` (ms); None if it needs no broker, or is gone.

    ``layers``: with what brokers say of ``monitors.BROKER_NAMES``. Kept where a plan would be report-only, as nobody
    knows by which names functions subscribe.
    """
    functions, root = functions_now(cluster), cluster.settings.bookkeeper.ledgers_root
    choice = choice_of(cluster.settings, functions)

    def opened(listed: pa.Table, idle: Any) -> pa.Table:
        return open_sizes(store, reader, root, last_of(listed, idle, choice))

    fresh = read_now(store, reader, root, [topic])
    fresh = replace(fresh, listed=with_shadow_sources(fresh.listed, shadows))
    tables = fresh.for_loading(policies_in_force(layers), context, brokers, now, opened)
    row = next(iter(topics_to_load(tables, monitors_in_force(layers), choice, now).to_pylist()), None)
    return {**row, "kept": row["kept"] or str(LoadKept.MONITORS_UNKNOWN)} if row and functions.unknown else row


Keeps = LoadKept | LoadLoss | RetentionVerdict | Protection
"""What keeps a topic from being loaded."""


def code_of(kept: str) -> Keeps:
    """The code of column ``kept`` of ``topics_to_load``. Raises ValueError for what is none."""
    for codes in (LoadKept, LoadLoss, RetentionVerdict, Protection):
        if kept in set(codes):
            return codes(kept)
    raise ValueError(kept)


def kept_code(row: Mapping[str, Any] | None) -> Keeps | None:
    """Why a topic is left alone, by its row; None where it is loaded, or needs no broker."""
    return code_of(row["kept"]) if row and row["kept"] else None
