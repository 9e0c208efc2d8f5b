"""A dataset's tables as Arrow sees them: for queries over all rows, not for samples.

Nothing is read here but footers: whoever scans the tables says which columns and rows it wants.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

import numpy as np
import pyarrow as pa

from demoreel.errors import TableError
from demoreel.layouts.base import Reader
from demoreel.layouts.far_readers import FarV2Reader, FarV3Reader
from demoreel.layouts.lance_reader import LanceReader
from demoreel.media.packet_bytes import PACKETS_COLUMN
from demoreel.model import Feature
from demoreel.storage import lance_calls
from demoreel.storage.arrow import UNREADABLE
from demoreel.storage.far.arrow_files import arrow_files
from demoreel.storage.lance_process import may_use_lance
from demoreel.storage.lance_tables import LanceTable

if TYPE_CHECKING:
    from pyarrow.dataset import Dataset as ArrowDataset

FILE_COLUMN = "demoreel_file"
"""The number of the file that a row comes from, where a dataset has several."""

_NOT_SHOWN = ("video_bytes", PACKETS_COLUMN)  # of a table of videos


@dataclass(frozen=True)
class RowTable:
    """The rows of a dataset, ready to be scanned.

    Attributes:
        source: An Arrow dataset, or a table where the rows had to be fetched. Cameras' pictures
            are among the columns of some.
        columns: Its column of each feature; none for those that are not in the table.
        files: For each chosen episode, its file's number in ``FILE_COLUMN``; None if there is one
            file.
    """

    source: ArrowDataset | pa.Table
    columns: dict[str, str]
    files: np.ndarray | None


def row_table(reader: Reader, positions: np.ndarray) -> RowTable:
    """Return the table of rows.

    Cost: footers and manifests only. The exception is a Lance dataset in a forked process that
    cannot use Lance itself: there, all numbers and texts are fetched.

    Args:
        reader: The dataset.
        positions: The episodes that are wanted. Rows of others may be in the source too.

    Raises:
        TableError: A table is missing or damaged.
    """
    stored = {key: f for key, f in reader.info.features.items() if not f.is_camera}
    if isinstance(reader, LanceReader):
        return _lance_rows(reader, stored)
    return _parquet_rows(reader, stored, positions)


def _lance_rows(reader: LanceReader, features: dict[str, Feature]) -> RowTable:
    table = reader.tables["frames"]
    names = {key: key.replace(".", "_") for key in features}
    present = {key: name for key, name in names.items() if name in table.columns}
    return RowTable(_opened(table, list(present.values())), present, None)


def _opened(table: LanceTable, columns: list[str]) -> Any:
    version = table.version
    if not may_use_lance():
        return table.scan(columns)
    with table.errors():
        return lance_calls.dataset(table.place, version)


def _parquet_rows(reader: Reader, features: dict[str, Feature], positions: np.ndarray) -> RowTable:
    import pyarrow.dataset as arrow
    from pyarrow import fs

    numbers, firsts = _files(reader, positions)
    names = [reader.data_file(position) for position in firsts]
    if isinstance(reader, FarV2Reader | FarV3Reader):
        files, paths = arrow_files(reader.far.file), names
    else:
        files, paths = fs.LocalFileSystem(), [str(reader.root / name) for name in names]
        _refuse_missing(reader, names)
    parquet = arrow.ParquetFileFormat()
    try:
        fragments = [
            parquet.make_fragment(
                path, files, partition_expression=arrow.field(FILE_COLUMN) == number
            )
            for number, path in enumerate(paths)
        ]
        schema = fragments[0].physical_schema
    except UNREADABLE as error:
        raise TableError(
            f"A table is not readable ({str(error).splitlines()[0]}).",
            hint="restore the file",
            dataset=reader.root,
            file=names[0],
        ) from error
    fields = [(key, _plain(schema.field(key).type)) for key in features if key in schema.names]
    source = arrow.FileSystemDataset(
        fragments, pa.schema([*fields, (FILE_COLUMN, pa.int32())]), parquet, files
    )
    return RowTable(source, {key: key for key, _ in fields}, numbers if len(paths) > 1 else None)


def _refuse_missing(reader: Reader, names: Sequence[str]) -> None:
    for name in names:
        if not (reader.root / name).is_file():
            raise TableError(
                "A table that the metadata names is missing.",
                hint="fetch or restore the file",
                dataset=reader.root,
                file=name,
            )


def _files(reader: Reader, positions: np.ndarray) -> tuple[np.ndarray, list[int]]:
    """Return for each episode the number of its table, and for each table one of its episodes."""
    columns = reader.episode_columns()
    if "data/chunk_index" in columns:
        ids = columns["data/chunk_index"][positions] << 32 | columns["data/file_index"][positions]
    else:
        ids = np.arange(len(positions))  # one an episode
    _, firsts, numbers = np.unique(ids, return_index=True, return_inverse=True)
    return numbers, positions[firsts].tolist()


def _plain(kind: pa.DataType) -> pa.DataType:
    """Return what an extension type is stored as; whether one is known depends on who imported."""
    if isinstance(kind, pa.BaseExtensionType):
        return _plain(kind.storage_type)
    if pa.types.is_struct(kind):
        return pa.struct([(field.name, _plain(field.type)) for field in kind])
    if pa.types.is_fixed_size_list(kind):
        return pa.list_(_plain(kind.value_type), kind.list_size)
    if pa.types.is_list(kind) or pa.types.is_large_list(kind):
        return pa.list_(_plain(kind.value_type))
    return kind


def video_table(reader: Reader, positions: np.ndarray) -> pa.Table:
    """Return one row per video, without its bytes.

    For a Lance dataset these are the columns of its own table; else ``video_key``, ``file`` and
    ``file_size`` (missing where the file is, or where it lies far away and was not listed).

    Raises:
        TableError: A table is missing or damaged.
    """
    if isinstance(reader, LanceReader):
        table = reader.tables.get("videos")
        if table is not None:
            return table.scan([name for name in table.columns if name not in _NOT_SHOWN])
    filmed = [key for key in reader.info.video_keys if not reader.in_tables(key)]
    every = positions.tolist()
    named = dict.fromkeys((key, reader.video_file(p, key)) for key in filmed for p in every)
    sizes = [_size(reader, file) for _, file in named]
    return pa.table(
        {
            "video_key": pa.array([key for key, _ in named], pa.string()),
            "file": pa.array([file for _, file in named], pa.string()),
            "file_size": pa.array(sizes, pa.int64()),
        }
    )


def _size(reader: Reader, name: str) -> int | None:
    if isinstance(reader, FarV2Reader | FarV3Reader):
        file = reader.far.file(name)
        return file.size if file.is_known else None  # a request each would take too long
    path = reader.root / name
    return path.stat().st_size if path.is_file() else None
