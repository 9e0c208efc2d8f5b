"""A Parquet file without its footer: what was finished comes back, and nothing else."""

from __future__ import annotations

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from demoreel.repair.parquet_rescue import rescue_rows

WIDTH = {"state": 3, "matrix": 4}
SCHEMA = pa.schema(
    {
        "state": pa.list_(pa.float32(), 3),
        "matrix": pa.list_(pa.list_(pa.float64())),
        "done": pa.bool_(),
        "note": pa.string(),
        "picture": pa.struct({"bytes": pa.binary(), "path": pa.string()}),
        "index": pa.int64(),
    }
)


def rows(first: int, count: int) -> pa.Table:
    numbers = np.arange(first, first + count)
    return pa.table(
        {
            "state": [[n, n / 2, -n] for n in numbers.tolist()],
            "matrix": [[[n, 1.0], [2.0, 3.0]] for n in numbers.tolist()],
            "done": (numbers % 2 == 0),
            "note": [f"row {n % 3}" for n in numbers.tolist()],
            "picture": [{"bytes": b"\x89PNG" * (n % 5), "path": None} for n in numbers.tolist()],
            "index": numbers,
        },
        schema=SCHEMA,
    )


def written(lengths: list[int], **options) -> tuple[bytes, list[int]]:
    """Return a file's bytes without the footer, and where each row group ends."""
    sink = pa.BufferOutputStream()
    with pq.ParquetWriter(sink, SCHEMA, **options) as writer:
        first = 0
        for length in lengths:
            writer.write_table(rows(first, length), row_group_size=length)
            first += length
    whole = sink.getvalue().to_pybytes()
    about = pq.read_metadata(pa.BufferReader(whole))
    ends = []
    for number in range(about.num_row_groups):
        last = about.row_group(number).column(about.num_columns - 1)
        begin = last.dictionary_page_offset or last.data_page_offset
        ends.append(begin + last.total_compressed_size)
    footer = int.from_bytes(whole[-8:-4], "little")
    return whole[: -8 - footer], ends


@pytest.mark.parametrize("compression", ["snappy", "zstd", "none", "gzip", "lz4"])
@pytest.mark.parametrize("use_dictionary", [True, False])
@pytest.mark.parametrize("version", ["1.0", "2.0"])
def test_all_row_groups_come_back(compression, use_dictionary, version):
    data, _ = written(
        [5, 1, 20],
        compression=compression,
        use_dictionary=use_dictionary,
        data_page_version=version,
    )
    found = rescue_rows(data, SCHEMA, width=WIDTH)
    assert found is not None
    assert found.equals(rows(0, 26))


def test_columns_of_many_pages_come_back():
    data, _ = written([4000, 10], use_dictionary=False, data_page_size=2000, write_batch_size=100)
    found = rescue_rows(data, SCHEMA, width=WIDTH)
    assert found is not None
    assert found.equals(rows(0, 4010))


@settings(max_examples=60, deadline=None)
@given(
    lengths=st.lists(st.integers(1, 30), min_size=1, max_size=6),
    share=st.floats(0, 1),
    use_dictionary=st.booleans(),
)
def test_what_was_finished_before_the_cut_comes_back(lengths, share, use_dictionary):
    data, ends = written(lengths, use_dictionary=use_dictionary)
    cut = int(len(data) * share)
    whole = sum(length for length, end in zip(lengths, ends, strict=True) if end <= cut)
    found = rescue_rows(data[:cut], SCHEMA, width=WIDTH)
    assert (0 if found is None else found.num_rows) == whole
    assert found is None or found.equals(rows(0, whole))


@settings(max_examples=100, deadline=None)
@given(data=st.data())
def test_damage_never_ends_in_more_than_an_answer(data):
    good, _ = written([8, 8])
    bad = bytearray(good)
    for _ in range(data.draw(st.integers(1, 5))):
        bad[data.draw(st.integers(4, len(bad) - 1))] ^= 1 << data.draw(st.integers(0, 7))
    found = rescue_rows(bytes(bad), SCHEMA, width=WIDTH)
    assert found is None or found.num_rows <= 16


@pytest.mark.parametrize("data", [b"", b"PAR1", b"PAR1" + bytes(100), b"mp4 " * 10])
def test_what_is_no_table_holds_nothing(data):
    assert rescue_rows(data, SCHEMA, width=WIDTH) is None


def test_another_schema_finds_nothing():
    data, _ = written([5, 7])
    fewer = pa.schema([field for field in SCHEMA if field.name != "matrix"])
    assert rescue_rows(data, fewer, width=WIDTH) is None
    assert rescue_rows(data, pa.schema([]), width=WIDTH) is None
