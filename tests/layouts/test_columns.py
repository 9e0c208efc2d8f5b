import json

import numpy as np
import pyarrow as pa
import pytest
from hypothesis import given
from hypothesis import strategies as st
from hypothesis.extra import numpy as hnp

from demoreel.errors import ArgumentError, TableError
from demoreel.layouts.columns import arrow_type, table_schema, to_arrow
from demoreel.layouts.columns import read_numbers as numbers
from demoreel.model import Feature

shapes = st.lists(st.integers(1, 4), min_size=1, max_size=5).map(tuple)
dtypes = st.sampled_from(
    ["float32", "float64", "float16", "bool", "int8", "int64", "uint8", "uint16", "int32"]
)


@given(st.data(), dtypes, shapes, st.integers(1, 6))
def test_numbers_of_every_kind_and_shape_come_back(data, dtype, shape, rows):
    feature = Feature("x", dtype, shape)
    values = data.draw(hnp.arrays(np.dtype(dtype), (rows, *feature.item_shape)))
    array = to_arrow(values, feature, length=rows)
    assert array.type == arrow_type(feature)
    back = np.array(array.to_pylist(), dtype=dtype)
    assert np.array_equal(back, values, equal_nan=values.dtype.kind == "f")


@pytest.mark.parametrize(
    ("feature", "kind"),
    [
        (Feature("x", "float32", (1,)), "float"),
        (Feature("x", "float32", (6,)), "fixed_size_list<item: float>[6]"),
        (Feature("x", "float32", (4, 3)), "list<item: list<item: float>>"),
        (Feature("x", "bool", (1,)), "bool"),
        (Feature("x", "string", (1,)), "string"),
        (Feature("x", "image", (4, 4, 3)), "struct<bytes: binary, path: string>"),
    ],
)
def test_types_are_lerobots(feature, kind):
    assert str(arrow_type(feature)) == kind


def test_the_schema_is_that_of_a_table_that_lerobot_wrote(fixtures):
    import pyarrow.parquet as pq

    for name in ("kitchen_v30", "kitchen_images_v30"):
        raw = json.loads((fixtures / name / "meta/info.json").read_text())["features"]
        features = [Feature.from_json(key, value, where=name) for key, value in raw.items()]
        ours = table_schema(features)
        theirs = pq.read_schema(fixtures / name / "data/chunk-000/file-000.parquet")
        assert ours.names == theirs.names
        for mine, other in zip(ours.types, theirs.types, strict=True):
            assert mine == getattr(other, "storage_type", other)
        described = [json.loads(schema.metadata[b"huggingface"]) for schema in (ours, theirs)]
        assert described[0]["info"] == described[1]["info"]


def test_single_numbers_may_come_as_a_column_or_a_list_of_ones():
    feature = Feature("done", "bool", (1,))
    for values in (np.array([True, False]), np.array([[True], [False]]), [True, False]):
        assert to_arrow(values, feature, length=2).to_pylist() == [True, False]


def test_language_rows_come_back():
    row = {"role": "user", "content": "hi", "style": None, "camera": None, "tool_calls": None}
    call = {"name": "say", "arguments": {"text": "é"}}
    persistent = Feature("language_persistent", "language", (1,))
    values = [[{**row, "timestamp": 0.5, "tool_calls": [call]}], []]
    array = to_arrow(values, persistent, length=2)
    assert array.type == arrow_type(persistent)
    back = array.to_pylist()
    assert json.loads(back[0][0].pop("tool_calls")[0]) == call
    assert back == [[{k: v for k, v in values[0][0].items() if k != "tool_calls"}], []]
    events = Feature("language_events", "language", (1,))
    assert to_arrow([[row], []], events, length=2).to_pylist() == [[row], []]
    with pytest.raises(ArgumentError, match="timestamp"):
        to_arrow([[{**row, "timestamp": 0.5}]], events, length=1)
    with pytest.raises(ArgumentError, match="role"):
        to_arrow([[{"content": "hi"}]], events, length=1)


def test_images_keep_their_bytes_and_get_a_name():
    feature = Feature("cam", "image", (4, 4, 3))
    values = [b"\x89PNG....", b"\xff\xd8jpeg"]
    rows = to_arrow(values, feature, length=2).to_pylist()
    assert [row["bytes"] for row in rows] == values
    assert [row["path"] for row in rows] == ["frame-000000.png", "frame-000001.jpg"]


@pytest.mark.parametrize(
    ("feature", "values", "said"),
    [
        (Feature("x", "float32", (2,)), np.zeros((3, 2), np.float32), "3 rows"),
        (Feature("x", "float32", (2,)), np.zeros((2, 3), np.float32), "shape"),
        (Feature("x", "float32", (4, 3)), np.zeros((2, 12), np.float32), "shape"),
        (Feature("x", "int64", (1,)), np.zeros(2, np.float32), "float32"),
        (Feature("x", "bool", (1,)), np.zeros(2, np.int64), "int64"),
        (Feature("x", "string", (1,)), [1, 2], "string"),
        (Feature("x", "image", (4, 4, 3)), ["a", 3], "image"),
    ],
)
def test_what_does_not_fit_is_refused(feature, values, said):
    with pytest.raises(ArgumentError, match=said):
        to_arrow(values, feature, length=2)


def test_six_dimensions_are_too_many():
    with pytest.raises(ArgumentError, match="6 dimensions"):
        table_schema([Feature("x", "float32", (1, 1, 1, 1, 1, 2))])


def test_videos_have_no_column():
    schema = table_schema([Feature("v", "video", (4, 4, 3)), Feature("x", "int8", (1,))])
    assert schema.names == ["x"]
    assert schema.field("x").type == pa.int8()


@pytest.mark.parametrize(
    ("dtype", "values"),
    [("int8", [1, 300]), ("int32", [0, 2**40]), ("uint8", [0, -1]), ("float32", [0.0, 1e39])],
)
def test_a_value_that_the_declared_type_does_not_hold_is_an_error_both_ways(dtype, values):
    feature = Feature("x", dtype, (1,))
    with pytest.raises(ArgumentError, match=r"'x'.*does not hold"):
        to_arrow(np.array(values), feature, length=2)
    with pytest.raises(TableError, match="'x'") as caught:
        numbers(pa.array(values), feature, where="a.parquet")
    assert "row: 1" in str(caught.value)
