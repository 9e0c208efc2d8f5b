"""Mending: what is good comes through, what is lost is named, nothing is made up."""

from __future__ import annotations

import hashlib
import itertools
import json
import os
import shutil
from pathlib import Path

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
import pytest

import demoreel
from demoreel.errors import (
    ArgumentError,
    DatasetBusyError,
    DatasetNotFoundError,
    DiskFullError,
    MetadataError,
    RepairError,
    TargetExistsError,
)
from demoreel.repair.run import repair
from demoreel.testing import make_dataset
from demoreel.testing.stamp import read_stamp

TABLE = "data/chunk-000/file-000.parquet"
EPISODES = "meta/episodes/chunk-000/file-000.parquet"


@pytest.fixture(params=["v3.0", "v2.1"])
def layout(request):
    return request.param


@pytest.fixture
def dataset(tmp_path, layout):
    return make_dataset(
        tmp_path / "ds",
        layout=layout,
        episodes=[6, 9, 5, 8],
        cameras=2,
        tasks=("pick", "place"),
        codec="h264",
        gop=2,
    )


@pytest.fixture
def v30(tmp_path):
    return make_dataset(tmp_path / "v30", layout="v3.0", episodes=[6, 9, 5, 8], cameras=2)


def contents(root: Path) -> dict[str, str]:
    return {
        str(path.relative_to(root)): hashlib.sha256(path.read_bytes()).hexdigest()
        for path in root.rglob("*")
        if path.is_file()
    }


def stamps(root: Path) -> list[list[tuple[int, int]]]:
    """Return (episode, frame) that the images of every episode say, having compared numbers."""
    ds = demoreel.open(root)
    found = []
    for first, stop in itertools.pairwise(ds.episodes.start.tolist()):
        seen = []
        for row in range(first, stop):
            item = ds[row]
            said = {read_stamp(item[camera])[:2] for camera in ds.info.cameras}
            assert len(said) == 1
            number, frame = said.pop()
            state = np.asarray(item["observation.state"])
            assert (int(state[0]), int(state[1])) == (number, frame)
            seen.append((number, frame))
        found.append(seen)
    return found


def whole(*episodes: tuple[int, int]) -> list[list[tuple[int, int]]]:
    return [[(episode, frame) for frame in range(length)] for episode, length in episodes]


def without_footer(path: Path) -> None:
    data = path.read_bytes()
    path.write_bytes(data[: -8 - int.from_bytes(data[-8:-4], "little")])


def test_a_good_dataset_is_copied(dataset, tmp_path, layout):
    before = contents(dataset)
    done = repair(dataset, tmp_path / "out")
    assert stamps(tmp_path / "out") == whole((0, 6), (1, 9), (2, 5), (3, 8))
    assert not done.lost
    assert done.is_clean
    assert contents(dataset) == before
    if layout == "v3.0":
        after = contents(tmp_path / "out")
        same = [name for name in before if not name.startswith("meta/")]
        assert all(after[name] == before[name] for name in same)


def test_a_recording_without_footers_comes_back(v30, tmp_path):
    without_footer(v30 / TABLE)
    shutil.rmtree(v30 / "meta" / "episodes")
    done = repair(v30, tmp_path / "out")
    assert stamps(tmp_path / "out") == whole((0, 6), (1, 9), (2, 5), (3, 8))
    assert any("without a footer" in sentence for sentence in done.changes)
    assert done.is_clean, done.after


def test_an_unfinished_last_episode_is_left_out(v30, tmp_path):
    """Rows were being written when the lights went out; its video was there already."""
    with pq.ParquetFile(v30 / TABLE) as parquet:
        last = parquet.metadata.row_group(parquet.num_row_groups - 1).column(0)
        groups = parquet.num_row_groups
    assert groups == 4
    begin = last.dictionary_page_offset or last.data_page_offset
    data = (v30 / TABLE).read_bytes()
    (v30 / TABLE).write_bytes(data[: begin + 30])
    shutil.rmtree(v30 / "meta" / "episodes")
    repair(v30, tmp_path / "out")
    assert stamps(tmp_path / "out") == whole((0, 6), (1, 9), (2, 5))


def test_missing_metadata_are_rebuilt(v30, tmp_path):
    for name in ("meta/stats.json", "meta/tasks.parquet"):
        (v30 / name).unlink()
    done = repair(v30, tmp_path / "out")
    assert stamps(tmp_path / "out") == whole((0, 6), (1, 9), (2, 5), (3, 8))
    assert demoreel.open(tmp_path / "out").tasks[0] == "do it"
    assert done.is_clean, [f.code for f in done.after.findings]


def test_info_is_rebuilt_from_tables_and_videos(v30, tmp_path):
    old = demoreel.open(v30).info
    (v30 / "meta" / "info.json").write_text("{")
    done = repair(v30, tmp_path / "out")
    new = demoreel.open(tmp_path / "out").info
    assert new.fps == old.fps
    assert {k: (f.dtype, f.shape) for k, f in new.features.items()} == {
        k: (f.dtype, f.shape) for k, f in old.features.items()
    }
    assert stamps(tmp_path / "out") == whole((0, 6), (1, 9), (2, 5), (3, 8))
    assert any("fps is 30" in sentence for sentence in done.changes)


@pytest.mark.parametrize("layout", ["v2.0", "v2.1"], indirect=True)
def test_a_video_that_is_missing_loses_its_episodes_only(dataset, tmp_path):
    next(dataset.rglob("episode_000001.mp4")).unlink()
    done = repair(dataset, tmp_path / "out", drop_episodes=True)
    assert stamps(tmp_path / "out") == whole((0, 6), (2, 5), (3, 8))
    assert [lost.episode for lost in done.lost] == [1]
    assert demoreel.open(tmp_path / "out").info.version == "v2.1"
    assert done.is_clean, [f.code for f in done.after.findings]


def test_a_video_without_its_end_keeps_what_is_there(v30, tmp_path):
    video = next((v30 / "videos").rglob("*.mp4"))
    moved = tmp_path / "front.mp4"
    from demoreel.media.mp4 import read_description
    from demoreel.media.mp4_write import PacketRun, write_packets
    from demoreel.media.video import open_video

    opened = open_video(video)
    run = PacketRun(opened, np.arange(len(opened.index.offset)))
    description = read_description(opened.file, name=str(video))
    write_packets(moved, [run], description=description, fps=30)
    index = open_video(moved).index
    video.write_bytes(moved.read_bytes()[: int(index.offset[22]) + 5])  # 22 whole packets
    done = repair(v30, tmp_path / "out")
    assert stamps(tmp_path / "out") == [*whole((0, 6), (1, 9), (2, 5)), [(3, 0), (3, 1)]]
    assert done.frames_lost == ("episode 3: 6 rows at the end have no images, and were left out",)
    assert not done.is_whole


@pytest.mark.soak
def test_videos_under_another_folder_are_found(dataset, tmp_path):
    (dataset / "videos").rename(dataset / "video")
    done = repair(dataset, tmp_path / "out")
    assert stamps(tmp_path / "out") == whole((0, 6), (1, 9), (2, 5), (3, 8))
    assert done.is_clean, [f.code for f in done.after.findings]


def test_orphan_rows_are_left_out(v30, tmp_path):
    rows = pq.read_table(v30 / TABLE)
    orphans = rows.slice(6, 9)
    pq.write_table(pa.concat_tables([rows, orphans]), v30 / TABLE, row_group_size=100)
    done = repair(v30, tmp_path / "out")
    assert stamps(tmp_path / "out") == whole((0, 6), (1, 9), (2, 5), (3, 8))
    assert "9 rows that no episode needs were left out" in done.changes
    assert done.is_clean, [f.code for f in done.after.findings]


@pytest.mark.parametrize("column", ["dataset_from_index", "length", "videos/KEY/from_timestamp"])
def test_wrong_numbers_of_episodes_are_corrected(v30, tmp_path, column):
    camera = demoreel.open(v30).info.cameras[0]
    table = pq.read_table(v30 / EPISODES)
    name = column.replace("KEY", camera)
    values = table.column(name).to_pylist()
    values[2] = values[2] + 3
    place = table.column_names.index(name)
    table = table.set_column(place, name, pa.array(values, table.column(name).type))
    pq.write_table(table, v30 / EPISODES)
    done = repair(v30, tmp_path / "out")
    kept = stamps(tmp_path / "out")
    everything = whole((0, 6), (1, 9), (2, 5), (3, 8))
    assert kept == [episode for episode in everything if episode in kept]
    assert len(kept) + len(done.lost) == 4
    assert len(kept) == 4 or column.endswith("from_timestamp")


def test_episodes_that_would_share_frames_follow_one_another(v30, tmp_path):
    camera = demoreel.open(v30).info.cameras[0]
    table = pq.read_table(v30 / EPISODES)
    for name in (f"videos/{camera}/from_timestamp", f"videos/{camera}/to_timestamp"):
        values = table.column(name).to_pylist()
        moved = [values[0], *(value - 1 / 30 for value in values[1:])]
        place = table.column_names.index(name)
        table = table.set_column(place, name, pa.array(moved, table.column(name).type))
    pq.write_table(table, v30 / EPISODES)
    done = repair(v30, tmp_path / "out")
    assert stamps(tmp_path / "out") == whole((0, 6), (1, 9), (2, 5), (3, 8))
    assert done.is_clean, [f.code for f in done.after.findings]


def test_videos_may_hold_episodes_in_another_order(v30, tmp_path):
    """The metadata say where each one lies; none is lost because another lies before it."""
    rows = pq.read_table(v30 / TABLE)
    lengths, starts = (6, 9, 5, 8), (0, 6, 15, 20)
    order = (1, 3, 0, 2)
    moved = [rows.slice(starts[n], lengths[n]) for n in order]
    table = pa.concat_tables(moved)
    numbers = np.repeat(np.arange(4), [lengths[n] for n in order])
    for name, values in (("episode_index", numbers), ("index", np.arange(28))):
        place = table.schema.get_field_index(name)
        table = table.set_column(place, table.schema.field(name), pa.array(values))
    pq.write_table(table, v30 / TABLE)
    episodes = pq.read_table(v30 / EPISODES).take(pa.array(order))
    ends = np.cumsum([lengths[n] for n in order])
    new = {"episode_index": np.arange(4), "dataset_to_index": ends}
    new["dataset_from_index"] = ends - [lengths[n] for n in order]
    for name, values in new.items():
        place = episodes.schema.get_field_index(name)
        episodes = episodes.set_column(place, episodes.schema.field(name), pa.array(values))
    pq.write_table(episodes, v30 / EPISODES)
    assert stamps(v30) == whole((1, 9), (3, 8), (0, 6), (2, 5))
    done = repair(v30, tmp_path / "out")
    assert stamps(tmp_path / "out") == stamps(v30)
    assert done.changes == ()


def test_totals_and_splits_are_right_again(v30, tmp_path):
    path = v30 / "meta" / "info.json"
    raw = json.loads(path.read_text())
    raw |= {"total_frames": 5, "total_episodes": 99, "splits": {"train": "0:3", "val": "2:9"}}
    path.write_text(json.dumps(raw))
    done = repair(v30, tmp_path / "out")
    info = demoreel.open(tmp_path / "out").info
    assert (info.total_frames, info.total_episodes) == (28, 4)
    assert info.splits == {"train": "0:4"}
    assert done.is_clean, [f.code for f in done.after.findings]


def test_rows_around_a_damaged_row_group_are_kept(v30, tmp_path):
    with pq.ParquetFile(v30 / TABLE) as parquet:
        column = parquet.metadata.row_group(1).column(0)
        first = column.dictionary_page_offset or column.data_page_offset
        stop = first + column.total_compressed_size
    data = bytearray((v30 / TABLE).read_bytes())
    data[first:stop] = b"\xff" * (stop - first)
    (v30 / TABLE).write_bytes(data)
    done = repair(v30, tmp_path / "out", drop_episodes=True)
    assert stamps(tmp_path / "out") == whole((0, 6), (2, 5), (3, 8))
    assert [lost.episode for lost in done.lost] == [1]


def test_a_dry_run_writes_nothing(dataset, tmp_path):
    before = contents(tmp_path)
    for target in (None, tmp_path / "out"):
        done = repair(dataset, target, dry_run=True)
        assert done.target is None
        assert done.episodes == 4
    assert contents(tmp_path) == before


def test_nothing_to_save_is_an_error(v30, tmp_path):
    shutil.rmtree(v30 / "data")
    with pytest.raises(RepairError):
        repair(v30, tmp_path / "out")
    assert not (tmp_path / "out").exists()
    assert [path.name for path in tmp_path.iterdir()] == ["v30"]


def test_arguments_that_make_no_sense(v30, tmp_path):
    with pytest.raises(DatasetNotFoundError):
        repair(tmp_path / "nowhere", tmp_path / "out")
    with pytest.raises(ArgumentError):
        repair(v30)
    for target in (v30, v30 / "inside", tmp_path):
        with pytest.raises(ArgumentError):
            repair(v30, target)
    (tmp_path / "full").mkdir()
    (tmp_path / "full" / "file").touch()
    with pytest.raises(TargetExistsError):
        repair(v30, tmp_path / "full")


def test_in_place_keeps_the_old_one(v30, tmp_path):
    before = contents(v30)
    (v30 / "meta" / "stats.json").write_text("[")
    damaged = contents(v30)
    done = repair(v30, in_place=True)
    old = tmp_path / "v30_old"
    assert (done.source, done.target) == (old, v30)
    assert contents(old) == damaged
    assert stamps(v30) == whole((0, 6), (1, 9), (2, 5), (3, 8))
    assert contents(v30)[TABLE] == before[TABLE]
    assert sorted(path.name for path in tmp_path.iterdir()) == ["v30", "v30_old"]
    with pytest.raises(TargetExistsError):
        repair(v30, in_place=True)


def test_in_place_leaves_a_recording_alone(v30):
    with demoreel.resume(v30):
        before = contents(v30)
        with pytest.raises(DatasetBusyError):
            repair(v30, in_place=True)
        assert contents(v30) == before


def test_a_full_disk_leaves_nothing(v30, mounted):
    disk = mounted("64k")
    with pytest.raises(DiskFullError):
        repair(v30, disk / "out")
    assert list(disk.iterdir()) == []


@pytest.fixture(params=["lance-video", "lance-native", "lance-frames"])
def lance(request, v30, tmp_path):
    codec = {"image_codec": "png"} if request.param == "lance-frames" else {}
    demoreel.convert(v30, tmp_path / "lance", to=request.param, **codec)
    return tmp_path / "lance"


def test_lance_stays_lance(lance, tmp_path):
    table = pq.read_table(lance / EPISODES)
    pq.write_table(table.slice(0, 2), lance / EPISODES)  # the metadata forget two episodes
    done = repair(lance, tmp_path / "out")
    assert demoreel.open(tmp_path / "out").layout == demoreel.open(lance).layout
    assert stamps(tmp_path / "out") == whole((0, 6), (1, 9), (2, 5), (3, 8))
    assert not done.lost
    assert done.is_clean, [f.code for f in done.after.findings]


def test_rows_that_lance_has_deleted_are_lost(lance, tmp_path):
    import lance as pylance

    (table,) = (path for path in lance.glob("*.lance") if path.stem in ("frames", "v30"))
    pylance.dataset(str(table)).delete("episode_index = 1")
    done = repair(lance, tmp_path / "out", drop_episodes=True)
    assert stamps(tmp_path / "out") == whole((0, 6), (2, 5), (3, 8))
    assert [lost.episode for lost in done.lost] == [1]
    assert done.is_clean, [f.code for f in done.after.findings]


def test_deep_leaves_out_what_does_not_decode(tmp_path):
    from support.defects import DEFECTS, make_base

    defect = DEFECTS["packet_of_noise"]
    root = make_base(defect.on, tmp_path / "ds")
    defect.damage(root)
    bad = {f.where.episode for f in demoreel.check(root, deep=True).of("picture-undecodable")}
    assert len(bad) == 1
    assert not repair(root, tmp_path / "quick").lost
    done = repair(root, tmp_path / "deep", deep=True)
    assert {lost.episode for lost in done.lost} == bad
    assert not demoreel.check(tmp_path / "deep", deep=True).of("picture-undecodable")


# What fuzzing found


def test_images_are_not_guessed_where_an_episode_before_is_lost(tmp_path):
    small = {"data_files_size_in_mb": 0.001, "video_files_size_in_mb": 0.001}
    source = make_dataset(tmp_path / "ds", episodes=[5, 3, 6], **small)
    (source / EPISODES).write_bytes(b"PAR1")
    (source / TABLE).write_bytes(b"")
    with pytest.raises(RepairError):
        repair(source, tmp_path / "repaired")


def test_images_are_not_guessed_where_rows_before_are_lost(tmp_path):
    source = make_dataset(tmp_path / "ds", episodes=[6, 4, 5], gop=1)
    (source / EPISODES).write_bytes(b"PAR1")
    table = pq.read_table(source / TABLE)
    pq.write_table(pa.concat_tables([table.slice(0, 4), table.slice(6)]), source / TABLE)
    done = repair(source, tmp_path / "repaired", drop_episodes=True)
    assert [lost.episode for lost in done.lost] == [1, 2]
    assert stamps(tmp_path / "repaired") == [[(0, frame) for frame in range(4)]]


def test_images_are_not_guessed_where_a_video_before_is_lost(tmp_path):
    source = make_dataset(tmp_path / "ds", episodes=[5, 3, 6], video_files_size_in_mb=0.001)
    (source / EPISODES).write_bytes(b"PAR1")
    (source / "videos/observation.images.cam0/chunk-000/file-000.mp4").write_bytes(b"")
    with pytest.raises(RepairError):
        repair(source, tmp_path / "repaired")


def test_a_pipe_in_a_files_place_is_passed_over(tmp_path):
    source = make_dataset(tmp_path / "ds", episodes=[5, 3], layout="v2.1")
    for name in ("data/chunk-000/episode_000001.parquet", "meta/episodes_stats.jsonl"):
        (source / name).unlink()
        os.mkfifo(source / name)
    done = repair(source, tmp_path / "repaired", drop_episodes=True)
    assert [lost.episode for lost in done.lost] == [1]
    assert done.is_clean


def test_half_a_character_comes_through(tmp_path):
    source = make_dataset(tmp_path / "ds", episodes=[3])
    info = json.loads((source / "meta/info.json").read_text())
    (source / "meta/info.json").write_text(json.dumps({**info, "note": "\ud800"}))
    assert repair(source, tmp_path / "repaired").is_clean
    assert demoreel.open(tmp_path / "repaired").info.extra["note"] == "\ud800"


def test_a_video_whose_last_box_says_too_much_is_lost_or_kept_but_no_crash(tmp_path):
    source = make_dataset(tmp_path / "ds", episodes=[4, 4], layout="v2.1")
    video = source / "videos/chunk-000/observation.images.cam0/episode_000001.mp4"
    video.write_bytes(video.read_bytes()[:-200])
    done = repair(source, tmp_path / "repaired", drop_episodes=True)
    assert [lost.episode for lost in done.lost] == [1]


def test_audio_of_a_video_that_was_cut_off_is_kept_as_remote_as_it_goes(tmp_path):
    from demoreel.media.audio import tracks_of
    from demoreel.media.video import open_video
    from support.defects.tools import add_audio, cut_off, edit_info, remux

    camera = "observation.images.front"
    root = make_dataset(
        tmp_path / "source", episodes=[60, 60], cameras={camera: (64, 64)}, layout="v2.1", gop=6
    )
    heard = {"has_audio": True}
    edit_info(root, lambda info: info["features"][camera]["info"].update(heard))
    names = sorted(root.rglob("*.mp4"))
    for name in names:
        remux(name, index_first=True)
        add_audio(name)
        index_first(name)
    cut_off(names[1], keep=0.7)
    done = demoreel.repair(root, tmp_path / "new")
    assert any("frames before its end" in what for what in done.changes)
    assert not any("its audio was not" in what for what in done.changes)
    whole, part = (
        tracks_of(open_video(p)).audio for p in sorted((tmp_path / "new").rglob("*.mp4"))
    )
    assert whole.seconds > 1.9
    frames = demoreel.open(tmp_path / "new").episodes[1].length
    assert 0.3 < part.seconds <= frames / 30 + 0.05


def index_first(path):
    """Put the table of packets before the packets, of all tracks."""
    import av

    aside = path.with_suffix(".new.mp4")
    with (
        av.open(str(path)) as source,
        av.open(str(aside), "w", options={"movflags": "faststart"}) as target,
    ):
        copies = {one.index: target.add_stream_from_template(one) for one in source.streams}
        for packet in source.demux():
            if packet.size:
                packet.stream = copies[packet.stream.index]
                target.mux(packet)
    aside.replace(path)


def test_a_table_of_episodes_without_rows_is_no_crash(v30, tmp_path):
    table = pq.read_table(v30 / EPISODES)
    pq.write_table(table.slice(0, 0), v30 / EPISODES)
    done = repair(v30, tmp_path / "repaired")
    assert done.episodes == 4
    with pytest.raises(MetadataError, match="no rows"):
        demoreel.resume(v30)


def test_progress_grows_and_says_of_what(v30, tmp_path):
    shares = []
    demoreel.repair(v30, tmp_path / "out", report=shares.append)
    assert shares == sorted(shares)
    assert shares[0] == 0
    assert shares[-1] > 0.9
    assert any("table" in getattr(share, "counts", "") for share in shares)
    shares.clear()
    demoreel.check(v30, deep=True, report=shares.append)
    assert shares == sorted(shares)
    counts = [share.counts for share in shares if hasattr(share, "counts")]
    total = len(demoreel.open(v30)) * len(demoreel.open(v30).cameras)
    assert counts[-1] == f"{total} of {total} frames"
    shares.clear()
    demoreel.recompute_stats(v30, pictures="none", report=shares.append)
    assert 0.9 < shares[-1] <= 1
