"""The import rules of ``pyproject.toml`` bite: a planted import breaks them."""

from __future__ import annotations

import re
import tomllib
from collections.abc import Callable
from pathlib import Path
from typing import Any

import grimp
import pytest
from importlinter import configuration
from importlinter.contracts.forbidden import ForbiddenContract

ROOT = Path(__file__).parents[2]
RULES = tomllib.loads((ROOT / "pyproject.toml").read_text())["tool"]["importlinter"]
ONE_PLACE = "One place connects"

Kept = Callable[[str, str], bool]


def adapters() -> list[str]:
    """Every module that ``io.connect`` makes an adapter of."""
    text = (ROOT / "pulsar_lifecycle/io/connect.py").read_text()
    return sorted(set(re.findall(r"from (pulsar_lifecycle\.io\.[a-z0-9_.]+) import [A-Z]", text)))


@pytest.fixture(scope="module")
def kept() -> Kept:
    """Whether the contract is kept by the code with one import more."""
    configuration.configure()
    graph = grimp.build_graph(*RULES["root_packages"], include_external_packages=True)
    options = next(dict(one) for one in RULES["contracts"] if one["name"] == ONE_PLACE)
    session: dict[str, Any] = {"root_packages": RULES["root_packages"]}
    contract = ForbiddenContract(options["name"], session, {**options, "allow_indirect_imports": "True"})

    def asked(importer: str, imported: str) -> bool:
        known = imported in graph.find_modules_directly_imported_by(importer)
        graph.add_import(importer=importer, imported=imported)
        try:
            return contract.check(graph, verbose=False).kept
        finally:
            if not known:
                graph.remove_import(importer=importer, imported=imported)

    return asked


def test_what_connects_is_found() -> None:
    """The next test would pass if it looked at nothing."""
    assert {"pulsar_lifecycle.io.zookeeper.store", "pulsar_lifecycle.io.pulsar.queue"} <= set(adapters())
    assert "pulsar_lifecycle.io.bookkeeper.admin" in adapters()


@pytest.mark.parametrize(
    "importer", ["pulsar_lifecycle.deletion.batch", "pulsar_lifecycle.cli.plans", "assets.deletion"]
)
def test_an_adapter_is_imported_by_nothing_but_the_one_place_that_connects(kept: Kept, importer: str) -> None:
    assert kept(importer, "pulsar_lifecycle.io.connect")
    assert [adapter for adapter in adapters() if kept(importer, adapter)] == []
