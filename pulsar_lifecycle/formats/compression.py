"""Compression of Pulsar's metadata and messages, and the wrapper around compressed z-nodes.

Belongs here: the five codecs and the 0x4778 wrapper of managed-ledger and cursor z-nodes. Not here: what is inside.
Upstream: ``MetaStoreImpl`` (MAGIC_MANAGED_INFO_METADATA) of managed-ledger 4.0.7 and
``org.apache.pulsar.common.compression`` of pulsar-common 4.0.7.

Wrapper: magic int16 · int32 size of the metadata message · metadata message {codec, uncompressed size} · compressed
bytes, integers big-endian. A plain message cannot begin with the magic: 0x47 would be field 8 with wire type 7.
"""

from __future__ import annotations

import struct
import zlib
from dataclasses import dataclass
from enum import IntEnum
from typing import Any, cast

import cramjam
import lz4.block
import zstandard
from google.protobuf.unknown_fields import UnknownFieldSet

from pulsar_lifecycle._pb import pulsar_mldata_pb2 as pb
from pulsar_lifecycle.errors import CorruptFormat, UnsupportedFormat
from pulsar_lifecycle.formats import _wire

MAGIC = b"\x47\x78"  # MAGIC_MANAGED_INFO_METADATA
MAX_UNCOMPRESSED = 64 << 20  # bytes; far above any z-node or message, far below what would hurt us
_HEADER = struct.Struct(">2si")

# Vendor modules without type information.
_lz4 = cast(Any, lz4.block)
_snappy = cast(Any, cramjam).snappy


class Compression(IntEnum):
    """MLDataFormats.CompressionType and PulsarApi.CompressionType, which agree."""

    NONE = 0
    LZ4 = 1
    ZLIB = 2
    ZSTD = 3
    SNAPPY = 4


@dataclass(frozen=True, slots=True)
class Unwrapped:
    """A z-node's plain message, and how it was compressed."""

    data: bytes
    compression: Compression


def unwrap(data: bytes, what: str) -> Unwrapped:
    """The plain message of a z-node's bytes, whether it is wrapped or not.

    Raises CorruptFormat for a wrapper that is not what it claims, UnsupportedFormat for an unknown codec or field.
    """
    if not data.startswith(MAGIC):
        return Unwrapped(data, Compression.NONE)
    if len(data) < _HEADER.size:
        raise CorruptFormat(what, len(data), f"a compression header of {_HEADER.size} bytes")
    size = _HEADER.unpack_from(data)[1]
    if not 0 <= size <= len(data) - _HEADER.size:
        raise CorruptFormat(what, 2, f"a metadata size between 0 and {len(data) - _HEADER.size}, found {size}")
    body = _HEADER.size + size
    codec, length = _wire.decode(
        pb.CompressionMetadata, data[_HEADER.size : body], what, _compression_metadata, _HEADER.size
    )
    return Unwrapped(decompress(codec, data[body:], length, what, body), codec)


def wrap(data: bytes, compression: Compression) -> bytes:
    """``data`` as a z-node's bytes; NONE writes it plain, as the broker does."""
    if compression is Compression.NONE:
        return data
    metadata = pb.CompressionMetadata(compressionType=compression.name, uncompressedSize=len(data)).SerializeToString()
    return _HEADER.pack(MAGIC, len(metadata)) + metadata + compress(compression, data)


def compress(codec: Compression, data: bytes) -> bytes:
    """``data`` in the codec's raw form: an LZ4 block, a zlib stream, one zstd frame, raw snappy.

    The zlib stream ends in a sync flush without the final block and checksum, as Java's CompressionCodecZLib leaves it.
    """
    if codec is Compression.LZ4:
        return bytes(_lz4.compress(data, store_size=False))
    if codec is Compression.ZLIB:
        stream = zlib.compressobj()
        return stream.compress(data) + stream.flush(zlib.Z_SYNC_FLUSH)
    if codec is Compression.ZSTD:
        return zstandard.ZstdCompressor().compress(data)
    if codec is Compression.SNAPPY:
        return bytes(_snappy.compress_raw(data))
    return data


def decompress(
    codec: Compression, data: bytes, size: int, what: str, base: int = 0, limit: int = MAX_UNCOMPRESSED
) -> bytes:
    """The inverse of :func:`compress`; the result is ``size`` bytes long or CorruptFormat is raised.

    ``size`` bounds what is allocated; above ``limit`` it is refused as UnsupportedFormat before any work.
    """
    if size < 0:
        raise CorruptFormat(what, base, f"an uncompressed size of 0 or more, found {size}")
    if size > limit:
        raise UnsupportedFormat(what, base, f"at most {limit} uncompressed bytes, found {size} declared")
    try:
        plain = _DECOMPRESS[codec](data, size)
    except (_lz4.LZ4BlockError, zlib.error, zstandard.ZstdError, cramjam.DecompressionError, ValueError):
        plain = None
    if plain is None or len(plain) != size:
        raise CorruptFormat(what, base, f"{size} bytes compressed with {codec.name}")
    return plain


def _compression_metadata(message: pb.CompressionMetadata) -> tuple[Compression, int]:
    if len(UnknownFieldSet(_wire.known(message))):
        raise _wire.MalformedError("a compression header without unknown fields")
    return Compression(message.compressionType), message.uncompressedSize


def _none(data: bytes, size: int) -> bytes | None:
    return data


def _lz4_block(data: bytes, size: int) -> bytes | None:
    if size == 0:
        return b"" if data in (b"", b"\x00") else None  # the binding takes 0 for "size unknown"
    return bytes(_lz4.decompress(data, uncompressed_size=size))


def _zlib(data: bytes, size: int) -> bytes | None:
    stream = zlib.decompressobj()
    plain = stream.decompress(data, size + 1)  # one more, to notice a longer one without inflating it
    return plain if not stream.unused_data else None  # no demand for the stream's end: Java writes none


def _zstd(data: bytes, size: int) -> bytes | None:
    declared = zstandard.frame_content_size(data)  # -1 if the frame does not say
    if declared not in (-1, size):
        return None
    return zstandard.ZstdDecompressor().decompress(data, max_output_size=max(size, 1), allow_extra_data=False)


def _raw_snappy(data: bytes, size: int) -> bytes | None:
    if _snappy.decompress_raw_len(data) != size:
        return None
    return bytes(_snappy.decompress_raw(data))


_DECOMPRESS = {
    Compression.NONE: _none,
    Compression.LZ4: _lz4_block,
    Compression.ZLIB: _zlib,
    Compression.ZSTD: _zstd,
    Compression.SNAPPY: _raw_snappy,
}
