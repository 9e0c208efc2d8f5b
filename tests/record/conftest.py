"""Cameras whose images say which frame they are, and what a video shows of them."""

from __future__ import annotations

import time
from collections.abc import Callable

import av
import numpy as np
import pytest

from demoreel.errors import EncoderBehindError
from demoreel.media.settings import VideoSettings
from demoreel.record.encoding.cameras import CameraEncoders
from demoreel.record.encoding.plan import CameraPlan
from demoreel.stats.running import LevelCounts
from demoreel.testing.stamp import read_stamp, stamp

DEADLINE_S = 60


class Filming:
    """Puts stamped images, and checks that a video shows them all."""

    FAST = VideoSettings(codec="h264", preset="ultrafast")

    def camera(self, key="front", height=64, width=64, settings=FAST):
        return CameraPlan(key, height, width, "rgb", settings)

    def image(self, plan, episode, frame):
        made = np.full(plan.shape, 90, plan.dtype)
        stamp(made, episode, frame)
        return made

    def put(self, encoders: CameraEncoders, plans, episode, frames, *, start=0):
        """Put frames, and each again while neither encoder nor disk can take it."""
        for frame in range(start, start + frames):
            self.put_frame(encoders, {p.key: self.image(p, episode, frame) for p in plans})

    def put_frame(self, encoders: CameraEncoders, images):
        until = time.monotonic() + DEADLINE_S
        while True:
            try:
                return encoders.put_frame(images)
            except EncoderBehindError:
                assert time.monotonic() < until
                time.sleep(0.001)

    def put_until_refused(self, encoders: CameraEncoders, plan, episode, *, reason):
        """Put frames until one is refused for this reason; return how many were taken."""
        until = time.monotonic() + DEADLINE_S
        frame = 0
        while time.monotonic() < until:
            try:
                encoders.put(plan.key, self.image(plan, episode, frame))
                frame += 1
            except EncoderBehindError as error:
                if reason in str(error):
                    return frame
                time.sleep(0.001)
        raise AssertionError("nothing was refused")

    def check(self, videos, plans, episode, frames):
        """Each camera shows each frame once, in order, and its statistics count those images."""
        assert set(videos) == {plan.key for plan in plans}
        for plan in plans:
            video = videos[plan.key]
            assert video.frames == frames
            assert self.stamps(video.path) == [(episode, frame) for frame in range(frames)]
            counted = LevelCounts()
            for frame in range(frames):
                counted.add(self.image(plan, episode, frame))
            assert video.stats.count == frames
            assert np.array_equal(video.stats.histogram(), counted.histogram())

    def stamps(self, path):
        with av.open(str(path)) as container:
            frames = [frame.to_ndarray(format="rgb24") for frame in container.decode(video=0)]
        return [tuple(read_stamp(frame)) for frame in frames]

    def wait_until(self, condition: Callable[[], bool]):
        until = time.monotonic() + DEADLINE_S
        while not condition():
            assert time.monotonic() < until
            time.sleep(0.005)


@pytest.fixture(scope="session")
def filming() -> Filming:
    return Filming()
