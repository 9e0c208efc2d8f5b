"""The codec that holds real time is found by trying, once per machine and cameras."""

from __future__ import annotations

import json

import pytest

from demoreel.errors import ArgumentError, VideoError
from demoreel.media.settings import HARDWARE_ENCODERS, LOSSLESS_DEPTH, VideoSettings
from demoreel.record.encoding.cameras import CameraEncoders
from demoreel.record.encoding.choose import DOCUMENTED_ORDER, choose_codec
from demoreel.record.encoding.plan import CameraPlan

SOFTWARE = ("libsvtav1", "libx264")


@pytest.fixture
def cache(tmp_path):
    return tmp_path / "cache" / "encoders.json"


def test_the_order_is_the_documented_one():
    assert DOCUMENTED_ORDER == (
        "h264_videotoolbox",
        "hevc_videotoolbox",
        "h264_nvenc",
        "hevc_nvenc",
        "h264_vaapi",
        "h264_qsv",
        "libsvtav1",
        "libx264",
    )


def test_small_cameras_get_the_first_that_works_and_can_be_recorded(filming, cache, tmp_path):
    plans = [filming.camera("front"), filming.camera("wrist", 48, 96)]
    chosen = choose_codec(plans, 5, cache=cache)
    assert chosen.encoder in HARDWARE_ENCODERS or chosen.codec == "av1"
    assert (chosen.gop, chosen.pix_fmt) == (2, "yuv420p")
    if chosen.codec == "av1":
        assert chosen.crf == 36
    plans = [filming.camera("front", settings=chosen)]
    with CameraEncoders(plans, fps=5, workdir=tmp_path / "work") as encoders:
        filming.put(encoders, plans, 0, 5)
        filming.check(encoders.finish_episode(), plans, 0, 5)


def test_what_was_measured_is_kept(filming, cache):
    plans = [filming.camera()]
    first = choose_codec(plans, 5, order=SOFTWARE, cache=cache)
    (measured,) = json.loads(cache.read_text()).values()
    assert list(measured) == ["libsvtav1 9 36 2"]
    # Were it measured again, it would not be found to take more than the machine has.
    kept = {key: dict.fromkeys(value, 1e9) for key, value in json.loads(cache.read_text()).items()}
    cache.write_text(json.dumps(kept))
    second = choose_codec(plans, 5, order=SOFTWARE, cache=cache)
    assert (first.preset, second.preset) == (9, 12)


def test_a_machine_that_is_too_slow_gets_the_fastest(filming, cache):
    chosen = choose_codec([filming.camera()], 1_000_000, order=SOFTWARE, cache=cache)
    assert (chosen.codec, chosen.preset) == ("h264", "superfast")


def test_a_broken_or_forbidden_cache_only_costs_time(filming, tmp_path):
    broken = tmp_path / "encoders.json"
    broken.write_text("{")
    assert choose_codec([filming.camera()], 5, order=SOFTWARE, cache=broken).codec == "av1"
    nowhere = broken / "encoders.json"
    assert choose_codec([filming.camera()], 5, order=SOFTWARE, cache=nowhere).codec == "av1"


def test_depth_cameras_keep_their_codec_and_count(cache):
    depth = CameraPlan("depth", 48, 64, "depth", LOSSLESS_DEPTH)
    assert choose_codec([depth], 30, cache=cache) == VideoSettings()
    assert not cache.exists()
    colour = CameraPlan("front", 48, 64, "rgb", VideoSettings())
    assert choose_codec([colour, depth], 5, order=SOFTWARE, cache=cache).codec == "av1"


def test_what_cannot_be_is_refused(filming, cache):
    with pytest.raises(ArgumentError, match="libx264"):
        choose_codec([filming.camera()], 30, order=["libx265"], cache=cache)
    with pytest.raises(ArgumentError, match="no encoders"):
        choose_codec([filming.camera()], 30, order=[], cache=cache)
    with pytest.raises(VideoError, match="odd"):
        choose_codec([filming.camera("front", 63, 65)], 30, order=["libx264"], cache=cache)
    odd = choose_codec([filming.camera("front", 63, 65)], 5, order=SOFTWARE, cache=cache)
    assert odd.codec == "av1"
