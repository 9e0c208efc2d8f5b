"""Parquet from strangers: what it unfolds to is known before it is decoded."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
import pytest

import demoreel
from demoreel.errors import MetadataError, TableError
from demoreel.storage import parquet as module
from demoreel.storage import parquet_pages as pages
from demoreel.storage.parquet import Forward, open_parquet
from demoreel.storage.thrift import Reading, put_unsigned, to_bytes

LONG = 4_000_000


@pytest.fixture
def small_limits(monkeypatch):
    monkeypatch.setenv("DEMOREEL_LIMIT_TABLE_BYTES", "20MiB")
    monkeypatch.setenv("DEMOREEL_LIMIT_PAGE_BYTES", "40MiB")


def dictionary(rows, length=LONG):
    return pa.DictionaryArray.from_arrays(
        pa.array([0] * rows, pa.int32()), pa.array(["x" * length])
    )


def written(path, columns, **options):
    table = pa.table(columns)
    pq.write_table(table, path, **{"compression": "zstd", "store_schema": False, **options})
    return path


def test_a_dictionary_that_every_row_names(tmp_path, small_limits):
    path = written(tmp_path / "x", {"a": dictionary(10), "n": range(10)})
    assert path.stat().st_size < 20_000
    with open_parquet(path) as parquet:
        assert parquet.read(["n"]).num_rows == 10
        with pytest.raises(TableError, match=r"unfold to 40,000.*TABLE_BYTES") as caught:
            parquet.read()
        assert caught.value.where["limit"] == "TABLE_BYTES"
        assert "DEMOREEL_LIMIT_TABLE_BYTES" in str(caught.value.hint)
        with pytest.raises(TableError, match="TABLE_BYTES"):
            next(parquet.blocks())


def test_lists_of_such_texts_and_other_kinds_of_errors(tmp_path, small_limits):
    texts = pa.ListArray.from_arrays(pa.array([0, 5, 10], pa.int32()), dictionary(10))
    path = written(tmp_path / "x", {"a": texts})
    with open_parquet(path, kind=MetadataError) as parquet, pytest.raises(MetadataError):
        parquet.read()


def test_a_dictionary_that_only_could_be_large_is_read(tmp_path, small_limits):
    """Every entry times every row would be above the limit; what is there is not."""
    texts = ["y" * 5_000_000, *["short"] * 999]
    path = written(tmp_path / "x", {"a": pa.array(texts).dictionary_encode()})
    with open_parquet(path) as parquet:
        assert parquet.read().column("a").to_pylist() == texts
        assert pa.concat_tables(parquet.blocks()).column("a").to_pylist() == texts


def test_a_page_that_decompresses_a_thousandfold(tmp_path, small_limits):
    path = written(tmp_path / "x", {"a": ["x" * 24_000_000]}, use_dictionary=False)
    with open_parquet(path) as parquet, pytest.raises(TableError, match="PAGE_BYTES"):
        parquet.read()


def test_limits_are_raised(tmp_path, small_limits, monkeypatch):
    path = written(tmp_path / "x", {"a": dictionary(10)})
    monkeypatch.setenv("DEMOREEL_LIMIT_TABLE_BYTES", "1GiB")
    with open_parquet(path) as parquet:
        assert parquet.read().num_rows == 10


def claiming(path, rows):
    """A footer that claims other rows."""
    data = path.read_bytes()
    length = int.from_bytes(data[-8:-4], "little")
    footer = Reading(data[-8 - length : -8]).struct()
    footer[3] = (footer[3][0], rows)
    for group in footer[4][1][1]:
        group[3] = (group[3][0], rows)
        for column in group[1][1][1]:
            column[3][1][5] = (column[3][1][5][0], rows)
    made = to_bytes(footer)
    path.write_bytes(data[: -8 - length] + made + len(made).to_bytes(4, "little") + b"PAR1")


def test_a_footer_that_claims_a_billion_rows(tmp_path):
    path = written(tmp_path / "x", {"n": np.zeros(1000)})
    claiming(path, 10**9)
    with open_parquet(path) as parquet:
        with pytest.raises(TableError, match="TABLE_BYTES"):
            parquet.read()
        with pytest.raises(TableError, match="TABLE_BYTES"):
            next(parquet.blocks())


def test_a_long_footer_is_not_even_read(tmp_path, monkeypatch):
    path = written(tmp_path / "x", {f"c{n}": [1] for n in range(200)})
    monkeypatch.setenv("DEMOREEL_LIMIT_FOOTER_BYTES", "1KiB")
    with pytest.raises(TableError, match="FOOTER_BYTES"):
        open_parquet(path)


def test_headers_that_are_none(tmp_path):
    path = written(tmp_path / "x", {"a": [[1.0, 2.0]] * 100}, use_dictionary=False)
    start = pq.read_metadata(path).row_group(0).column(0).data_page_offset
    data = bytearray(path.read_bytes())
    data[start : start + 8] = b"\xff" * 8
    path.write_bytes(data)
    with open_parquet(path) as parquet, pytest.raises(pa.ArrowInvalid, match="header"):
        parquet.read()


def ordinary(rows=5000):
    rng = np.random.default_rng(0)
    images = [{"bytes": rng.bytes(300), "path": f"{n}.png"} for n in range(rows)]
    return pa.table(
        {
            "a.b": [rng.random(3).tolist() for _ in range(rows)],
            "a": np.arange(rows),
            "text": [f"text {n % 7}" for n in range(rows)],
            "image": images,
            "deep": [[[1, n], [2]] for n in range(rows)],
        }
    )


@pytest.mark.parametrize("version", ["1.0", "2.0"])
@pytest.mark.parametrize("dictionaries", [True, False])
def test_blocks_are_what_is_there(tmp_path, monkeypatch, version, dictionaries):
    table = ordinary()
    path = tmp_path / "x"
    pq.write_table(
        table, path, row_group_size=1700, use_dictionary=dictionaries, data_page_version=version
    )
    with open_parquet(path) as parquet:
        assert parquet.read().equals(table)
        assert pa.concat_tables(parquet.blocks()).equals(table)
        for rows in (1, 64, 2000):
            found = [len(block) for block in parquet.blocks(["a"], rows=rows)]
            assert max(found) <= rows
            assert sum(found) == len(table)
    monkeypatch.setattr(module, "AT_ONCE", 20_000)
    monkeypatch.setattr(module, "_BLOCK", 5_000)
    with open_parquet(path) as parquet:
        blocks = list(parquet.blocks())
        assert len(blocks) > 50
        assert pa.concat_tables(blocks).equals(table)
        forward = Forward(parquet)
        for first, length in ((0, 10), (10, 3000), (4000, 1000), (5, 20)):
            pieces = pa.concat_tables(forward.pieces(first, length))
            assert pieces.equals(table.slice(first, length))
        with pytest.raises(pa.ArrowInvalid, match="fewer rows"):
            list(forward.pieces(4990, 20))


@pytest.fixture
def large_pages(monkeypatch):
    """What counts as large is small here."""
    for name, value in {"AT_ONCE": 1 << 16, "_BLOCK": 1 << 14, "_LARGE_PAGE": 1 << 15}.items():
        monkeypatch.setattr(module, name, value)
    monkeypatch.setattr(pages, "_PIECE", 1 << 14)


def images(rows=120, size=4000):
    """Images that repeat, lack their bytes or are missing; noise, and what compresses."""
    rng = np.random.default_rng(0)
    some = [rng.bytes(int(rng.integers(1, size))) + b"same" * 100 for _ in range(rows)]
    some = [b"again" * size if n % 9 == 0 else some[n - n % 2] for n in range(rows)]
    inner = [{"bytes": None if n % 7 == 3 else some[n], "path": f"{n}"} for n in range(rows)]
    table = pa.table(
        {
            "n": np.arange(rows),
            "a.b": [None if n % 11 == 5 else one for n, one in enumerate(inner)],
            "text": pa.array([one.hex() for one in some], pa.large_string()),
            "bare": some,
        }
    )
    whole = pa.field("bare", pa.binary(), nullable=False)
    return table.cast(table.schema.set(3, whole))


CODECS = ("snappy", "zstd", "gzip", "brotli", "none", "lz4")


@pytest.mark.parametrize("codec", CODECS)
@pytest.mark.parametrize("version", ["1.0", "2.0"])
@pytest.mark.parametrize("dictionaries", [True, False])
def test_large_pages_are_decoded_in_pieces(tmp_path, large_pages, codec, version, dictionaries):
    table, path = images(), tmp_path / "x"
    options = {"compression": codec, "data_page_version": version, "row_group_size": 70}
    pq.write_table(table, path, use_dictionary=dictionaries, write_batch_size=50, **options)
    with open_parquet(path) as parquet:
        for columns in (None, ["a.b"], ["bare", "n"]):
            expected = table if columns is None else table.select(columns)
            blocks = list(parquet.blocks(columns))
            assert len(blocks) > 5
            found = pa.concat_tables(blocks).select(expected.column_names)
            found.validate(full=True)
            assert found.equals(expected)


def test_snappy_with_long_elements(tmp_path, large_pages):
    """A compressor may copy a page as it is, in one element."""
    data = np.random.default_rng(0).bytes(200_000)
    head = bytes([0xF8]) + (len(data) - 1).to_bytes(3, "little")
    size = bytearray()
    put_unsigned(size, len(data))
    made = bytes(size) + head + data
    assert pa.decompress(made, len(data), "snappy", asbytes=True) == data
    stream = pages._Stream(iter([made[:9], made[9:50_000], made[50_000:]]), len(made))
    assert b"".join(pages._snappy(stream)) == data


@pytest.mark.parametrize("codec", ["snappy", "none", "zstd"])
def test_large_pages_that_are_damaged(tmp_path, large_pages, codec):
    path = tmp_path / "x"
    pq.write_table(images(60).select(["bare"]), path, write_batch_size=50, compression=codec)
    data, failed = path.read_bytes(), 0
    for at in range(4, 60):
        hurt = data[:at] + b"\xff\x7f" + data[at + 2 :]
        try:
            for block in open_parquet(hurt).blocks():
                block.validate(full=True)
        except (pa.ArrowException, OSError, TableError):
            failed += 1
    assert failed > 10


def test_large_pages_that_cannot_be_decoded_in_pieces(tmp_path, monkeypatch):
    """They are held several times: a quarter of the limit holds for them."""
    monkeypatch.setenv("DEMOREEL_LIMIT_PAGE_BYTES", "40MiB")
    monkeypatch.setattr(module, "_LARGE_PAGE", 1 << 20)
    rng = np.random.default_rng(0)
    table = pa.table({"a": [rng.bytes(1_000_000) for _ in range(12)]})
    for encoding in ("PLAIN", "DELTA_LENGTH_BYTE_ARRAY"):
        path = tmp_path / encoding
        options = {"use_dictionary": False, "column_encoding": encoding}
        pq.write_table(table, path, **options)
        with open_parquet(path) as parquet:
            if encoding == "PLAIN":
                assert pa.concat_tables(parquet.blocks()).equals(table)
                continue
            with pytest.raises(TableError, match=r"as a whole.*PAGE_BYTES"):
                next(parquet.blocks())


def test_images_are_written_in_pages_of_ordinary_size(tmp_path):
    from demoreel.testing import make_dataset

    camera = "observation.images.front"
    root = make_dataset(
        tmp_path / "ds", episodes=(60, 60), cameras=0, image_cameras={camera: (48, 64)}
    )
    path = next((root / "data").rglob("*.parquet"))
    table = pq.read_table(path)
    rest = np.random.default_rng(0).bytes(50_000)  # behind a PNG's end
    rows = [{**row, "bytes": row["bytes"] + rest} for row in table.column(camera).to_pylist()]
    place, kind = table.schema.get_field_index(camera), table.schema.field(camera).type
    pq.write_table(table.set_column(place, camera, pa.array(rows, kind)), path)
    assert _largest_page(path, camera) > 5_000_000
    demoreel.cut(root).render(tmp_path / "cut")
    demoreel.convert(root, tmp_path / "v2", to="v2.1")
    demoreel.convert(tmp_path / "v2", tmp_path / "v3", to="v3.0")
    for name in ("cut", "v2", "v3"):
        found = [
            _largest_page(one, camera) for one in (tmp_path / name / "data").rglob("*.parquet")
        ]
        assert max(found) < 2_000_000, name


def _largest_page(path, camera):
    with open_parquet(path) as parquet:
        group = parquet.metadata.row_group(0)
        paths = [group.column(n).path_in_schema for n in range(group.num_columns)]
        leaf = paths.index(f"{camera}.bytes")
        found = parquet._pages(group.column(leaf), leaf)
    return max(found.largest, found.dictionary)


def test_rows_of_a_large_group_are_read_in_blocks(tmp_path, monkeypatch):
    """Random rows of images and texts, with a row group that is decoded in parts."""
    from demoreel.testing import make_dataset

    root = make_dataset(
        tmp_path / "ds",
        episodes=(20, 20),
        cameras=0,
        image_cameras={"observation.images.front": (48, 64)},
        features={"note": {"dtype": "string", "shape": [1]}},
    )
    path = next((root / "data").rglob("*.parquet"))
    pq.write_table(pq.read_table(path), path)  # one row group
    whole = demoreel.open(root)
    expected = [whole[n] for n in range(40)]
    monkeypatch.setattr(module, "AT_ONCE", 4_000)
    monkeypatch.setattr(module, "_BLOCK", 2_000)
    parts = demoreel.open(root)
    for n in (39, 0, 20, 21, 5, 4, *range(40)):
        for key, value in expected[n].items():
            assert np.array_equal(parts[n][key], value), (n, key)


def test_no_other_module_opens_parquet_files():
    """One way in: what opens a stranger's file by itself would not know the limits."""
    source = Path(demoreel.__file__).parent
    opened = []
    for path in sorted(source.rglob("*.py")):
        name = path.relative_to(source).as_posix()
        if name == "storage/parquet.py" or name.startswith("testing/"):
            continue
        for number, line in enumerate(path.read_text().splitlines(), 1):
            if "pq.ParquetFile" in line or "pq.read_table" in line:
                opened.append(f"{name}:{number}")
    assert opened == []
