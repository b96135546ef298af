"""The import rules of ``pyproject.toml`` bite: a planted import breaks them."""

from __future__ import annotations

import re
import tomllib
from collections.abc import Callable
from copy import deepcopy
from pathlib import Path

import grimp
import pytest
from importlinter import configuration
from importlinter.contracts.forbidden import ForbiddenContract
from importlinter.contracts.layers import LayersContract

ROOT = Path(__file__).parents[2]
RULES = tomllib.loads((ROOT / "pyproject.toml").read_text())["tool"]["importlinter"]
ONE_PLACE = "One place connects"
NO_DECISION = "Adapters decide nothing"
MISSING_TOPICS = "pulsar_lifecycle.deletion_queue.missing_topics"

Kept = Callable[[str, str, str], bool]


def adapters() -> list[str]:
    """Every module that ``io.connect`` makes an adapter of."""
    text = (ROOT / "pulsar_lifecycle/io/connect.py").read_text()
    return sorted(set(re.findall(r"from (pulsar_lifecycle\.io\.[a-z0-9_.]+) import [A-Z]", text)))


def contract_of(name: str) -> ForbiddenContract | LayersContract:
    options = next(dict(one) for one in RULES["contracts"] if one["name"] == name)
    kind = LayersContract if options["type"] == "layers" else ForbiddenContract
    said = {key: str(value) if isinstance(value, bool) else value for key, value in options.items()}
    return kind(name, {key: value for key, value in RULES.items() if key != "contracts"}, said)


@pytest.fixture(scope="module")
def kept() -> Kept:
    """Whether a contract is kept by the code with one import more."""
    configuration.configure()
    graph = grimp.build_graph(*RULES["root_packages"], include_external_packages=True)

    def asked(name: str, importer: str, imported: str) -> bool:
        planted = deepcopy(graph)
        planted.add_import(importer=importer, imported=imported)
        return contract_of(name).check(planted, verbose=False).kept

    return asked


def test_what_connects_is_found() -> None:
    """The next tests would pass if they looked at nothing."""
    assert {"pulsar_lifecycle.io.zookeeper.store", "pulsar_lifecycle.io.pulsar.queue"} <= set(adapters())
    assert "pulsar_lifecycle.io.bookkeeper.bookie_admin" in adapters()


@pytest.mark.parametrize(
    "importer", ["pulsar_lifecycle.deletion.batch", "pulsar_lifecycle.cli.plans", "assets.deletion"]
)
def test_an_adapter_is_imported_by_nothing_but_the_one_place_that_connects(kept: Kept, importer: str) -> None:
    assert kept(ONE_PLACE, importer, "pulsar_lifecycle.io.connect")
    assert [adapter for adapter in adapters() if kept(ONE_PLACE, importer, adapter)] == []


@pytest.mark.parametrize(
    ("name", "importer", "imported"),
    [
        ("Imports go down only", "resources.lifecycle", "assets.names"),
        ("Inside the library", "pulsar_lifecycle.trimming.trim", "pulsar_lifecycle.tiered.commit"),
        ("Inside the library", "pulsar_lifecycle.scan.read", "pulsar_lifecycle.deletion.batch"),
        ("Inside the library", "pulsar_lifecycle.no_such_room", "pulsar_lifecycle.model"),
        ("The library knows nothing of Dagster", "pulsar_lifecycle.runs.cluster", "dagster"),
        ("Runs take ports", "pulsar_lifecycle.deletion.workers", "pulsar_lifecycle.io.connect"),
        (
            "Adapters decide nothing",
            "pulsar_lifecycle.io.pulsar.queue",
            "pulsar_lifecycle.deletion_queue.missing_topics",
        ),
        ("Vendors stay in io", "pulsar_lifecycle.run_settings", "boto3"),
        ("Vendors stay in io", "orchestration.automatic.schedules", "kazoo"),
        ("Rules are pure", "pulsar_lifecycle.topics.protection", "pulsar_lifecycle.ports.lake"),
        ("Rules are pure", "pulsar_lifecycle.trimming.trim_rules", "pulsar_lifecycle.io.tls"),
    ],
)
def test_a_planted_import_breaks_its_contract(kept: Kept, name: str, importer: str, imported: str) -> None:
    assert not kept(name, importer, imported)


@pytest.mark.parametrize("name", [ONE_PLACE, "Vendors stay in io"])
def test_every_room_is_under_the_contract(name: str) -> None:
    (contract,) = [one for one in RULES["contracts"] if one["name"] == name]
    library = ROOT / "pulsar_lifecycle"
    rooms = {path.stem for path in library.iterdir() if path.suffix == ".py" or (path / "__init__.py").exists()}
    wanted = {f"pulsar_lifecycle.{room}" for room in rooms - {"__init__", "io"}}
    assert set(contract["source_modules"]) == {*wanted, "resources", "assets", "orchestration"}


def test_all_of_io_is_forbidden_but_what_connects() -> None:
    (contract,) = [one for one in RULES["contracts"] if one["name"] == ONE_PLACE]
    folder = ROOT / "pulsar_lifecycle/io"
    rooms = {path.stem for path in folder.iterdir() if path.suffix == ".py" or (path / "__init__.py").exists()}
    assert set(contract["forbidden_modules"]) == {
        f"pulsar_lifecycle.io.{room}" for room in rooms - {"__init__", "connect"}
    }


def test_every_adapter_is_under_the_contract_that_it_decides_nothing() -> None:
    rules = {one["name"]: one for one in RULES["contracts"]}
    assert rules[NO_DECISION]["source_modules"] == rules[ONE_PLACE]["forbidden_modules"]
