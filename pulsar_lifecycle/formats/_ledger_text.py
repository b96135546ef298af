"""The text versions of ledger metadata, 1 and 2, as the message that version 3 holds.

Belongs here: nothing but these two; :mod:`ledger_metadata` has the header, version 3 and the value. Clients read
them still and write version 3, so only old ledgers have them. Upstream: ``LedgerMetadataSerDe.parseVersion1Config`` and
``parseVersion2Config``, bookkeeper-server 4.17.2.
"""

from __future__ import annotations

import re

from google.protobuf import text_format

from pulsar_lifecycle._pb import bookkeeper_metadata_pb2 as pb
from pulsar_lifecycle.errors import CorruptFormat

WHAT = "ledger metadata"
_CLOSED = "CLOSED"  # V1_CLOSED_TAG
_IN_RECOVERY = -102  # V1_IN_RECOVERY_ENTRY_ID
_NUMBER = re.compile(r"-?[0-9]{1,19}")
_HEADER = ("quorumSize", "ensembleSize", "length")  # version 1: a line each


def parse_version_1(data: bytes, start: int) -> pb.LedgerMetadataFormat:
    """Version 1 from byte ``start`` on; raises CorruptFormat.

    Lines: quorum size, ensemble size, length, then the first entry and the bookies of each segment; then, unless the
    ledger is open, its last entry and ``CLOSED``. Fields are separated by tabs.
    """
    message = pb.LedgerMetadataFormat(state="OPEN", lastEntryId=-1)
    offset = start
    for number, line in enumerate(data[start:].removesuffix(b"\n").split(b"\n")):
        try:
            _read_line(message, number, line.decode().split("\t"))
        except ValueError as error:  # a UnicodeDecodeError too
            raise CorruptFormat(WHAT, offset, str(error)) from None
        offset += len(line) + 1
    if not message.HasField("length"):
        raise CorruptFormat(WHAT, len(data), "quorum size, ensemble size and length on a line each")
    return message


def _read_line(message: pb.LedgerMetadataFormat, number: int, fields: list[str]) -> None:
    """Takes one line into the message; ValueError says what should stand there."""
    if message.state != pb.LedgerMetadataFormat.OPEN:
        raise ValueError("the end after CLOSED")
    if not _NUMBER.fullmatch(fields[0]):
        raise ValueError("a number first on the line")
    first, rest = int(fields[0]), fields[1:]
    if number < len(_HEADER):
        if rest:
            raise ValueError(f"{_HEADER[number]} alone on its line")
        setattr(message, _HEADER[number], first)
    elif rest == [_CLOSED] and first == _IN_RECOVERY:
        message.state = pb.LedgerMetadataFormat.IN_RECOVERY
    elif rest == [_CLOSED]:
        message.state = pb.LedgerMetadataFormat.CLOSED
        message.lastEntryId = first
    else:
        message.segment.add(firstEntryId=first, ensembleMember=rest)


def parse_version_2(data: bytes, start: int) -> pb.LedgerMetadataFormat:
    """Version 2 from byte ``start`` on, LedgerMetadataFormat as protobuf text; raises CorruptFormat."""
    message = pb.LedgerMetadataFormat()
    try:
        text_format.Parse(data[start:].decode(), message)
    except UnicodeDecodeError as error:
        raise CorruptFormat(WHAT, start + error.start, "UTF-8 text") from None
    except (text_format.ParseError, ValueError) as error:
        raise CorruptFormat(WHAT, start, f"LedgerMetadataFormat as protobuf text: {error}") from None
    if not message.IsInitialized():
        raise CorruptFormat(WHAT, len(data), "every required field of LedgerMetadataFormat")
    return message
