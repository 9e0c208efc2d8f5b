"""Checks of the tables: are the files there, whole, and do they hold the rows that they should.

``check_tables`` decodes every number of every table once and shows it to the checks of rows.
"""

from __future__ import annotations

import math
import os
import threading
from collections.abc import Callable, Iterator, Mapping, Sequence
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa

from demoreel.check.codes import code_for
from demoreel.check.look import LINES, UNREADABLE, Look, report_missing
from demoreel.check.report import ranges
from demoreel.check.row_checks import RowPlaces
from demoreel.check.rows import Portion, Portions, RowCheck, cores, scan_rows, whole_episodes
from demoreel.errors import (
    DemoreelError,
    MetadataError,
    TableError,
    first_line,
    refuse_shortage,
)
from demoreel.layouts.columns import read_numbers
from demoreel.layouts.lance.schemas import column_names
from demoreel.layouts.lance.tables import LanceTable
from demoreel.model import Feature
from demoreel.storage import parquet as bounded
from demoreel.storage.arrow import is_number

_SMALLEST_IMAGE = 16  # bytes
_SMALLEST_PAGE = 64  # of images, and its header
_MAGIC = b"PAR1"
_PLACES = {"data/chunk_index", "data/file_index"}
_INDEX_OF_PANDAS = "__index_level_"
_NUMBERS_AT_ONCE = 1 << 21  # of a batch: 8 to 16 MB
_MOST_ROWS = 1 << 31
_LARGEST_ROW_GROUP = 8 << 30

Features = Mapping[str, Feature]
"""Features by column."""

Batches = Callable[[int], Iterator[pa.RecordBatch]]
"""Decodes columns of a table, at most so many rows at a time."""


def check_tables(look: Look, checks: Sequence[RowCheck]) -> None:
    """Check every table, and show all of its numbers to the checks of rows.

    Cost: decodes every number once: 2 million rows of 26 numbers a second on two cores.
    """
    if look.info is None or look.layout is None:
        for name in _data_files(look):  # all that can be told is whether files are whole
            parquet = _open_parquet(look, name)
            if parquet is not None:
                parquet.close()
        return
    places = RowPlaces(look)
    if look.is_lance:
        name = f"{look.table}.lance"
        if name not in look.broken:
            decode = partial(_lance_portions, look, name)
            scan_rows(iter([decode]), [places, *checks], 1, look.findings)
        return
    if look.episodes is not None and not look.is_v2 and not look.episodes.columns.keys() >= _PLACES:
        look.misplaced.add(None)  # nothing says which table is whose, which is a finding
    named = dict(look.table_files())
    present = [n for n in named if look.files.get(n, -1) >= 0 and n not in look.pointers]
    _report_missing(look, named)
    added = {name for names in look.added.values() for name in names}
    orphans = [name for name in _data_files(look) if name not in named and name not in added]
    places.expect(named)
    schemas = _Schemas()
    threads = min(cores(), max(1, len(present)))
    files = _decoders(look, [*present, *orphans], schemas)
    scan_rows(files, [places, *checks], threads, look.findings)
    schemas.report(look)
    look.facts["tables"] = len(present)
    _report_orphans(look, orphans, places)


def _data_files(look: Look) -> list[str]:
    return [
        name
        for name in look.files
        if name.endswith(".parquet")
        # Score files speak of rows and hold none: scores/labels.parquet, and LeRobot's own.
        and not name.startswith(("meta/", "scores/"))
        and name not in look.pointers
        # What macOS leaves beside files that it copied; lerobot reads it only in v3.0.
        and not (look.is_v2 and Path(name).name.startswith("._"))
    ]


def _report_missing(look: Look, named: dict[str, np.ndarray]) -> None:
    if None in look.misplaced or look.episodes is None:
        return
    missing = {n: places for n, places in named.items() if look.files.get(n, -1) < 0}
    if missing:
        report_missing(look, "table-missing", "table", missing, len(named))


def _report_orphans(look: Look, orphans: list[str], places: RowPlaces) -> None:
    """Report tables that no episode names, unless their rows are those of a known episode."""
    if None in look.misplaced or look.episodes is None or not look.episodes.is_whole:
        return
    if look.added:
        numbers = sorted(look.added)
        episodes = f"episode {numbers[0]}" if len(numbers) == 1 else f"episodes {ranges(numbers)}"
        look.found(
            "episodes-unlisted",
            f"The files of {episodes} lie there, like {look.added[numbers[0]][0]}.",
            count=len(numbers),
            file=LINES,
        )
    for name in orphans:
        if name not in places.claimed and name not in look.unreadable:
            look.found("table-orphan", f"It has {look.files[name]} bytes.", file=name)


class _Schemas:
    """The columns of the tables; what is odd about one is reported once, however many have it."""

    def __init__(self) -> None:
        self._found: dict[tuple[str, str, str], list[str]] = {}
        self._lock = threading.Lock()

    def add(self, name: str, schema: pa.Schema, features: Features, *, is_v2: bool) -> None:
        """Compare a table's columns with those that ``info.json`` declares.

        Args:
            name: The table.
            schema: Its columns.
            features: The declared features by column.
            is_v2: Whether lerobot reads it without a look at the declarations.
        """
        columns = dict(zip(schema.names, schema.types, strict=True))
        odd: list[tuple[str, str, str]] = []
        for column, feature in features.items():
            if column not in columns:
                odd.append(("feature-absent", feature.key, f"There is no column {column!r}."))
            elif feature.is_numeric or feature.is_string:
                odd += _odd_type(feature, columns[column])
        for column in columns:
            if column not in features and not column.startswith(_INDEX_OF_PANDAS):
                code = "feature-unused" if is_v2 else "feature-undeclared"
                said = f"info.json does not declare {column[:60]!r}."
                odd.append((code, column[:60], said))
        with self._lock:
            for each in odd:
                self._found.setdefault(each, []).append(name)

    def report(self, look: Look) -> None:
        """Report what was odd; of values that do not fit, the type alone is nothing."""
        unread = {each.where.feature for each in look.findings.kept if each.code == "feature-dtype"}
        for (code, key, what), names in self._found.items():
            if code == "column-stored-type" and key in unread:
                continue
            more = f" The same in {len(names):,} tables." if len(names) > 1 else ""
            look.found(code, what + more, feature=key, file=names[0])


def _odd_type(feature: Feature, kind: pa.DataType) -> Iterator[tuple[str, str, str]]:
    """Yield what is odd about the type of a column that can be read all the same."""
    value = kind.storage_type if isinstance(kind, pa.BaseExtensionType) else kind
    depth = 0
    while pa.types.is_nested(value) and not pa.types.is_struct(value):
        value, depth = value.value_type, depth + 1
    if depth and (feature.is_string or feature.item_shape == ()):
        said = f"Every row of {feature.key} holds a list; its shape is {list(feature.shape)}."
        yield "feature-list", feature.key, said
    elif 0 < depth < len(feature.item_shape):
        said = f"Every row of {feature.key} holds one list; its shape is {list(feature.shape)}."
        yield "feature-flat", feature.key, said
    if not feature.is_numeric or not is_number(value):
        return
    if value != pa.from_numpy_dtype(feature.numpy_dtype):
        kind_of = f"float{value.bit_width}" if pa.types.is_floating(value) else value
        said = f"{feature.key} holds {kind_of}; declared is {feature.dtype}."
        yield "column-stored-type", feature.key, said


def _decoders(look: Look, names: list[str], schemas: _Schemas) -> Iterator[Portions]:
    assert look.info is not None
    stored = {key: f for key, f in look.info.features.items() if not f.is_video}
    threads = len(names) == 1  # several files have a thread each
    for name in names:
        yield partial(_parquet_portions, look, name, stored, threads, schemas)


def _parquet_portions(
    look: Look, name: str, stored: Features, threads: bool, schemas: _Schemas
) -> Iterator[Portion]:
    parquet = _open_parquet(look, name)
    if parquet is None:
        return
    with parquet:
        try:
            schemas.add(name, parquet.schema_arrow, stored, is_v2=look.is_v2)
            _check_others(look, name, parquet.metadata, stored)
            _check_limits(look, name, parquet, stored)
        except UNREADABLE as error:
            _report_damage(look, name, "Its footer is damaged", error)
            return
        present = parquet.schema_arrow.names if parquet.metadata.num_rows else ()
        numeric = {key: f for key, f in stored.items() if f.is_numeric and key in present}
        batches = partial(_parquet_batches, look, name, parquet, list(numeric), threads)
        yield from _portions(look, name, numeric, batches, most_rows=1 << 17)


def _lance_portions(look: Look, name: str) -> Iterator[Portion]:
    assert look.info is not None
    try:
        columns = column_names(look.info)
    except MetadataError:
        return  # a finding already
    stored = {columns[k]: f for k, f in look.info.features.items() if k not in look.video_cameras}
    table = LanceTable(str(look.root / name))
    try:
        present = table.columns
    except DemoreelError as error:
        refuse_shortage(error)
        look.found("lance-unreadable", error.what, file=name)
        return
    _check_schema(look, name, list(present), stored)
    numeric = {column: f for column, f in stored.items() if f.is_numeric and column in present}
    batches = partial(_lance_batches, look, table, list(numeric))
    yield from _portions(look, name, numeric, batches, most_rows=1 << 16)


def _portions(
    look: Look,
    name: str,
    numeric: Features,
    batches: Batches,
    *,
    most_rows: int,
) -> Iterator[Portion]:
    """Decode a table's numbers, portion by portion; what cannot be decoded is a finding."""
    if "episode_index" not in numeric:
        return
    width = sum(math.prod(feature.item_shape) for feature in numeric.values())
    rows = max(1, min(_NUMBERS_AT_ONCE // max(1, width), most_rows))
    decoded = (_decoded(look, name, batch, numeric) for batch in batches(rows))
    whole = (columns for columns in decoded if "episode_index" in columns)
    yield from whole_episodes(whole, name, most_rows=4 * rows)


def _parquet_batches(
    look: Look, name: str, parquet: bounded.Parquet, names: list[str], threads: bool, rows: int
) -> Iterator[pa.RecordBatch]:
    try:
        for block in parquet.blocks(names, rows=rows, use_threads=threads):
            yield from block.combine_chunks().to_batches()
    except UNREADABLE as error:
        _report_damage(look, name, "It does not decode", error)


def _lance_batches(
    look: Look, table: LanceTable, names: list[str], rows: int
) -> Iterator[pa.RecordBatch]:
    try:
        yield from table.batches(names, rows)
    except DemoreelError as error:
        refuse_shortage(error)
        look.found("table-damaged", error.what, file=table.name)


def _open_parquet(look: Look, name: str) -> bounded.Parquet | None:
    """Open a parquet file that is there; None where it cannot be opened, which is a finding."""
    size = look.files[name]
    if size <= 0:
        look.found("table-empty", "It has no bytes.", file=name)
        return None
    path = look.root / name
    if not has_footer(path, size):
        said = f"Its {size} bytes do not end with a parquet footer."
        look.unreadable.add(name)
        look.found("table-unfinished", said, file=name)
        return None
    try:
        parquet = bounded.open_parquet(path)
        _refuse_huge(parquet)
        _ = parquet.schema_arrow.names  # may not be text
        return parquet
    except UNREADABLE as error:
        _report_damage(look, name, "It does not open", error)
        return None


def _report_damage(look: Look, name: str, said: str, error: Exception) -> None:
    refuse_shortage(error)
    look.found(code_for(error, "table-damaged"), f"{said}: {first_line(error)}.", file=name)


def has_footer(path: Path, size: int) -> bool:
    """Whether a file begins and ends as parquet does."""
    if size < 12:
        return False
    try:
        with open(path, "rb") as file:
            begins = file.read(4)
            file.seek(-4, os.SEEK_END)
            return begins == _MAGIC and file.read(4) == _MAGIC
    except OSError as error:
        refuse_shortage(error)
        return False


def _refuse_huge(parquet: bounded.Parquet) -> None:
    """Refuse counts that no such file has, before memory is allocated by them."""
    meta = parquet.metadata
    if not 0 <= meta.num_rows <= _MOST_ROWS:
        raise pa.ArrowInvalid(f"it claims {meta.num_rows} rows")
    for number in range(meta.num_row_groups):
        group = meta.row_group(number)
        if not 0 <= group.total_byte_size <= _LARGEST_ROW_GROUP:
            raise pa.ArrowInvalid(f"a row group claims {group.total_byte_size} bytes")


def _check_schema(look: Look, name: str, columns: Sequence[str], features: Features) -> None:
    """Compare a table's columns with those that ``info.json`` declares."""
    for column, feature in features.items():
        if column not in columns:
            look.found(
                "feature-absent", f"There is no column {column!r}.", feature=feature.key, file=name
            )
    for column in columns:
        if column not in features:
            look.found(
                "feature-undeclared",
                f"info.json does not declare {column[:60]!r}.",
                feature=column[:60],
                file=name,
            )


def _check_limits(look: Look, name: str, parquet: bounded.Parquet, stored: Features) -> None:
    """Report texts and images that decode to more than the limits; by the page headers."""
    for key, feature in stored.items():
        if feature.is_numeric:
            continue
        try:
            for group in range(parquet.num_row_groups):
                parquet.rows_at_once(group, [key])
        except TableError as error:
            code = code_for(error, "table-damaged")
            look.found(code, error.what, feature=key, file=name)


def _check_others(look: Look, name: str, footer: Any, stored: Features) -> None:
    """Check texts and images by the footer's statistics; their bytes are not read."""
    for number in range(footer.num_row_groups):
        group = footer.row_group(number)
        for place in range(group.num_columns):
            chunk = group.column(place)
            feature = stored.get(chunk.path_in_schema.removesuffix(".bytes"))
            if feature is None:
                continue
            statistics = chunk.statistics
            missing = int(statistics.null_count or 0) if statistics is not None else 0
            if feature.is_image:
                small = not _may_repeat(chunk) and (
                    chunk.total_uncompressed_size < _SMALLEST_IMAGE * group.num_rows
                )
                _report_images(look, name, feature, missing or small * group.num_rows)
            elif feature.is_string and missing:
                look.found(
                    "value-missing",
                    f"Missing values of {feature.key}: {missing}.",
                    feature=feature.key,
                    file=name,
                )


def _may_repeat(chunk: Any) -> bool:
    """Whether a column has a dictionary that holds an image: then rows share it, and are small."""
    if not chunk.has_dictionary_page:
        return False
    return int(chunk.data_page_offset - chunk.dictionary_page_offset) >= _SMALLEST_PAGE


def _report_images(look: Look, name: str, feature: Feature, missing: int) -> None:
    if missing:
        look.found(
            "picture-missing",
            f"Missing or empty images of {feature.key}: {missing}.",
            camera=feature.key,
            file=name,
        )


def _decoded(
    look: Look, name: str, batch: pa.RecordBatch, features: Features
) -> dict[str, np.ndarray]:
    """Return a batch's columns as arrays, by feature; those of another kind are findings."""
    columns: dict[str, np.ndarray] = {}
    for place, column in enumerate(batch.schema.names):
        feature = features[column]
        array = batch.column(place)
        try:
            columns[feature.key] = read_numbers(array, feature, where=name)
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
            f"Missing values of {feature.key}: {missing}.",
            feature=feature.key,
            file=name,
        )
        return
    what = error.what if isinstance(error, TableError) else first_line(error)
    look.found(code_for(error, "feature-dtype"), what, feature=feature.key, file=name)


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
