"""Keyframes that other packets may come before."""

from __future__ import annotations

import numpy as np
import pytest

from demoreel.media.decode import begins_anew, with_lead_in

from .test_mp4_write import encoded


def keyframes(video) -> list[int]:
    index = video.index
    return np.flatnonzero(index.start_of == np.arange(len(index.start_of))).tolist()


@pytest.mark.parametrize("codec", ["h264", "hevc"])
def test_open_groups_begin_anew_only_once(codec, tmp_path):
    video = encoded(tmp_path / "a.mp4", 24, codec=codec, gop=6, b_frames=2, open_gop=True)
    first, *others = keyframes(video)
    assert begins_anew(video, first)
    assert others
    assert not any(begins_anew(video, number) for number in others)
    assert with_lead_in(video.index, others[-1]) == (0 if codec == "h264" else others[-1])


@pytest.mark.parametrize("codec", ["h264", "av1", "vp9", "mpeg4"])
def test_others_begin_anew_at_any_keyframe(codec, tmp_path):
    video = encoded(tmp_path / "a.mp4", 12, codec=codec, gop=4)
    assert len(keyframes(video)) > 1
    assert all(begins_anew(video, number) for number in keyframes(video))
