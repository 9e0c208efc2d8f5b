"""A dataset's tables as Arrow datasets, for queries over all rows.

Nothing is read here but footers: the scan says which columns and rows it wants.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass
from functools import partial
from typing import TYPE_CHECKING, Any

import numpy as np
import pyarrow as pa

from demoreel.errors import DemoreelError, TableError
from demoreel.layouts.base import Reader
from demoreel.layouts.columns import to_arrow
from demoreel.layouts.file_reader import FileReader
from demoreel.layouts.lance.reader import LanceReader
from demoreel.layouts.lance.schemas import PACKETS_COLUMN
from demoreel.layouts.lance.tables import LanceTable
from demoreel.layouts.pending import PendingReader
from demoreel.model import Feature
from demoreel.storage.arrow import UNREADABLE
from demoreel.storage.folder import DatasetFolder
from demoreel.storage.local import FETCH

if TYPE_CHECKING:
    from pyarrow.dataset import Dataset as ArrowDataset

FILE_COLUMN = "demoreel_file"
"""The number of the file that a row comes from, where a dataset has several."""

_NOT_SHOWN = ("video_bytes", PACKETS_COLUMN)  # of a table of videos


@dataclass(frozen=True)
class RowTable:
    """The rows of a dataset, ready to be scanned.

    Attributes:
        source: An Arrow dataset, or a table where the rows had to be fetched. Cameras' images
            are among the columns of some.
        columns: Its column of each feature; none for those that are not in the table.
        files: For each chosen episode, its file's number in ``FILE_COLUMN``; None if there is one
            file.
    """

    source: ArrowDataset | pa.Table
    columns: dict[str, str]
    files: np.ndarray | None


def row_tables(
    reader: Reader, positions: np.ndarray, refused: list[DemoreelError]
) -> list[tuple[np.ndarray, RowTable]]:
    """Return the tables that hold the rows of these episodes, each with its part of them.

    There is one, and another in memory for saved episodes that wait for their encoders.

    Args:
        reader: The dataset.
        positions: The episodes.
        refused: Takes the error of a column that is refused while it is scanned.
    """
    if not isinstance(reader, PendingReader):
        return [(positions, row_table(reader, positions, refused))]
    found = []
    committed, waiting = (
        positions[positions < reader.committed],
        positions[positions >= reader.committed],
    )
    if len(committed):
        assert reader.base is not None
        found.append((committed, row_table(reader.base, committed, refused)))
    if len(waiting):
        found.append((waiting, _waiting_rows(reader, waiting)))
    return found


def _waiting_rows(reader: PendingReader, positions: np.ndarray) -> RowTable:
    features = {key: f for key, f in reader.info.features.items() if not f.is_camera}
    start = reader.episodes.start
    rows = np.concatenate([np.arange(start[p], start[p + 1]) for p in positions.tolist()])
    columns = reader.rows(rows, list(features))
    table = pa.table(
        {
            key: _plain_column(to_arrow(columns[key], f, length=len(rows)))
            for key, f in features.items()
        }
    )
    return RowTable(table, {key: key for key in features}, None)


def _plain_column(array: pa.Array) -> pa.Array:
    plain = _plain(array.type)
    return array if plain == array.type else array.cast(plain)


def row_table(reader: Reader, positions: np.ndarray, refused: list[DemoreelError]) -> RowTable:
    """Return the table of committed rows.

    Cost: footers and manifests only. The exception is a Lance dataset in a forked process that
    cannot use Lance itself: there, all numbers and texts are fetched.

    Args:
        reader: The dataset.
        positions: The episodes that are wanted. Rows of others may be in the source too.
        refused: As for ``row_tables``.
    """
    stored = {key: f for key, f in reader.info.features.items() if not f.is_camera}
    if isinstance(reader, LanceReader):
        return _lance_rows(reader, stored)
    assert isinstance(reader, FileReader)
    return _parquet_rows(reader, stored, positions, refused)


def table_with_engine(reader: Reader) -> LanceTable | None:
    """Return the table of rows where the layout answers conditions itself; None elsewhere."""
    return reader.tables["frames"] if isinstance(reader, LanceReader) else None


def _lance_rows(reader: LanceReader, features: dict[str, Feature]) -> RowTable:
    table = reader.tables["frames"]
    names = {key: key.replace(".", "_") for key in features}
    present = {key: name for key, name in names.items() if name in table.columns}
    own = table.own()
    source = table.scan(list(present.values())) if own is None else own
    return RowTable(source, present, None)


def _parquet_rows(
    reader: FileReader,
    features: dict[str, Feature],
    positions: np.ndarray,
    refused: list[DemoreelError],
) -> RowTable:
    import pyarrow.dataset as arrow

    numbers, firsts = _files(reader, positions)
    names = [reader.data_file(position) for position in firsts]
    waits = reader.folder.waits
    files, before = reader.folder.arrow_files()
    paths = [before + name for name in names]
    if not waits:
        _refuse_missing(reader, names)
    _refuse_bombs(reader, names, features, nested=not waits)
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
    columns = pa.schema([*fields, (FILE_COLUMN, pa.int32())])
    if waits:
        look = partial(_refuse_bombs, reader, names)
        source = _checked(fragments, columns, parquet, files, look, refused)
    else:
        source = arrow.FileSystemDataset(fragments, columns, parquet, files)
    return RowTable(source, {key: key for key, _ in fields}, numbers if len(paths) > 1 else None)


def _checked(
    fragments: Sequence[Any],
    schema: pa.Schema,
    parquet: Any,
    files: Any,
    look: Callable[[Sequence[str]], None],
    refused: list[DemoreelError],
) -> Any:
    """Return an Arrow dataset of tables in a store, whose lists are looked at when scanned.

    The page headers of every list column would be many requests; a query reads few of them.

    Args:
        fragments: The tables.
        schema: Their columns.
        parquet: Their format.
        files: Where they are.
        look: Refuses columns that unfold without end.
        refused: Takes its error: DuckDB makes a text of it.
    """
    import pyarrow.dataset as arrow

    lists = [field.name for field in schema if pa.types.is_nested(field.type)]

    class Checked(arrow.FileSystemDataset):  # type: ignore[misc]  # pyarrow has no types
        def scanner(self, columns: Any = None, filter: Any = None, **options: Any) -> Any:
            said = str(filter)
            wanted = [n for n in lists if columns is None or n in columns or n in said]
            try:
                look(wanted)
            except DemoreelError as error:
                refused.append(error)
                raise
            return super().scanner(columns=columns, filter=filter, **options)

    return Checked(fragments, schema, parquet, files)


def _refuse_bombs(
    reader: FileReader, names: Sequence[str], features: Iterable[str], *, nested: bool = True
) -> None:
    """Refuse columns that would unfold without end: Arrow's scanner does not look before.

    Of tables in a store, columns of plain numbers are not looked at: a page of them is as long as
    its rows, and page headers would be a request each.
    """
    held = 0
    for name in names:
        try:
            with reader.folder.parquet(name) as table:
                schema = table.schema_arrow
                keys = [key for key in features if key in schema.names]
                if reader.folder.waits:
                    kinds = {key: _plain(schema.field(key).type) for key in keys}
                    keys = [key for key in keys if not pa.types.is_primitive(kinds[key])]
                    keys = [key for key in keys if nested or not pa.types.is_nested(kinds[key])]
                held = table.refuse_scan(keys, held=held) if keys else held
        except UNREADABLE:
            continue  # the scanner says what is wrong with it


def _refuse_missing(reader: FileReader, names: Sequence[str]) -> None:
    for name in names:
        if not (reader.root / name).is_file():
            raise TableError(
                "A table that the metadata names is missing: not downloaded, moved or deleted.",
                hint=FETCH,
                dataset=reader.root,
                file=name,
            )


def _files(reader: FileReader, positions: np.ndarray) -> tuple[np.ndarray, list[int]]:
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
    return pa.float32() if pa.types.is_float16(kind) else kind  # DuckDB knows no halves


def video_table(reader: Reader, positions: np.ndarray) -> pa.Table:
    """Return one row per video, without its bytes.

    For a Lance dataset these are the columns of its own table; else ``video_key``, ``file`` and
    ``file_size`` (missing where the file is, or where it is remote and was not listed). Saved
    episodes that wait for their encoders have no video yet.
    """
    if isinstance(reader, PendingReader):
        if reader.base is None:
            return _videos(reader, positions[:0])
        return video_table(reader.base, positions[positions < reader.committed])
    if isinstance(reader, LanceReader):
        table = reader.tables.get("videos")
        if table is not None:
            return table.scan([name for name in table.columns if name not in _NOT_SHOWN])
    return _videos(reader, positions)


def _videos(reader: Reader, positions: np.ndarray) -> pa.Table:
    video_cameras = [key for key in reader.info.video_keys if not reader.in_tables(key)]
    every = positions.tolist()
    named = dict.fromkeys((key, reader.video_file(p, key)) for key in video_cameras for p in every)
    sizes = [_size(reader, file) for _, file in named]
    return pa.table(
        {
            "video_key": pa.array([key for key, _ in named], pa.string()),
            "file": pa.array([file for _, file in named], pa.string()),
            "file_size": pa.array(sizes, pa.int64()),
        }
    )


def _size(reader: Reader, name: str) -> int | None:
    if isinstance(reader, FileReader):
        return reader.folder.known_size(name)  # a request each would take too long
    return DatasetFolder(reader.root).known_size(name)
