"""Columns and texts of tasks as other tools store them, read as what they are meant to be.

Stored types differ from declared ones in ways that lose nothing: whole numbers as floats, single
values as lists of one, images as plain binary. What cannot be told is an error.

lerobot keeps the texts of tasks as a pandas index beside ``task_index``. Tools that went through
pandas once more have left them under another name, with numbers that became floats, or as a plain
column.
"""

from __future__ import annotations

import json
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from demoreel.errors import DemoreelError, TableError, refuse_shortage
from demoreel.layouts.columns import arrow_type, read_images, read_numbers, read_texts, to_arrow
from demoreel.layouts.meta import TaskList
from demoreel.model import DEFAULT_FEATURES, Feature
from demoreel.storage.arrow import UNREADABLE, is_number
from demoreel.storage.json_files import json_lines
from demoreel.storage.parquet import open_parquet

_JPEG = b"\xff\xd8"
_LONGEST = 60
_MOST = 1 << 20  # tasks
_TEXTS = ("task", "__index_level_0__", "tasks", "task_name", "instruction", "index", "text", "name")
_NUMBERS = ("task_index", "task_id", "index", "id", "__index_level_0__")


def numbers_of(column: pa.ChunkedArray | pa.Array, feature: Feature, *, where: str) -> np.ndarray:
    """Return a numeric column in the feature's dtype and shape; whole numbers may be floats."""
    array = _in_one(column)
    return read_numbers(array, feature, where=where)


def default_numbers(table: pa.Table, key: str) -> np.ndarray | None:
    """Return one of the format's own columns; None where it is missing, or does not hold numbers.

    Timestamps keep the precision that they have.
    """
    if key not in table.column_names or table.column(key).null_count:
        return None
    dtype = "float64" if key == "timestamp" else DEFAULT_FEATURES[key]
    try:
        return numbers_of(table.column(key), Feature(key, dtype, (1,)), where=key)
    except (TableError, pa.ArrowException, ValueError) as error:
        refuse_shortage(error)
        return None


def as_column(column: pa.ChunkedArray | pa.Array, feature: Feature, *, where: str) -> pa.Array:
    """Return a column in the type that LeRobot writes for the feature."""
    kind, array = arrow_type(feature), _in_one(column)
    if array.type == kind:
        return array
    if feature.is_numeric:
        return to_arrow(numbers_of(array, feature, where=where), feature, length=len(array))
    if feature.is_image:
        return _as_images(read_images(array, key=feature.key, where=where), array, kind)
    if feature.is_string:
        array = _single(array)
    try:
        return array.cast(kind)
    except pa.ArrowException as error:
        raise TableError(
            f"The column {feature.key!r} holds what its type {kind} does not hold ({error}).",
            file=where,
        ) from error


def is_as_written(kind: pa.DataType, feature: Feature) -> bool:
    """Whether a column is of the type that LeRobot writes; lists may be of fixed size or not."""
    return bool(_plain(kind) == _plain(arrow_type(feature)))


def holds_images(kind: pa.DataType) -> bool:
    """Whether a column's type may be that of encoded images."""
    is_struct = pa.types.is_struct(kind) and kind.get_field_index("bytes") >= 0
    return is_struct or _is_binary(kind)


def holds_texts(kind: pa.DataType) -> bool:
    """Whether a column's type is text, or lists of it."""
    while _is_list(kind):
        kind = kind.value_type
    return (pa.types.is_dictionary(kind) and holds_texts(kind.value_type)) or _is_text(kind)


def in_words(kind: pa.DataType) -> str:
    """Return what a type is called in reports."""
    if _is_list(kind):
        return f"lists of {in_words(kind.value_type)}"
    if pa.types.is_struct(kind):
        return "images" if holds_images(kind) else f"structs of {', '.join(f.name for f in kind)}"
    if pa.types.is_floating(kind):
        return f"float{kind.bit_width}"
    return " ".join(str(kind).split())[:_LONGEST]


def _in_one(column: pa.ChunkedArray | pa.Array) -> pa.Array:
    array = column.combine_chunks() if isinstance(column, pa.ChunkedArray) else column
    array = array.storage if isinstance(array, pa.ExtensionArray) else array
    return array.dictionary_decode() if pa.types.is_dictionary(array.type) else array


def _single(array: pa.Array) -> pa.Array:
    """Return the values of lists that hold one each; what is no list as it is."""
    while _is_list(array.type):
        single = read_texts(array)
        if single is array:
            raise TableError("A column of texts has lists of more than one, or of none.")
        array = single
    return array


def _as_images(encoded: pa.Array, stored: pa.Array, kind: pa.DataType) -> pa.Array:
    encoded = encoded.cast(pa.binary())
    paths: Any = None
    if pa.types.is_struct(stored.type) and stored.type.get_field_index("path") >= 0:
        paths = stored.field(stored.type.get_field_index("path")).cast(pa.string())
    if paths is None:
        starts = pc.binary_slice(encoded, 0, 2)
        endings = pc.if_else(pc.equal(starts, pa.scalar(_JPEG, pa.binary())), ".jpg", ".png")
        numbers = pa.array([f"frame-{n:06d}" for n in range(len(encoded))], pa.string())
        paths = pc.binary_join_element_wise(numbers, pc.fill_null(endings, ".png"), "")
    return pa.StructArray.from_arrays([encoded, paths], fields=list(kind))


def _plain(kind: pa.DataType) -> pa.DataType:
    if isinstance(kind, pa.BaseExtensionType):
        kind = kind.storage_type
    if pa.types.is_list(kind) or pa.types.is_fixed_size_list(kind):
        return pa.list_(_plain(kind.value_type))
    if pa.types.is_struct(kind):
        return pa.struct([(field.name, _plain(field.type)) for field in kind])
    return kind


def _is_list(kind: pa.DataType) -> bool:
    types = pa.types
    return bool(types.is_list(kind) or types.is_fixed_size_list(kind) or types.is_large_list(kind))


def _is_text(kind: pa.DataType) -> bool:
    return bool(pa.types.is_string(kind) or pa.types.is_large_string(kind))


def _is_binary(kind: pa.DataType) -> bool:
    types = pa.types
    return bool(types.is_binary(kind) or types.is_large_binary(kind))


_SAME_NAMES = {"__index_level_0__": "task"}  # an index without a name


def find_texts(meta: Path, known: TaskList | None) -> dict[int, str]:
    """Return the text of each task, by ``task_index``.

    Args:
        meta: The folder of the metadata.
        known: What readers take from its files; it prevails.
    """
    texts: dict[int, str] = {}
    for name in ("tasks.parquet", "tasks.jsonl"):
        path = meta / name
        if path.is_file():
            rows = _of_table(path) if name.endswith("parquet") else _of_lines(path)
            for number, text in rows:
                texts.setdefault(number, text)
    if known is not None:
        said = dict(reversed(list(zip(known.indices, known.texts, strict=True))))
        texts |= {n: text for n, text in said.items() if text not in ("", "None") or n not in texts}
    return texts


def form_of(path: Path) -> object:
    """Return a table's columns, their types and its index, for a comparison; None without any."""
    try:
        with open_parquet(path) as parquet:
            schema = parquet.schema_arrow
            said = json.loads((schema.metadata or {}).get(b"pandas", b"{}"))
            index = [_SAME_NAMES.get(name, name) for name in said.get("index_columns", ())]
            kinds = {
                _SAME_NAMES.get(field.name, field.name): str(field.type).removeprefix("large_")
                for field in schema
            }
            return kinds, index
    except (
        *UNREADABLE,
        DemoreelError,
        ValueError,
        AttributeError,
        TypeError,
        RecursionError,
    ) as error:
        refuse_shortage(error)
        return None


def _of_table(path: Path) -> Iterator[tuple[int, str]]:
    try:
        with open_parquet(path) as parquet:
            if parquet.metadata.num_rows > _MOST:
                return
            table = parquet.read()
    except (*UNREADABLE, DemoreelError, ValueError) as error:
        refuse_shortage(error)
        return
    kinds = {field.name: field.type for field in table.schema}
    text = _named(_TEXTS, {n for n, kind in kinds.items() if holds_texts(kind)})
    number = _named(_NUMBERS, {n for n, kind in kinds.items() if is_number(kind)})
    if text is None:
        return
    texts = table.column(text).to_pylist()
    numbers: list[Any] = list(range(len(texts)))  # a RangeIndex is not stored
    if number is not None:
        numbers = table.column(number).to_pylist()
    yield from _pairs(zip(numbers, texts, strict=True))


def _of_lines(path: Path) -> Iterator[tuple[int, str]]:
    for place, (_, line) in enumerate(json_lines(path, refuse_shortage)):
        if place >= _MOST:
            return
        text = _named(_TEXTS, {n for n, value in line.items() if _text(value) is not None})
        number = _named(_NUMBERS, {n for n, value in line.items() if _whole(value) is not None})
        if text is not None:
            yield from _pairs([(line.get(number, place) if number else place, line[text])])


def _named(order: tuple[str, ...], there: set[str]) -> str | None:
    """Return the column of these that is meant: by its name, or as the only one."""
    found = next((name for name in order if name in there), None)
    return next(iter(there)) if found is None and len(there) == 1 else found


def _pairs(rows: Any) -> Iterator[tuple[int, str]]:
    for number, text in rows:
        whole, said = _whole(number), _text(text)
        if whole is not None and said is not None:
            yield whole, said


def _whole(value: object) -> int | None:
    if isinstance(value, str) and value.strip().isdecimal() and len(value) < 19:
        return int(value)
    if isinstance(value, bool) or not isinstance(value, int | float):
        return None
    return int(value) if value == value and abs(value) < 2**53 and value == int(value) else None


def _text(value: object) -> str | None:
    if isinstance(value, list) and len(value) == 1:
        return _text(value[0])
    return value if isinstance(value, str) else None


def said_of_episodes(tasks: pa.ChunkedArray | None, index: Any) -> Mapping[int, list[str]]:
    """Return the texts that the metadata of each episode name."""
    if tasks is None:
        return {}
    return {n: said or [] for n, said in zip(index.tolist(), tasks.to_pylist(), strict=True)}
