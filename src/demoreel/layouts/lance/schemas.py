"""The three Lance schemas: the tables of a dataset, and their columns.

::

    lance-frames   NAME.lance          one row per frame: numbers, text, and each camera's image,
                                       encoded
    lance-video    NAME.lance          one row per frame: numbers, text
                   NAME_videos.lance   one row per mp4: video_key, chunk_index, file_index,
                                       video_bytes
    lance-native   frames.lance        one row per frame, in the types that info.json declares
                   videos.lance        one row per mp4, and where its moov box and keyframes are
                   meta.lance          a copy of meta/, for datasets that are elsewhere

Beside the tables is ``meta/`` as in v3.0; of lance-native, which lerobot reads itself, with
``"storage_format": "lance"`` in ``info.json``. lance-frames may call a camera a video if it was one
before. In the layouts with videos, cameras that are none keep their encoded images in the rows.

The tool that invented lance-frames and lance-video (lerobot-lancedb before 0.3) makes float32 of
all numbers but the default columns, and flattens them; they are read in the dtype and shape that
``info.json`` declares. Written here, types and shapes are the declared ones, except for the default
columns, which have the types that the layout's other tools give them. lance-native has its columns
in the order of ``info.json``, and flat lists of arrays of several dimensions.

Columns before blobs: Lance numbers a table's columns, and blobs that are described to it take fewer
numbers than it will count for them, so that what stands behind them would be lost.

A packet index is kept beside the video that it describes (``demoreel_packets``): an Arrow IPC
stream, so that other programs can read it too, with one row per packet, in decoding order, and the
codec in the schema's metadata.

============  ========  ===========================================================================
``offset``    int64     where the packet's bytes are in the video
``size``      int32     how many they are
``frame``     int32     the frame that it becomes, in presentation order; -1 if it is never shown
``back``      int32     packets to go back to where decoding must begin; 0 for a keyframe, and one
                        more than there are where that is before the first packet
``seconds``   float64   when the frame is shown, on the video's own clock; 0 if it never is
============  ========  ===========================================================================

The metadata hold ``demoreel.packets`` (the version of this description), ``decoder`` (FFmpeg's name
of a software decoder), ``width``, ``height``, ``color_range``, ``colorspace`` (as FFmpeg numbers
them), ``video_bytes`` (the video's size) and, where the codec has a header, ``extradata``.
"""

from __future__ import annotations

import math
import re
import struct
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa

from demoreel.errors import ArgumentError, MetadataError, VideoError
from demoreel.layouts.columns import arrow_type, read_numbers, to_arrow
from demoreel.media.images import ImageCodec
from demoreel.media.video import Codec, PacketIndex, Video
from demoreel.model import Feature, Info
from demoreel.storage.arrow import as_numpy
from demoreel.storage.store import Bytes

CODEC_NOTE = b"demoreel.pictures"
"""Where a table's schema notes how its images were encoded."""

FEATURE_NOTE = b"demoreel.feature"
"""Where a column notes the key of its feature, which may have dots."""

VIDEO_NAMES = ("video_key", "chunk_index", "file_index")
"""The columns that name a video."""

BYTES_COLUMN = "video_bytes"
"""The blob column of a table of videos; always the last."""

COPY = "meta.lance"
"""The table of lance-native with the files of ``meta/``."""

COPY_SCHEMA = pa.schema([("path", pa.string()), ("data", pa.large_binary())])
ROW_INDICES = {"episode_index": "BTREE", "task_index": "BITMAP"}
VIDEO_INDICES = {"video_key": "BITMAP"}
"""The scalar indices of a table of rows, and of one of videos."""

IMAGE = pa.struct([("bytes", pa.binary()), ("path", pa.string())])
"""An image as lance-native has it."""

_DEFAULTS: Mapping[str, pa.DataType] = {
    "episode_index": pa.int32(),
    "frame_index": pa.int32(),
    "index": pa.int64(),
    "timestamp": pa.float32(),
    "task_index": pa.int32(),
}
# Lance would run every large value through zstd, which encoded images do not get smaller from.
_AS_IT_IS = {b"lance-encoding:compression": b"none"}
_IS_BLOB = {"ARROW:extension:name": "lance.blob.v2", "ARROW:extension:metadata": ""}
_MOST_BOXES = 10_000


@dataclass(frozen=True, slots=True)
class FiledVideo:
    """A video and the numbers that ``meta/episodes`` finds it by.

    Attributes:
        camera: Its camera.
        chunk: Its ``chunk_index``.
        file: Its ``file_index``.
        video: The video itself.
    """

    camera: str
    chunk: int
    file: int
    video: Video


@dataclass(frozen=True, slots=True)
class LanceSchema:
    """The tables of one dataset.

    Attributes:
        layout: Its layout.
        frames: Name of the table of rows.
        videos: Name of the table of videos; None if it has none.
    """

    layout: str
    frames: str
    videos: str | None

    @property
    def is_native(self) -> bool:
        """Whether lerobot reads it itself; there is a copy of ``meta/`` then."""
        return self.layout == "lance-native"

    def rows(self, info: Info, codec: ImageCodec | None = None) -> pa.Schema:
        """Return the columns of the table of rows.

        Args:
            info: What the dataset is.
            codec: How the images of lance-frames are encoded; None as they are.
        """
        names, features = column_names(info), info.features.values()
        if self.is_native:
            stored = [(f.key, _native_type(f)) for f in features if not f.is_video]
            return pa.schema(
                [pa.field(names[key], kind, metadata={FEATURE_NOTE: key}) for key, kind in stored]
            )
        tabular = {f.key: f for f in features if not f.is_camera and f.key not in _DEFAULTS}
        kinds = {**_DEFAULTS, **{key: column_type(f) for key, f in tabular.items()}}
        fields = [
            pa.field(names.get(key, key), kind, metadata={FEATURE_NOTE: key})
            for key, kind in kinds.items()
        ]
        in_rows = info.cameras if self.videos is None else info.image_keys
        fields += [
            pa.field(names[key], pa.binary(), metadata={FEATURE_NOTE: key.encode(), **_AS_IT_IS})
            for key in in_rows
        ]
        note = {CODEC_NOTE: str(codec or ImageCodec("source"))} if self.videos is None else None
        return pa.schema(fields, metadata=note)

    @property
    def video_columns(self) -> pa.Schema:
        """The columns of the table of videos, without the bytes."""
        number = pa.int64() if self.is_native else pa.int32()
        fields = [
            ("video_key", pa.string()),
            ("chunk_index", number),
            ("file_index", number),
        ]
        if self.is_native:
            fields += [(name, pa.int64()) for name in ("file_size", "moov_offset", "moov_size")]
            fields += [(name, pa.list_(pa.int64())) for name in ("kf_indices", "kf_positions")]
        return pa.schema([*fields, (PACKETS_COLUMN, pa.binary())])

    @property
    def videos_table(self) -> pa.Schema:
        """The columns of the table of videos, as a commit takes them."""
        return with_blobs(self.video_columns, BYTES_COLUMN, ranges=self.is_native)

    def video_rows(self, videos: Sequence[FiledVideo]) -> pa.Table:
        """Return the rows of some videos, all columns but their bytes."""
        rows = []
        for entry in videos:
            index, size = entry.video.index, entry.video.file.size
            row: dict[str, Any] = {
                "video_key": entry.camera,
                "chunk_index": entry.chunk,
                "file_index": entry.file,
                PACKETS_COLUMN: encode_packets(index, video_bytes=size),
            }
            if self.is_native:
                row["file_size"] = size
                row["moov_offset"], row["moov_size"] = find_moov(entry.video.file)
                row["kf_indices"], row["kf_positions"] = _keyframes(index)
            rows.append(row)
        return pa.Table.from_pylist(rows, schema=self.video_columns)


def with_blobs(schema: pa.Schema, column: str, *, ranges: bool) -> pa.Schema:
    """Return a schema with a blob column at its end, as a commit takes it.

    Args:
        schema: The other columns.
        column: The blob column.
        ranges: Whether to declare that blobs may be parts of other files. Lance before 14 did not,
            and tables are declared as the tools did that invented them.
    """
    fields = [("data", pa.large_binary()), ("uri", pa.string())]
    if ranges:
        fields += [("position", pa.uint64()), ("size", pa.uint64())]
    return schema.append(pa.field(column, pa.struct(fields), metadata=_IS_BLOB))


def schema_of(layout: str, table: str, info: Info) -> LanceSchema:
    """Return the tables of a dataset in a Lance layout.

    Args:
        layout: Its layout.
        table: Name of the table of rows, without its ending; lance-native has no choice.
        info: What it is.
    """
    if layout == "lance-native":
        return LanceSchema(layout, "frames.lance", "videos.lance" if info.video_keys else None)
    videos = f"{table}_videos.lance" if layout == "lance-video" else None
    return LanceSchema(layout, f"{table}.lance", videos)


def named_after(folder: str) -> str:
    """Return the name of the table of rows, without its ending, of a dataset in such a folder."""
    cleaned = re.sub(r"[^\w.-]", "_", folder).lstrip(".-_").removesuffix("_videos")
    return cleaned or "frames"


def column_names(info: Info) -> dict[str, str]:
    """Return the Lance column of each feature: Lance allows no dots."""
    names = {key: key.replace(".", "_") for key in info.features}
    first: dict[str, str] = {}
    for key, name in names.items():
        if name in first:
            raise MetadataError(
                f"The features {first[name]!r} and {key!r} share the Lance column {name!r}.",
                hint="one of them must have another name",
            )
        first[name] = key
    return names


def column_type(feature: Feature) -> pa.DataType:
    """Return the Lance type of a column that is no camera.

    Numbers are one flat list, also a single one: lerobot-lancedb 0.2 reads nothing else.
    """
    kind = arrow_type(feature)
    if feature.is_language:
        return _without_extensions(kind)
    if feature.is_string:
        return kind
    return pa.list_(pa.from_numpy_dtype(feature.numpy_dtype), math.prod(feature.item_shape))


def _native_type(feature: Feature) -> pa.DataType:
    if feature.is_image:
        return IMAGE
    if feature.is_numeric and not feature.item_shape:
        return pa.from_numpy_dtype(feature.numpy_dtype)
    return column_type(feature)


def _without_extensions(kind: pa.DataType) -> pa.DataType:
    """Return a type with what it stores in place of its extension types: Lance has none inside."""
    if isinstance(kind, pa.BaseExtensionType):
        return _without_extensions(kind.storage_type)
    if pa.types.is_struct(kind):
        return pa.struct([(field.name, _without_extensions(field.type)) for field in kind])
    if pa.types.is_list(kind):
        return pa.list_(_without_extensions(kind.value_type))
    return kind


def rows_batch(
    schema: pa.Schema,
    columns: pa.Table | Mapping[str, Any],
    images: Mapping[str, Sequence[bytes]] | None = None,
) -> pa.RecordBatch:
    """Put rows together.

    Cost: one copy of the encoded images.

    Args:
        schema: From ``LanceSchema.rows``, or a table's own.
        columns: Every column by its feature's key: arrays, lists (text, language) or Arrow, as
            ``Reader.rows`` or a table of the source gives them. Others are left out.
        images: Encoded images by camera, where they are not among the columns.
    """
    held = {**_by_key(columns), **(images or {})}
    arrays = []
    length: int | None = None
    for field in schema:
        key = _key(field)
        if key not in held:
            raise ArgumentError(f"Rows for Lance lack {key!r}.", hint=f"there are: {list(held)}")
        array = _column(held[key], key, field.type)
        if length is not None and len(array) != length:
            raise ArgumentError(f"{key!r} has {len(array)} rows, where others have {length}.")
        length = len(array)
        arrays.append(array)
    return pa.RecordBatch.from_arrays(arrays, schema=schema)


def _by_key(columns: pa.Table | Mapping[str, Any]) -> Mapping[str, Any]:
    if isinstance(columns, pa.Table):
        return {name: columns.column(name) for name in columns.column_names}
    return columns


def _key(field: pa.Field) -> str:
    # A schema that came back from Lance has lost nothing, one that was made by hand has no key.
    key: bytes = (field.metadata or {}).get(FEATURE_NOTE, field.name.encode())
    return key.decode()


def _column(values: Any, key: str, kind: pa.DataType) -> pa.Array:
    try:
        if pa.types.is_binary(kind):
            return pa.array(values, kind)
        if kind == IMAGE:
            nowhere = pa.nulls(len(values), pa.string())
            encoded = pa.array(values, pa.binary())
            return pa.StructArray.from_arrays([encoded, nowhere], fields=list(IMAGE))
        if pa.types.is_string(kind):
            return pa.array(list(values), kind) if not _is_arrow(values) else _plain(values, kind)
        if pa.types.is_list(kind):
            return _language(values, key, kind)
        return _numbers(values, key, kind)
    except (pa.ArrowInvalid, pa.ArrowTypeError, pa.ArrowNotImplementedError, TypeError) as error:
        raise ArgumentError(f"Column {key!r} does not fit into {kind} ({error}).") from error


def _language(values: Any, key: str, kind: pa.DataType) -> pa.Array:
    if _is_arrow(values):
        return _plain(values, kind)
    feature = Feature(key, "language", (1,))
    return to_arrow(values, feature, length=len(values)).cast(kind)


def _numbers(values: Any, key: str, kind: pa.DataType) -> pa.Array:
    shape, leaf = _shape(kind)
    if _is_arrow(values):
        feature = Feature(key, str(np.dtype(leaf.to_pandas_dtype())), shape or (1,))
        values = read_numbers(_combined(values), feature, where="the rows to write")
    array = np.asarray(values)
    fits = np.can_cast(array.dtype, leaf.to_pandas_dtype(), casting="same_kind")
    if len(array) * math.prod(shape) != array.size or not fits:
        raise ArgumentError(
            f"Column {key!r} has rows of shape {array.shape[1:]} ({array.dtype}); {shape} of "
            f"{leaf} was declared."
        )
    found = pa.array(np.ascontiguousarray(array).reshape(-1)).cast(leaf)
    for size in reversed(shape):
        found = pa.FixedSizeListArray.from_arrays(found, size)
    return found


def _shape(kind: pa.DataType) -> tuple[tuple[int, ...], pa.DataType]:
    sizes = []
    while pa.types.is_fixed_size_list(kind):
        sizes.append(kind.list_size)
        kind = kind.value_type
    return tuple(sizes), kind


def _is_arrow(values: Any) -> bool:
    return isinstance(values, (pa.Array, pa.ChunkedArray))


def _combined(values: pa.Array | pa.ChunkedArray) -> pa.Array:
    return values.combine_chunks() if isinstance(values, pa.ChunkedArray) else values


def _plain(values: pa.Array | pa.ChunkedArray, kind: pa.DataType) -> pa.Array:
    array = _combined(values)
    return array if array.type == kind else array.cast(kind)


def _keyframes(index: PacketIndex) -> tuple[list[int], list[int]]:
    """Return the frame and the place of every packet where decoding may begin."""
    packets = np.arange(len(index.offset))
    begins = (index.start_of == packets) & (index.frame_of >= 0)
    frames, positions = index.frame_of[begins], index.offset[begins]
    order = np.argsort(frames, kind="stable")
    return frames[order].tolist(), positions[order].tolist()


def find_moov(file: Bytes) -> tuple[int, int]:
    """Return where an mp4's ``moov`` box is and how long it is; zeros if it has none."""
    at = 0
    for _ in range(_MOST_BOXES):
        header = file.read(at, 16)
        if len(header) < 8:
            break
        size, kind = struct.unpack(">I4s", header[:8])
        if size == 1 and len(header) == 16:
            size = struct.unpack(">Q", header[8:])[0]
        elif size == 0:
            size = file.size - at
        if size < 8:
            break
        if kind == b"moov":
            return at, size
        at += size
    return 0, 0


def meta_rows(folder: Path, *, changed: Mapping[str, Path | None] | None = None) -> pa.Table:
    """Return the files of ``meta/`` as rows of ``meta.lance``.

    Args:
        folder: The folder ``meta``.
        changed: Files that are about to change, relative to it: where they are now, or None for
            those that go.
    """
    files: dict[Path, Path | None] = {
        path.relative_to(folder): path for path in folder.rglob("*") if path.is_file()
    }
    files |= {Path(name): path for name, path in (changed or {}).items()}
    there = [(name, path) for name, path in sorted(files.items()) if path is not None]
    rows = [{"path": str(name), "data": path.read_bytes()} for name, path in there]
    return pa.Table.from_pylist(rows, schema=COPY_SCHEMA)


PACKETS_COLUMN = "demoreel_packets"
"""The column of a table of videos that holds these bytes."""

_VERSION = b"1"
_SCHEMA = pa.schema(
    [
        ("offset", pa.int64()),
        ("size", pa.int32()),
        ("frame", pa.int32()),
        ("back", pa.int32()),
        ("seconds", pa.float64()),
    ]
)


def encode_packets(index: PacketIndex, *, video_bytes: int) -> bytes:
    """Return a packet index as bytes; about 10 a packet.

    Args:
        index: The index.
        video_bytes: Size of the video that it describes; the reader checks it.
    """
    codec = index.codec
    metadata = {
        b"demoreel.packets": _VERSION,
        b"decoder": codec.name.encode(),
        b"width": b"%d" % codec.width,
        b"height": b"%d" % codec.height,
        b"color_range": b"%d" % codec.color_range,
        b"colorspace": b"%d" % codec.colorspace,
        b"video_bytes": b"%d" % video_bytes,
    }
    if codec.extradata is not None:
        metadata[b"extradata"] = codec.extradata
    seconds = np.zeros(len(index.offset))
    seconds[index.packet_of] = index.seconds
    back = np.arange(len(index.offset)) - index.start_of
    columns = (index.offset, index.size, index.frame_of, back, seconds)
    arrays = [pa.array(c, field.type) for c, field in zip(columns, _SCHEMA, strict=True)]
    schema = _SCHEMA.with_metadata(metadata)
    sink = pa.BufferOutputStream()
    with pa.ipc.new_stream(sink, schema, options=pa.ipc.IpcWriteOptions(compression="zstd")) as out:
        out.write_batch(pa.record_batch(arrays, schema=schema))
    return bytes(sink.getvalue())


def decode_packets(data: bytes, *, video_bytes: int, name: str) -> PacketIndex | None:
    """Return the packet index that ``encode_packets`` made bytes of.

    Returns:
        The index; None where the bytes are of a later description than this, or of another video,
        so that the video's own table must be read.
    """
    try:
        with pa.ipc.open_stream(data) as stream:
            table = stream.read_all()
        said = table.schema.metadata or {}
        if said.get(b"demoreel.packets") != _VERSION or int(said[b"video_bytes"]) != video_bytes:
            return None
        codec = Codec(
            name=said[b"decoder"].decode(),
            extradata=said.get(b"extradata"),
            width=int(said[b"width"]),
            height=int(said[b"height"]),
            color_range=int(said[b"color_range"]),
            colorspace=int(said[b"colorspace"]),
        )
        codec.require_listed(name)
        return _index(codec, table, video_bytes)
    except VideoError:
        raise
    except (pa.ArrowException, OSError, KeyError, ValueError, IndexError) as error:
        raise VideoError(
            f"The packet index stored beside the video is damaged ({error}).",
            hint="restore the table from a copy",
            code="lance-packet-index",
            file=name,
        ) from error


def _index(codec: Codec, table: pa.Table, video_bytes: int) -> PacketIndex:
    offset, size, frame, back = (
        as_numpy(table.column(name)).astype(kind)
        for name, kind in (("offset", "i8"), ("size", "i8"), ("frame", "i4"), ("back", "i4"))
    )
    packets = np.flatnonzero(frame >= 0)
    packet_of = np.full(len(packets), -1, dtype=np.int32)
    packet_of[frame[packets]] = packets
    start_of = np.arange(len(frame), dtype=np.int32) - back
    if (packet_of < 0).any() or (start_of < -1).any() or (back < 0).any():
        raise ValueError("frames or keyframes that do not exist")
    if len(offset) and (int(offset.min()) < 0 or int((offset + size).max()) > video_bytes):
        raise ValueError("packets outside the video")
    return PacketIndex(
        codec=codec,
        offset=offset,
        size=size,
        frame_of=frame,
        start_of=start_of,
        packet_of=packet_of,
        seconds=as_numpy(table.column("seconds"))[packet_of],
    )
