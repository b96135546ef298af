"""requirements.lock pins what pyproject.toml asks for."""

from __future__ import annotations

import tomllib
from importlib.metadata import requires, version
from pathlib import Path

import pytest
from packaging.requirements import Requirement
from packaging.utils import canonicalize_name

ROOT = Path(__file__).parents[2]
PROJECT = tomllib.loads((ROOT / "pyproject.toml").read_text())["project"]
LINES = [line.rstrip("\\ ") for line in (ROOT / "requirements.lock").read_text().splitlines() if line[:1].isalnum()]
PINS = {
    canonicalize_name(pin.name): str(pin.specifier).removeprefix("==")
    for pin in map(Requirement, LINES)
    if pin.marker is None or pin.marker.evaluate()
}
"""Versions by name, of those that this Python and this system get."""


@pytest.mark.parametrize("asked", [*PROJECT["dependencies"], *PROJECT["optional-dependencies"]["dev"]])
def test_the_lock_pins_what_is_asked_for(asked: str) -> None:
    requirement = Requirement(asked)
    pinned = PINS.get(canonicalize_name(requirement.name))
    assert pinned is not None, f"{requirement.name} is not in requirements.lock: run make lock"
    assert requirement.specifier.contains(pinned), f"{requirement.name} {pinned}: run make lock"


def test_what_is_pinned_is_installed_and_asks_for_nothing_that_is_not() -> None:
    """All that the project's requirements ask for in turn, on this Python."""
    todo = [Requirement(one) for one in (*PROJECT["dependencies"], *PROJECT["optional-dependencies"]["dev"])]
    done: set[str] = set()
    while todo:
        asked = todo.pop()
        name = canonicalize_name(asked.name)
        pinned = PINS.get(name)
        assert pinned is not None, f"{name} is not in requirements.lock: run make lock"
        assert asked.specifier.contains(pinned), f"{asked} is asked for, {pinned} is pinned: run make lock"
        assert version(name) == pinned, f"{name} {version(name)} is installed: run make setup"
        if str(asked) not in done:
            done.add(str(asked))
            todo += [
                one
                for one in map(Requirement, requires(name) or ())
                if one.marker is None or any(one.marker.evaluate({"extra": extra}) for extra in ("", *asked.extras))
            ]
