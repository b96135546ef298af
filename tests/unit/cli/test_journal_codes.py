"""The words of the journal's column ``code``: each stands for one thing, and is written in one way."""

from __future__ import annotations

import json
from collections import defaultdict
from collections.abc import Iterator
from enum import StrEnum

import pytest

from pulsar_lifecycle.cli.journal_codes import CODES
from pulsar_lifecycle.inspect import meanings
from pulsar_lifecycle.values.outcomes import Outcome, Waiting
from pulsar_lifecycle.words import WordKind
from tests.kit.command import run

ALIKE = {
    "bookkeeper_first": "that its brokers read BookKeeper first",
    "brokers_delete": "that brokers delete copies in BookKeeper",
    "bookkeeper_deleted": "that its topic lists its copy in BookKeeper as deleted",
    "changed_since_plan": "that it is not as it was",
    "empty": "that it has no entries",
    "kept": "that a rule keeps it",
    "lag": "that its deletion lag has not passed",
    "last_ledger": "that it is the last of its topic",
    "little_to_free": "that it would free too little",
    "loaded": "that a broker has its topic loaded",
    "no_bucket": "that no bucket of ours is named for it",
    "no_object_store": "that object_store is not set",
    "not_prefix": "that a ledger before it stays",
    "open_orphan": "an unreferenced ledger that was never closed",
    "other_cluster": "that it is of another cluster",
    "other_driver": "that its offload driver is none of ours",
    "partition_stays": "that it stays on another partition",
    "terminated": "that its topic is terminated",
    "unanswered": "that a question got no answer",
    "undecodable": "that what was read could not be decoded",
    "unknown_cursor": "that where a cursor stands is not known",
    "unknown_ledger": "that what a ledger holds is not known",
    "unknown_policy": "that a policy in force is not known",
    "unread": "that something could not be read",
}
"""Words that several enumerations have, each with its own sentence, and the one thing for which they stand."""
WITH_HYPHENS = {
    Outcome: "journals of every version have them",
    Waiting: "messages on the retry topic have them",
    WordKind: "the lake keeps the operator's words by them",
}
"""What is stored outside of our hands keeps its spelling."""


def described() -> Iterator[tuple[type[StrEnum], str, str]]:
    """Every member of an enumeration of codes with what it means."""
    for codes in CODES:
        said = dict(meanings.members(codes))
        yield from ((codes, str(one), said[str(one)]) for one in codes)


def test_a_word_that_two_enumerations_describe_in_two_ways_stands_for_one_thing() -> None:
    every: defaultdict[str, set[str]] = defaultdict(set)
    for _, word, meaning in described():
        every[word].add(meaning)
    assert {word for word, said in every.items() if len(said) > 1} == set(ALIKE)


def test_codes_are_written_with_underscores() -> None:
    assert {codes for codes, word, _ in described() if "-" in word} == set(WITH_HYPHENS)


def test_a_code_with_unread_messages_is_another_than_one_that_could_not_be_read() -> None:
    unread = {codes.__name__: meaning for codes, word, meaning in described() if word == "unread"}
    assert not [name for name, meaning in unread.items() if "unread" in meaning or "read" not in meaning]
    assert [codes.__name__ for codes, word, _ in described() if word == "unread_messages"] == ["InactiveKept"]


def test_the_command_says_what_a_code_means_wherever_it_is_met(capsys: pytest.CaptureFixture[str]) -> None:
    assert run("code", "turn", "kept", "--json") == 0
    found = json.loads(capsys.readouterr().out)
    assert [one["code"] for one in found[:1]] == ["turn"]
    assert len([one for one in found if one["code"] == "kept"]) > 1
    assert run("code", "turn") == 0
    assert found[0]["means"] in " ".join(capsys.readouterr().out.split())


def test_the_command_names_codes_that_are_like_one_that_there_is_not(capsys: pytest.CaptureFixture[str]) -> None:
    assert run("code", "unreferencd") == 2
    assert "there is no code 'unreferencd': did you mean unreferenced" in capsys.readouterr().err


def test_every_code_has_its_words() -> None:
    assert [
        (where, code)
        for where, name in meanings.CODES
        for code, means in meanings.members(meanings.load(name))
        if not means
    ] == []
