"""The texts of tasks, in whatever form a tool has written them.

lerobot keeps texts as a pandas index beside ``task_index``. Tools that went through pandas once
more have left them under another name, with numbers that became floats, or as a plain column.
"""

from __future__ import annotations

import json
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any

import pyarrow as pa

from demoreel.errors import DemoreelError, refuse_shortage
from demoreel.layouts.meta import TaskList
from demoreel.repair.values import holds_texts
from demoreel.storage.arrow import UNREADABLE, is_number
from demoreel.storage.json_files import json_lines
from demoreel.storage.parquet import open_parquet

_MOST = 1 << 20  # tasks
_TEXTS = ("task", "__index_level_0__", "tasks", "task_name", "instruction", "index", "text", "name")
_NUMBERS = ("task_index", "task_id", "index", "id", "__index_level_0__")


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
            index = said.get("index_columns")
            return sorted((field.name, str(field.type)) for field in schema), index
    except (*UNREADABLE, DemoreelError, ValueError, AttributeError, RecursionError) as error:
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
