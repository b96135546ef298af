"""Buckets of tiered storage over S3: ``ports.ObjectStore`` on boto3.

Belongs here: the client, and Amazon's error codes as our errors. Not here: what an object's key or metadata means.
Endpoint, region, credentials and the list of buckets come from the settings alone; neither a message nor the
environment's AWS configuration can point this client elsewhere.
"""

from __future__ import annotations

import base64
import hashlib
from collections.abc import Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager
from typing import Any

from boto3.session import Session
from botocore.config import Config
from botocore.exceptions import BotoCoreError, ClientError

from pulsar_lifecycle.errors import AccessDenied, LifecycleError, NotFound, Refused, StoreError, Unavailable
from pulsar_lifecycle.ports import ObjectDeletion, ObjectHead
from pulsar_lifecycle.settings import ObjectStoreSettings, Tls

DELETE_LIMIT = 1000
"""Keys of one DeleteObjects request (S3 API)."""

_TRY_AGAIN = frozenset({"SlowDown", "RequestTimeout", "Throttling", "TooManyRequests", "InternalError"})


class S3ObjectStore:
    """One client with its pool of connections; threads may share it."""

    def __init__(self, settings: ObjectStoreSettings) -> None:
        self._settings = settings
        self._known: set[str] = set()
        access, secret = settings.access_key, settings.secret_key
        tls = settings.tls or Tls()
        config = Config(
            s3={"addressing_style": settings.addressing},
            signature_version="s3v4",
            retries={"mode": "standard", "total_max_attempts": settings.attempts},
            connect_timeout=settings.connect_timeout,
            read_timeout=settings.read_timeout,
            max_pool_connections=settings.connections,
            client_cert=(tls.cert_file, tls.key_file) if tls.cert_file else None,
            ignore_configured_endpoint_urls=True,
        )
        with _our_errors(f"object store {settings.endpoint or settings.region}"):
            self._client: Any = Session().client(
                "s3",
                endpoint_url=settings.endpoint or None,
                region_name=settings.region,
                verify=tls.verify and (tls.ca_file or None),
                config=config,
                aws_access_key_id=access and access.resolve("object_store.access_key"),
                aws_secret_access_key=secret and secret.resolve("object_store.secret_key"),
            )
        self._client.meta.events.register("before-call.s3.DeleteObjects", _add_content_md5)
        self._pool = ThreadPoolExecutor(settings.connections, "object-store")

    def head(self, bucket: str, key: str) -> ObjectHead | None:
        """HeadObject; as a HEAD cannot tell a missing bucket from a missing key, the first None asks for the bucket."""
        self._check(bucket)
        try:
            with _our_errors(f"s3://{bucket}/{key}"):
                found = self._client.head_object(Bucket=bucket, Key=key)
        except NotFound:
            self._check_exists(bucket)
            return None
        return ObjectHead(
            key,
            found["ContentLength"],
            found.get("ETag", "").strip('"'),
            int(found["LastModified"].timestamp() * 1000),
            {name.lower(): value for name, value in found.get("Metadata", {}).items()},
        )

    def head_many(self, bucket: str, keys: Sequence[str]) -> list[ObjectHead | LifecycleError | None]:
        """HeadObject over every connection of the pool."""
        self._check(bucket)

        def one(key: str) -> ObjectHead | LifecycleError | None:
            try:
                return self.head(bucket, key)
            except LifecycleError as error:
                return error

        return list(self._pool.map(one, keys))

    def delete_many(self, bucket: str, keys: Sequence[str]) -> list[ObjectDeletion]:
        """DeleteObjects of up to a thousand keys each; its retries are harmless."""
        self._check(bucket)
        results: list[ObjectDeletion] = []
        for start in range(0, len(keys), DELETE_LIMIT):
            batch = keys[start : start + DELETE_LIMIT]
            try:
                with _our_errors(f"s3://{bucket}"):
                    answer = self._client.delete_objects(
                        Bucket=bucket, Delete={"Objects": [{"Key": key} for key in batch]}
                    )
            except LifecycleError as error:
                results += [ObjectDeletion(key, str(error)) for key in batch]
                continue
            done = {one["Key"]: bool(one.get("DeleteMarker")) for one in answer.get("Deleted", [])}
            errors = {one["Key"]: f"{one.get('Code')}: {one.get('Message')}" for one in answer.get("Errors", [])}
            for key in batch:
                error = errors.get(key) or ("" if key in done else "the answer does not name it")
                results.append(ObjectDeletion(key, error, done.get(key, False)))
        return results

    def close(self) -> None:
        """Close all connections."""
        self._pool.shutdown()
        self._client.close()

    def _check(self, bucket: str) -> None:
        if bucket not in self._settings.buckets:
            raise Refused(f"bucket {bucket} is not one of object_store.buckets")

    def _check_exists(self, bucket: str) -> None:
        if bucket in self._known:
            return
        try:
            with _our_errors(f"bucket {bucket}"):
                self._client.head_bucket(Bucket=bucket)
        except NotFound:
            raise NotFound(f"there is no bucket {bucket}: see object_store.endpoint and object_store.buckets") from None
        self._known.add(bucket)


def _add_content_md5(params: dict[str, Any], **_: Any) -> None:
    """Many S3 services still demand Content-MD5 here and know none of the checksums that boto3 sends instead."""
    digest = hashlib.md5(params["body"], usedforsecurity=False).digest()
    params["headers"]["Content-MD5"] = base64.b64encode(digest).decode()


@contextmanager
def _our_errors(what: str) -> Iterator[None]:
    try:
        yield
    except ClientError as error:
        code = str(error.response.get("Error", {}).get("Code", ""))
        status = int(error.response.get("ResponseMetadata", {}).get("HTTPStatusCode", 0))
        raise _of_answer(code, status)(f"{what}: {error}") from error
    except BotoCoreError as error:  # no connection, no answer in time, no credentials
        raise Unavailable(f"{what}: {error}") from error


def _of_answer(code: str, status: int) -> type[LifecycleError]:
    if status >= 500 or status == 429 or code in _TRY_AGAIN:
        return Unavailable
    if status == 404:
        return NotFound
    return AccessDenied if status in (401, 403) else StoreError
