"""Disks that are full or fail while a robot is recorded: nothing is lost, and recording goes on."""

from __future__ import annotations

import contextlib
import errno
import os
import random
import shutil
import signal
from itertools import count
from pathlib import Path

import numpy as np
import pytest

import demoreel
from demoreel.errors import (
    DatasetBusyError,
    DiskError,
    DiskFullError,
    EncoderBehindError,
    FrameMismatchError,
)
from demoreel.record.encoding.camera import CameraEncoder
from demoreel.storage.commit import consistent
from demoreel.storage.commit.journal import is_pending
from support.crash import check_rows, episodes_in, files_may_not_grow
from support.crash_recording import add_crash_frames, begin_crash_recording
from support.disk_faults import failing

SEED = 20261116
ERRORS = (errno.EIO, errno.ENOSPC, errno.EROFS, errno.EDQUOT)


@pytest.fixture(autouse=True)
def _impatient(monkeypatch):
    """A reader that meets a commit which stands still says so soon."""
    monkeypatch.setitem(consistent.consistent_read.__kwdefaults__, "patience_s", 0.05)


def save(recorder):
    """Add the next episode and save it; return the error, if there is one."""
    if not recorder.pending_frames:
        add_crash_frames(recorder, recorder.num_episodes)
    try:
        recorder.save_episode()
    except DiskError as error:
        return error
    return None


def seen(root, *, images_from=0):
    """Return how many episodes a reader sees, all whole; None while a commit stands still."""
    try:
        return episodes_in(root, check=check_rows, images_from=images_from)
    except DatasetBusyError:
        return None


def look(recorder, error, before):
    """Whatever happened, what the recorder says is what is there."""
    root = recorder.root
    assert recorder.num_episodes == before + (error is None)
    found = seen(root, images_from=before)
    if error is not None and "neither completed nor undone" in str(error):
        assert is_pending(root)
        assert found in (None, before)
    else:
        assert found == recorder.num_episodes, error


@pytest.mark.soak
@pytest.mark.parametrize(
    ("layout", "lasting", "step"),
    [
        ("v3.0", False, 5),
        pytest.param("v3.0", False, 1, marks=pytest.mark.soak),
        pytest.param("v3.0", True, 2, marks=pytest.mark.soak),
        pytest.param("lance-native", False, 3, marks=pytest.mark.soak),
        pytest.param("lance-native", True, 5, marks=pytest.mark.soak),
    ],
)
def test_whatever_call_fails_the_same_episode_is_saved_once_the_cause_is_gone(
    tmp_path, layout, lasting, step
):
    recorder = begin_crash_recording(tmp_path / "dataset", cameras=0, layout=layout, merge=False)
    with recorder:
        assert save(recorder) is None
        for number in count(0, step):
            before = recorder.num_episodes
            code = ERRORS[number // step % len(ERRORS)]
            with failing(
                recorder.root,
                lambda place, *_, n=number: place >= n if lasting else place == n,
                code,
            ) as disk:
                error = save(recorder)
                look(recorder, error, before)
            if error is not None:
                assert isinstance(error, DiskFullError) == (code in (errno.ENOSPC, errno.EDQUOT))
                assert save(recorder) is None, disk.failed
            assert seen(recorder.root) == recorder.num_episodes == before + 1
            if not disk.failed:
                break
        assert number > 20
    assert seen(recorder.root) == before + 1
    assert not (recorder.root / ".demoreel").exists()


def test_a_folder_that_is_not_forced_to_disk_after_a_save_does_not_end_the_recording(tmp_path):
    with begin_crash_recording(tmp_path / "dataset", cameras=0) as recorder:
        with failing(recorder.root, lambda _, call, path: (call, path) == ("fsync", "meta")):
            assert save(recorder) is None  # its record is on disk: a power cut loses nothing
            assert seen(recorder.root) == 1
            error = save(recorder)
            assert "the commit before this is in place" in str(error)
            assert recorder.num_episodes == seen(recorder.root) == 1
        assert save(recorder) is None
        assert recorder.num_episodes == seen(recorder.root) == 2


@pytest.mark.parametrize("merged", [False, True])
def test_without_second_names_a_commit_that_failed_is_completed_and_not_repeated(tmp_path, merged):
    """A disk without links: what was replaced cannot be had back."""
    with begin_crash_recording(tmp_path / "dataset", cameras=0, merge=False) as recorder:
        assert save(recorder) is None
        info = recorder.root / "meta" / "info.json"
        with failing(recorder.root, lambda _, call, path: call == "link"):
            add_crash_frames(recorder, 1)
            recorder._appender._wait_until_settled()
            text = info.read_bytes()
            info.unlink()
            info.mkdir()  # the last step fails, when statistics are already replaced
            with pytest.raises(DiskError, match="neither completed nor undone"):
                recorder.save_episode()
        info.rmdir()
        info.write_bytes(text)
        if merged:  # as in the background, before the recorder comes to save again
            merge(recorder)
        assert recorder.save_episode().episode_index == 1
        assert save(recorder) is None
    assert seen(recorder.root) == 3


@pytest.mark.soak
def test_what_merging_leaves_when_the_disk_fails_is_whole(tmp_path):
    with begin_crash_recording(tmp_path / "dataset", cameras=0, merge=False) as recorder:
        assert save(recorder) is None
        for number in count(0, 5):
            assert save(recorder) is None
            with failing(recorder.root, lambda place, *_, n=number: place >= n) as disk:
                with contextlib.suppress(DiskError):
                    merge(recorder)
                assert seen(recorder.root) in (None, recorder.num_episodes)
            merge(recorder)
            assert seen(recorder.root) == recorder.num_episodes
            if not disk.failed:
                break
    assert seen(recorder.root) == recorder.num_episodes
    assert len(list(recorder.root.glob("data/*/*.parquet"))) == 1


def merge(recorder):
    while recorder._appender.compact(finish=True):
        pass


def test_beginning_and_ending_say_what_failed_and_leave_nothing_half(tmp_path):
    root = tmp_path / "dataset"
    for number in count(0, 4):
        with (
            failing(tmp_path, lambda place, *_, n=number: place >= n) as disk,
            contextlib.suppress(DiskError),
        ):
            recorder = begin_crash_recording(root, cameras=0)
            break
        assert disk.failed
        shutil.rmtree(root, ignore_errors=True)  # a disk that fails cannot remove it either
    for _ in range(3):
        assert save(recorder) is None
    with (
        failing(root, lambda _, call, path: call == "fsync"),
        pytest.raises(DiskError, match="every saved episode is there"),
    ):
        recorder.finalize()
    assert seen(root) == 3
    with demoreel.resume(root) as recorder:
        assert save(recorder) is None
    assert seen(root) == 4
    assert len(list(root.glob("data/*/*.parquet"))) == 1


def test_an_image_that_is_missing_at_the_end_is_an_error_that_names_its_camera(tmp_path):
    features = {"cam": {"dtype": "image", "shape": (8, 8, 3), "names": ["height", "width", "c"]}}
    with demoreel.create(tmp_path / "data", fps=10, features=features) as recorder:
        for _ in range(4):
            recorder.add_frame({"cam": np.zeros((8, 8, 3), np.uint8), "task": "x"})
        finish = recorder._images.finish_episode

        def lose_one():
            images, counts = finish()
            return {key: made[:-1] for key, made in images.items()}, counts

        recorder._images.finish_episode = lose_one
        with pytest.raises(FrameMismatchError, match="camera has 3 frames") as caught:
            recorder.save_episode()
        assert {"dataset", "episode", "camera"} <= caught.value.where.keys()
        assert "discard it" in caught.value.hint
        recorder.discard_episode()


def test_a_frame_whose_image_finds_no_room_is_not_recorded_at_all(tmp_path):
    image = {"dtype": "image", "shape": (480, 640, 3), "names": ["height", "width", "channels"]}
    video = {**image, "dtype": "video", "shape": (48, 64, 3)}
    frame = {"a": np.zeros((480, 640, 3), np.uint8), "b": np.zeros((48, 64, 3), np.uint8)}
    with demoreel.create(
        tmp_path / "dataset",
        fps=30,
        features={"a": image, "b": video},
        vcodec="h264",
        memory_mb=1,
        task="t",
    ) as recorder:
        with failing(recorder.root, lambda _, call, path: "images-" in path, errno.ENOSPC):
            refused = 0
            for _ in range(6):
                try:
                    recorder.add_frame(frame)
                except EncoderBehindError:
                    refused += 1
        assert refused
        recorder.add_frame(frame)
        assert recorder.save_episode().frames == 7 - refused
    assert len(demoreel.open(recorder.root)) == 7 - refused


def test_a_video_that_was_not_forced_to_disk_is_written_again_from_its_packets(tmp_path):
    """After an fsync that failed, the system may have dropped what it held of the file."""
    with begin_crash_recording(tmp_path / "dataset", cameras=1) as recorder:
        assert save(recorder) is None

        def lost(_, call, path):
            if call == "fsync" and path.endswith("mp4"):
                for video in (recorder.root / ".demoreel/encoding").rglob("*.mp4"):
                    video.write_bytes(bytes(video.stat().st_size))
                return True
            return False

        with failing(recorder.root, lost) as disk:
            assert "nothing was written" in str(save(recorder))
        assert disk.failed
        assert save(recorder) is None
    assert seen(recorder.root) == 2


def test_an_image_that_found_no_room_is_told_although_the_next_one_did(tmp_path, monkeypatch):
    monkeypatch.setattr("demoreel.record.recorder._BEHIND_S", -1.0)  # every save is persisted
    with begin_crash_recording(tmp_path / "dataset", cameras=1, merge=False) as recorder:
        (encoder,) = recorder.encoder_processes.values()
        os.kill(encoder, signal.SIGSTOP)
        add_crash_frames(recorder, 0)
        writes = count()
        with (
            failing(
                recorder.root,
                lambda _, call, path: call == "write" and "camera-" in path and next(writes) == 0,
                errno.ENOSPC,
            ) as disk,
            pytest.raises(DiskFullError, match="nothing was written"),
        ):
            recorder.save_episode()
        os.kill(encoder, signal.SIGCONT)
        assert len(disk.failed) == 1
        assert next(writes) > 1
        assert recorder.save_episode().pending
    assert seen(recorder.root) == 1


def test_no_room_for_the_counts_of_a_saved_episode_is_a_full_disk(tmp_path, monkeypatch):
    """NumPy writes arrays by itself, and its error has no number."""
    monkeypatch.setattr("demoreel.record.recorder._BEHIND_S", -1.0)  # every save is persisted
    with begin_crash_recording(tmp_path / "dataset", cameras=1, merge=False) as recorder:
        add_crash_frames(recorder, 0)
        whole = CameraEncoder.persist

        def persist(camera, buffer):
            found = whole(camera, buffer)
            limit.enter_context(files_may_not_grow(1000))
            return found

        with contextlib.ExitStack() as limit, monkeypatch.context() as patch:
            patch.setattr(CameraEncoder, "persist", persist)
            with pytest.raises(DiskFullError, match="nothing was written"):
                recorder.save_episode()
        assert recorder.save_episode().pending
    assert seen(recorder.root) == 1


def test_a_disk_that_fails_once_does_not_make_saved_episodes_change_places(tmp_path, monkeypatch):
    monkeypatch.setattr("demoreel.record.recorder._BEHIND_S", -1.0)  # every save is persisted
    left = tmp_path / "left"
    with begin_crash_recording(tmp_path / "dataset", cameras=1, merge=False) as recorder:
        (encoder,) = recorder.encoder_processes.values()
        os.kill(encoder, signal.SIGSTOP)
        for episode in range(2):
            add_crash_frames(recorder, episode)
            recorder.save_episode()
        shutil.copytree(recorder.root, left)  # as a kill would leave it
        os.kill(encoder, signal.SIGCONT)
    syncs = count()
    with (
        failing(
            left, lambda _, call, path: call == "fsync" and "staging-" in path and next(syncs) == 0
        ),
        pytest.raises(DiskError, match="0 of 2 saved episodes were committed"),
    ):
        demoreel.finish(left)
    assert [done.episode_index for done in demoreel.finish(left).episodes] == [0, 1]
    assert seen(left) == 2


@pytest.mark.soak
def test_an_episode_that_waits_for_its_encoder_is_committed_when_the_disk_does_well_again(
    tmp_path, monkeypatch
):
    monkeypatch.setattr("demoreel.record.recorder._BEHIND_S", -1.0)  # every save is persisted
    with begin_crash_recording(tmp_path / "dataset", cameras=1, merge=False) as recorder:
        for number in count(0, 3):
            before = recorder.num_episodes + recorder.pending_episodes
            add_crash_frames(recorder, before)
            with failing(recorder.root, lambda place, *_, n=number: place == n) as disk:
                with contextlib.suppress(DiskError):
                    recorder.save_episode()
                with contextlib.suppress(DiskError):
                    recorder._deferred.wait()
            if recorder.pending_frames:
                recorder.save_episode()
            recorder._deferred.wait()
            assert recorder.num_episodes == before + 1, disk.failed
            if not disk.failed:
                break
    assert seen(recorder.root) == before + 1


# What takes longer


@pytest.mark.soak
@pytest.mark.parametrize("layout", ["v3.0", "lance-video"])
def test_fifty_failing_syncs_lose_nothing(tmp_path, layout):
    chance = random.Random(SEED)
    print("seed", SEED)
    failures = 0
    recorder = begin_crash_recording(tmp_path / "dataset", cameras=1, layout=layout, merge=False)
    with recorder:
        while failures < 50:
            before = recorder.num_episodes
            share = chance.choice((0.05, 0.3, 1.0))
            with failing(
                recorder.root,
                lambda _, call, path, s=share: call == "fsync" and chance.random() < s,
                chance.choice(ERRORS),
            ) as disk:
                error = save(recorder)
                look(recorder, error, before)
            failures += len(disk.failed)
            while error is not None and chance.random() < 0.3:
                with failing(recorder.root, lambda _, call, path: call == "fsync"):
                    error = save(recorder)
            assert error is None or save(recorder) is None
            assert seen(recorder.root, images_from=before) == before + 1
            if recorder.num_episodes > 30:
                break
    assert failures >= 50
    assert seen(recorder.root) == recorder.num_episodes


@pytest.mark.soak
def test_fifty_full_disks_lose_nothing(mounted):
    """Real ones: encoders, Arrow and the recorder find no room, each in its own way."""
    chance = random.Random(SEED)
    print("seed", SEED)
    disk = mounted("6m")
    recorder = begin_crash_recording(disk / "dataset", cameras=1, merge=False)
    told = filled = 0
    while told < 50:
        assert filled < 400
        before, filled = recorder.num_episodes, filled + 1
        fill(disk / "filler", leave=chance.choice((0, 0, 4096, 8192, 16384, 32768)))
        error = save(recorder)
        assert error is None or isinstance(error, DiskFullError)
        look(recorder, error, before)
        (disk / "filler").unlink()
        if error is not None:
            told += 1
            assert save(recorder) is None
        assert seen(recorder.root, images_from=before) == before + 1
        if recorder.num_episodes >= 20:  # a new one: all rows are looked at every time
            recorder.finalize()
            assert seen(recorder.root) == recorder.num_episodes
            shutil.rmtree(recorder.root)
            recorder = begin_crash_recording(disk / "dataset", cameras=1, merge=False)
    recorder.finalize()


def fill(path: Path, *, leave: int) -> None:
    with open(path, "wb", buffering=0) as file:
        free = shutil.disk_usage(path.parent).free
        with contextlib.suppress(OSError):
            file.write(bytes(max(0, free - leave)))
