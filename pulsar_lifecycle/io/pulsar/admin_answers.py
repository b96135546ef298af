"""What an answer of Pulsar's admin API means: status codes, reasons, and the URLs that it, topics and settings name.

Belongs here: the class of error that an answer stands for. Not here: requests (``io/pulsar/admin.py``).
"""

from __future__ import annotations

import re
import time
from typing import Any
from urllib.parse import quote

import httpx

from pulsar_lifecycle.errors import (
    AccessDenied,
    ConfigError,
    Conflict,
    Failed,
    LifecycleError,
    NotFound,
    OutcomeUnknown,
    StoreError,
    Unavailable,
)
from pulsar_lifecycle.io.pulsar.token_expiry import expired_at
from pulsar_lifecycle.model import Topic
from pulsar_lifecycle.setting_types import SecretRef

TOKEN = "pulsar.token"  # noqa: S105 -- what messages call the setting
INTERNAL_ERROR = 500
_TOO_MANY_REQUESTS = 429
_FAILED_AT_IT = (INTERNAL_ERROR, 502, 504)
"""Answers of a broker that failed, and of a proxy whose broker did."""


def checked(method: str, response: httpx.Response, token: SecretRef | None = None) -> httpx.Response:
    """The answer itself, of a success. Raises the class that its status code stands for.

    To an expired ``token`` a broker answers no more than that one must authenticate oneself.
    """
    status = response.status_code
    if response.is_success:
        return response
    message = f"{method} {response.url}: {status}: {_reason(response)}"
    if status in (401, 403):
        at = expired_at(token.resolve(TOKEN), time.time()) if token else None
        raise AccessDenied(f"{TOKEN} expired at {at}: {message}" if at else message)
    if status == 404:
        raise NotFound(message)
    if status == 409:
        raise Conflict(message)
    if status == _TOO_MANY_REQUESTS:
        raise Unavailable(message)
    if status in _FAILED_AT_IT and method == "GET":
        raise Failed(message)
    if status >= 500:
        raise no_answer(method, message)
    raise StoreError(message)


def json_of(response: httpx.Response) -> Any:
    """The JSON of an answer; None for an empty body, which is how the API says "unset"."""
    if not response.content:
        return None
    try:
        return response.json()
    except (ValueError, RecursionError) as error:
        raise unexpected(response.url, "JSON") from error


def no_answer(method: str, message: str) -> LifecycleError:
    """What it means that a server did not answer: a write may have been done."""
    return Unavailable(message) if method == "GET" else OutcomeUnknown(message)


def _reason(response: httpx.Response) -> str:
    """The reason of a broker, or of its HTTP server; of an HTML page, as of unexpected errors, the first words."""
    try:
        answer = response.json()
        reason = answer["reason"] if "reason" in answer else answer["message"]
    except (ValueError, KeyError, TypeError, RecursionError):
        reason = re.sub(r"<[^>]*>", " ", response.text)
    return " ".join(str(reason).split())[:200]


def unexpected(where: str | httpx.URL, expected: str) -> StoreError:
    """For an answer that has not the shape ``expected``."""
    return StoreError(f"GET {where}: the answer is not what Pulsar 4.0 sends: expected {expected}")


def named_url(text: str, source: str) -> httpx.URL:
    """A URL that a server named."""
    try:
        return httpx.URL(text)
    except httpx.InvalidURL as error:
        raise StoreError(f"GET {source}: the answer names no URL: {text[:200]!r}: {error}") from error


def base_urls(text: str) -> tuple[httpx.URL, ...]:
    """Of each host that ``pulsar.admin_url`` names."""
    scheme, _, hosts = text.partition("://")
    return tuple(_base_url(f"{scheme}://{host}", text) for host in map(str.strip, hosts.split(",")))


def _base_url(text: str, whole: str) -> httpx.URL:
    try:
        url = httpx.URL(text)
    except httpx.InvalidURL as error:
        raise ConfigError(f"pulsar.admin_url: {error}: {whole}") from error
    if url.scheme not in ("http", "https") or not url.host or url.raw_path != b"/":
        raise ConfigError(f"pulsar.admin_url: expected http://host:port, or http://host:port,host:port, found {whole}")
    return url


def joined_url(base: httpx.URL, where: str | httpx.URL) -> httpx.URL:
    """An address, or a path at ``base``."""
    try:
        return base.join(where)
    except httpx.InvalidURL as error:  # a name of many thousand characters
        raise StoreError(f"{str(where)[:200]!r} is no address: {error}") from error


def broker_ids(response: httpx.Response, source: str | httpx.URL) -> list[str]:
    """The ids that an answer lists; never none."""
    answer = json_of(response)
    if not isinstance(answer, list) or not answer or not all(isinstance(name, str) and name for name in answer):
        raise unexpected(source, "a list of broker ids")
    return answer


def topic_path(topic: Topic, *rest: str) -> str:
    """The path of a topic's resource; every name is percent-encoded once, since a bare ``+`` reads as a space."""
    namespace = topic.namespace
    version = "/admin" if namespace.cluster else "/admin/v2"
    names = [topic.domain, *str(namespace).split("/"), topic.local]
    return "/".join([version, *(quote(name, safe="") for name in names), *rest])
