"""Section ``[automation]`` of the settings file: how far each kind of plan goes by itself, when, and how much at most.

Belongs here: modes, windows and caps with their defaults and checks. Not here: the rule (``runs/automation_rule.py``).
"""

from __future__ import annotations

from datetime import UTC, datetime, timedelta
from enum import StrEnum
from zoneinfo import ZoneInfo, ZoneInfoNotFoundError

from pydantic import Field, field_validator, model_validator

from pulsar_lifecycle.run_settings import owner_names
from pulsar_lifecycle.setting_types import Seconds, SecretRef, Section

_FIELDS = ((0, 59), (0, 23), (1, 31), (1, 12), (0, 7))
"""Lowest and highest value of minute, hour, day of the month, month, and day of the week (0 and 7: Sunday)."""
LONGEST_WINDOW = 7 * 86_400.0
BEYOND_APPLY = ("offload", "bookkeeper_copies", "bookies")
"""Kinds for which the caps of ``[apply]`` do not hold."""


class Automation(StrEnum):
    """How far a kind goes by itself."""

    OFF = "off"
    """Nothing of it goes by itself, and no plan of it follows a scan, but for that of bookies. Jobs that plan make
    theirs all the same."""
    PLAN = "plan"
    """Plans are made after each scan; an operator applies them."""
    APPROVE = "approve"
    """A plan is applied by itself once somebody has approved it."""
    APPLY = "apply"
    """A plan is applied by itself."""


class Window(Section):
    """When runs with effects may begin: from each time that ``cron`` names, for ``duration``."""

    cron: str
    """Five fields as in crontab(5): minute, hour, day of the month, month, day of the week; numbers only."""
    duration: Seconds = Field(gt=0, le=LONGEST_WINDOW)
    """How long it is open; at most seven days."""
    timezone: str = "UTC"
    """Such as ``Europe/Zurich``. A window in the hour that summer time leaves out opens as summer time begins."""

    @field_validator("cron")
    @classmethod
    def _five_fields(cls, value: str) -> str:
        parse_cron(value)
        return value

    @field_validator("timezone")
    @classmethod
    def _known(cls, value: str) -> str:
        try:
            ZoneInfo(value)
        except (ZoneInfoNotFoundError, ValueError, OSError) as error:
            raise ValueError(f"expected a time zone such as Europe/Zurich, found {value!r}") from error
        return value

    def opened_at(self, now: int) -> int | None:
        """Since when (ms) the window is open at ``now``; None while it is shut."""
        minute, hour, day, month, weekday = parse_cron(self.cron)
        either = "*" not in (self.cron.split()[2][0], self.cron.split()[4][0])  # crontab(5): one of them is enough
        zone, at = ZoneInfo(self.timezone), datetime.fromtimestamp(now // 60_000 * 60, UTC)
        for _ in range(int(self.duration // 60) + 1):
            if now / 1000 - at.timestamp() >= self.duration:
                return None
            for local in _local_minutes(at, zone, fixed=not self.cron.split()[1].startswith("*")):
                days = local.day in day, local.isoweekday() % 7 in weekday
                dated = any(days) if either else all(days)
                if local.minute in minute and local.hour in hour and local.month in month and dated:
                    return int(at.timestamp() * 1000)
            at -= timedelta(minutes=1)
        return None


def _local_minutes(at: datetime, zone: ZoneInfo, *, fixed: bool) -> list[datetime]:
    """The minutes that clocks of a zone have at a moment.

    With ``fixed`` hours as cron has them: none twice, as summer time ends, and all that its begin leaves out then.
    """
    local, minute = at.astimezone(zone), timedelta(minutes=1)
    if not fixed:
        return [local]
    wall, before = local.replace(tzinfo=None), (at - minute).astimezone(zone).replace(tzinfo=None)
    return [] if local.fold else [wall - minute * back for back in range(max(1, (wall - before) // minute))]


def parse_cron(text: str) -> list[frozenset[int]]:
    """The values of each field. Raises ValueError naming the field."""
    fields = text.split()
    if len(fields) != len(_FIELDS):
        raise ValueError(f"expected five fields such as '0 1 * * 6', found {text!r}")
    found = [_values(field, low, high) for field, (low, high) in zip(fields, _FIELDS, strict=True)]
    found[4] = frozenset(value % 7 for value in found[4])
    return found


def _values(field: str, low: int, high: int) -> frozenset[int]:
    values: set[int] = set()
    for part in field.split(","):
        span, _, step = part.partition("/")
        first, _, last = span.partition("-")
        try:
            begin, end = (low, high) if span == "*" else (int(first), int(last or (high if step else first)))
            every = int(step) if step else 1
        except ValueError:
            raise ValueError(f"{field!r}: expected numbers, *, ranges and steps") from None
        if not low <= begin <= end <= high or every < 1:
            raise ValueError(f"{field!r}: expected {low} to {high}")
        values.update(range(begin, end + 1, every))
    return frozenset(values)


class QueueAutomation(Section):
    """Whether deletion runs begin by themselves, and when. ``false`` alone: they do not."""

    begins: bool = True
    """``false``: somebody launches each."""
    window: Window | None = None
    """As that of a kind: when runs may begin, whoever sent what waits; unset: at any time."""

    @model_validator(mode="before")
    @classmethod
    def _yes_or_no(cls, value: object) -> object:
        return {"begins": value} if isinstance(value, bool) else value

    def waits_for_window(self, now: int) -> bool:
        """Whether runs would begin by themselves, and not at ``now`` (ms), as the window is shut."""
        return self.begins and self.window is not None and self.window.opened_at(now) is None


class KindAutomation(Section):
    """How far one kind of plan goes by itself. The caps of ``[apply]`` hold, too, but for offloads, copies, bookies.

    A plan beyond a cap, or that grew too much, is not applied in part: it waits for an operator. Of a plan beyond
    ``[offload]`` a run takes the oldest ledgers, as many as that allows: the rest goes by the plans of later scans.
    """

    mode: Automation = Automation.PLAN
    """``"off"``, ``"plan"``, ``"approve"`` or ``"apply"``."""
    window: Window | None = None
    """``{ cron = "0 1 * * 6", duration = "4h" }``: when runs may begin; unset: at any time."""
    namespaces: tuple[str, ...] = ()
    """Tenants, namespaces and full topic names that go by themselves; empty: all."""
    min_ledgers: int = Field(default=1, ge=1)
    """A plan of fewer waits for more."""
    min_bytes: int = Field(default=0, ge=0)
    """A plan of fewer bytes waits for more."""
    max_ledgers: int = Field(default=10_000, gt=0)
    """Ledgers, copies, objects or bookies of one plan."""
    max_share: float = Field(default=0.01, gt=0, le=1)
    """Share of the cluster's ledgers."""
    max_bytes: int = Field(default=10 << 40, gt=0)
    """On the bookies' disks, with all replicas, or in the bucket."""
    max_ledgers_per_topic: int = Field(default=1_000, gt=0)
    """Ledgers of one topic."""
    max_growth: float = Field(default=10.0, ge=1)
    """How many times more ledgers, and how many times more bytes, than any plan that was applied in the last 30 days.
    Of one that was applied in part, what was done counts."""
    growth_from: int = Field(default=1_000, ge=0)
    """Up to so many ledgers a plan may grow as it likes: also the first ones, before any was applied."""
    growth_from_bytes: int = Field(default=100 << 30, ge=0)
    """Up to so many bytes a plan may grow as it likes, counted as ``max_bytes`` counts them. A plan that is beyond
    ``max_growth`` in ledgers or in bytes waits."""

    @model_validator(mode="before")
    @classmethod
    def _mode_alone(cls, value: object) -> object:
        return {"mode": value} if isinstance(value, str) else value

    @field_validator("namespaces")
    @classmethod
    def _name_something(cls, value: tuple[str, ...]) -> tuple[str, ...]:
        return owner_names(value)

    @model_validator(mode="after")
    def _some_plan_fits(self) -> KindAutomation:
        for what, least, most in (
            ("ledgers", self.min_ledgers, self.max_ledgers),
            ("bytes", self.min_bytes, self.max_bytes),
        ):
            if least > most:
                raise ValueError(f"min_{what} ({least}) is above max_{what} ({most}): no plan would ever go")
        return self


class CollectionAutomation(KindAutomation):
    """How far collections go by themselves."""

    max_share: float = Field(default=1.0, gt=0, le=1)
    """Share of the cluster's bookies."""

    @model_validator(mode="after")
    def _of_whole_bookies(self) -> CollectionAutomation:
        if self.namespaces:
            raise ValueError("namespaces: a bookie holds those of all: leave it out")
        if self.mode is Automation.APPLY and self.window is None:
            raise ValueError("a window is needed to apply by itself: a collection slows down clients")
        return self


class Schedules(Section):
    """When Dagster's schedules ring, in UTC: five fields as in crontab(5), numbers only. They ship stopped."""

    scan: str = "7 * * * *"
    """Schedule ``hourly_scan``. Keep ``catalog.scan_fresh_for`` longer than the time between two scans."""
    queue: str = "*/10 * * * *"
    """Schedule ``queue_watch``."""
    inventory: str = "41 3 * * *"
    """Schedule ``nightly_inventory``."""
    reconcile: str = "11 4 * * *"
    """Schedule ``nightly_reconcile``."""
    retention: str = "53 4 * * *"
    """Schedule ``nightly_retention``."""
    delayed_index: str = "23 2 * * *"
    """Schedule ``nightly_delayed_index``."""
    consumed_records: str = "37 * * * *"
    """Schedule ``hourly_consumed_records``."""

    @field_validator("scan", "queue", "inventory", "reconcile", "retention", "delayed_index", "consumed_records")
    @classmethod
    def _five_fields(cls, value: str) -> str:
        parse_cron(value)
        return value


class AutomationSettings(Section):
    """What goes by itself, by kind. A word alone is its mode: ``automation.retention = "approve"``.

    Nothing does before the sensor ``automation`` is switched on in Dagster: the one switch, also of the queue.
    Schedules, ``look_every`` and which plans follow a scan are read when the code location is loaded; modes, caps and
    windows at each look.
    """

    orphans: KindAutomation = KindAutomation()
    """Plans of ledgers that nothing refers to: job ``apply_plan``."""
    retention: KindAutomation = KindAutomation()
    """Plans of ledgers past their retention: job ``apply_retention``."""
    offload: KindAutomation = KindAutomation()
    """What the cluster's own thresholds want in the object store: job ``offload``. No plan by order goes by itself.
    Its plans hold the copies of ``bookkeeper_copies``, too: they follow scans unless both are ``off``."""
    bookkeeper_copies: KindAutomation = KindAutomation()
    """Deleting copies in BookKeeper past their deletion lag, where ``offload.bookkeeper_copies`` is ``"ours"``: job
    ``offload``."""
    objects: KindAutomation = KindAutomation()
    """Objects that nothing needs: job ``sweep_objects``."""
    delayed_index: KindAutomation = KindAutomation()
    """Repairs of delayed indexes: job ``repair_delayed_index``. Each plan of it reads the delayed messages of all
    topics that have buckets: plans follow scans only where the mode is ``approve`` or ``apply``; schedule
    ``nightly_delayed_index`` makes them in any mode. Its ledgers are subscriptions. No plan of chosen namespaces goes
    by itself."""
    consumed_records: KindAutomation = KindAutomation()
    """Plans of what the subscriptions of ``consumed_records.subscriptions`` have consumed: job ``delete_records``."""
    bookies: CollectionAutomation = CollectionAutomation()
    """Having bookies collect: job ``collect_bookies``. Its ledgers are bookies, its bytes what they could free. The
    caps of ``[apply]`` do not hold, as that was deleted under them. To apply by itself it needs a window, in which each
    scan's plan goes; it takes no ``namespaces``. Its plans follow scans in any mode, as ``bookie_disk`` does."""
    delete_pending: QueueAutomation = QueueAutomation()
    """Whether job ``delete_pending`` is started when intents of the queue are due, whoever sent them: ``true`` or
    ``false``, or ``{ window = ... }``. A kind's own window is for sending them: what is sent is deleted soon after,
    unless this has one, too. A run that has begun ends its work, whenever its window shuts; ``false`` stops also one
    whose scan is not done."""
    schedules: Schedules = Schedules()
    """When scans, inventories and looks at the queue are made."""
    look_every: Seconds = Field(default=60.0, ge=5)
    """How often the sensor ``automation`` looks, and ``after_scan``, if that is more often than every 30 seconds. A
    look reads the lake and the queue; a deletion run begins at most every fifth time."""
    approval_valid_for: Seconds = Field(default=43_200.0, gt=0)
    """How long an approval holds; its plan may expire before (``orphans.plan_valid_for``)."""
    alert_webhook: SecretRef | None = None
    """``{ env = "..." }`` or ``{ file = "..." }``: the URL to which the sensor ``failed_runs`` posts; unset: none."""

    def check_minimums(self, max_ledgers: int, max_bytes: int) -> None:
        """Raise ValueError where a minimum is above a cap of ``[apply]``, which holds for all but ``BEYOND_APPLY``."""
        kinds = {name: kind for name, kind in self if isinstance(kind, KindAutomation) and name not in BEYOND_APPLY}
        for name, kind in kinds.items():
            for what, least, most in (
                ("ledgers", kind.min_ledgers, max_ledgers),
                ("bytes", kind.min_bytes, max_bytes),
            ):
                if least > most:
                    above = f"automation.{name}.min_{what} ({least}) is above apply.max_{what} ({most})"
                    raise ValueError(f"{above}: no plan would ever go")
