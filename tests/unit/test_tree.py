"""The tree is one that a reader finds his way in: short modules, small folders, a name for one thing."""

from __future__ import annotations

import ast
from collections import Counter, defaultdict
from pathlib import Path

ROOT = Path(__file__).parents[2]
ROOMS = ("pulsar_lifecycle", "assets", "orchestration", "resources", "sandbox", "bench", "docs", "tests")
CODECS = "pulsar_lifecycle/formats"
"""The one large folder: small modules, each of one form of bytes."""
CALLED_ALIKE = {("cli", "inspect"), ("io", "ports"), ("cli", "io", "ports")}
"""Rooms that may each have a module of one name: a command's is called as what it shows, an adapter's as its port."""


def modules() -> list[Path]:
    """Every module, from the root, without packages' own and what is made from ``proto/``."""
    found = (path for room in ROOMS for path in (ROOT / room).rglob("*.py") if path.name != "__init__.py")
    return [path.relative_to(ROOT) for path in found if not path.parent.name.endswith("_pb")]


def test_no_module_is_long() -> None:
    assert {str(path) for path in modules() if len((ROOT / path).read_text().splitlines()) > 450} == set()


def test_no_folder_is_crowded() -> None:
    counts = Counter(str(path.parent) for path in modules())
    assert {folder for folder, count in counts.items() if count > 14} - {CODECS} == set()


def test_no_two_modules_of_the_library_have_one_name() -> None:
    rooms = defaultdict[str, list[str]](list)
    for path in modules():
        if path.parts[0] == "pulsar_lifecycle":
            rooms[path.name].append(path.parts[1])
    doubled = {name: tuple(sorted(found)) for name, found in rooms.items() if len(found) > 1}
    assert {name: found for name, found in doubled.items() if found not in CALLED_ALIKE} == {}


def test_no_two_public_classes_of_the_library_have_one_name() -> None:
    names = Counter(
        statement.name
        for path in modules()
        if path.parts[0] == "pulsar_lifecycle"
        for statement in ast.parse((ROOT / path).read_text()).body
        if isinstance(statement, ast.ClassDef) and not statement.name.startswith("_")
    )
    assert {name for name, count in names.items() if count > 1} == set()
