"""What Spark's data sources take their settings from."""

from __future__ import annotations

from pulsar_lifecycle.metastore.sources import source_settings


def test_a_source_needs_no_more_than_zookeeper() -> None:
    settings = source_settings({"zookeeper": "zk1:2181,zk2:2181/chroot"})
    assert settings.zookeeper.hosts == "zk1:2181,zk2:2181/chroot"
