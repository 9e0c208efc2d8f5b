"""Rows of the lance-native layout: the one that lerobot reads itself.

Columns stand in the order of ``info.json`` and have its types. Arrays of several dimensions are
flat lists here, as the layout's other readers expect: ``info.json`` has their shape. Cameras that
are no videos keep their encoded pictures beside the numbers, which those readers refuse.
"""

from __future__ import annotations

import math
import struct
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa

from demoreel.layouts.lance_frames.writer import column_type, frames_batch
from demoreel.layouts.lance_out import FEATURE_NOTE, FiledVideo, videos_table
from demoreel.layouts.lance_rows import column_names
from demoreel.media.packet_bytes import PACKETS_COLUMN
from demoreel.media.packets import PacketIndex
from demoreel.model import Feature, Info
from demoreel.storage.seekable import Bytes

META_SCHEMA = pa.schema([("path", pa.string()), ("data", pa.large_binary())])
"""``meta.lance``: the files of ``meta/``, for datasets that lie elsewhere."""

VIDEOS = pa.schema(
    [
        ("video_key", pa.string()),
        ("chunk_index", pa.int64()),
        ("file_index", pa.int64()),
        ("file_size", pa.int64()),
        ("moov_offset", pa.int64()),
        ("moov_size", pa.int64()),
        ("kf_indices", pa.list_(pa.int64())),
        ("kf_positions", pa.list_(pa.int64())),
        (PACKETS_COLUMN, pa.binary()),
    ]
)
"""The table of videos, without their bytes."""

_MOST_BOXES = 10_000
_PICTURE = pa.struct([("bytes", pa.binary()), ("path", pa.string())])


def rows_schema(info: Info) -> pa.Schema:
    """Return the schema of a dataset's table of rows.

    Raises:
        MetadataError: Two features would share a column.
        ArgumentError: A feature has a shape or dtype that no table can hold.
    """
    names = column_names(info)
    stored = [feature for feature in info.features.values() if not feature.is_video]
    return pa.schema(
        [pa.field(names[f.key], _type(f), metadata={FEATURE_NOTE: f.key}) for f in stored]
    )


def _type(feature: Feature) -> pa.DataType:
    if feature.is_image:
        return _PICTURE
    if feature.is_numeric and len(feature.item_shape) > 1:
        return pa.list_(pa.from_numpy_dtype(feature.numpy_dtype), math.prod(feature.item_shape))
    return column_type(feature)


def rows_batch(
    schema: pa.Schema, columns: Mapping[str, Any], pictures: Mapping[str, Sequence[bytes]]
) -> pa.RecordBatch:
    """Put rows together; see ``frames_batch``."""
    plain = pa.schema([field for field in schema if field.type != _PICTURE])
    batch = frames_batch(plain, columns, pictures)
    named = {key.replace(".", "_"): values for key, values in pictures.items()}
    arrays = [
        _pictures(named[field.name]) if field.type == _PICTURE else batch.column(field.name)
        for field in schema
    ]
    return pa.RecordBatch.from_arrays(arrays, schema=schema)


def _pictures(values: Sequence[bytes]) -> pa.Array:
    nowhere = pa.nulls(len(values), pa.string())
    return pa.StructArray.from_arrays(
        [pa.array(values, pa.binary()), nowhere], fields=list(_PICTURE)
    )


def video_rows(videos: Sequence[FiledVideo]) -> pa.Table:
    """Return the rows of some videos, all columns but their bytes."""
    return videos_table(videos, VIDEOS, map(_byte_index, videos))


def _byte_index(entry: FiledVideo) -> dict[str, Any]:
    file, index = entry.video.file, entry.video.index
    offset, size = find_moov(file)
    frames, positions = _keyframes(index)
    return {
        "file_size": file.size,
        "moov_offset": offset,
        "moov_size": size,
        "kf_indices": frames.tolist(),
        "kf_positions": positions.tolist(),
    }


def _keyframes(index: PacketIndex) -> tuple[np.ndarray, np.ndarray]:
    """Return the frame and the place of every packet where decoding may begin."""
    packets = np.arange(len(index.offset))
    begins = (index.start_of == packets) & (index.frame_of >= 0)
    frames, positions = index.frame_of[begins], index.offset[begins]
    order = np.argsort(frames, kind="stable")
    return frames[order], positions[order]


def find_moov(file: Bytes) -> tuple[int, int]:
    """Return where an mp4's ``moov`` box lies and how long it is; zeros if it has none."""
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
        changed: Files that are about to change, relative to it: where they lie now, or None for
            those that go.
    """
    files: dict[Path, Path | None] = {
        path.relative_to(folder): path for path in folder.rglob("*") if path.is_file()
    }
    files |= {Path(name): path for name, path in (changed or {}).items()}
    there = [(name, path) for name, path in sorted(files.items()) if path is not None]
    rows = [{"path": str(name), "data": path.read_bytes()} for name, path in there]
    return pa.Table.from_pylist(rows, schema=META_SCHEMA)
