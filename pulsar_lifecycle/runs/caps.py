"""Caps: the settings file is the ceiling, a launch may only lower them.

Belongs here: which caps hold for one launch, for every job that sends intents, deletes, redrives or offloads. Not here:
comparing a plan's rows with them (``runs/plan_checks.py``).
"""

from __future__ import annotations

from dataclasses import dataclass, fields
from typing import TypeVar

from pulsar_lifecycle.automation_settings import KindAutomation
from pulsar_lifecycle.errors import UsageError
from pulsar_lifecycle.run_settings import ApplySettings
from pulsar_lifecycle.settings import Settings

N = TypeVar("N", int, float)


@dataclass(frozen=True, slots=True)
class Caps:
    """Blast radius of one launch, as it holds."""

    max_ledgers: int
    max_share: float
    max_bytes: int
    max_ledgers_per_topic: int


@dataclass(frozen=True, slots=True)
class Lowered:
    """The caps that a launch asks for; None: the settings'."""

    max_ledgers: int | None = None
    max_share: float | None = None
    max_bytes: int | None = None
    max_ledgers_per_topic: int | None = None


AS_SET = Lowered()
"""A launch that lowers nothing."""


@dataclass(frozen=True, slots=True)
class Order:
    """What the operator asked for: a plan by id and digest, under which caps, and how much of it (0: all).

    ``namespaces``: only rows of these tenants, namespaces and full topic names; empty: of all.
    """

    plan_id: str
    digest: str
    caps: Lowered = AS_SET
    limit: int = 0
    namespaces: tuple[str, ...] = ()


def effective_caps(settings: ApplySettings, asked: Lowered = AS_SET) -> Caps:
    """The caps of one launch. Raises UsageError where it asks for more than the settings allow."""
    names = [field.name for field in fields(Caps)]
    return Caps(**{n: lowered(n, getattr(asked, n), f"apply.{n}", getattr(settings, n)) for n in names})


def automation_caps(settings: Settings, kind: KindAutomation) -> Lowered:
    """What a launch by itself asks for: the caps of its kind, where those of ``[apply]`` are no lower."""
    names = [field.name for field in fields(Lowered)]
    return Lowered(**{n: min(getattr(kind, n), getattr(settings.apply, n)) for n in names})


def lowered(name: str, asked: N | None, key: str, ceiling: N) -> N:
    """What a launch asks for as ``name``, or the ceiling that the settings' ``key`` sets where it asks for nothing.

    Raises UsageError for more than that, and for what would be no cap at all.
    """
    if asked is None:
        return ceiling
    if not asked > 0:
        raise UsageError(f"{name}: expected more than 0, found {asked}; leave it out for what {key} says ({ceiling})")
    if asked > ceiling:
        raise UsageError(
            f"{name}: this launch asks for {asked}, and {key} in the settings file allows {ceiling}: "
            "ask for no more, or raise it there"
        )
    return asked


def check_limit(limit: int) -> None:
    """Raise UsageError unless ``limit`` is a number of rows, or 0 for all."""
    if limit < 0:
        raise UsageError(f"limit: expected 0 (all) or a number of ledgers, found {limit}")


def caps_of(settings: Settings, order: Order) -> Caps:
    """The caps in effect for a launch, asked before anything else. Raises UsageError where it asks for more."""
    check_limit(order.limit)
    return effective_caps(settings.apply, order.caps)
