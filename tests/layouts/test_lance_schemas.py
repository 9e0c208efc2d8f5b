"""Rows of the lance-frames layout: every kind of feature, written and read back."""

from __future__ import annotations

import shutil
from pathlib import Path

import lance
import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
import pytest

import demoreel
from demoreel.errors import ArgumentError, MetadataError, TableError
from demoreel.layouts.lance.schemas import CODEC_NOTE, LanceSchema, rows_batch
from demoreel.layouts.lance.tables import LanceTable
from demoreel.media.images import ImageCodec
from demoreel.model import Feature, Info
from demoreel.read.in_order import encoded_images
from demoreel.testing import make_dataset

# Importing lance here, as a user of lance does, brings its warning back.
pytestmark = pytest.mark.filterwarnings("ignore:lance is not fork-safe")

KINDS = {
    "next.reward": {"dtype": "float64", "shape": [1]},
    "next.done": {"dtype": "bool", "shape": [1]},
    "gripper.open": {"dtype": "bool", "shape": [2]},
    "counter": {"dtype": "int64", "shape": [1]},
    "small": {"dtype": "uint8", "shape": [3]},
    "observation.tactile": {"dtype": "float32", "shape": [4, 3]},
    "observation.cube": {"dtype": "int16", "shape": [2, 3, 4]},
    "note": {"dtype": "string", "shape": [1]},
}
PNG = ImageCodec("png")
FRAMES = LanceSchema("lance-frames", "frames.lance", None)


@pytest.fixture(scope="module")
def made(tmp_path_factory):
    return make_dataset(
        tmp_path_factory.mktemp("made") / "v30",
        episodes=[30, 12],
        cameras={"observation.images.front": (48, 64)},
        image_cameras={"observation.images.still": (40, 48)},
        depth_cameras={"observation.images.depth": (40, 48)},
        features=KINDS,
        tasks=("one", "zwei ✓"),
        task_changes=True,
        language=True,
    )


def convert(source: Path, target: Path, codec: ImageCodec, rows_of) -> Path:
    """Write a lance-frames dataset; ``rows_of`` gives columns of a dataset's rows."""
    dataset = demoreel.open(source)
    reader = dataset.reader
    schema = FRAMES.rows(reader.info, codec)
    shutil.copytree(source / "meta", target / "meta")

    def batches():
        row = 0
        for images in encoded_images(reader, first=0, stop=len(reader.episodes), codec=codec):
            count = len(next(iter(images.values())))
            yield rows_batch(schema, rows_of(reader, np.arange(row, row + count)), images)
            row += count

    lance.write_dataset(
        batches(), str(target / "made.lance"), schema=schema, data_storage_version="2.2"
    )
    return target


def as_values(reader, rows):
    keys = [key for key, feature in reader.info.features.items() if not feature.is_camera]
    return reader.rows(rows, keys)


def as_parquet(reader, rows):
    (path,) = (reader.root / "data").rglob("*.parquet")
    return pq.read_table(path).take(rows)


def assert_same(left, right):
    assert list(left) == list(right)
    for key, value in left.items():
        if isinstance(value, np.ndarray):
            assert value.dtype == right[key].dtype, key
            np.testing.assert_array_equal(value, right[key], err_msg=key)
        else:
            assert value == right[key], key


@pytest.mark.parametrize("rows_of", [as_values, as_parquet])
@pytest.mark.parametrize("name", ["png", "webp-lossless"])
def test_a_lossless_table_gives_the_very_same_samples(made, tmp_path, rows_of, name):
    target = convert(made, tmp_path / "lance", ImageCodec(name), rows_of)
    windows = {"observation.tactile": [-1, 0], "note": [0, 1], "observation.images.depth": [0, 2]}
    for options in ({}, {"windows": windows}, {"image_size": (24, 32)}):
        source = demoreel.open(made, **options)
        if "image_size" in options:
            source = demoreel.open(made, cameras=["observation.images.still"], **options)
            options = {**options, "cameras": ["observation.images.still"]}
        found = demoreel.open(target, **options)
        assert found.layout == "lance-frames"
        indices = [0, 41, 29, 30, 7, 7]
        assert_same(source.batch(indices), found.batch(indices))


def test_jpeg_is_near(made, tmp_path):
    target = convert(made, tmp_path / "lance", ImageCodec("jpeg"), as_values)
    key = "observation.images.front"
    here, there = (demoreel.open(path).batch(range(42)) for path in (made, target))
    assert np.abs(here[key].astype(int) - there[key]).mean() < 6
    np.testing.assert_array_equal(
        here["observation.images.depth"], there["observation.images.depth"]
    )


def test_the_types_are_the_declared_ones(made):
    schema = FRAMES.rows(demoreel.open(made).info, ImageCodec("jpeg", 90, 0))
    expected = {
        "episode_index": pa.int32(),
        "frame_index": pa.int32(),
        "index": pa.int64(),
        "timestamp": pa.float32(),
        "task_index": pa.int32(),
        "next_reward": pa.list_(pa.float64(), 1),
        "next_done": pa.list_(pa.bool_(), 1),
        "gripper_open": pa.list_(pa.bool_(), 2),
        "counter": pa.list_(pa.int64(), 1),
        "small": pa.list_(pa.uint8(), 3),
        "observation_tactile": pa.list_(pa.float32(), 12),
        "observation_cube": pa.list_(pa.int16(), 24),
        "note": pa.string(),
        "observation_images_front": pa.binary(),
        "observation_images_still": pa.binary(),
        "observation_images_depth": pa.binary(),
    }
    assert {name: schema.field(name).type for name in expected} == expected
    assert schema.names[:5] == list(expected)[:5]
    assert schema.names[-3:] == list(expected)[-3:]
    assert schema.metadata[CODEC_NOTE] == b"jpeg quality 90 subsampling 0"


def test_the_columns_are_those_of_the_tool_that_invented_the_layout(fixtures):
    root = fixtures / "kitchen_lance_frames"
    theirs = lance.dataset(str(next(root.glob("*.lance")))).schema
    ours = FRAMES.rows(demoreel.open(root).info, ImageCodec("jpeg"))
    known = {field.name: field.type for field in theirs}
    assert set(known) <= set(ours.names)
    same = ["episode_index", "frame_index", "index", "timestamp", "task_index", "action"]
    same += [name for name in known if name.startswith("observation_images")]
    assert {n: ours.field(n).type for n in same} == {n: known[n] for n in same}


def test_images_are_stored_as_they_are(made, tmp_path):
    """Not through a compressor: what a table takes on disk is what the images take."""
    target = convert(made, tmp_path / "lance", ImageCodec("jpeg"), as_values)
    key = "observation.images.front"
    held = demoreel.open(target).reader.encoded(np.arange(42), key)
    (path,) = (target / "made.lance" / "data").glob("*.lance")
    data = path.read_bytes()
    assert all(image in data for image in held)
    values = LanceTable(str(target / "made.lance")).values("observation_images_front")
    assert values is not None
    assert values.read(np.arange(42)) == held


# What is refused


def info_of(**features):
    return Info.new(
        version="v3.0",
        fps=10,
        features={key: Feature(key, *spec) for key, spec in features.items()},
    )


def defaults(rows):
    number = np.arange(rows)
    return {
        "episode_index": number * 0,
        "frame_index": number,
        "index": number,
        "timestamp": (number / 10).astype(np.float32),
        "task_index": number * 0,
    }


def test_features_that_would_share_a_column_are_refused_by_name():
    info = info_of(**{"a.b": ("float32", (2,)), "a_b": ("float32", (2,))})
    with pytest.raises(MetadataError, match=r"'a\.b' and 'a_b'"):
        FRAMES.rows(info, PNG)


@pytest.mark.parametrize(
    "values",
    [
        np.zeros((4, 3), np.float32),
        np.zeros((4, 2), np.complex64),
        np.zeros((3, 2), np.float32),
        np.zeros(4, np.float32),
        pa.array([[1.0, 2.0], [1.0], [1.0, 2.0, 3.0], [1.0, 2.0]]),
        pa.array([[1.0, 2.0], [1.0, None], [1.0, 3.0], [1.0, 2.0]]),
        pa.array(["a", "b", "c", "d"]),
        [["a", "b"]] * 4,
    ],
    ids=["wide", "complex", "short", "narrow", "uneven", "missing", "text", "texts"],
)
def test_values_that_do_not_fit_are_refused(values):
    schema = FRAMES.rows(info_of(state=("float32", (2,))), PNG)
    with pytest.raises((ArgumentError, TableError)):
        rows_batch(schema, {**defaults(4), "state": values}, {})


@pytest.mark.parametrize(
    ("dtype", "values"),
    [
        ("int64", np.array([0.5, 1, 2, 3])),
        ("bool", np.array([0, 1, 2, 3])),
        ("uint8", np.array([0, 1, 2, 300])),
        ("string", [1, 2, 3, 4]),
    ],
)
def test_values_of_another_kind_are_refused(dtype, values):
    schema = FRAMES.rows(info_of(state=(dtype, (1,))), PNG)
    with pytest.raises(ArgumentError):
        rows_batch(schema, {**defaults(4), "state": values}, {})


def test_numbers_too_large_for_the_layout_are_refused():
    schema = FRAMES.rows(info_of(), PNG)
    with pytest.raises(ArgumentError, match="episode_index"):
        rows_batch(schema, {**defaults(4), "episode_index": np.arange(4) + (1 << 31)}, {})


def test_missing_columns_and_cameras_are_refused():
    info = info_of(eye=("image", (4, 4, 3)), state=("float32", (2,)))
    schema = FRAMES.rows(info, PNG)
    state = {"state": np.zeros((4, 2), np.float32)}
    with pytest.raises(ArgumentError, match="lack 'eye'"):
        rows_batch(schema, {**defaults(4), **state}, {})
    with pytest.raises(ArgumentError, match="lack 'state'"):
        rows_batch(schema, defaults(4), {"eye": [b"1"] * 4})
    with pytest.raises(ArgumentError, match="3 rows"):
        rows_batch(schema, {**defaults(4), **state}, {"eye": [b"1"] * 3})
    batch = rows_batch(schema, {**defaults(4), **state}, {"eye": [b"1", memoryview(b"2")] * 2})
    assert batch.column("eye").to_pylist() == [b"1", b"2", b"1", b"2"]
