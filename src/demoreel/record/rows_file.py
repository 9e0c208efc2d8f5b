"""The rows of an episode in a file, while its videos are still being encoded.

An Arrow file: one column a feature, one for the tasks. Reading it runs no code, unlike a pickle: a
dataset may come from a stranger.
"""

from __future__ import annotations

import os
from pathlib import Path
from typing import Any

import pyarrow as pa

from demoreel.errors import TableError
from demoreel.layouts import arrow_in
from demoreel.layouts.columns import to_arrow
from demoreel.layouts.language import parsed_rows
from demoreel.model import Feature, Info
from demoreel.record.commit import Taken

_TASKS = "task"


def write_rows(path: Path, taken: Taken, info: Info) -> None:
    """Write the rows and force them to disk.

    Raises:
        OSError: The disk is full.
    """
    length = len(taken.tasks)
    given = {**taken.columns, **taken.images}
    columns = {key: to_arrow(given[key], info.features[key], length=length) for key in given}
    table = pa.table({_TASKS: pa.array(taken.tasks, pa.string()), **columns})
    with open(path, "wb") as file:
        with pa.ipc.new_file(file, table.schema) as writer:
            writer.write_table(table)
        file.flush()
        os.fsync(file.fileno())


def read_rows(path: Path, info: Info) -> Taken:
    """Read what ``write_rows`` wrote.

    Raises:
        TableError: The file is damaged, or not of this dataset.
    """
    try:
        with pa.ipc.open_file(path) as reader:
            table = reader.read_all()
        tasks = table.column(_TASKS).to_pylist()
        columns: dict[str, Any] = {}
        images: dict[str, list[bytes]] = {}
        for key in table.column_names:
            if key == _TASKS:
                continue
            feature = info.features[key]
            values = _values(table.column(key).combine_chunks(), feature, str(path))
            (images if feature.is_camera else columns)[key] = values
    except (pa.ArrowException, OSError, KeyError) as error:
        what = f"The rows of a recorded episode cannot be read ({error})."
        raise TableError(what, file=path) from error
    return Taken(tasks, columns, images)


def _values(array: pa.Array, feature: Feature, where: str) -> Any:
    if feature.is_numeric:
        return arrow_in.numbers(array, feature, where=where)
    if feature.is_camera:
        return arrow_in.pictures(array, key=feature.key, where=where).to_pylist()
    if feature.is_language:
        return [parsed_rows(rows, key=feature.key, where=where) for rows in array.to_pylist()]
    return array.to_pylist()
