"""The operator's own words: what the settings file says against, or beyond, the safety rules, by whom, why, until when.

Belongs here: one value type per kind of word. Not here: where they stand in the file (``settings.py``,
``run_settings.py``), what follows from them (the rules), that they are journalled and shown
(``journal/operator_words.py``).
"""

from __future__ import annotations

from collections.abc import Iterable
from datetime import UTC, date, datetime
from enum import StrEnum
from typing import Annotated, ClassVar, TypeVar

from pydantic import AfterValidator, BaseModel, ConfigDict, Field, model_validator


class WordKind(StrEnum):
    """What the operator may say against, or beyond, the safety rules; the journal's word for each."""

    LEGAL_HOLD = "legal-hold"
    """``orphans.legal_holds``."""
    ACKNOWLEDGED_ZNODE = "acknowledged-znode"
    """``orphans.acknowledged_znodes``."""
    ACKNOWLEDGED_ENTRY = "acknowledged-entry"
    """``orphans.acknowledged_entries``."""
    NOT_SHARING = "not-sharing"
    """``bookkeeper.not_sharing``."""
    GONE_NAMESPACE = "gone-namespace"
    """``bookkeeper.gone_namespaces``."""
    RAISED_SHRINKAGE = "raised-shrinkage"
    """``orphans.max_shrinkage_raised``."""
    ACCEPTED_RESTORE = "accepted-restore"
    """Said by the command ``accept-restore``, not in the settings file."""


class Word(BaseModel):
    """What the operator says about one ``subject``: who says so, why, and until when. In TOML a table.

    A subclass names the subject, and may be written as a plain string where nothing but the subject is needed.
    """

    model_config = ConfigDict(extra="forbid", frozen=True)

    kind: ClassVar[WordKind]
    by: str = ""
    why: str = ""
    until: Annotated[date, Field(strict=True)] | None = None
    """The last day (UTC) on which it holds; none: until it is taken out of the settings file."""

    @property
    def subject(self) -> str:
        """What it is about; two words of one kind about one subject are the same word."""
        raise NotImplementedError

    def holds(self, now: int) -> bool:
        """Whether it is in force at ``now`` (ms)."""
        return self.until is None or datetime.fromtimestamp(now / 1000, UTC).date() <= self.until


class _NameWord(Word):
    name: str = Field(min_length=1)

    @model_validator(mode="before")
    @classmethod
    def _plain(cls, value: object) -> object:
        return {"name": value} if isinstance(value, str) else value

    @property
    def subject(self) -> str:
        """The name."""
        return self.name


class LegalHold(_NameWord):
    """``name``: a tenant, ``tenant/namespace`` or full topic name. It adds safety, so a plain string will do."""

    kind = WordKind.LEGAL_HOLD


class GoneNamespace(_NameWord):
    """``name``: a namespace that exists under no declared root, whose ledgers may be judged all the same."""

    kind = WordKind.GONE_NAMESPACE


class _PathWord(Word):
    path: str = Field(min_length=1)

    @model_validator(mode="before")
    @classmethod
    def _plain(cls, value: object) -> object:
        return {"path": value} if isinstance(value, str) else value

    @property
    def subject(self) -> str:
        """The path."""
        return self.path


class AcknowledgedZnode(_PathWord):
    """``path``: an undecodable z-node that the operator has looked at."""

    kind = WordKind.ACKNOWLEDGED_ZNODE
    path: str = Field(pattern=r"^/")


class NotSharing(_PathWord):
    """``path``: a z-node with metadata of a cluster that has a BookKeeper of its own, or that we may not list."""

    kind = WordKind.NOT_SHARING
    path: str = Field(pattern=r"^(/|(/[^/\s]+)+)$")


class AcknowledgedEntry(Word):
    """``entry``, ``Z-NODE LEDGER ENTRY``: an entry that nobody can read any more, as a gap names it."""

    kind = WordKind.ACKNOWLEDGED_ENTRY
    entry: str = Field(pattern=r"^/.+ \d+ (-1|\d+)$")

    @model_validator(mode="before")
    @classmethod
    def _plain(cls, value: object) -> object:
        return {"entry": value} if isinstance(value, str) else value

    @property
    def subject(self) -> str:
        """Path, ledger and entry."""
        return self.entry


class RaisedShrinkage(Word):
    """Why ``orphans.max_shrinkage``, ``max_lost_ledgers`` or ``max_lost_bytes`` is above its default."""

    kind = WordKind.RAISED_SHRINKAGE

    @property
    def subject(self) -> str:
        """The key."""
        return "orphans.max_shrinkage"


W = TypeVar("W", bound=Word)


def _explained(word: W) -> W:
    if not (word.by.strip() and word.why.strip()):
        raise ValueError(
            f"{word.subject}: this weakens a safety rule, so say who and why in a table with by and why, such as "
            '{ ..., by = "mary", why = "decommissioned in 2024, ticket 4711", until = 2026-12-31 }'
        )
    return word


Explained = Annotated[W, AfterValidator(_explained)]
"""A word that weakens a safety rule: ``by`` and ``why`` are required."""


def in_force(words: Iterable[Word], now: int) -> frozenset[str]:
    """The subjects of the words that hold at ``now`` (ms)."""
    return frozenset(word.subject for word in words if word.holds(now))
