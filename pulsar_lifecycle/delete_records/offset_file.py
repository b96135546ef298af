"""The file that says which records to delete, in the shape of ``kafka-delete-records --offset-json-file``.

Belongs here: text to values, and what is wrong with it, by line and field. Not here: which partitions a topic has
(``requested_partitions.py``), what an offset comes to. Ours: ``offset`` is ``"LEDGER:ENTRY"``, ``"@TIME"`` or -1,
``topic`` a full name; without ``partition`` an entry is about every partition. Source: DeleteRecordsCommand, Kafka.
"""

from __future__ import annotations

import json
import re
from bisect import bisect_left
from collections.abc import Iterator
from dataclasses import dataclass
from json.decoder import scanstring  # pyrefly: ignore[missing-module-attribute]
from typing import Any, NamedTuple, NoReturn

from pulsar_lifecycle.delete_records.request import Offset, parse_offset, parse_topic
from pulsar_lifecycle.errors import UsageError
from pulsar_lifecycle.model import Topic

VERSION = 1
"""The only version of the file that there is."""

_FIELDS = ("topic", "partition", "offset")
_SPACE = " \t\n\r"
_MAX_PARTITION = (1 << 31) - 1


@dataclass(frozen=True, slots=True)
class RequestedOffset:
    """One entry: a topic, or one partition of a partitioned one, its offset, and where the request says so."""

    topic: Topic
    partition: int | None
    offset: Offset
    where: str

    @property
    def name(self) -> Topic:
        """The partition's own name; the topic's where all its partitions are meant."""
        if self.partition is None:
            return self.topic
        return Topic(self.topic.namespace, f"{self.topic.local}-partition-{self.partition}", self.topic.domain)


def parse_offset_file(text: str, name: str = "offset file") -> list[RequestedOffset]:
    """The entries of a file, in its order, at least one. Raises UsageError naming the line and the field."""
    return _File(text, name).entries()


class _Member(NamedTuple):
    key: str
    at: int
    """Where its value begins."""
    value: Any


class _File:
    """The text and its name. It is JSON, as the first thing that :meth:`entries` does is to decode it."""

    def __init__(self, text: str, name: str) -> None:
        self._text, self._name = text, name
        self._decoder = json.JSONDecoder()
        self._line_ends = [found.start() for found in re.finditer("\n", text)]

    def entries(self) -> list[RequestedOffset]:
        try:
            document: Any = json.loads(self._text)
        except json.JSONDecodeError as error:
            raise UsageError(f"{self._name}: line {error.lineno}: no JSON: {error.msg}") from error
        except RecursionError:
            raise UsageError(f"{self._name}: no file of offsets: it is nested too deeply") from None
        except ValueError as error:
            raise UsageError(f"{self._name}: no file of offsets: {error}") from error
        start = self._skip(0)
        members = self._object(start, document, "", ("version", "partitions"))
        version = members.get("version")
        if version and (type(version.value) is not int or version.value != VERSION):
            self._refuse(version.at, "version", f"expected {VERSION}, found {version.value!r}")
        partitions = members.get("partitions")
        if partitions is None:
            self._refuse(start, "partitions", "missing")
        if not isinstance(partitions.value, list) or not partitions.value:
            self._refuse(partitions.at, "partitions", "expected a list with at least one entry")
        found: dict[Topic, RequestedOffset] = {}
        for number, (at, value) in enumerate(self._items(partitions.at)):
            asked = self._entry(at, value, f"partitions[{number}]")
            if before := found.get(asked.name):
                self._refuse(at, f"partitions[{number}]", f"{asked.name} is asked for already: {before.where}")
            found[asked.name] = asked
        return list(found.values())

    def _entry(self, at: int, value: Any, field: str) -> RequestedOffset:
        members = self._object(at, value, field, _FIELDS)
        for name in ("topic", "offset"):
            if name not in members:
                self._refuse(at, f"{field}.{name}", "missing")
        topic = self._topic(members["topic"], f"{field}.topic")
        partition = self._partition(members.get("partition"), f"{field}.partition")
        if partition is not None and topic.partition is not None:
            self._refuse(members["partition"].at, f"{field}.partition", f"{topic} is a partition already")
        offset = self._offset(members["offset"], f"{field}.offset")
        return RequestedOffset(topic, partition, offset, f"{self._name}: line {self._line(at)}")

    def _topic(self, member: _Member, field: str) -> Topic:
        if not isinstance(member.value, str):
            self._refuse(member.at, field, f"expected a name, found {member.value!r}")
        try:
            return parse_topic(member.value)
        except UsageError as error:
            self._refuse(member.at, field, str(error))

    def _partition(self, member: _Member | None, field: str) -> int | None:
        if member is None:
            return None
        if type(member.value) is not int or not 0 <= member.value <= _MAX_PARTITION:
            self._refuse(member.at, field, f"expected a number from 0 on, found {member.value!r}")
        return member.value

    def _offset(self, member: _Member, field: str) -> Offset:
        text = str(member.value) if type(member.value) is int else member.value
        if not isinstance(text, str):
            self._refuse(member.at, field, f'expected "LEDGER:ENTRY", "@TIME" or -1, found {member.value!r}')
        try:
            return parse_offset(text)
        except UsageError as error:
            self._refuse(member.at, field, str(error))

    # ----------------------------------------------------------------------------------------------------- where it is

    def _object(self, at: int, value: Any, field: str, known: tuple[str, ...]) -> dict[str, _Member]:
        if not isinstance(value, dict):
            self._refuse(at, field or "the file", "expected an object")
        members: dict[str, _Member] = {}
        for member in self._members(at):
            name = f"{field}.{member.key}" if field else member.key
            if member.key not in known:
                self._refuse(member.at, name, f"unknown; known are {', '.join(known)}")
            if member.key in members:
                self._refuse(member.at, name, "there twice")
            members[member.key] = member
        return members

    def _members(self, at: int) -> Iterator[_Member]:
        """The members of the object that begins there."""
        at = self._skip(at + 1)
        while self._text[at] != "}":
            key, at = scanstring(self._text, at + 1)
            at = self._skip(self._skip(at) + 1)
            value, end = self._decoder.raw_decode(self._text, at)
            yield _Member(str(key), at, value)
            at = self._next(end)

    def _items(self, at: int) -> Iterator[tuple[int, Any]]:
        """The items of the array that begins there, each with where it begins."""
        at = self._skip(at + 1)
        while self._text[at] != "]":
            value, end = self._decoder.raw_decode(self._text, at)
            yield at, value
            at = self._next(end)

    def _next(self, at: int) -> int:
        at = self._skip(at)
        return self._skip(at + 1) if self._text[at] == "," else at

    def _skip(self, at: int) -> int:
        while at < len(self._text) and self._text[at] in _SPACE:
            at += 1
        return at

    def _line(self, at: int) -> int:
        return bisect_left(self._line_ends, at) + 1

    def _refuse(self, at: int, field: str, what: str) -> NoReturn:
        raise UsageError(f"{self._name}: line {self._line(at)}: {field}: {what}")
