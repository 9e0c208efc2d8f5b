"""Frames in without waiting, videos out with every frame."""

from __future__ import annotations

import os
import signal

import av
import numpy as np
import pytest

from demoreel.errors import ArgumentError, UnknownKeyError, VideoError
from demoreel.media.settings import LOSSLESS_DEPTH, LOSSLESS_DEPTH_16, VideoSettings
from demoreel.record.encoding.cameras import CameraEncoders
from demoreel.record.encoding.ipc import Inbox
from demoreel.record.encoding.plan import Backlog, CameraPlan
from demoreel.record.encoding.worker import Worker

CODECS = ["av1", "h264", "hevc", "vp9", "mpeg4"]


@pytest.fixture(scope="module")
def plans(filming):
    return [filming.camera("front"), filming.camera("wrist", 48, 96)]


@pytest.fixture(scope="module")
def encoders(plans, tmp_path_factory):
    with CameraEncoders(plans, fps=30, workdir=tmp_path_factory.mktemp("work")) as encoders:
        yield encoders


@pytest.fixture(autouse=True)
def _nothing_left(request):
    yield
    if "encoders" in request.fixturenames:
        request.getfixturevalue("encoders").discard_episode()


def test_episodes_of_any_length_have_every_frame_once(encoders, plans, filming):
    for episode, frames in enumerate([1, 2, 3, 50, 1]):
        filming.put(encoders, plans, episode, frames)
        filming.check(encoders.finish_episode(), plans, episode, frames)
        assert encoders.backlog == Backlog()


def test_every_codec_takes_one_and_two_frames(tmp_path, filming):
    plans = [filming.camera(codec, settings=VideoSettings(codec=codec)) for codec in CODECS]
    with CameraEncoders(plans, fps=30, workdir=tmp_path) as encoders:
        for episode, frames in enumerate([1, 2, 9]):
            filming.put(encoders, plans, episode, frames)
            filming.check(encoders.finish_episode(), plans, episode, frames)


def test_frames_that_do_not_fit_into_memory_wait_on_disk_in_order(tmp_path, filming):
    plans = [filming.camera("front", 240, 320), filming.camera("wrist", 120, 160)]
    with CameraEncoders(plans, fps=30, workdir=tmp_path, memory_mb=1) as encoders:
        stopped = list(encoders.encoder_processes.values())
        for process in stopped:
            os.kill(process, signal.SIGSTOP)
        filming.put(encoders, plans, 7, 40)
        filming.wait_until(lambda: encoders.backlog.frames_on_disk > 60)
        assert encoders.backlog.seconds_behind == pytest.approx(40 / 30)
        assert encoders.backlog.bytes_on_disk > 30 * 240 * 320 * 3
        for process in stopped:
            os.kill(process, signal.SIGCONT)
        filming.put(encoders, plans, 7, 40, start=40)
        filming.check(encoders.finish_episode(), plans, 7, 80)
        filming.put(encoders, plans, 8, 3)
        filming.check(encoders.finish_episode(), plans, 8, 3)
    assert list(tmp_path.rglob("*.raw")) == []


def test_putting_does_not_wait_for_an_encoder_that_stands_still(encoders, plans, filming):
    for process in encoders.encoder_processes.values():
        os.kill(process, signal.SIGSTOP)
    for frame in range(500):  # more messages than a pipe holds
        encoders.put_frame({plan.key: filming.image(plan, 3, frame) for plan in plans})
    assert encoders.backlog.frames_in_memory + encoders.backlog.frames_on_disk == 1000
    for process in encoders.encoder_processes.values():
        os.kill(process, signal.SIGCONT)
    filming.check(encoders.finish_episode(), plans, 3, 500)


def test_a_discarded_episode_leaves_nothing(encoders, plans, filming):
    filming.put(encoders, plans, 0, 1)
    work = encoders.finish_episode()["front"].path.parent.parent
    before = set(work.iterdir())
    filming.put(encoders, plans, 1, 30)
    encoders.discard_episode()
    filming.put(encoders, plans, 2, 5)
    videos = encoders.finish_episode()
    filming.check(videos, plans, 2, 5)
    own = videos["front"].path.parent
    filming.put(encoders, plans, 3, 1)  # until now the disk was left alone
    encoders.discard_episode()
    filming.wait_until(lambda: set(work.iterdir()) <= before | {own})
    filming.wait_until(lambda: set(own.iterdir()) == {video.path for video in videos.values()})


def test_an_episode_may_be_ended_before_it_is_finished(encoders, plans, filming):
    with pytest.raises(ArgumentError, match="no frames"):
        encoders.end_episode()
    filming.put(encoders, plans, 4, 2)
    encoders.end_episode()
    encoders.end_episode()
    with pytest.raises(ArgumentError, match="ended"):
        filming.put(encoders, plans, 4, 1, start=2)
    filming.check(encoders.finish_episode(), plans, 4, 2)


def test_images_are_counted_before_their_videos_are_finished(encoders, plans, filming):
    for episode in range(3):
        filming.put(encoders, plans, episode, 3)
        counts = encoders.count_episode()
        videos = encoders.finish_episode()
        filming.check(videos, plans, episode, 3)
        for later in (counts, encoders.count_episode()):
            for key, video in videos.items():
                assert later[key].count == 3
                assert np.array_equal(later[key].histogram(), video.stats.histogram())


def test_an_encoder_that_rests_hears_the_bell(plans):
    bell, ring = os.pipe()
    messages, tell = os.pipe()
    worker = Worker(Inbox(messages), bell, tell, plans[0], None, fps=30, threads=1)
    os.write(ring, b"!!")
    worker._rest(3600)
    worker._rest(0)  # heard once is enough
    for handle in (bell, ring, messages, tell):
        os.close(handle)


def test_finishing_again_gives_the_same_videos_until_the_next_image(encoders, plans, filming):
    filming.put(encoders, plans, 4, 2)
    videos = encoders.finish_episode()
    assert encoders.finish_episode() == videos
    filming.put(encoders, plans, 5, 1)
    filming.check(encoders.finish_episode(), plans, 5, 1)


@pytest.mark.parametrize(("settings", "most"), [(LOSSLESS_DEPTH, 4095), (LOSSLESS_DEPTH_16, 65535)])
def test_depth_comes_back_bit_for_bit(tmp_path, settings, most):
    plan = CameraPlan("depth", 48, 64, "depth", settings)
    random = np.random.default_rng(0)
    images = [random.integers(0, most + 1, plan.shape).astype(np.uint16) for _ in range(7)]
    with CameraEncoders([plan], fps=10, workdir=tmp_path) as encoders:
        for image in images:
            encoders.put("depth", image)
        video = encoders.finish_episode()["depth"]
        with av.open(str(video.path)) as container:
            shown = [frame.to_ndarray() for frame in container.decode(video=0)]
        assert np.array_equal(shown, images)
        expected = np.bincount(np.concatenate(images).reshape(-1), minlength=65536)
        assert np.array_equal(video.stats.histogram()[0], expected)


def test_an_image_that_does_not_fit_is_refused_and_the_episode_goes_on(encoders, plans, filming):
    filming.put(encoders, plans, 6, 1)
    good = {plan.key: filming.image(plan, 6, 1) for plan in plans}
    with pytest.raises(ArgumentError, match=r"\(48, 96, 3\)"):
        encoders.put_frame({**good, "wrist": good["front"]})
    with pytest.raises(ArgumentError, match="float"):
        encoders.put("front", good["front"].astype(np.float32))
    with pytest.raises(UnknownKeyError, match="front"):
        encoders.put("fronk", good["front"])
    encoders.put_frame(good)
    filming.check(encoders.finish_episode(), plans, 6, 2)


def test_the_callers_image_may_change_as_soon_as_it_is_put(encoders, plans, filming):
    for frame in range(5):
        images = {plan.key: filming.image(plan, 9, frame) for plan in plans}
        encoders.put_frame(images)
        for image in images.values():
            image[:] = 0
    filming.check(encoders.finish_episode(), plans, 9, 5)


def test_images_need_not_lie_in_a_row(encoders, plans, filming):
    turned = {p.key: filming.image(p, 2, 0)[::-1, ::-1].copy()[::-1, ::-1] for p in plans}
    encoders.put_frame(turned)
    filming.check(encoders.finish_episode(), plans, 2, 1)


def test_a_camera_without_images_is_refused(encoders, plans, filming):
    with pytest.raises(ArgumentError, match="no frames"):
        encoders.finish_episode()
    encoders.put("front", filming.image(plans[0], 1, 0))
    with pytest.raises(ArgumentError, match="no frames"):
        encoders.finish_episode()


def test_a_codec_that_cannot_is_refused_before_the_first_frame(tmp_path, filming):
    odd = filming.camera("front", 63, 65)
    with pytest.raises(VideoError, match="odd"):
        CameraEncoders([odd], fps=30, workdir=tmp_path)
    if "h264_nvenc" in av.codecs_available:
        absent = filming.camera(settings=VideoSettings(codec="h264", encoder="h264_nvenc"))
        if not _works(absent):
            with pytest.raises(VideoError, match="cannot be encoded"):
                CameraEncoders([absent], fps=30, workdir=tmp_path)
    assert list(tmp_path.iterdir()) == []


def _works(plan):
    try:
        context = av.CodecContext.create(plan.settings.encoder, "w")
        context.width, context.height, context.pix_fmt = 640, 480, "yuv420p"
        context.time_base = "1/30"
        context.open()
    except Exception:
        return False
    return True


def test_cameras_must_differ(tmp_path, filming):
    with pytest.raises(ArgumentError, match="differ"):
        CameraEncoders([filming.camera(), filming.camera()], fps=30, workdir=tmp_path)
    with pytest.raises(ArgumentError, match="differ"):
        CameraEncoders([], fps=30, workdir=tmp_path)
    with pytest.raises(ArgumentError, match="memory_mb"):
        CameraEncoders([filming.camera()], fps=30, workdir=tmp_path, memory_mb=0)


def test_closed_encoders_take_nothing(tmp_path, filming):
    plan = filming.camera()
    encoders = CameraEncoders([plan], fps=30, workdir=tmp_path)
    encoders.put(plan.key, filming.image(plan, 0, 0))
    encoders.close()
    encoders.close()
    with pytest.raises(ArgumentError, match="closed"):
        encoders.put(plan.key, filming.image(plan, 0, 1))
    assert list(tmp_path.iterdir()) == []


def test_memory_and_disk_that_are_full_are_told_and_lose_nothing(tmp_path, filming):
    plan = filming.camera("front", 240, 320)
    with CameraEncoders([plan], fps=30, workdir=tmp_path, memory_mb=1) as encoders:
        (process,) = encoders.encoder_processes.values()
        os.kill(process, signal.SIGSTOP)
        blocked = tmp_path / "episode-000001"
        blocked.write_bytes(b"a file where the folder is to be")
        taken = filming.put_until_refused(encoders, plan, 0, reason="disk fails")
        assert 4 <= taken < 20
        blocked.unlink()
        os.kill(process, signal.SIGCONT)
        filming.put(encoders, [plan], 0, 10, start=taken)
        filming.check(encoders.finish_episode(), [plan], 0, taken + 10)


@pytest.mark.skipif(not hasattr(os, "SCHED_BATCH"), reason="needs Linux")
def test_every_thread_of_an_encoder_steps_back_for_the_control_loop(tmp_path, filming):
    plan = filming.camera(settings=VideoSettings(codec="av1"))
    with CameraEncoders([plan], fps=30, workdir=tmp_path) as encoders:
        filming.put(encoders, [plan], 0, 30)
        filming.wait_until(lambda: encoders.backlog.frames_in_memory < 30)  # its codec is open
        process = encoders.encoder_processes["front"]
        threads = [int(name) for name in os.listdir(f"/proc/{process}/task")]
        assert len(threads) > 2
        at_work = [thread for thread in threads if os.sched_getscheduler(thread) != os.SCHED_OTHER]
        assert {os.sched_getscheduler(thread) for thread in at_work} == {os.SCHED_BATCH}
        assert os.getpriority(os.PRIO_PROCESS, process) > os.getpriority(os.PRIO_PROCESS, 0)
