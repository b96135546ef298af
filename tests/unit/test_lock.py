"""requirements.lock pins what pyproject.toml asks for."""

from __future__ import annotations

import re
import tomllib
from pathlib import Path

import pytest
from packaging.requirements import Requirement
from packaging.utils import canonicalize_name

ROOT = Path(__file__).parents[2]
PROJECT = tomllib.loads((ROOT / "pyproject.toml").read_text())["project"]
PINS = {
    canonicalize_name(name): version
    for name, version in re.findall(
        r"^([A-Za-z0-9._-]+)(?:\[.*?\])?==(\S+)", (ROOT / "requirements.lock").read_text(), flags=re.MULTILINE
    )
}


@pytest.mark.parametrize("asked", [*PROJECT["dependencies"], *PROJECT["optional-dependencies"]["dev"]])
def test_the_lock_pins_what_is_asked_for(asked: str) -> None:
    requirement = Requirement(asked)
    pinned = PINS.get(canonicalize_name(requirement.name))
    assert pinned is not None, f"{requirement.name} is not in requirements.lock: run make lock"
    assert requirement.specifier.contains(pinned), f"{requirement.name} {pinned}: run make lock"
