"""Where JPEGs are decoded. What takes a GPU is measured and compared by bench/gpu_jpeg.py."""

from __future__ import annotations

import warnings

import numpy as np
import pytest
import simplejpeg
import torch

import demoreel
from demoreel.errors import ArgumentError, DemoreelWarning, MissingExtraError, PictureError
from demoreel.layouts.detect import open_reader
from demoreel.torch import LeRobotLanceDataset
from demoreel.torch import device as device_module
from demoreel.torch.device import DeviceImages, chosen_device

FRONT, WRIST = "observation.images.front", "observation.images.wrist"
CPU = torch.device("cpu")

without_a_gpu = pytest.mark.skipif(torch.cuda.is_available(), reason="there is a GPU")


@without_a_gpu
def test_cuda_without_a_gpu_says_what_is_missing(fixtures):
    for device in ("cuda", "cuda:1", torch.device("cuda")):
        with pytest.raises((ArgumentError, MissingExtraError), match=r"CUDA") as caught:
            LeRobotLanceDataset(root=fixtures / "kitchen_lance_frames", decode_device=device)
        assert "decode_device='cpu'" in str(caught.value)


@pytest.mark.parametrize("device", ["mps", "gpu", "", 3.5])
def test_other_devices_are_refused(device):
    with pytest.raises(ArgumentError, match="decode"):
        chosen_device(device)


@pytest.mark.parametrize("device", ["cpu", torch.device("cpu"), None])
def test_the_cpu_by_its_names(device):
    assert chosen_device(device) is None


@without_a_gpu
def test_auto_falls_back_and_says_so_once(fixtures, monkeypatch):
    monkeypatch.setattr(device_module, "_has_warned", False)  # as in a new process
    with warnings.catch_warnings(record=True) as caught:
        warnings.simplefilter("always")
        for _ in range(3):
            ds = LeRobotLanceDataset(root=fixtures / "kitchen_lance_frames")
            assert ds[0][FRONT].device.type == "cpu"
    (said,) = [w for w in caught if issubclass(w.category, DemoreelWarning)]
    assert "decoded by the CPU" in str(said.message)
    assert "CUDA" in str(said.message)
    assert said.filename == __file__


def by_libjpeg(encoded):
    return [
        torch.from_numpy(simplejpeg.decode_jpeg(data.numpy().tobytes())).permute(2, 0, 1)
        for data in encoded
    ]


def test_images_by_another_decoder_are_the_same(fixtures):
    ds = demoreel.open(fixtures / "kitchen_lance_frames")
    images = DeviceImages(ds.reader, ds.cameras, device=CPU, decode_jpegs=by_libjpeg)
    for rows in ([3], [0, 1, 2], [9, 4, 4, 122, 0, 9]):
        for camera in (FRONT, WRIST):
            got = images.read(np.array(rows), camera)
            assert got.dtype == torch.uint8
            np.testing.assert_array_equal(got.numpy(), ds.batch(rows)[camera])


def test_each_jpeg_is_decoded_once_and_all_in_one_call(fixtures):
    ds = demoreel.open(fixtures / "kitchen_lance_frames")
    calls = []

    def counting(encoded):
        calls.append(len(encoded))
        return by_libjpeg(encoded)

    DeviceImages(ds.reader, ds.cameras, device=CPU, decode_jpegs=counting).read(
        np.array([5, 5, 7, 5]), FRONT
    )
    assert calls == [2]


def test_other_codecs_and_scaling_are_the_cpus_work(fixtures):
    def never(encoded):
        raise AssertionError("this is not for the device")

    png = demoreel.open(fixtures / "kitchen_images_v30")
    got = DeviceImages(png.reader, [FRONT], device=CPU, decode_jpegs=never).read(
        np.array([2, 0]), FRONT
    )
    np.testing.assert_array_equal(got.numpy(), png.batch([2, 0])[FRONT])
    small = demoreel.open(fixtures / "kitchen_lance_frames", image_size=(24, 32))
    got = DeviceImages(small.reader, [FRONT], device=CPU, size=(24, 32), decode_jpegs=never).read(
        np.array([2, 0]), FRONT
    )
    np.testing.assert_array_equal(got.numpy(), small.batch([2, 0])[FRONT])


def test_what_the_device_cannot_decode_is_tried_by_the_cpu(fixtures):
    def fails(encoded):
        raise RuntimeError("not for me")

    ds = demoreel.open(fixtures / "kitchen_lance_frames")
    got = DeviceImages(ds.reader, [WRIST], device=CPU, decode_jpegs=fails).read(
        np.array([8, 1]), WRIST
    )
    np.testing.assert_array_equal(got.numpy(), ds.batch([8, 1])[WRIST])


class Damaged:
    """A layout one of whose images is cut off."""

    def __init__(self, root):
        self._reader = open_reader(root)

    def __getattr__(self, name):
        return getattr(self._reader, name)

    def encoded(self, rows, camera):
        found = self._reader.encoded(rows, camera)
        return [data[:40] if row == 30 else data for row, data in zip(rows, found, strict=True)]


def test_a_damaged_image_is_named(fixtures):
    reader = Damaged(fixtures / "kitchen_lance_frames")
    images = DeviceImages(reader, [FRONT], device=CPU, decode_jpegs=by_libjpeg)
    with pytest.raises(PictureError) as caught:
        images.read(np.array([29, 30]), FRONT)
    assert caught.value.where["episode"] == 1
    assert caught.value.where["frame"] == 7
    assert caught.value.where["camera"] == FRONT
