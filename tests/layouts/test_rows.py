"""Rows by file and episode_index, whatever else is in the files."""

from __future__ import annotations

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc
import pyarrow.parquet as pq
import pytest

import demoreel
from demoreel.errors import TableError
from demoreel.layouts import rows as row_columns
from demoreel.testing import make_dataset

DATA = "data/chunk-000/file-000.parquet"


def rewrite(path, change, **options):
    table = change(pq.read_table(path))
    pq.write_table(table, path, **options)


def everything(root):
    """Every number and text of a dataset, without images."""
    ds = demoreel.open(root, cameras=[])
    return ds.batch(range(len(ds)))


def same(left, right):
    assert list(left) == list(right)
    for key in left:
        if isinstance(left[key], np.ndarray):
            assert left[key].dtype == right[key].dtype
            np.testing.assert_array_equal(left[key], right[key], err_msg=key)
        else:
            assert left[key] == right[key], key


@pytest.fixture
def expected(fixtures):
    return everything(fixtures / "kitchen_v30")


@pytest.mark.parametrize("row_group_size", [1, 7, 50, 1000])
def test_row_groups_of_any_size(copy_of, expected, row_group_size):
    root = copy_of("kitchen_v30")
    rewrite(root / DATA, lambda table: table, row_group_size=row_group_size)
    same(everything(root), expected)


@pytest.mark.parametrize("order", [[2], [0, 2], [3, 2], [0, 3, 2]])
def test_an_episode_twice_is_refused_whichever_is_read_first(tmp_path, order):
    root = make_dataset(tmp_path / "twice", episodes=[4, 4, 4, 4], cameras=0)
    table = pq.read_table(root / DATA)
    with pq.ParquetWriter(root / DATA, table.schema) as writer:
        writer.write_table(table.slice(0, 12))  # episodes 0 to 2
        writer.write_table(table.slice(8))  # 2 and 3
    dataset = demoreel.open(root)
    for episode in order[:-1]:
        dataset.batch([4 * episode])
    with pytest.raises(TableError):
        dataset.batch([8])


def test_orphan_rows_do_no_harm(copy_of, expected):
    root = copy_of("kitchen_v30")

    def add_orphans(table):
        at = table.schema.get_field_index("episode_index")
        alien = table.slice(0, 40).set_column(
            at, table.schema.field(at), pa.array([99] * 40, pa.int64())
        )
        return pa.concat_tables([alien, table.slice(0, 50), alien, table.slice(50), alien])

    rewrite(root / DATA, add_orphans, row_group_size=30)
    same(everything(root), expected)


def test_orphan_files_do_no_harm(copy_of, expected):
    root = copy_of("kitchen_v30")
    (root / "data/chunk-000/file-007.parquet").write_bytes((root / DATA).read_bytes())
    (root / "data/chunk-000/file-008.parquet").write_bytes(b"not parquet")
    same(everything(root), expected)


def test_rows_in_any_order(copy_of, expected):
    root = copy_of("kitchen_v30")
    order = np.random.default_rng(0).permutation(123)
    rewrite(root / DATA, lambda table: table.take(order), row_group_size=20)
    same(everything(root), expected)


def test_a_frame_index_that_does_not_count_falls_back_on_the_files_order(copy_of, expected):
    root = copy_of("kitchen_v30")

    def spoil(table):
        at = table.schema.get_field_index("frame_index")
        return table.set_column(at, table.schema.field(at), pa.array([5] * 123, pa.int64()))

    rewrite(root / DATA, spoil)
    found = everything(root)
    np.testing.assert_array_equal(found["action"], expected["action"])
    assert found["note"] == expected["note"]


def test_an_episode_that_lacks_rows_is_refused_and_the_others_read(copy_of, expected):
    root = copy_of("kitchen_v30")
    rewrite(root / DATA, lambda table: table.filter(pc.not_equal(table["index"], 70)))
    ds = demoreel.open(root, cameras=[])
    with pytest.raises(TableError, match="Episode 2 has 11 rows") as caught:
        ds[63]
    assert caught.value.where["episode"] == 2
    assert caught.value.where["file"] == DATA
    np.testing.assert_array_equal(ds[10]["action"], expected["action"][10])
    np.testing.assert_array_equal(ds[122]["action"], expected["action"][122])


def test_text_of_a_broken_episode_is_refused_too(copy_of):
    root = copy_of("kitchen_v30")
    rewrite(root / DATA, lambda table: table.filter(pc.not_equal(table["index"], 70)))
    with pytest.raises(TableError, match="Episode 2"):
        demoreel.open(root).episode(2).column("note")


@pytest.mark.parametrize(
    ("name", "shape"), [("action", [5]), ("observation.tactile", [3, 3]), ("phase", [2])]
)
def test_shapes_that_disagree_with_the_columns(copy_of, name, shape):
    import json

    root = copy_of("kitchen_v30")
    info = json.loads((root / "meta/info.json").read_text())
    info["features"][name]["shape"] = shape
    (root / "meta/info.json").write_text(json.dumps(info))
    with pytest.raises(TableError, match=name):
        demoreel.open(root, cameras=[])[0]


def test_lists_of_uneven_length_whose_total_fits(copy_of):
    root = copy_of("g1_v30")

    def uneven(table):
        lists = table["action"].to_pylist()
        lists[0], lists[1] = lists[0][:-1], [*lists[1], 0.0]
        at = table.schema.get_field_index("action")
        return table.set_column(at, table.schema.field(at), pa.array(lists, pa.list_(pa.float32())))

    rewrite(root / DATA, uneven)
    with pytest.raises(TableError, match="action"):
        demoreel.open(root, cameras=[])[5]


def test_a_missing_column_and_missing_values(copy_of):
    root = copy_of("g1_v30")
    rewrite(root / DATA, lambda table: table.drop_columns(["action"]))
    with pytest.raises(TableError, match="lacks the column 'action'"):
        demoreel.open(root, cameras=[])[0]

    root = copy_of("kitchen_v30")

    def with_a_hole(table):
        at = table.schema.get_field_index("phase")
        return table.set_column(at, "phase", pa.array([None, *range(122)], pa.int64()))

    rewrite(root / DATA, with_a_hole)
    with pytest.raises(TableError, match=r"phase.*missing values"):
        demoreel.open(root, cameras=[])[0]


def test_another_type_of_number_is_taken_only_if_nothing_is_lost(copy_of, expected):
    root = copy_of("kitchen_v30")

    def as_doubles(table):
        at = table.schema.get_field_index("next.reward")
        return table.set_column(at, "next.reward", table["next.reward"].cast(pa.float64()))

    rewrite(root / DATA, as_doubles)
    same(everything(root), expected)

    def as_text(table):
        at = table.schema.get_field_index("next.reward")
        return table.set_column(at, "next.reward", table["next.reward"].cast(pa.string()))

    rewrite(root / DATA, as_text)
    with pytest.raises(TableError, match=r"next\.reward"):
        demoreel.open(root, cameras=[])[0]


@pytest.fixture
def shared_columns(monkeypatch, tmp_path):
    """Make even small tables go to the shared scratch folder."""
    monkeypatch.setattr(row_columns, "_MEMORY_BYTES", 0)
    monkeypatch.setenv("DEMOREEL_SCRATCH", str(tmp_path / "scratch"))
    return tmp_path / "scratch"


def test_large_tables_live_in_a_shared_scratch_folder(fixtures, expected, shared_columns):
    ds = demoreel.open(fixtures / "kitchen_v30", cameras=[])
    same(ds.batch(range(123)), expected)
    assert list(shared_columns.glob("*/*/filled"))
    again = demoreel.open(fixtures / "kitchen_v30", cameras=[])
    same(again.batch(range(123)), expected)
    assert len(list(shared_columns.glob("*/*/filled"))) == 1  # one folder for both


def test_a_dataset_that_changed_does_not_meet_its_old_scratch(copy_of, shared_columns):
    root = copy_of("kitchen_v30")
    before = demoreel.open(root, cameras=[])
    old = before.batch(range(123))["action"].copy()

    def negate(table):
        at = table.schema.get_field_index("action")
        values = -np.array(table["action"].to_pylist(), dtype=np.float32)
        column = pa.FixedSizeListArray.from_arrays(pa.array(values.reshape(-1)), 6)
        return table.set_column(at, table.schema.field(at), column)

    rewrite(root / DATA, negate)
    episodes = root / "meta/episodes/chunk-000/file-000.parquet"
    pq.write_table(pq.read_table(episodes), episodes)
    np.testing.assert_array_equal(demoreel.open(root, cameras=[])[5]["action"], -old[5])


def test_a_full_scratch_disk_falls_back_on_memory(fixtures, expected, shared_columns, monkeypatch):
    from demoreel.layouts.rows import SharedColumn

    def full(self, row, values):
        raise OSError(28, "No space left on device")

    monkeypatch.setattr(SharedColumn, "write", full)
    same(demoreel.open(fixtures / "kitchen_v30", cameras=[]).batch(range(123)), expected)
