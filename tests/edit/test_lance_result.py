"""Cuts into the Lance layouts: the same frames, resumable, in shards; videos copied once."""

from __future__ import annotations

import pickle
from pathlib import Path

import lance
import numpy as np
import pytest

import demoreel
from demoreel.edit.cut import cut
from demoreel.edit.render import commit
from demoreel.errors import ArgumentError, DiskFullError, MetadataError
from demoreel.run.task import Task
from demoreel.testing import make_dataset
from support.crash import files_may_not_grow

from .conftest import CAMERA, assert_is, opened
from .conftest import tasks_of as tasks_in

FILMED = ("lance-video", "lance-native")
SIZES = {"data_files_size_in_mb": 0.004, "video_files_size_in_mb": 0.01}


@pytest.fixture(params=FILMED)
def layout(request) -> str:
    return request.param


@pytest.fixture(scope="session")
def imaged(tmp_path_factory) -> Path:
    """A dataset whose images are in its tables."""
    return make_dataset(
        tmp_path_factory.mktemp("pictured") / "pictured",
        episodes=[5, 7, 3],
        cameras=0,
        image_cameras={CAMERA: (48, 64)},
        language=True,
        data_files_size_in_mb=0.01,
    )


@pytest.mark.parametrize("name", ["open_gop", "v2.1"])
def test_clips_of_any_source(sources, whole, tmp_path, layout, name):
    made = whole(name).trim(0, 2, 5).merge(whole("small_files").delete(1))
    made.render(tmp_path / "out", layout=layout, verify="full", **SIZES)
    result = opened(tmp_path / "out")
    assert result.layout == layout
    assert_is(result, made)
    v3 = tmp_path / "v3"
    made.render(v3, **SIZES)
    assert tasks_in(result) == tasks_in(opened(v3))
    for key, kinds in opened(v3).stats.items():
        for kind, value in kinds.items():
            assert np.array_equal(result.stats[key][kind], value), (key, kind)
    assert_same_videos(result.root, v3)


def assert_same_videos(root: Path, v3: Path) -> None:
    """The mp4s in the table are those that v3.0 has as files, byte for byte."""
    (table,) = root.glob("*videos.lance")
    videos = lance.dataset(str(table))
    rows = videos.to_table(columns=["video_key", "chunk_index", "file_index"]).to_pylist()
    blobs = videos.take_blobs("video_bytes", indices=list(range(len(rows))))
    found = {}
    for row, blob in zip(rows, blobs, strict=True):
        name = f"videos/{row['video_key']}/chunk-{row['chunk_index']:03d}"
        found[f"{name}/file-{row['file_index']:03d}.mp4"] = blob.readall()
    paths = {p.relative_to(v3).as_posix(): p for p in (v3 / "videos").rglob("*.mp4")}
    assert found == {name: path.read_bytes() for name, path in paths.items()}


def test_lance_of_lance(whole, tmp_path, layout):
    whole("small_files").render(tmp_path / "one", layout=layout, **SIZES)
    made = cut(tmp_path / "one").keep([3, 1]).trim(1, 3, 11)
    for to in (*FILMED, "v3.0", "v2.1"):
        if to != "v2.1":  # a clip that begins inside a GOP is no video of its own
            made.render(tmp_path / to, layout=to, verify="full")
            assert_is(opened(tmp_path / to), made)
    cut(tmp_path / "one").render(tmp_path / "v2.1", layout="v2.1")
    assert_is(opened(tmp_path / "v2.1"), cut(tmp_path / "one"))


def test_tables_are_as_converting_makes_them(sources, tmp_path, layout):
    cut(sources["small_files"]).render(tmp_path / "cut" / "small_files", layout=layout)
    demoreel.convert(sources["small_files"], tmp_path / "converted", to=layout)
    for table in sorted(path.name for path in (tmp_path / "converted").glob("*.lance")):
        mine = lance.dataset(str(tmp_path / "cut" / "small_files" / table))
        theirs = lance.dataset(str(tmp_path / "converted" / table))
        assert mine.schema == theirs.schema, table
        indices = [{i.name: i.index_type for i in t.describe_indices()} for t in (mine, theirs)]
        assert indices[0] == indices[1]


def test_the_copy_of_metadata(whole, tmp_path):
    whole("h264_too").render(tmp_path / "out", layout="lance-native")
    copy = lance.dataset(str(tmp_path / "out" / "meta.lance")).to_table()
    found = dict(zip(copy["path"].to_pylist(), copy["data"].to_pylist(), strict=True))
    meta = tmp_path / "out" / "meta"
    files = {p.relative_to(meta).as_posix(): p for p in meta.rglob("*") if p.is_file()}
    assert found == {name: path.read_bytes() for name, path in files.items()}


def test_encoded_clips(whole, tmp_path):
    made = whole("b_frames").trim(0, 3, 9)
    made.render(tmp_path / "out", layout="lance-video", exact=True)
    result = opened(tmp_path / "out")
    assert result.reader.clip(0, CAMERA).first == 0
    assert result.episodes.length.tolist() == [6, 7]


# Images in tables


@pytest.mark.parametrize("layout", ["lance-frames", "lance-native"])
def test_images_are_copied_as_they_are(imaged, tmp_path, layout):
    made = cut(imaged).keep([2, 1]).trim(1, 2, 6)
    made.render(tmp_path / "one", layout=layout, verify="full")
    assert_is(opened(tmp_path / "one"), made)
    rows = np.arange(3), np.arange(12, 15)
    mine, theirs = opened(tmp_path / "one"), opened(imaged)
    assert mine.reader.encoded(rows[0], CAMERA) == theirs.reader.encoded(rows[1], CAMERA)
    cut(tmp_path / "one").delete(0).render(tmp_path / "two", layout="lance-frames", verify="full")
    assert_is(opened(tmp_path / "two"), cut(tmp_path / "one").delete(0))


@pytest.mark.parametrize(
    ("source", "layout", "hint"),
    [("filmed", "lance-frames", "demoreel convert"), ("pictured", "lance-video", "lance-frames")],
)
def test_layouts_that_cannot_hold_the_cameras(sources, imaged, tmp_path, source, layout, hint):
    path = imaged if source == "pictured" else sources["h264_too"]
    with pytest.raises(ArgumentError, match=hint):
        cut(path).render(tmp_path / "out", layout=layout)
    assert list(tmp_path.iterdir()) == []


def test_features_that_would_share_a_column(sources, tmp_path):
    made = cut(sources["h264_too"]).rename({"noise": "a.b", "note": "a_b"})
    with pytest.raises(MetadataError, match="share the Lance column"):
        made.render(tmp_path / "out", layout="lance-video")
    assert list(tmp_path.iterdir()) == []


# Parts, and what may go wrong


def test_shards_in_any_order(sources, tmp_path, layout):
    made = cut(sources["small_files"])
    for number in (1, 0):
        with pytest.raises(ArgumentError):
            commit(tmp_path / "out")
        done = made.render(tmp_path / "out", shard=(number, 2), layout=layout, **SIZES)
        assert not done.committed
    assert commit(tmp_path / "out").committed
    assert_is(opened(tmp_path / "out"), made)
    assert [path.name for path in tmp_path.iterdir()] == ["out"]


def test_tasks_go_anywhere_and_may_be_done_twice(sources, tmp_path, layout):
    made = cut(sources["small_files"]).delete(0)

    class Elsewhere:
        """Every task as another machine would get it, and again as a retry would."""

        def run(self, tasks):
            for task in tasks:
                there: Task = pickle.loads(pickle.dumps(task))
                there.run()
                yield task, there.run()

    made.render(tmp_path / "out", layout=layout, engine=Elsewhere(), **SIZES)
    assert_is(opened(tmp_path / "out"), made)
    for table in (tmp_path / "out").glob("*.lance"):
        found = lance.dataset(str(table)).get_fragments()
        named = {file.path for fragment in found for file in fragment.metadata.files}
        there = {path.name for path in (table / "data").iterdir() if path.is_file()}
        assert there == named
        folders = {path.name for path in (table / "data").iterdir() if path.is_dir()}
        assert folders <= {name.removesuffix(".lance") for name in named}


def test_interrupted_and_continued(sources, tmp_path, layout):
    made = cut(sources["small_files"])
    made.render(tmp_path / "out", shard=(0, 2), layout=layout, **SIZES)
    written = {path.name for path in tmp_path.glob(".out.cut-*/dataset/*.lance/data/*.lance")}

    def interrupt(share: float) -> None:
        raise KeyboardInterrupt

    with pytest.raises(KeyboardInterrupt):
        made.render(tmp_path / "out", report=interrupt, layout=layout, **SIZES)
    assert not (tmp_path / "out").exists()
    done = made.render(tmp_path / "out", layout=layout, **SIZES)
    assert done.resumed >= 1
    assert_is(opened(tmp_path / "out"), made)
    kept = {path.name for path in (tmp_path / "out").glob("*.lance/data/*.lance")}
    assert written
    assert written <= kept


def test_what_is_cut_off_is_written_again(sources, tmp_path):
    made = cut(sources["small_files"])
    made.render(tmp_path / "out", shard=(0, 2), layout="lance-video", **SIZES)
    for blob in tmp_path.glob(".out.cut-*/dataset/*videos.lance/data/*/*.blob"):
        blob.write_bytes(blob.read_bytes()[:10])
    assert made.render(tmp_path / "out", layout="lance-video", **SIZES).committed
    assert_is(opened(tmp_path / "out"), made)


def test_a_full_disk(sources, tmp_path, layout):
    made = cut(sources["small_files"])
    with files_may_not_grow(3000), pytest.raises(DiskFullError):
        made.render(tmp_path / "out", layout=layout, **SIZES)
    assert not (tmp_path / "out").exists()
    made.render(tmp_path / "out", layout=layout, **SIZES)
    assert_is(opened(tmp_path / "out"), made)
    assert [path.name for path in tmp_path.iterdir()] == ["out"]
