"""The rows of a Lance table, for the checks that want to see them."""

from __future__ import annotations

import math
from collections.abc import Iterator

import pyarrow as pa

from demoreel.check.look import Look
from demoreel.check.parquet_files import check_schema, decoded_columns
from demoreel.check.rows import Portion, Portions, whole_episodes
from demoreel.errors import DemoreelError, MetadataError
from demoreel.layouts.lance_rows import column_names
from demoreel.model import Feature
from demoreel.storage import lance_calls
from demoreel.storage.lance_process import may_use_lance
from demoreel.storage.lance_tables import LanceTable

_NUMBERS_AT_ONCE = 1 << 21


def files(look: Look) -> Iterator[Portions]:
    """Yield what decodes the table of rows."""
    name = f"{look.table}.lance"
    yield lambda: _portions(look, name)


def _portions(look: Look, name: str) -> Iterator[Portion]:
    assert look.info is not None
    try:
        columns = column_names(look.info)
    except MetadataError:
        return  # a finding already
    features = {columns[key]: f for key, f in look.info.features.items() if key not in look.filmed}
    table = LanceTable(str(look.root / name))
    try:
        present = table.columns
    except DemoreelError as error:
        look.found("lance-unreadable", error.what, file=name)
        return
    check_schema(look, name, pa.schema([(n, pa.null()) for n in present]), features)
    numeric = {c: f for c, f in features.items() if f.is_numeric and c in present}
    if "episode_index" not in numeric:
        return
    batches = _batches(look, table, numeric)
    decoded = (decoded_columns(look, name, b, numeric, from_floats=True) for b in batches)
    whole = (columns for columns in decoded if "episode_index" in columns)
    yield from whole_episodes(whole, name, most_rows=1 << 18)


def _batches(
    look: Look, table: LanceTable, numeric: dict[str, Feature]
) -> Iterator[pa.RecordBatch]:
    width = sum(math.prod(feature.item_shape) for feature in numeric.values())
    rows = max(1, min(_NUMBERS_AT_ONCE // max(1, width), 1 << 16))
    try:
        if not may_use_lance():
            yield from table.scan(list(numeric)).to_batches(max_chunksize=rows)
            return
        with table.errors():
            source = lance_calls.dataset(table.place, table.version)
            with lance_calls.lance_failures(table.place):
                yield from source.scanner(columns=list(numeric), batch_size=rows).to_batches()
    except DemoreelError as error:
        look.found("table-damaged", error.what, file=table.name)
