"""The settings file that an operator of a schedule has.

Belongs here: drawing it. Not here: what tiered storage adds (``operators/tiering.py``).
"""

from __future__ import annotations

from random import Random
from typing import Any

from pulsar_lifecycle.settings import Settings
from tests.kit.simulated.offloaded import BUCKET, CLUSTER
from tests.simulation.world.other_acts import WEST

_BASE: dict[str, Any] = {
    "cluster": "simulated",
    "zookeeper": {"hosts": "simulated:2181", "session_timeout": 2},
    "pulsar": {"admin_url": "http://simulated:8080", "service_url": "pulsar://simulated:6650"},
    "lake": {"path": "/simulated"},
    "spark": {"scan_partitions": 1},
}


def random_settings(random: Random) -> Settings:
    holds = random.choice([[], [], [], ["acme/other"], ["persistent://acme/orders/placed"]])
    shared: dict[str, Any] = {"buckets": [BUCKET], "pulsar_cluster": CLUSTER}
    exclusive = shared | {"exclusive": True}
    settings: dict[str, Any] = {
        **_BASE,
        "bookkeeper": {"shared_with": random.choice([[]] * 16 + [[{"name": WEST, "hosts": "west:2181"}]] * 3 + [None])},
        "orphans": {"legal_holds": holds, "system_topics": random.random() < 0.2},
        "object_store": random.choice([None, shared, exclusive, exclusive, exclusive]),
        "trimming": {"loaded_topics": random.random() < 0.6},
        "apply": {"max_share": 1.0, "max_ledgers": random.choice([3, 100, 100])},
        "deletion": {
            "twoPhaseDeletionLedgerDeletionParallelism": 1,
            "idle_timeout": 1,
            "batch": random.choice([1, 2, 3, 5]),
            "deletes_per_second": random.choice([1, 1000]),
            "twoPhaseDeletionMaxRetryDeleteCount": random.choice([0, 2, 10]),
        },
    }
    settings["trimming"]["system_topics"] = random.random() < 0.3
    if settings["object_store"] and random.random() < 0.1:
        settings["object_store"] = settings["object_store"] | {"buckets": ["undeclared"]}
    return Settings.model_validate(settings)
