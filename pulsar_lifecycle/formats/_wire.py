"""Strict reading and lossless rewriting of protobuf messages (proto2 wire format).

Belongs here: what every protobuf format shares. Parsing that refuses what a lenient parser swallows (missing required
fields, text that is not UTF-8, a known field in another wire type), the byte offset of what is wrong, and the rewriting
of a message so that fields unknown to us survive. Not here: any particular message.

The fast parser tells only that something is wrong; where is found by a second, slow walk over the bytes.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable
from typing import Any, TypeVar, cast

from google.protobuf.descriptor import Descriptor, FieldDescriptor
from google.protobuf.message import DecodeError, Message
from google.protobuf.unknown_fields import UnknownFieldSet

from pulsar_lifecycle.errors import CorruptFormat

M = TypeVar("M", bound=Message)
T = TypeVar("T")
K = TypeVar("K")

_VARINT, _FIXED64, _DELIMITED, _GROUP_START, _GROUP_END, _FIXED32 = range(6)
_MAX_DEPTH = 100  # protobuf's own limit
_MAX_VARINT = 10

_WIRE_TYPES = {
    FieldDescriptor.TYPE_STRING: _DELIMITED,
    FieldDescriptor.TYPE_BYTES: _DELIMITED,
    FieldDescriptor.TYPE_MESSAGE: _DELIMITED,
}  # every other type our messages use is a varint


class MalformedError(Exception):
    """A message parsed but does not hold what it must; raised by builders, turned into CorruptFormat by decode."""


def decode(message_type: type[M], data: bytes, what: str, build: Callable[[M], T], base: int = 0) -> T:
    """``build`` applied to ``data`` parsed as ``message_type``; anything wrong raises CorruptFormat.

    ``what`` names the format in the error, ``base`` is the offset of ``data`` inside what the caller was given.
    """
    try:
        message = message_type.FromString(data)
        if message.IsInitialized():
            return build(message)
        reason = "every required field"
    except DecodeError:
        reason = f"a {message_type.DESCRIPTOR.name} message"
    except MalformedError as malformed:
        reason = str(malformed)
    descriptor = cast(Descriptor, message_type.DESCRIPTOR)
    offset, expected = _fault(descriptor, memoryview(data), 0, 0) or (0, reason)
    raise CorruptFormat(what, base + offset, expected)


def known(message: M) -> M:
    """The message itself, once no field of it came in another wire type or as an unknown enum value."""
    unknown = UnknownFieldSet(message)
    if len(unknown):
        fields = message.DESCRIPTOR.fields_by_number
        for field in unknown:
            if field.field_number in fields:
                raise MalformedError(f"field {fields[field.field_number].name} in its own type")
    return message


def text(value: str) -> str:
    """A string field's value, once it is UTF-8 (the parser hands out bytes if it is not)."""
    if type(value) is not str:
        raise MalformedError("UTF-8 text")
    return value


def at_least(minimum: int, name: str, value: int) -> int:
    """``value``, once it is no less than ``minimum``."""
    if value < minimum:
        raise MalformedError(f"{name} of at least {minimum}, found {value}")
    return value


def optional(message: Message, field: str) -> Any:
    """The field's value, or None when it is absent."""
    return getattr(message, field) if message.HasField(field) else None


def unique(pairs: Iterable[tuple[K, T]], name: str) -> dict[K, T]:
    """``pairs`` as a dict in their order; a repeated key is refused, because readers differ on which value counts."""
    found: dict[K, T] = {}
    for key, value in pairs:
        if key in found:
            raise MalformedError(f"each {name} once, found {key!r} twice")
        found[key] = value
    return found


def assign(message: Message, field: str, value: Any) -> None:
    """Makes a scalar field show ``value`` (None: absent, False may be); what already shows it is left as it is."""
    if value is None:
        message.ClearField(field)
    elif getattr(message, field) != value or not (value is False or message.HasField(field)):
        setattr(message, field, value)


def require(message: Message, field: str, value: Any) -> None:
    """As :func:`assign`, for a field that must be present whatever its value."""
    if getattr(message, field) != value or not message.HasField(field):
        setattr(message, field, value)


def reconcile(
    container: Any,
    values: Iterable[T],
    key_of_message: Callable[[Any], K],
    key_of_value: Callable[[T], K],
    fill: Callable[[Any, T], None],
) -> None:
    """Makes a repeated message field show ``values``, in their order.

    A message whose key is still wanted is kept, with its unknown fields, and filled again; others are dropped or added.
    """
    old: dict[K, list[Message]] = {}
    for message in container:
        kept = type(message)()
        kept.CopyFrom(message)
        old.setdefault(key_of_message(message), []).append(kept)
    del container[:]
    for value in values:
        message = container.add()
        same = old.get(key_of_value(value))
        if same:
            message.CopyFrom(same.pop(0))
        fill(message, value)


def fields(data: bytes) -> list[tuple[int, int]]:
    """Offset and number of each field of a well-formed message, in their order."""
    view, offset = memoryview(data), 0
    found: list[tuple[int, int]] = []
    while offset < len(view):
        tag = read_varint(view, offset)
        end = _skip(view, tag[1], tag[0] >> 3, tag[0] & 7, 0) if tag else None
        if tag is None or end is None:
            raise ValueError("a message that no parser has read")
        found.append((offset, tag[0] >> 3))
        offset = end
    return found


def read_varint(data: memoryview | bytes, offset: int) -> tuple[int, int] | None:
    """Unsigned base-128 varint at ``offset`` and the offset after it; None if it is cut short or too long."""
    value = 0
    for index in range(_MAX_VARINT):
        if offset + index >= len(data):
            return None
        byte = data[offset + index]
        value |= (byte & 0x7F) << (7 * index)
        if byte < 0x80:
            return value & 0xFFFF_FFFF_FFFF_FFFF, offset + index + 1
    return None


def write_varint(value: int) -> bytes:
    """``value`` (0 or more) as an unsigned base-128 varint."""
    out = bytearray()
    while value > 0x7F:
        out.append(value & 0x7F | 0x80)
        value >>= 7
    out.append(value)
    return bytes(out)


def _fault(descriptor: Descriptor, data: memoryview, base: int, depth: int) -> tuple[int, str] | None:
    """Offset and expectation of the first thing wrong in a message, or None if the wire form is right."""
    seen: set[int] = set()
    offset = 0
    while offset < len(data):
        start = offset
        tag = read_varint(data, offset)
        if tag is None or not 0 < tag[0] >> 3 < 1 << 29:
            return base + start, f"a field of {descriptor.name}"
        number, wire = tag[0] >> 3, tag[0] & 7
        field = descriptor.fields_by_number.get(number)
        label = f"{descriptor.name}.{field.name}" if field else f"unknown field {number} of {descriptor.name}"
        end = _skip(data, tag[1], number, wire, depth)
        if end is None:
            return base + start, f"the value of {label}, whole"
        if field is not None:
            seen.add(number)
            if wire != _WIRE_TYPES.get(field.type, _VARINT) and not (wire == _DELIMITED and _packable(field)):
                return base + start, f"{label} in its own wire type"
            if wire == _DELIMITED and field.type in (FieldDescriptor.TYPE_STRING, FieldDescriptor.TYPE_MESSAGE):
                length = read_varint(data, tag[1])
                begin = length[1] if length else tag[1]
                inside = _content_fault(field, label, data[begin:end], base + begin, depth)
                if inside is not None:
                    return inside
        offset = end
    for field in descriptor.fields:
        if field.is_required and field.number not in seen:
            return base + len(data), f"required field {descriptor.name}.{field.name}"
    return None


def _content_fault(
    field: FieldDescriptor, label: str, content: memoryview, base: int, depth: int
) -> tuple[int, str] | None:
    if field.type == FieldDescriptor.TYPE_MESSAGE and field.message_type is not None:
        if depth >= _MAX_DEPTH:
            return base, "messages nested less deep"
        return _fault(field.message_type, content, base, depth + 1)
    try:
        bytes(content).decode()
    except UnicodeDecodeError as error:
        return base + error.start, f"UTF-8 text in {label}"
    return None


def _packable(field: FieldDescriptor) -> bool:
    return field.is_repeated and field.type not in _WIRE_TYPES


def _skip(data: memoryview, offset: int, number: int, wire: int, depth: int) -> int | None:
    """Offset after the field value at ``offset``; None if it does not end inside ``data``."""
    end: int | None = None
    if wire == _VARINT:
        varint = read_varint(data, offset)
        end = varint[1] if varint else None
    elif wire == _FIXED64:
        end = offset + 8
    elif wire == _FIXED32:
        end = offset + 4
    elif wire == _DELIMITED:
        length = read_varint(data, offset)
        end = length[1] + length[0] if length else None
    elif wire == _GROUP_START and depth < _MAX_DEPTH:
        end = _skip_group(data, offset, number, depth + 1)
    return end if end is not None and end <= len(data) else None


def _skip_group(data: memoryview, offset: int, number: int, depth: int) -> int | None:
    while (tag := read_varint(data, offset)) is not None:
        if tag[0] & 7 == _GROUP_END:
            return tag[1] if tag[0] >> 3 == number else None
        end = _skip(data, tag[1], tag[0] >> 3, tag[0] & 7, depth)
        if end is None:
            return None
        offset = end
    return None
