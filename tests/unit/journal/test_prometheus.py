"""The textfile of metrics: each with its label and its words, whole or not at all, and no reason to fail a run."""

from __future__ import annotations

import logging
from dataclasses import replace
from pathlib import Path

import pytest
from prometheus_client.parser import text_fd_to_metric_families

from pulsar_lifecycle.errors import StoreError
from pulsar_lifecycle.io.connect import Connections
from pulsar_lifecycle.io.lake.journal import FileJournal
from pulsar_lifecycle.journal.metrics import METRICS, Metrics
from pulsar_lifecycle.journal.prometheus import published, write_textfile
from pulsar_lifecycle.runs.cluster import Cluster
from pulsar_lifecycle.settings import Settings
from tests.kit.builders import DELETED_ROW as ROW


def parsed(path: Path) -> dict[str, tuple[str, dict[str, str], float]]:
    """Sample name -> (help, labels, value)."""
    with path.open() as file:
        families = list(text_fd_to_metric_families(file))
    return {s.name: (f.documentation, s.labels, s.value) for f in families for s in f.samples}


def test_nine_counters_with_the_words_of_the_pip_and_a_gauge(tmp_path: Path) -> None:
    path = tmp_path / "folder" / "lifecycle.prom"
    counted = Metrics(*range(1, 10))
    write_textfile(str(path), "east", counted, 12)
    found = parsed(path)
    for number, metric in enumerate(METRICS, 1):
        assert found[f"pulsar_lifecycle_{metric.name}_total"] == (metric.help, {"cluster": "east"}, number)
    assert found["pulsar_lifecycle_in_flight_deletions"][1:] == ({"cluster": "east"}, 12)
    assert len(found) == 10
    write_textfile(str(path), "east", counted, None)  # not known is not 0
    assert len(parsed(path)) == 9
    assert list(path.parent.iterdir()) == [path]


def test_a_file_that_cannot_be_written_names_the_setting(tmp_path: Path) -> None:
    (tmp_path / "x.prom").mkdir()
    with pytest.raises(StoreError, match=r"metrics\.textfile"):
        write_textfile(str(tmp_path / "x.prom"), "east", Metrics(), None)


def cluster(tmp_path: Path, textfile: Path | str) -> Cluster:
    nowhere = {"admin_url": "http://127.0.0.1:1", "service_url": "pulsar://127.0.0.1:1"}
    settings = Settings.model_validate(
        {
            "cluster": ROW.cluster,
            "zookeeper": {"hosts": "127.0.0.1:1"},
            "pulsar": nowhere,
            "lake": {"path": str(tmp_path / "lake")},
            "metrics": {"textfile": str(textfile)},
        }
    )
    return Cluster(settings, Connections)


def test_a_run_publishes_at_its_end_even_if_it_failed_and_no_broker_answers(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    path = tmp_path / "lifecycle.prom"
    journal = FileJournal(str(tmp_path / "lake"))

    def run() -> None:
        with published(cluster(tmp_path, path)):
            journal.record([ROW, replace(ROW, ledger_id=2)])
            raise StoreError("stopped")

    with caplog.at_level(logging.WARNING), pytest.raises(StoreError, match="stopped"):
        run()
    found = parsed(path)
    assert found["pulsar_lifecycle_ledgers_deleted_total"][2] == 2
    assert "pulsar_lifecycle_in_flight_deletions" not in found
    assert "in flight are not known" in caplog.text


def test_a_metric_that_cannot_be_written_fails_no_run(tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    (tmp_path / "x.prom").mkdir()
    with caplog.at_level(logging.WARNING), published(cluster(tmp_path, tmp_path / "x.prom")):
        pass
    assert "not written" in caplog.text
    with published(cluster(tmp_path, "")):
        pass
