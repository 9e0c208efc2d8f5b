"""Reading parquet files as far as they go: columns against their declarations, batch by batch."""

from __future__ import annotations

import math
import os
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq

from demoreel.check.look import Look
from demoreel.check.look_episodes import UNREADABLE, first_line
from demoreel.check.rows import Portion, whole_episodes
from demoreel.errors import TableError
from demoreel.layouts import arrow_in
from demoreel.model import Feature

_MAGIC = b"PAR1"
_NUMBERS_AT_ONCE = 1 << 21  # of a batch: 8 to 16 MB
_MOST_ROWS = 1 << 31
_LARGEST_ROW_GROUP = 8 << 30


class Unreadable(Exception):
    """A file cannot be read; what is wrong has been reported."""


def open_parquet(look: Look, name: str) -> pq.ParquetFile:
    """Open a parquet file that is there.

    Raises:
        Unreadable: It cannot be opened; there is a finding now.
    """
    size = look.files[name]
    if size <= 0:
        look.found("table-empty", "It has no bytes.", file=name)
        raise Unreadable
    path = look.root / name
    if not has_footer(path, size):
        look.found(
            "table-unfinished", f"Its {size} bytes do not end with a parquet footer.", file=name
        )
        raise Unreadable
    try:
        parquet = pq.ParquetFile(path)
        _refuse_huge(parquet)
        _ = parquet.schema_arrow.names  # may not be text
        return parquet
    except UNREADABLE as error:
        look.found("table-damaged", f"It does not open: {first_line(error)}.", file=name)
        raise Unreadable from error


def has_footer(path: Path, size: int) -> bool:
    """Whether a file begins and ends as parquet does."""
    if size < 12:
        return False
    try:
        with open(path, "rb") as file:
            begins = file.read(4)
            file.seek(-4, os.SEEK_END)
            return begins == _MAGIC and file.read(4) == _MAGIC
    except OSError:
        return False


def _refuse_huge(parquet: pq.ParquetFile) -> None:
    """Refuse counts that no file of this kind has: to believe them would cost the memory."""
    meta = parquet.metadata
    if not 0 <= meta.num_rows <= _MOST_ROWS:
        raise pa.ArrowInvalid(f"it claims {meta.num_rows} rows")
    for number in range(meta.num_row_groups):
        group = meta.row_group(number)
        if not 0 <= group.total_byte_size <= _LARGEST_ROW_GROUP:
            raise pa.ArrowInvalid(f"a row group claims {group.total_byte_size} bytes")


def check_schema(look: Look, name: str, schema: pa.Schema, features: dict[str, Feature]) -> None:
    """Compare a table's columns with those that ``info.json`` declares.

    Args:
        look: The dataset.
        name: The table.
        schema: Its columns.
        features: The features that should have one, by column.
    """
    for column, feature in features.items():
        if column not in schema.names:
            look.found(
                "feature-absent", f"There is no column {column!r}.", feature=feature.key, file=name
            )
    for column in schema.names:
        if column not in features:
            look.found(
                "feature-undeclared",
                f"info.json does not declare {column[:60]!r}.",
                feature=column[:60],
                file=name,
            )


def portions(
    look: Look, name: str, features: dict[str, Feature], threads: bool
) -> Iterator[Portion]:
    """Decode a file's numbers, portion by portion; what cannot be decoded is a finding.

    Args:
        look: The dataset.
        name: The file.
        features: Numeric features by column.
        threads: Whether Arrow may decode columns side by side.
    """
    try:
        parquet = open_parquet(look, name)
    except Unreadable:
        return
    with parquet:
        names = [column for column in features if column in parquet.schema_arrow.names]
        if "episode_index" not in names or parquet.metadata.num_rows == 0:
            return
        width = sum(math.prod(features[column].item_shape) for column in names)
        rows = max(1, min(_NUMBERS_AT_ONCE // max(1, width), 1 << 17))
        batches = _batches(look, name, parquet, names, rows, threads)
        decoded = (decoded_columns(look, name, batch, features) for batch in batches)
        whole = (columns for columns in decoded if "episode_index" in columns)
        yield from whole_episodes(whole, name, most_rows=4 * rows)


def _batches(
    look: Look, name: str, parquet: pq.ParquetFile, names: list[str], rows: int, threads: bool
) -> Iterator[pa.RecordBatch]:
    try:
        yield from parquet.iter_batches(rows, columns=names, use_threads=threads)
    except UNREADABLE as error:
        look.found("table-damaged", f"It does not decode: {first_line(error)}.", file=name)


def decoded_columns(
    look: Look, name: str, batch: pa.RecordBatch, features: dict[str, Feature],
    *, from_floats: bool = False,
) -> dict[str, np.ndarray]:  # fmt: skip
    """Return a batch's columns as arrays, by feature; those of another kind are findings."""
    columns: dict[str, np.ndarray] = {}
    for place, column in enumerate(batch.schema.names):
        feature = features[column]
        array = batch.column(place)
        try:
            columns[feature.key] = arrow_in.numbers(
                array, feature, where=name, from_floats=from_floats
            )
        except (TableError, pa.ArrowException, ValueError) as error:
            _report_column(look, name, array, feature, error)
    return columns


def _report_column(
    look: Look, name: str, array: pa.Array, feature: Feature, error: Exception
) -> None:
    missing = _missing(array)
    if missing:
        look.found(
            "value-missing",
            f"{missing} values of {feature.key} are missing.",
            count=missing,
            feature=feature.key,
            file=name,
        )
        return
    what = error.what if isinstance(error, TableError) else first_line(error)
    code = "feature-shape" if "a row" in what else "feature-dtype"
    look.found(code, what, feature=feature.key, file=name)


def _missing(array: Any) -> int:
    """Return how many values are missing, in rows or in the lists of rows."""
    count = 0
    for _ in range(8):
        count += int(array.null_count)
        array = array.storage if isinstance(array, pa.ExtensionArray) else array
        if not pa.types.is_nested(array.type) or pa.types.is_struct(array.type):
            return count
        array = array.flatten()
    return count
