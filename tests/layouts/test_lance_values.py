"""Large values read beside Lance: the very same, or left to Lance."""

from __future__ import annotations

import os

import lance
import numpy as np
import pyarrow as pa
import pytest

from demoreel.layouts.lance import calls
from demoreel.layouts.lance.tables import LanceTable

# Importing lance here, as a user of lance does, brings its warning back.
pytestmark = pytest.mark.filterwarnings("ignore:lance is not fork-safe")

AS_IT_IS = {"lance-encoding:compression": "none"}
RNG = np.random.default_rng(0)


def values_of(count, *, low=3_000, high=40_000):
    return [RNG.bytes(int(size)) for size in RNG.integers(low, high, count)]


def write(path, values, *, metadata=AS_IT_IS, version="2.2", rows_per_file=1 << 20):
    schema = pa.schema(
        [
            ("number", pa.list_(pa.float32(), 3)),
            pa.field("picture", pa.binary(), metadata=metadata),
            ("after", pa.string()),
        ]
    )
    numbers = pa.FixedSizeListArray.from_arrays(
        pa.array(np.arange(3 * len(values)), pa.float32()), 3
    )
    columns = [numbers, pa.array(values, pa.binary()), pa.array(["x"] * len(values))]
    table = pa.table(columns, schema=schema)
    batches = table.to_batches(max_chunksize=50)
    lance.write_dataset(
        iter(batches),
        str(path),
        schema=schema,
        data_storage_version=version,
        max_rows_per_file=rows_per_file,
    )
    return LanceTable(str(path))


@pytest.mark.parametrize("version", ["2.1", "2.2"])
@pytest.mark.parametrize("rows_per_file", [1 << 20, 70])
def test_the_values_are_those_that_lance_gives(tmp_path, version, rows_per_file):
    held = values_of(300)
    table = write(tmp_path / "t.lance", held, version=version, rows_per_file=rows_per_file)
    values = table.values("picture")
    assert values is not None
    places = RNG.integers(0, 300, 500)
    assert values.read(places) == [held[place] for place in places]
    assert values.read(np.array([0, 299])) == [held[0], held[299]]


def test_empty_values_are_right_or_left_to_lance(tmp_path):
    held = [b"", *values_of(40), b""]
    values = write(tmp_path / "t.lance", held).values("picture")
    assert values is not None
    assert values.read(np.arange(42)) in (held, None)


@pytest.mark.parametrize(
    "options",
    [
        {"metadata": {"lance-encoding:compression": "zstd"}},
        {"metadata": {"lance-encoding:compression": "lz4"}},
        {"metadata": None},
    ],
    ids=["zstd", "lz4", "default"],
)
def test_compressed_values_are_left_to_lance(tmp_path, options):
    held = [value + bytes(20_000) for value in values_of(60)]
    table = write(tmp_path / "t.lance", held, **options)
    values = table.values("picture")
    assert values is None or values.read(np.arange(60)) in (None, held)
    assert table.take(np.arange(60), ["picture"]).column(0).to_pylist() == held


def test_small_values_are_left_to_lance(tmp_path):
    assert write(tmp_path / "t.lance", values_of(100, low=1, high=9)).values("picture") is None


def test_missing_values_are_left_to_lance(tmp_path):
    held = [None, *values_of(30), None]
    values = write(tmp_path / "t.lance", held).values("picture")
    assert values is None or values.read(np.arange(32)) is None


def test_tables_with_deleted_rows_are_left_to_lance(tmp_path):
    write(tmp_path / "t.lance", values_of(30))
    lance.dataset(str(tmp_path / "t.lance")).delete("number[1] = 9")
    assert LanceTable(str(tmp_path / "t.lance")).values("picture") is None


def test_a_column_that_was_added_later_lies_in_another_file(tmp_path):
    held = values_of(40)
    write(tmp_path / "t.lance", values_of(40))
    more = pa.field("more", pa.binary(), metadata=AS_IT_IS)
    schema = pa.schema([more])
    batch = pa.record_batch([pa.array(held)], schema=schema)
    table = lance.dataset(str(tmp_path / "t.lance"))
    table.add_columns(pa.RecordBatchReader.from_batches(schema, [batch]))
    values = LanceTable(str(tmp_path / "t.lance")).values("more")
    assert values is None or values.read(np.arange(40)) in (None, held)


def data_file(path):
    (file,) = (path / "data").glob("*.lance")
    return file


def test_a_file_that_has_gone_is_left_to_lance(tmp_path):
    table = write(tmp_path / "t.lance", values_of(30))
    values = table.values("picture")
    assert values is not None
    assert values.read(np.array([3])) is not None
    data_file(tmp_path / "t.lance").unlink()
    assert values.read(np.array([4])) is None


def test_a_value_whose_length_is_another_is_left_to_lance(tmp_path):
    held = values_of(30)
    table = write(tmp_path / "t.lance", held)
    values = table.values("picture")
    assert values is not None
    assert values.read(np.array([3])) == [held[3]]
    file = data_file(tmp_path / "t.lance")
    data = bytearray(file.read_bytes())
    at = data.index(held[7])
    data[at - 4 : at] = b"\x01\x00\x00\x00"
    file.write_bytes(data)
    assert values.read(np.array([7])) is None
    assert values.read(np.array([8])) == [held[8]]


def test_a_forked_process_reads_without_asking_anyone(tmp_path):
    held = values_of(60)
    values = write(tmp_path / "t.lance", held).values("picture")
    assert values is not None
    assert values.read(np.array([0])) == [held[0]]
    child = os.fork()
    if child == 0:
        right = values.read(np.arange(60)) == held and calls._process._helper is None
        os._exit(0 if right and not calls.may_use_lance() else 1)
    assert os.waitpid(child, 0)[1] == 0
