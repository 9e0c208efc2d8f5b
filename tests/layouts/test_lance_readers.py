"""Reading Lance datasets that other tools wrote, and such as were damaged or edited since."""

from __future__ import annotations

import json
import os
import shutil
import signal
import subprocess
import sys
from pathlib import Path

import lance
import numpy as np
import pyarrow as pa
import pytest
import torch

import demoreel
from demoreel.errors import (
    ArgumentError,
    DatasetNotFoundError,
    DemoreelError,
    MetadataError,
    TableError,
    UnsupportedVersionError,
    VideoError,
)
from demoreel.layouts import rows as row_columns
from demoreel.layouts.lance.calls import may_use_lance
from demoreel.layouts.lance.schemas import PACKETS_COLUMN, encode_packets
from demoreel.layouts.lance.videos import LanceBlob, LocalBlobs
from demoreel.media.decode import byte_ranges
from demoreel.media.video import open_video
from demoreel.read.speed import spans
from demoreel.testing import make_dataset
from demoreel.torch import LeRobotDataset

# Importing lance here, as a user of lance does, brings its warning back.
pytestmark = pytest.mark.filterwarnings("ignore:lance is not fork-safe")

CAMERA = "observation.images.cam_high"
VIDEO_LAYOUTS = ["g1_lance_video", "g1_lance_native"]
TABLES = {
    "g1_lance_video": ("g1.lance", "g1_videos.lance"),
    "g1_lance_native": ("frames.lance", "videos.lance"),
}
V30_VIDEOS = Path("videos") / CAMERA / "chunk-000"


def assert_same(left, right):
    assert list(left) == list(right)
    for key, value in left.items():
        if not isinstance(value, np.ndarray):
            assert value == right[key], key
        else:
            assert value.dtype == right[key].dtype, key
            np.testing.assert_array_equal(value, right[key], err_msg=key)


def listing(folder: Path):
    return {
        str(path): (path.stat().st_mtime_ns, path.stat().st_size, path.stat().st_ino)
        for path in [folder, *folder.rglob("*")]
    }


# The same items as in v3.0


@pytest.mark.parametrize("name", VIDEO_LAYOUTS)
@pytest.mark.parametrize(
    "options",
    [
        {},
        pytest.param(
            {"windows": {CAMERA: [-3, 0, 5], "action": [-1.0, 0.0, 0.5], "task_index": [0, 1]}},
            marks=pytest.mark.soak,
        ),
        {"episodes": [3, 1], "windows": {"observation.state": [-1, 0]}},
        pytest.param({"image_size": (120, 160)}, marks=pytest.mark.soak),
    ],
    ids=["plain", "windows", "subset", "scaled"],
)
def test_items_equal_those_of_v30_bit_for_bit(fixtures, name, options):
    expected = demoreel.open(fixtures / "g1_v30", **options)
    ds = demoreel.open(fixtures / name, **options)
    assert ds.layout == name.replace("g1_", "").replace("_", "-")
    assert len(ds) == len(expected)
    every = range(0, len(ds), 29)
    assert_same(ds.batch(every), expected.batch(every))
    for number in (0, 1, len(ds) // 2, -1):
        assert_same(ds[number], expected[number])


@pytest.mark.parametrize("name", VIDEO_LAYOUTS)
def test_whole_episodes_and_metadata_equal_those_of_v30(fixtures, name):
    expected, ds = demoreel.open(fixtures / "g1_v30"), demoreel.open(fixtures / name)
    np.testing.assert_array_equal(
        ds.episode(2).column("action"), expected.episode(2).column("action")
    )
    for left, right in zip(
        ds.episode(1).frames(CAMERA, 250), expected.episode(1).frames(CAMERA, 250), strict=True
    ):
        np.testing.assert_array_equal(left, right)
    assert ds.tasks == expected.tasks
    assert ds.stats is not None
    assert ds.info.features == expected.info.features
    frames, videos = TABLES[name]
    assert ds.episodes[3].data_file == frames
    assert ds.episodes[3].video_files == {CAMERA: f"{videos}#{CAMERA}/chunk-000/file-001"}
    assert [episode.tasks for episode in ds.episodes] == [e.tasks for e in expected.episodes]


def test_frames_have_declared_types_and_the_original_tools_values(fixtures):
    ds = demoreel.open(fixtures / "kitchen_lance_frames")
    assert ds.layout == "lance-frames"
    golden = np.load(fixtures / "golden" / "kitchen_lance_frames.npz")
    for name in golden:
        index, key = name.split("/", 1)
        value, expected = ds[int(index)][key], golden[name]
        if key in ds.cameras:
            assert value.dtype == np.uint8
            np.testing.assert_array_equal(value.astype(np.float32) / np.float32(255), expected)
            continue
        feature = ds.features[key]
        assert value.dtype == feature.numpy_dtype, key
        assert value.shape == feature.item_shape, key
        np.testing.assert_array_equal(
            value.reshape(-1).astype(expected.dtype), expected.reshape(-1)
        )
    source = demoreel.open(fixtures / "kitchen_images_v30")
    shared = [key for key in ds[0] if key in source.features and key not in ds.cameras]
    left, right = ds.batch(range(len(ds))), source.batch(range(len(ds)))
    for key in shared:
        assert left[key].dtype == right[key].dtype
    np.testing.assert_array_equal(left["index"], right["index"])


def test_the_torch_face_reads_them_too(fixtures):
    ds = LeRobotDataset("any/name", root=fixtures / "g1_lance_native", return_uint8=True)
    expected = LeRobotDataset("any/name", root=fixtures / "g1_v30", return_uint8=True)
    assert torch.equal(ds[500][CAMERA], expected[500][CAMERA])
    frames = LeRobotDataset("any/name", root=fixtures / "kitchen_lance_frames")
    assert frames[5]["next.done"].dtype == torch.bool


def test_a_camera_called_a_video_whose_images_lie_in_the_table(copy_of):
    """What the older tool makes of a video dataset: it copies info.json as it is."""
    root = copy_of("kitchen_lance_frames")
    before = demoreel.open(root).batch([3, 70])
    path = root / "meta" / "info.json"
    info = json.loads(path.read_text())
    info["features"]["observation.images.front"]["dtype"] = "video"
    path.write_text(json.dumps(info))
    ds = demoreel.open(root)
    after = ds.batch([3, 70])
    assert {key: after[key].shape for key in ds.cameras} == {
        key: before[key].shape for key in ds.cameras
    }
    np.testing.assert_array_equal(
        after["observation.images.front"], before["observation.images.front"]
    )
    assert [p.shape for p in ds.episode(0).frames("observation.images.front", 0, 2)] == [
        (96, 128, 3)
    ] * 2
    item = LeRobotDataset("any/name", root=root, return_uint8=True)[3]
    assert item["observation.images.front"].dtype == torch.uint8


@pytest.fixture
def through_lance(monkeypatch):
    """Read blobs as they are read where the table is not on this disk."""
    monkeypatch.setattr(LocalBlobs, "find", lambda *_: None)


@pytest.mark.parametrize("name", VIDEO_LAYOUTS)
def test_items_through_lance_are_the_same(fixtures, name, through_lance):
    windows = {CAMERA: [-2, 0]}
    expected = demoreel.open(fixtures / "g1_v30", windows=windows)
    ds = demoreel.open(fixtures / name, windows=windows)
    wanted = range(3, 1013, 53)
    assert_same(ds.batch(wanted), expected.batch(wanted))
    assert isinstance(ds.reader.clip(0, CAMERA).video.file, LanceBlob)


@pytest.mark.parametrize("name", VIDEO_LAYOUTS)
def test_a_batch_reads_the_bytes_it_needs_and_few_others(fixtures, name, through_lance):
    ds = demoreel.open(fixtures / name)
    ds.batch(range(0, 1013, 10))  # numbers and indices are there now
    rows = np.unique(np.random.default_rng(0).integers(0, 1013, 32))
    found = list(spans(ds.reader, ds.features[CAMERA], rows))
    needed = sum(length for span in found for _, length in byte_ranges([span]))
    before = lance.bytes_read_counter()
    ds.batch(rows)
    assert needed <= lance.bytes_read_counter() - before <= 1.2 * needed


# Processes


@pytest.mark.parametrize(
    ("name", "method"), [("g1_lance_video", "fork"), ("g1_lance_native", "spawn")]
)
@pytest.mark.soak
def test_workers_after_use_in_the_parent(fixtures, name, method):
    check_workers(fixtures, name, method)


def test_workers_read_blobs_through_lance_too(fixtures, through_lance):
    check_workers(fixtures, "g1_lance_native", "fork")


@pytest.mark.soak
def test_many_forks_of_a_process_that_uses_lance(fixtures, through_lance):
    """Lance itself crashes or hangs in some of a hundred."""
    ds = demoreel.open(fixtures / "g1_lance_native")
    expected = int(ds[700][CAMERA].sum())
    for _ in range(20):
        ds[100]
        fresh = demoreel.open(fixtures / "g1_lance_native")
        child = os.fork()
        if child == 0:
            signal.alarm(60)
            right = int(ds[700][CAMERA].sum()) == int(fresh[700][CAMERA].sum()) == expected
            os._exit(0 if right and not may_use_lance() else 1)
        assert os.waitpid(child, 0)[1] == 0


def check_workers(fixtures, name, method):
    ds = LeRobotDataset("any/name", root=fixtures / name, return_uint8=True)
    expected = LeRobotDataset("any/name", root=fixtures / "g1_v30", return_uint8=True)
    assert torch.equal(ds[600][CAMERA], expected[600][CAMERA])
    indices = list(range(0, 1013, 41))
    loader = torch.utils.data.DataLoader(
        torch.utils.data.Subset(ds, indices),
        batch_size=5,
        num_workers=2 if method == "fork" else 1,
        multiprocessing_context=method,
        timeout=120,
    )
    seen = [(int(n), p) for b in loader for n, p in zip(b["index"], b[CAMERA], strict=True)]
    assert [number for number, _ in seen] == indices
    for number, image in seen[::3]:
        assert torch.equal(image, expected[number][CAMERA])
    assert torch.equal(ds[0][CAMERA], expected[0][CAMERA])  # the parent continues


def test_forking_warns_nobody_who_did_not_import_lance(fixtures):
    code = f"""
import os, warnings
warnings.simplefilter("error")
import demoreel
ds = demoreel.open({str(fixtures / "g1_lance_video")!r})
total = int(ds[400][{CAMERA!r}].sum())
child = os.fork()
if child == 0:
    os._exit(0 if int(ds[400][{CAMERA!r}].sum()) == total else 1)
print(os.waitpid(child, 0)[1])
"""
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, timeout=120)
    assert (done.stdout.strip(), done.stderr) == ("0", "")


@pytest.mark.parametrize("name", [*VIDEO_LAYOUTS, "kitchen_lance_frames"])
def test_reading_writes_nothing(copy_of, name):
    root = copy_of(name)
    before = listing(root)
    ds = demoreel.open(root)
    ds.batch(range(0, len(ds), 50))
    assert demoreel.open(root, version=1)[0]["index"] == 0
    assert listing(root) == before


def test_large_tables_go_to_the_shared_scratch_folder(fixtures, monkeypatch, tmp_path):
    monkeypatch.setattr(row_columns, "_MEMORY_BYTES", 0)
    monkeypatch.setenv("DEMOREEL_SCRATCH", str(tmp_path))
    expected = demoreel.open(fixtures / "g1_v30", cameras=[]).batch(range(1013))
    ds = demoreel.open(fixtures / "g1_lance_native", cameras=[])
    again = demoreel.open(fixtures / "g1_lance_native", cameras=[])
    assert_same(ds.batch(range(1013)), expected)
    assert_same(again.batch(range(1013)), expected)


# Rows count by what they say


def frames_of(root: Path):
    return lance.dataset(str(root / TABLES[root.name][0]))


@pytest.mark.parametrize("name", VIDEO_LAYOUTS)
def test_orphans_and_moved_rows_change_nothing(copy_of, fixtures, name):
    expected = demoreel.open(fixtures / "g1_v30", cameras=[]).batch(range(1013))
    root = copy_of(name)
    table = frames_of(root)
    moved = table.to_table(filter="episode_index = 1")
    orphans = moved.set_column(
        moved.schema.get_field_index("episode_index"),
        moved.schema.field("episode_index"),
        pa.array(np.full(len(moved), 77), moved.schema.field("episode_index").type),
    )
    table.delete("episode_index = 1")
    shuffled = moved.take(np.random.default_rng(0).permutation(len(moved)))
    lance.write_dataset(shuffled, table.uri, mode="append")
    assert_same(demoreel.open(root, cameras=[]).batch(range(1013)), expected)  # in another order
    lance.write_dataset(orphans, table.uri, mode="append")
    ds = demoreel.open(root, cameras=[])
    assert_same(ds.batch(range(1013)), expected)
    assert_same(ds[900], demoreel.open(fixtures / "g1_v30", cameras=[])[900])
    # Images follow the row's episode and frame, not its place.
    whole = demoreel.open(root)
    np.testing.assert_array_equal(
        whole[230][CAMERA], demoreel.open(fixtures / "g1_v30")[230][CAMERA]
    )


def test_a_missing_row_is_an_error_for_its_episode_alone(copy_of, fixtures):
    root = copy_of("g1_lance_native")
    frames_of(root).delete("episode_index = 2 and frame_index = 100")
    ds = demoreel.open(root, cameras=[])
    with pytest.raises(TableError, match=r"Episode 2 has 264 rows .* 265") as caught:
        ds[500]
    assert caught.value.where["file"] == "frames.lance"
    assert caught.value.where["episode"] == 2
    assert_same(ds[900], demoreel.open(fixtures / "g1_v30", cameras=[])[900])


def test_frames_are_taken_by_what_rows_say_too(copy_of):
    root = copy_of("kitchen_lance_frames")
    before = demoreel.open(root).batch([0, 30, 90])
    uri = str(root / "kitchen.lance")
    table = lance.dataset(uri).to_table()
    order = np.random.default_rng(1).permutation(len(table))
    lance.write_dataset(table.take(order), uri, mode="overwrite")
    assert_same(demoreel.open(root).batch([0, 30, 90]), before)


def test_floats_that_are_no_whole_numbers_are_refused(copy_of):
    root = copy_of("kitchen_lance_frames")
    uri = str(root / "kitchen.lance")
    lance.dataset(uri).update({"phase": "[0.5]"}, where="index = 3")
    with pytest.raises(TableError, match=r"'phase' holds 0\.5; info\.json declares int64"):
        demoreel.open(root, cameras=[])[0]


# Versions and tags


@pytest.mark.parametrize("name", VIDEO_LAYOUTS)
def test_versions_and_tags(copy_of, fixtures, name):
    expected = demoreel.open(fixtures / "g1_v30")[500]
    root = copy_of(name)
    table = frames_of(root)
    before = table.version
    table.tags.create("before-trim", before)
    table.delete("episode_index = 2")
    assert_same(demoreel.open(root, tag="before-trim")[500], expected)
    assert_same(demoreel.open(root, version=before)[500], expected)
    with pytest.raises(TableError, match="Episode 2 has 0 rows"):
        demoreel.open(root)[500]
    with pytest.raises(ArgumentError, match="no tag 'nope'") as caught:
        demoreel.open(root, tag="nope")
    assert "before-trim" in str(caught.value)
    with pytest.raises(ArgumentError, match="no version 99"):
        demoreel.open(root, version=99)
    with pytest.raises(ArgumentError, match="both"):
        demoreel.open(root, version=1, tag="before-trim")


def test_a_version_of_the_rows_finds_its_videos(copy_of, fixtures):
    expected = demoreel.open(fixtures / "g1_v30")[10]
    root = copy_of("g1_lance_native")
    table = frames_of(root)
    videos = lance.dataset(str(root / "videos.lance"))
    table.update_metadata({"demoreel.videos": str(videos.version)})
    noted = table.version
    table.tags.create("whole", noted)
    videos.tags.create("whole", videos.version)
    videos.delete("file_index = 0")
    assert_same(demoreel.open(root, version=noted)[10], expected)
    assert_same(demoreel.open(root, tag="whole")[10], expected)
    with pytest.raises(VideoError, match="is not in its table"):
        demoreel.open(root)[10]
    with pytest.raises(VideoError, match="is not in its table"):
        demoreel.open(root, version=noted - 1)[10]  # nothing was noted then


def test_what_is_committed_later_does_not_show(copy_of, fixtures):
    root = copy_of("g1_lance_native")
    ds = demoreel.open(root)
    ds[0]
    frames_of(root).delete("episode_index = 3")
    assert_same(ds[1000], demoreel.open(fixtures / "g1_v30")[1000])


def test_other_layouts_have_no_versions(fixtures):
    for name in ("g1_v30", "g1_v21"):
        with pytest.raises(ArgumentError, match="only Lance datasets have versions"):
            demoreel.open(fixtures / name, version=1)
        with pytest.raises(ArgumentError, match="only Lance datasets have versions"):
            demoreel.open(fixtures / name, tag="first")


# What can be wrong


def data_files(folder: Path) -> list[Path]:
    return sorted((folder / "data").glob("*.lance"))


@pytest.mark.parametrize("harm", ["removed", "cut", "emptied", "scrambled"])
@pytest.mark.parametrize("name", VIDEO_LAYOUTS)
def test_a_damaged_table_of_rows_is_named(copy_of, name, harm):
    root = copy_of(name)
    frames, _ = TABLES[name]
    damage(data_files(root / frames)[0], harm)
    with pytest.raises(TableError) as caught:
        demoreel.open(root)[3]
    assert str(root / frames) in str(caught.value)
    assert "rs:" not in str(caught.value)  # not Lance's source code


def damage(path: Path, harm: str) -> None:
    if harm == "removed":
        path.unlink()
    elif harm == "cut":
        os.truncate(path, path.stat().st_size // 2)
    elif harm == "emptied":
        os.truncate(path, 0)
    else:
        data = bytearray(path.read_bytes())
        data[64:-4096] = np.random.default_rng(0).bytes(len(data) - 4160)
        path.write_bytes(data)


@pytest.mark.parametrize("harm", ["removed", "cut", "emptied"])
@pytest.mark.parametrize("name", VIDEO_LAYOUTS)
def test_a_damaged_blob_is_named_with_its_camera_and_episode(copy_of, name, harm):
    root = copy_of(name)
    _, videos = TABLES[name]
    for path in (root / videos / "data").glob("*/*.blob"):
        damage(path, harm)
    ds = demoreel.open(root)
    with pytest.raises(VideoError) as caught:
        ds[900]
    assert f"{videos}#{CAMERA}/chunk-000/file-001" in str(caught.value.where["file"])
    assert caught.value.where["camera"] == CAMERA
    assert caught.value.where["dataset"] == root
    assert demoreel.open(root, cameras=[])[900]["index"] == 900


@pytest.mark.parametrize("name", VIDEO_LAYOUTS)
def test_a_damaged_table_of_videos_is_named(copy_of, name):
    root = copy_of(name)
    _, videos = TABLES[name]
    data_files(root / videos)[0].unlink()
    with pytest.raises(DemoreelError) as caught:
        demoreel.open(root)[3]
    assert videos in str(caught.value)


def test_a_table_that_is_missing_or_has_no_manifest(copy_of):
    root = copy_of("g1_lance_native")
    for path in (root / "videos.lance" / "_versions").glob("*"):
        path.unlink()
    with pytest.raises(TableError, match=r"does not open"):
        demoreel.open(root)[3]
    shutil.rmtree(root / "frames.lance")
    with pytest.raises(TableError, match=r"does not open.*(?s:.*)frames\.lance"):
        demoreel.open(root, cameras=[])[3]


def test_a_column_that_the_table_lacks(copy_of):
    root = copy_of("g1_lance_native")
    frames_of(root).drop_columns(["action"])
    with pytest.raises(TableError, match="lacks the column 'action'"):
        demoreel.open(root, cameras=[])[3]


def test_a_video_that_is_twice_in_its_table(copy_of):
    root = copy_of("g1_lance_native")
    uri = str(root / "videos.lance")
    names = ["video_key", "chunk_index", "file_index"]
    row = lance.dataset(uri).to_table(columns=names).slice(1, 1)
    row = row.append_column(lance.blob_field("video_bytes"), lance.blob_array([b"other"]))
    lance.write_dataset(row, uri, mode="append")
    ds = demoreel.open(root)
    assert ds[3]["index"] == 3
    with pytest.raises(VideoError, match="is 2 times in its table"):
        ds[900]


def test_two_features_of_one_column(copy_of):
    root = copy_of("kitchen_lance_frames")
    path = root / "meta" / "info.json"
    info = json.loads(path.read_text())
    info["features"]["next_done"] = info["features"]["next.done"]
    path.write_text(json.dumps(info))
    with pytest.raises(MetadataError, match=r"'next\.done' and 'next_done' share"):
        demoreel.open(root)[0]


# Blobs of every kind, and the packet index beside them


def rewrite_videos(root: Path, source: Path, blobs: list, *, packets: bool = False, **options):
    """Replace the table of videos of a copy of g1_lance_video."""
    columns = {"video_key": [CAMERA] * 2, "chunk_index": [0, 0], "file_index": [0, 1]}
    table = pa.table(columns)
    if packets:
        found = [open_video(source / V30_VIDEOS / f"file-00{number}.mp4") for number in (0, 1)]
        stored = [encode_packets(v.index, video_bytes=v.file.size) for v in found]
        table = table.append_column(PACKETS_COLUMN, pa.array(stored, pa.binary()))
    field = lance.blob_field("video_bytes", **options)
    table = table.append_column(field, lance.blob_array(blobs))
    lance.write_dataset(
        table,
        str(root / "g1_videos.lance"),
        mode="overwrite",
        data_storage_version="2.2",
        allow_external_blob_outside_bases=True,
    )


def videos_of(source: Path) -> list[bytes]:
    return [(source / V30_VIDEOS / f"file-00{number}.mp4").read_bytes() for number in (0, 1)]


@pytest.mark.parametrize("kind", ["inline", "packed", "dedicated", "external", "slice"])
def test_blobs_of_every_kind(copy_of, fixtures, tmp_path, kind):
    source = fixtures / "g1_v30"
    root = copy_of("g1_lance_video")
    data = videos_of(source)
    options, blobs = {}, list(data)
    if kind == "inline":
        options = {"inline_size_threshold": 1 << 30, "dedicated_size_threshold": 1 << 30}
    elif kind == "packed":
        options = {"dedicated_size_threshold": 1 << 30}
    elif kind == "external":
        blobs = [(source / V30_VIDEOS / f"file-00{n}.mp4").as_uri() for n in (0, 1)]
    elif kind == "slice":
        heap = tmp_path / "heap.bin"
        heap.write_bytes(b"x" * 1000 + data[0] + b"y" * 77 + data[1] + b"z")
        places = [(1000, len(data[0])), (1077 + len(data[0]), len(data[1]))]
        blobs = [lance.Blob.from_uri(heap.as_uri(), *place) for place in places]
    rewrite_videos(root, source, blobs, **options)
    wanted = [5, 300, 700, 1012]
    there = demoreel.open(root, allow_external=[source, tmp_path / "heap.bin"])
    assert_same(there.batch(wanted), demoreel.open(source).batch(wanted))


def test_a_linked_video_that_has_gone(copy_of, fixtures, tmp_path):
    source = fixtures / "g1_v30"
    root = copy_of("g1_lance_video")
    shutil.copytree(source / V30_VIDEOS, tmp_path / "videos")
    rewrite_videos(
        root, source, [(tmp_path / "videos" / f"file-00{n}.mp4").as_uri() for n in (0, 1)]
    )
    assert demoreel.open(root, allow_external=tmp_path / "videos")[5]["index"] == 5
    (tmp_path / "videos" / "file-001.mp4").unlink()
    ds = demoreel.open(root)
    assert ds[5]["index"] == 5
    with pytest.raises(VideoError, match=r"file-001\.mp4"):
        ds[900]


def test_with_our_packet_index_the_video_needs_no_moov(copy_of, fixtures):
    source = fixtures / "g1_v30"
    root = copy_of("g1_lance_video")
    headless = [bytes(64 * 1024) + data[64 * 1024 :] for data in videos_of(source)]
    rewrite_videos(root, source, headless)
    with pytest.raises(VideoError):
        demoreel.open(root)[300]
    rewrite_videos(root, source, headless, packets=True)
    wanted = [300, 1012]
    assert_same(demoreel.open(root).batch(wanted), demoreel.open(source).batch(wanted))


def test_a_packet_index_of_another_video_is_not_used(copy_of, fixtures):
    source = fixtures / "g1_v30"
    root = copy_of("g1_lance_video")
    first, second = videos_of(source)
    rewrite_videos(root, source, [second, first], packets=True)  # the indices stay in their order
    ds = demoreel.open(root)
    with pytest.raises(DemoreelError):
        ds[900]  # the metadata do not fit this video either, and say so


# Which layout it is


def test_folders_that_are_not_quite_datasets(copy_of, fixtures, tmp_path):
    with pytest.raises(DatasetNotFoundError, match="Lance table, not a dataset"):
        demoreel.open(fixtures / "g1_lance_video" / "g1.lance")
    old = tmp_path / "old"
    for name in ("frames", "videos", "episodes"):
        (old / "data" / f"{name}.lance").mkdir(parents=True)
    with pytest.raises(UnsupportedVersionError, match="older Lance layout"):
        demoreel.open(old)
    several = copy_of("kitchen_lance_frames")
    (several / "other.lance").mkdir()
    with pytest.raises(MetadataError, match="several datasets: kitchen, other"):
        demoreel.open(several)


def test_an_unknown_storage_format(copy_of):
    root = copy_of("g1_lance_native")
    path = root / "meta" / "info.json"
    info = json.loads(path.read_text())
    path.write_text(json.dumps({**info, "storage_format": "zarr"}))
    with pytest.raises(MetadataError, match="'zarr'"):
        demoreel.open(root)
    del info["storage_format"]  # as lerobot-lancedb 0.3.0 wrote it
    path.write_text(json.dumps(info))
    assert demoreel.open(root).layout == "lance-native"


def test_lance_tables_beside_parquet_are_left_alone(copy_of, fixtures):
    root = copy_of("g1_v30")
    shutil.copytree(fixtures / "kitchen_lance_frames" / "kitchen.lance", root / "kitchen.lance")
    assert demoreel.open(root).layout == "v3.0"


def test_another_table_in_the_same_place_is_read_anew(tmp_path):
    place = tmp_path / "lance"
    for episodes in ([5, 6], [9, 4]):
        source = make_dataset(tmp_path / f"v30-{episodes[0]}", episodes=episodes)
        demoreel.convert(source, place, to="lance-video", table_name="arm", overwrite=True)
        reader = demoreel.open(place).reader
        camera = reader.info.cameras[0]
        blob = reader.blob(camera, 0, 0)
        assert blob.read(0, blob.size) == next(source.rglob("*.mp4")).read_bytes()
