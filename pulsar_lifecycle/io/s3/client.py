"""The S3 client of ``io.s3.objects``: boto3 as the settings want it, its errors as ours, bodies without a copy.

Belongs here: what one request needs. Not here: which requests make an operation. Endpoint, region and credentials come
from the settings alone; neither a message nor the environment's AWS configuration can point this client elsewhere.
"""

from __future__ import annotations

import base64
import hashlib
import re
from collections.abc import Iterator
from contextlib import contextmanager
from functools import cache
from threading import Lock
from typing import Any

from boto3.session import Session
from botocore.config import Config
from botocore.exceptions import BotoCoreError, ClientError, ParamValidationError
from urllib3.exceptions import HTTPError

from pulsar_lifecycle.errors import (
    AccessDenied,
    Conflict,
    LifecycleError,
    NotFound,
    OutcomeUnknown,
    StoreError,
    Unavailable,
)
from pulsar_lifecycle.ports import Payload
from pulsar_lifecycle.setting_types import Tls
from pulsar_lifecycle.settings import ObjectStoreSettings

BROKEN_OFF = (BotoCoreError, HTTPError, OSError)
"""What reading an answer's body raises when the connection breaks; urllib3's TLS errors come as they are."""

_OPENING = Lock()
_TRY_AGAIN = frozenset({"SlowDown", "RequestTimeout", "Throttling", "TooManyRequests", "InternalError"})


def open_client(settings: ObjectStoreSettings) -> Any:
    """One client with its pool of connections; threads may share it."""
    access, secret = settings.access_key, settings.secret_key
    tls = settings.tls or Tls()
    s3: Any = {"addressing_style": settings.addressing}
    if not settings.sign_payload:
        s3["payload_signing_enabled"] = False
    config = Config(
        s3=s3,
        signature_version="s3v4",
        retries={"mode": "standard", "total_max_attempts": settings.tries},
        connect_timeout=settings.connect_timeout,
        read_timeout=settings.read_timeout,
        max_pool_connections=settings.connections,
        client_cert=(tls.cert_file, tls.key) if tls.cert_file else None,
        ignore_configured_endpoint_urls=True,  # pyrefly: ignore[unexpected-keyword]  # the stub lacks it
        request_checksum_calculation="when_required",  # many services know no trailing checksums; Content-MD5 they do
        response_checksum_validation="when_required",
    )
    with our_errors(f"object store {settings.endpoint or settings.region}"), _OPENING:
        session = _session() if access and secret else Session()  # one without keys remembers those it found
        client: Any = session.client(
            "s3",
            endpoint_url=settings.endpoint or None,
            region_name=settings.region,
            verify=tls.verify and (tls.ca_file or None),
            config=config,
            aws_access_key_id=access.resolve("object_store.access_key") if access else None,
            aws_secret_access_key=secret.resolve("object_store.secret_key") if secret else None,
        )
    client.meta.events.register("before-call.s3.DeleteObjects", _add_content_md5)
    return client


@cache
def _session() -> Session:
    """One for the process, as each reads the description of S3 anew. One thread at a time may make a client of it."""
    return Session()


def no_bucket(bucket: str) -> NotFound:
    """The error for a bucket that is not there."""
    return NotFound(f"there is no bucket {bucket}: see object_store.endpoint and object_store.buckets")


@contextmanager
def our_errors(what: str, bucket: str = "", *, writing: bool = False) -> Iterator[None]:
    """Amazon's errors as ours; ``writing``: where no answer tells, the outcome is unknown."""
    no_answer = OutcomeUnknown if writing else Unavailable
    try:
        yield
    except ClientError as error:
        code = str(error.response.get("Error", {}).get("Code", ""))
        about = error.response.get("ResponseMetadata", {})
        if code == "NoSuchBucket":
            raise no_bucket(bucket) from error
        ours = _of_answer(code, int(about.get("HTTPStatusCode", 0)))
        if ours is Unavailable or (code == "NoSuchUpload" and about.get("RetryAttempts")):
            ours = no_answer  # an earlier try may have completed the upload that the last one missed
        raise ours(f"{what}: {error}") from error
    except ParamValidationError as error:  # nothing was sent
        raise StoreError(f"{what}: {error}") from error
    except BotoCoreError as error:  # no connection, no answer in time, no credentials
        raise no_answer(f"{what}: {error}") from error


def _of_answer(code: str, status: int) -> type[LifecycleError]:
    if status >= 500 or status == 429 or code in _TRY_AGAIN:
        return Unavailable
    if status == 404:
        return NotFound
    if status == 412:
        return Conflict
    return AccessDenied if status in (401, 403) else StoreError


def _add_content_md5(params: dict[str, Any], **_: Any) -> None:
    """Many S3 services still demand Content-MD5 here and know none of the checksums that boto3 sends instead."""
    digest = hashlib.md5(params["body"], usedforsecurity=False).digest()
    params["headers"]["Content-MD5"] = base64.b64encode(digest).decode()


class Body:
    """What a PUT sends: slices of the caller's bytes, rewound by a retry, with their MD5.

    A file to botocore, so that it asks (``Expect: 100-continue``) before it sends megabytes to a service that refuses.
    """

    def __init__(self, data: Payload) -> None:
        self._view = memoryview(data).cast("B")
        self._at = 0
        self.size = len(self._view)
        digest = hashlib.md5(self._view, usedforsecurity=False)
        self._hex = digest.hexdigest()
        self.content_md5 = base64.b64encode(digest.digest()).decode()

    def read(self, size: int = -1) -> memoryview:
        """The next ``size`` bytes, none at the end."""
        end = self.size if size < 0 else self._at + size
        piece = self._view[self._at : end]
        self._at += len(piece)
        return piece

    def seek(self, offset: int, whence: int = 0) -> int:
        """As of a file."""
        self._at = offset + (0, self._at, self.size)[whence]
        return self._at

    def tell(self) -> int:
        """As of a file."""
        return self._at

    def stored_as(self, answer: dict[str, Any], what: str) -> str:
        """The ETag of an answer; raises StoreError where it is an MD5 and another one than what was sent."""
        etag = str(answer.get("ETag", "")).strip('"')
        encrypted = (
            str(answer.get("ServerSideEncryption", "")).startswith("aws:kms") or "SSECustomerAlgorithm" in answer
        )
        if re.fullmatch(r"[0-9a-f]{32}", etag) and etag != self._hex and not encrypted:
            raise StoreError(f"{what}: stored with ETag {etag}, sent were {self.size} bytes of MD5 {self._hex}")
        return etag
