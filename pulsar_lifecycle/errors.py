"""Every error the library raises, as one tree.

    LifecycleError
    ├── ConfigError              a setting is missing or wrong; names the key           (exit code 2)
    ├── UsageError               a command was called wrongly                           (exit code 2)
    ├── Refused                  a safety rule said no; only what is below it is raised (exit code 1)
    │   ├── RefusedBy            one rule said no, by its code; the message says what to do
    │   ├── Paused               the pause z-node exists
    │   └── LeaseLost            another run took the lease
    ├── CorruptFormat            bytes are not what they claim to be; offset and expectation
    │   └── UnsupportedFormat    well-formed, but a form we do not read; refused by name
    ├── StoreError               a server answered with an error
    │   ├── NotFound             the z-node, ledger, entry, object or topic does not exist
    │   ├── Conflict             a compare-and-set found another version, or the node exists
    │   └── AccessDenied         authentication or authorization failed
    └── Unavailable              no answer, or a try-again answer; a read may be repeated
        ├── Failed               a server was asked to read something, and failed or never finished
        ├── BundleShared         a request about a topic was not made: it would have had others loaded
        ├── OutcomeUnknown       connection lost while a write was under way: read again, never compensate
        └── Overloaded           the latency guard stopped us

Retrying is decided by class: a read that raised Unavailable may be repeated, nothing else.
"""

from __future__ import annotations

from enum import StrEnum


class LifecycleError(Exception):
    """Base class of every error raised on purpose by this library. It always has a text, at least its class's name."""

    def __str__(self) -> str:
        """The message; a value that keeps it is never empty, so an empty one says that there was no error."""
        return super().__str__() or type(self).__name__


class ConfigError(LifecycleError):
    """A setting is missing or wrong; the message names the key and what to do."""


class UsageError(LifecycleError):
    """A command was called with arguments that do not fit."""


class Refused(LifecycleError):
    """A safety rule said no. Only a base class: what is raised says which rule, by its code or its class."""


class RefusedBy(Refused):
    """One rule said no, by its ``code``; the message names what it is about, and what to do about it."""

    def __init__(self, code: StrEnum, message: str) -> None:
        super().__init__(message)
        self.code = code

    def __reduce__(self) -> tuple[type[RefusedBy], tuple[StrEnum, str]]:
        """What is below this class comes out of a pickle as this class, with its code."""
        return RefusedBy, (self.code, str(self))


class Paused(Refused):
    """The pause z-node exists; effects stop until it is removed."""


class LeaseLost(Refused):
    """Another run holds the lease; this one must not act any more."""


class CorruptFormat(LifecycleError):
    """Bytes are not what they claim to be.

    ``what`` names the format, ``offset`` the byte where reading failed, ``expected`` what should stand there.
    """

    def __init__(self, what: str, offset: int, expected: str) -> None:
        super().__init__(f"{what}: at byte {offset}: expected {expected}")
        self.what = what
        self.offset = offset
        self.expected = expected

    def __reduce__(self) -> tuple[type[CorruptFormat], tuple[str, int, str]]:
        return (type(self), (self.what, self.offset, self.expected))


class UnsupportedFormat(CorruptFormat):
    """The bytes are a known form that this library does not read; refused by name."""


class StoreError(LifecycleError):
    """A server answered with an error; the message names the server, the request and the answer."""


class NotFound(StoreError):
    """The z-node, ledger, entry, object or topic does not exist."""


class Conflict(StoreError):
    """A compare-and-set found another version, or a create found the node there."""


class AccessDenied(StoreError):
    """Authentication or authorization failed."""


class Unavailable(LifecycleError):
    """No answer, or an answer that asks to try again; reads may be repeated."""


class Failed(Unavailable):
    """A server was asked to read something, and failed or never finished; trying again may help."""


class BundleShared(Unavailable):
    """A request about a topic was not made: it would have had topics loaded that nobody asked for."""


class OutcomeUnknown(Unavailable):
    """The connection was lost while a write was under way: read again before deciding anything."""


class Overloaded(Unavailable):
    """ZooKeeper's latency is above the limit; the step stopped itself."""
