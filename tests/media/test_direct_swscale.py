"""Frames that swscale writes into our arrays: the same bytes, and never anywhere else."""

from __future__ import annotations

import ctypes
import io
import os
import subprocess
import sys
import threading

import av
import numpy as np
import pytest

from demoreel.media import colour
from demoreel.media.colour import DirectSwscale, Kind, NoDirectSwscaleError, Painter, _fits

FORMS = ["yuv420p", "yuvj420p", "yuv422p", "yuv444p"]


def noise(kind, seed=0):
    rng = np.random.default_rng(seed)
    frame = av.VideoFrame(kind.width, kind.height, kind.form)
    for plane in frame.planes:
        plane.update(rng.bytes(plane.buffer_size))
    frame.color_range, frame.colorspace = kind.color_range, kind.space
    return frame


@pytest.fixture(autouse=True)
def fresh():
    colour._direct_is_exact.cache_clear()
    yield
    colour._direct_is_exact.cache_clear()


def test_pyavs_own_swscale_is_found():
    swscale, formats = colour._libraries()
    assert swscale is not None
    assert formats is not None
    version = swscale.swscale_version()
    assert (version >> 16, version >> 8 & 255, version & 255) == av.library_versions["libswscale"]


@pytest.mark.parametrize("form", FORMS)
def test_the_same_bytes_as_pyav(form):
    for color_range in (0, 1, 2):
        for space in (1, 2, 5, 6, 9):
            kind = Kind(form, 64, 48, color_range, space)
            made, frame = DirectSwscale(kind), noise(kind)
            out = np.empty((3, 48, 64), np.uint8)
            made.paint(frame, out)
            assert np.array_equal(out.transpose(1, 2, 0), frame.to_ndarray(format="rgb24")), kind


def test_cameras_frames_go_this_way(monkeypatch):
    monkeypatch.setattr(Painter, "_planes", None)
    kind = Kind("yuv420p", 640, 480, 1, 2)
    frame, out = noise(kind), np.empty((3, 480, 640), np.uint8)
    Painter().paint(frame, out)
    assert np.array_equal(out.transpose(1, 2, 0), frame.to_ndarray(format="rgb24"))


@pytest.mark.parametrize("order", ["progressive", "tff", "bff"])
def test_interlaced_frames_are_left_to_pyav(order):
    """PyAV converts their fields one by one, and noise does not tell."""
    kind, film = Kind("yuv420p", 128, 64, 1, 2), io.BytesIO()
    with av.open(film, "w", format="mp4") as container:
        stream = container.add_stream("libx264", rate=30)
        stream.width, stream.height, stream.pix_fmt = kind.width, kind.height, kind.form
        stream.options = {"crf": "5", "x264-params": "" if order == "progressive" else f"{order}=1"}
        for seed in range(3):
            container.mux(stream.encode(noise(kind, seed)))
        container.mux(stream.encode())
    film.seek(0)
    with av.open(film) as container:
        frames = list(container.decode(video=0))
    assert len(frames) == 3
    assert all(frame.interlaced_frame == (order != "progressive") for frame in frames)
    for frame in frames:
        out = np.empty((3, kind.height, kind.width), np.uint8)
        Painter().paint(frame, out)
        assert np.array_equal(out.transpose(1, 2, 0), frame.to_ndarray(format="rgb24"))


def test_nothing_is_written_beside_the_array():
    kind = Kind("yuv420p", 64, 48, 1, 2)
    batch = np.full((5, 3, 48, 64), 7, np.uint8)
    for seed in range(10):
        DirectSwscale(kind).paint(noise(kind, seed), batch[2])
    assert (batch[[0, 1, 3, 4]] == 7).all()


@pytest.mark.parametrize("lies", ["not aligned", "apart", "narrow"])
def test_arrays_that_do_not_fit_are_painted_by_pyav(lies, monkeypatch):
    width = 40 if lies == "narrow" else 64
    memory = np.zeros(3 * 48 * 64 * 2 + 1, np.uint8)
    if lies == "apart":
        out = memory[: 3 * 48 * 128].reshape(3, 48, 128)[:, :, :64]
    else:
        out = memory[1 : 1 + 3 * 48 * width].reshape(3, 48, width)
    assert not _fits(out)
    monkeypatch.setattr(DirectSwscale, "paint", None)
    monkeypatch.setattr(colour, "_direct_is_exact", lambda kind: True)
    frame = noise(Kind("yuv420p", width, 48, 1, 2))
    Painter().paint(frame, out)
    assert np.array_equal(out.transpose(1, 2, 0), frame.to_ndarray(format="rgb24"))


def test_where_bytes_differ_pyav_serves(monkeypatch):
    paint = DirectSwscale.paint

    def a_little_off(self, frame, out):
        paint(self, frame, out)
        out[0, 5, 7] ^= 1

    monkeypatch.setattr(DirectSwscale, "paint", a_little_off)
    kind = Kind("yuv420p", 64, 48, 1, 2)
    frame, out = noise(kind), np.empty((3, 48, 64), np.uint8)
    Painter().paint(frame, out)
    assert np.array_equal(out.transpose(1, 2, 0), frame.to_ndarray(format="rgb24"))


@pytest.mark.parametrize("missing", ["libraries", "function", "format", "version"])
def test_without_the_library_pyav_serves(missing, monkeypatch):
    colour._libraries.cache_clear()
    try:
        if missing == "libraries":
            monkeypatch.setattr(colour, "_loaded", lambda name: None)
        elif missing == "function":
            monkeypatch.setattr(colour, "_loaded", lambda name: ctypes.CDLL(None))
        elif missing == "version":
            monkeypatch.setattr(colour, "_KNOWN", range(1, 3))
        form = "no such form" if missing == "format" else "yuv420p"
        with pytest.raises(NoDirectSwscaleError):
            DirectSwscale(Kind(form, 64, 48, 1, 2))
        frame, out = noise(Kind("yuv420p", 64, 48, 1, 2)), np.empty((3, 48, 64), np.uint8)
        Painter().paint(frame, out)
        assert np.array_equal(out.transpose(1, 2, 0), frame.to_ndarray(format="rgb24"))
    finally:
        colour._libraries.cache_clear()


def test_threads_and_children_have_their_own():
    kind = Kind("yuv420p", 320, 240, 1, 2)
    frames = [noise(kind, seed) for seed in range(6)]
    right = [frame.to_ndarray(format="rgb24").transpose(2, 0, 1) for frame in frames]
    wrong = []

    def paint_many():
        painter, out = Painter(), np.empty((3, 240, 320), np.uint8)
        for number in range(60):
            painter.paint(frames[number % 6], out)
            if not np.array_equal(out, right[number % 6]):
                wrong.append(number)

    shared = Painter()
    shared.paint(frames[0], np.empty((3, 240, 320), np.uint8))
    threads = [threading.Thread(target=paint_many) for _ in range(4)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    child = os.fork()
    if child == 0:
        out = np.empty((3, 240, 320), np.uint8)
        shared.paint(frames[3], out)
        os._exit(0 if np.array_equal(out, right[3]) else 1)
    assert os.waitpid(child, 0)[1] == 0
    assert not wrong


def test_painters_that_are_gone_leave_nothing():
    code = """
import gc, psutil
import numpy as np
from demoreel.media.colour import Painter
from demoreel.media.colour import Kind, DirectSwscale
def make(count):
    for _ in range(count):
        DirectSwscale(Kind("yuv420p", 640, 480, 1, 2))
    gc.collect()
    return psutil.Process().memory_info().rss
before = make(200)
print((make(2000) - before) >> 20)
"""
    found = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert int(found.stdout) < 30
