"""What tests share stands in ``tests/kit``, or beside them under a name that is no test module's."""

from __future__ import annotations

import ast
from collections.abc import Iterator
from pathlib import Path

TESTS = Path(__file__).parents[1]


def imported(module: Path) -> Iterator[str]:
    """Every module that one imports, at whatever depth of its code."""
    for node in ast.walk(ast.parse(module.read_text())):
        if isinstance(node, ast.Import):
            yield from (alias.name for alias in node.names)
        elif isinstance(node, ast.ImportFrom):
            yield node.module or ""
            yield from (f"{node.module}.{alias.name}" for alias in node.names)


def test_no_test_module_is_imported() -> None:
    found = {
        f"{module.relative_to(TESTS)} imports {name}"
        for module in [*TESTS.rglob("*.py"), *TESTS.with_name("bench").rglob("*.py")]
        for name in imported(module)
        if name.startswith("tests.") and any(part.startswith("test_") for part in name.split("."))
    }
    assert not found


def test_the_kit_needs_no_server() -> None:
    for module in (TESTS / "kit").rglob("*.py"):
        assert not [name for name in imported(module) if name.startswith(("tests.integration", "tests.unit"))], module
