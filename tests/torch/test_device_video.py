"""Videos decoded by a device, in the training process, from packets that workers have read.

FFmpeg's decoders stand behind the contract of the GPU's: all but the chip itself is tested here.
`make gpu` runs bench/gpu_video.py, which tests the chip, on a machine that has one.
"""

from __future__ import annotations

import json
import os
import pickle
import subprocess
import sys
import threading
import time
import weakref
from pathlib import Path

import av
import numpy as np
import pytest
import torch
from torch.utils.data import DataLoader, Subset
from torch.utils.data._utils.pin_memory import pin_memory

import demoreel
from demoreel.errors import ArgumentError, FrameMismatchError, ShortageError, VideoError
from demoreel.media.colour import Painter
from demoreel.read.packets import FrameForm
from demoreel.testing import make_dataset, read_stamp
from demoreel.torch import (
    LeRobotDataset,
    Mixture,
    StreamingLeRobotDataset,
    close_decoders,
    device_loader,
    to_device,
    video_decoders,
)
from demoreel.torch.video_decoders import CpuFrameDecoder, VideoDecoders, nv12, write_rgb
from support.command import run_here

CPU = torch.device("cpu")
CAM = "observation.images.cam0"
SEVERAL = {CAM: (96, 128), "observation.images.b": (48, 64)}


def both(root, **options):
    return (
        LeRobotDataset("a/b", root=root, decode_device="cuda", return_uint8=True, **options),
        LeRobotDataset("a/b", root=root, return_uint8=True, **options),
    )


def apart(left, right):
    return int((left.int() - right.int()).abs().max())


@pytest.mark.parametrize(
    "video",
    [
        {"codec": "h264", "gop": 2},
        {"codec": "h264", "gop": 12, "b_frames": 3},
        {"codec": "h264", "gop": 250},
        {"codec": "hevc", "gop": 8, "b_frames": 2},
        {"codec": "av1", "gop": 5},
        {"codec": "vp9", "gop": 10},
    ],
    ids=lambda video: f"{video['codec']}-{video['gop']}",
)
def test_frames_are_those_that_were_asked_for(tmp_path, device, video):
    make_dataset(tmp_path / "ds", episodes=[17, 23, 9], cameras={CAM: (96, 128)}, crf=20, **video)
    ours, cpu = both(tmp_path / "ds", delta_timestamps={CAM: [-2 / 30, -1 / 30, 0.0]})
    indices = [31, 3, 48, 3, 0, 17, 16, 40]
    got, right = ours.read_batch(indices), cpu.read_batch(indices)
    assert got.keys() == right.keys()
    assert got[CAM].shape == right[CAM].shape == (8, 3, 3, 96, 128)
    assert apart(got[CAM], right[CAM]) <= 3
    for sample, episode, frame in zip(
        got[CAM], right["episode_index"].tolist(), right["frame_index"].tolist(), strict=True
    ):
        for image, offset in zip(sample, (-2, -1, 0), strict=True):
            assert tuple(read_stamp(image)) == (episode, max(0, frame + offset))
    assert device.opened
    assert ours.decoded_on == {CAM: CPU}


@pytest.mark.parametrize(
    ("size", "codec", "pix_fmt"),
    [
        ((64, 64), "h264", "yuv420p"),
        ((66, 98), "h264", "yuvj420p"),
        ((50, 70), "hevc", "yuv420p"),
        ((64, 97), "av1", "yuv420p"),
        ((65, 96), "av1", "yuv420p"),
        ((65, 97), "vp9", "yuv420p"),
    ],
)
def test_colours_are_the_cpus(tmp_path, device, size, codec, pix_fmt):
    make_dataset(
        tmp_path / "ds", episodes=[6], cameras={CAM: size}, codec=codec, pix_fmt=pix_fmt, crf=10
    )
    ours, cpu = both(tmp_path / "ds")
    assert apart(ours.read_batch(range(6))[CAM], cpu.read_batch(range(6))[CAM]) <= 3


@pytest.mark.parametrize("matrix", [1, 2, 4, 5, 6, 7, 9])
@pytest.mark.parametrize("full", [False, True])
def test_every_matrix_is_that_of_swscale(matrix, full):
    frame = av.VideoFrame(96, 64, "yuv420p")
    rng = np.random.default_rng(matrix)
    for plane in frame.planes:  # video levels, and some beyond
        plane.update(rng.integers(8, 248, plane.buffer_size, np.uint8).tobytes())
    frame.colorspace, frame.color_range = matrix, 2 if full else 1
    right = np.empty((3, 64, 96), np.uint8)
    Painter().paint(frame, right)
    form = FrameForm("h264", "yuv420p", 64, 96, full, matrix)
    images = torch.zeros((2, 3, 64, 96), dtype=torch.uint8)
    write_rgb(nv12(frame)[None], np.array([0]), form, images, np.array([1]))
    assert apart(images[1], torch.from_numpy(right)) <= 3
    assert not images[0].any()


def test_floats_are_those_of_uint8(tmp_path, device):
    make_dataset(tmp_path / "ds", episodes=[8], cameras={CAM: (64, 64)})
    bytes_, _ = both(tmp_path / "ds")
    floats = LeRobotDataset("a/b", root=tmp_path / "ds", decode_device="cuda")
    assert torch.equal(floats[3][CAM], bytes_[3][CAM].float() / 255)
    assert floats[3][CAM].dtype is torch.float32


@pytest.mark.parametrize("method", ["fork", "spawn"])
def test_workers_read_packets_and_the_training_process_decodes(tmp_path, device, method):
    make_dataset(
        tmp_path / "ds",
        episodes=[20, 20],
        cameras={CAM: (96, 128), "observation.images.b": (48, 64)},
    )
    ours, cpu = both(tmp_path / "ds")
    loader = DataLoader(ours, batch_size=7, num_workers=2, multiprocessing_context=method)
    right = DataLoader(cpu, batch_size=7)
    batches = 0
    for got, wanted in zip(to_device(loader), right, strict=True):
        assert got.keys() == wanted.keys()
        for key, value in wanted.items():
            if key in SEVERAL:
                assert isinstance(got[key], torch.Tensor)
                assert apart(got[key], value) <= 3
            elif isinstance(value, torch.Tensor):
                assert torch.equal(got[key], value), key
            else:
                assert got[key] == value
        batches += 1
    assert batches == len(to_device(loader)) == 6
    assert device.opened  # in this process


def test_a_batch_of_a_worker_decodes_where_it_is_moved(tmp_path, device):
    make_dataset(tmp_path / "ds", episodes=[10], cameras={CAM: (96, 128)})
    ours, cpu = both(tmp_path / "ds")
    batch = next(iter(DataLoader(ours, batch_size=4, num_workers=1)))
    assert not isinstance(batch[CAM], torch.Tensor)
    assert apart(batch[CAM].to("cpu"), cpu.read_batch(range(4))[CAM]) <= 3


class EverySecond(torch.utils.data.Dataset):
    """A dataset around another one, which hands out single items."""

    def __init__(self, dataset):
        self.dataset = dataset

    def __len__(self):
        return len(self.dataset) // 2

    def __getitem__(self, index):
        return {**self.dataset.__getitems__([2 * index])[0], "more": index}


def test_items_that_were_changed_are_collated(tmp_path, device):
    make_dataset(tmp_path / "ds", episodes=[12], cameras={CAM: (96, 128)})
    ours, cpu = both(tmp_path / "ds")
    loader = to_device(DataLoader(EverySecond(ours), batch_size=3, num_workers=1))
    found = torch.cat([batch[CAM] for batch in loader])
    assert apart(found, cpu.read_batch(range(0, 12, 2))[CAM]) <= 3
    subset = to_device(DataLoader(Subset(ours, [9, 1, 5]), batch_size=3, num_workers=1))
    assert apart(next(iter(subset))[CAM], cpu.read_batch([9, 1, 5])[CAM]) <= 3


def test_transforms_and_sizes(tmp_path, device):
    make_dataset(tmp_path / "ds", episodes=[6], cameras={CAM: (96, 128)}, crf=15)
    options = {"image_transforms": lambda image: image.flip(-1), "image_size": (48, 64)}
    ours, cpu = both(tmp_path / "ds", **options)
    right = next(iter(DataLoader(cpu, batch_size=6)))[CAM]
    for workers in (0, 1):
        got = next(iter(to_device(DataLoader(ours, batch_size=6, num_workers=workers))))[CAM]
        assert got.shape == (6, 3, 48, 64)
        assert float((got.float() - right.float()).abs().mean()) < 3
        for frame, image in enumerate(got):
            assert tuple(read_stamp(image.flip(-1))) == (0, frame)


def test_the_stream(tmp_path, device):
    make_dataset(tmp_path / "ds", episodes=[9, 8], cameras={CAM: (96, 128)})
    options = {"root": tmp_path / "ds", "batch_size": 4, "seed": 3, "return_uint8": True}
    ours = StreamingLeRobotDataset("a/b", decode_device="cuda", **options)
    cpu = StreamingLeRobotDataset("a/b", **options)
    loader = DataLoader(ours, batch_size=None, num_workers=2)
    for got, right in zip(to_device(loader), cpu, strict=True):
        assert torch.equal(got["index"], right["index"])
        assert apart(got[CAM], right[CAM]) <= 3


def test_what_the_device_cannot_decode_is_decoded_by_the_cpu(tmp_path, device):
    depth, mpeg = "observation.images.depth", "observation.images.front"
    make_dataset(
        tmp_path / "ds",
        episodes=[7],
        cameras={mpeg: (64, 64)},
        depth_cameras={depth: (64, 64)},
        codec="h264",
        pix_fmt="yuv444p",
    )
    ours, cpu = both(tmp_path / "ds")
    got, right = ours.read_batch(range(7)), cpu.read_batch(range(7))
    assert torch.equal(got[mpeg], right[mpeg])
    assert torch.equal(got[depth], right[depth])
    assert not device.opened


def test_open_gops_are_exact(tmp_path, device):
    make_dataset(
        tmp_path / "ds", episodes=[30], cameras={CAM: (96, 128)}, gop=6, b_frames=2, open_gop=True
    )
    ours, _ = both(tmp_path / "ds")
    for frame, image in enumerate(ours.read_batch(range(30))[CAM]):
        assert tuple(read_stamp(image)) == (0, frame)


def test_memory_is_bounded(tmp_path, device):
    make_dataset(tmp_path / "ds", episodes=[40], cameras={CAM: (240, 320)}, gop=8)
    ours, cpu = both(tmp_path / "ds", gpu_memory_mb=1)  # nine frames
    device.memory_mb = 1
    indices = np.random.default_rng(0).permutation(40).tolist()
    assert apart(ours.read_batch(indices)[CAM], cpu.read_batch(indices)[CAM]) <= 3
    buffers = [one.buffer.numel() for one in device._free.queue if one.buffer is not None]
    assert 0 < sum(buffers) <= 9 * 240 * 320 * 3 // 2
    device.close()
    assert apart(ours.read_batch([5])[CAM], cpu.read_batch([5])[CAM]) <= 3


def test_no_memory_names_the_option(tmp_path, device, monkeypatch):
    make_dataset(tmp_path / "ds", episodes=[4], cameras={CAM: (64, 64)})
    ours, _ = both(tmp_path / "ds")

    def full(*size, **options):
        raise torch.OutOfMemoryError("no more")

    monkeypatch.setattr(video_decoders._BatchWorkspace, "surfaces", full)
    with pytest.raises(ShortageError, match="gpu_memory_mb") as caught:
        ours[0]
    assert caught.value.where["camera"] == CAM
    for memory in (0, -3):
        with pytest.raises(ArgumentError, match="gpu_memory_mb"):
            VideoDecoders(CPU, open_decoder=lambda stream: CpuFrameDecoder(), memory_mb=memory)


def test_damage_is_an_error_that_says_where(tmp_path, device):
    root = make_dataset(tmp_path / "ds", episodes=[40], cameras={CAM: (96, 128)}, gop=4)
    ours, _ = both(root)
    ours.read_batch(range(4))
    (video,) = root.rglob("*.mp4")
    index = ours.reader.reader.clip(0, CAM).video.index
    data = bytearray(video.read_bytes())
    begin = int(index.offset[20])
    data[begin + 8 : begin + int(index.size[20])] = os.urandom(int(index.size[20]) - 8)
    video.write_bytes(data)
    ours, _ = both(root)
    loader = to_device(DataLoader(ours, batch_size=8, num_workers=1))
    with pytest.raises(VideoError) as caught:
        list(loader)
    assert caught.value.where["camera"] == CAM
    assert caught.value.where["file"].endswith(".mp4")


@pytest.mark.parametrize("codec", ["h264"])
def test_a_hole_in_the_file_is_an_error_though_a_chip_conceals_it(tmp_path, device, codec):
    size = {CAM: (144, 192)}
    root = make_dataset(tmp_path / "ds", episodes=[24], cameras=size, codec=codec, gop=4, crf=15)
    ours, _ = both(root)
    (video,) = root.rglob("*.mp4")
    index = ours.reader.reader.clip(0, CAM).video.index
    data = bytearray(video.read_bytes())
    begin, length = int(index.offset[8]), int(index.size[8])
    data[begin + length // 2 : begin + length // 2 + 64] = bytes(64)
    video.write_bytes(data)
    ours, _ = both(root)
    device._open_decoder = lambda stream: Conceals()
    with pytest.raises(VideoError) as caught:
        ours.read_batch(range(24))
    assert caught.value.where["camera"] == CAM


class Conceals:
    """A decoder that hands out something for whatever it gets."""

    def decode(self, form, span, data, surfaces, slot_of):
        try:
            CpuFrameDecoder().decode(form, span, data, surfaces, slot_of)
        except VideoError:
            surfaces[list(slot_of.values())] = 128
            slot_of.clear()


class Another:
    """A decoder whose frames are of the right number, and black."""

    def decode(self, form, span, data, surfaces, slot_of):
        slots = list(slot_of.values())
        CpuFrameDecoder().decode(form, span, data, surfaces, slot_of)
        surfaces[slots] = 0


class Less:
    """A decoder that loses the last frame of every GOP."""

    def decode(self, form, span, data, surfaces, slot_of):
        last = max(slot_of)
        slot = slot_of.pop(last)
        CpuFrameDecoder().decode(form, span, data, surfaces, slot_of)
        slot_of[last] = slot


@pytest.mark.parametrize(
    ("decoder", "said"), [(Another, "otherwise than the CPU"), (Less, "gave none")]
)
def test_a_device_that_is_wrong_is_found_out(tmp_path, device, decoder, said):
    make_dataset(tmp_path / "ds", episodes=[6], cameras={CAM: (64, 64)})
    ours, _ = both(tmp_path / "ds")
    device._open_decoder = lambda stream: decoder()
    with pytest.raises(VideoError, match=said):
        ours.read_batch([1, 3])


def test_a_loop_that_ends_early_leaves_no_thread(tmp_path, device):
    make_dataset(tmp_path / "ds", episodes=[60], cameras={CAM: (64, 64)})
    ours, _ = both(tmp_path / "ds")
    for _ in to_device(DataLoader(ours, batch_size=2, num_workers=1)):
        break
    assert not [t for t in threading.enumerate() if t.name.startswith("demoreel-device")]


@pytest.mark.parametrize("at_once", [1, 2])
@pytest.mark.parametrize("workers", [0, 2])
def test_batches_come_in_order_and_each_once(tmp_path, device, at_once, workers):
    make_dataset(tmp_path / "ds", episodes=[50], cameras={CAM: (64, 64)})
    ours, _ = both(tmp_path / "ds")
    loader = to_device(DataLoader(ours, batch_size=3, num_workers=workers), at_once=at_once)
    for _ in range(2):
        assert torch.cat([batch["index"] for batch in loader]).tolist() == list(range(50))
    with pytest.raises(ArgumentError, match="at_once"):
        to_device(loader, at_once=3)
    with pytest.raises(ArgumentError, match="ahead"):
        to_device(loader, ahead=0)


def test_frames_of_another_size_than_declared_are_an_error(tmp_path, device):
    root = make_dataset(tmp_path / "ds", episodes=[6], cameras={CAM: (64, 64)})
    info = json.loads((root / "meta/info.json").read_text())
    info["features"][CAM]["shape"] = [32, 32, 3]
    (root / "meta/info.json").write_text(json.dumps(info))
    ours, _ = both(root)
    with pytest.raises(FrameMismatchError):
        ours.read_batch([0, 3])
    assert not device.opened


def test_errors_of_workers_reach_the_loop(tmp_path, device):
    make_dataset(tmp_path / "ds", episodes=[6], cameras={CAM: (64, 64)})
    ours, _ = both(tmp_path / "ds")
    loader = to_device(DataLoader(Subset(ours, [0, 99]), batch_size=2, num_workers=1))
    with pytest.raises(IndexError):
        list(loader)


@pytest.mark.soak
def test_datasets_travel_with_their_device(tmp_path, device):
    make_dataset(tmp_path / "ds", episodes=[6], cameras={CAM: (64, 64)})
    ours, cpu = both(tmp_path / "ds")
    copy = pickle.loads(pickle.dumps(ours))
    assert copy.decode_device == CPU
    assert apart(copy[2][CAM], cpu[2][CAM]) <= 3


@pytest.mark.skipif(torch.cuda.is_available(), reason="there is a GPU")
def test_without_a_gpu_the_error_says_so(tmp_path):
    make_dataset(tmp_path / "ds", episodes=[3], cameras={CAM: (64, 64)})
    with pytest.raises(ArgumentError, match="CUDA"):
        LeRobotDataset("a/b", root=tmp_path / "ds", decode_device="cuda")
    with pytest.raises(ArgumentError, match="gpu_memory_mb"):
        LeRobotDataset("a/b", root=tmp_path / "ds", gpu_memory_mb=0)


# Mixtures


def mixtures(parts, **options):
    options = {"return_uint8": True, "seed": 1, "rank": 0, "world_size": 1, **options}
    return Mixture(parts, decode_device="cuda", **options), Mixture(parts, **options)


@pytest.fixture
def three_parts(tmp_path):
    """H.264, another size, and one that the chip does not decode; the last has no second camera."""
    make_dataset(tmp_path / "a", episodes=[11, 9], cameras=SEVERAL, gop=4)
    make_dataset(tmp_path / "b", episodes=[14], cameras=dict.fromkeys(SEVERAL, (64, 96)), gop=6)
    make_dataset(tmp_path / "c", episodes=[12], cameras={CAM: (96, 128)}, pix_fmt="yuv444p")
    return [str(tmp_path / name) for name in "abc"]


@pytest.mark.parametrize("workers", [0, 2])
@pytest.mark.parametrize("is_uint8", [True, False])
def test_images_of_all_parts_of_a_mixture_land_in_one_tensor(
    three_parts, device, workers, is_uint8
):
    window = {CAM: [-1 / 30, 0.0]}
    options = {"image_size": (96, 128), "delta_timestamps": window, "return_uint8": is_uint8}
    ours, cpu = mixtures(three_parts, **options)
    loader = to_device(DataLoader(ours, batch_size=9, num_workers=workers))
    parts, missing = set(), 0
    for got, right in zip(loader, DataLoader(cpu, batch_size=9), strict=True):
        assert got.keys() == right.keys()
        assert torch.equal(got["dataset_index"], right["dataset_index"])
        parts |= set(got["dataset_index"].tolist())
        for key in SEVERAL:
            assert got[key].shape == right[key].shape
            assert got[key].dtype is right[key].dtype
            gone = got.get(f"{key}_is_missing", torch.zeros(len(got[key]), dtype=torch.bool))
            assert not got[key][gone].any()
            missing += int(gone.sum())
            scale = 1 if is_uint8 else 255
            differ = (got[key].float() - right[key].float()).abs().flatten(1) * scale
            # What is scaled on the device is smoother than what swscale scales.
            assert float(differ.mean(1).max()) < 6
            same = [n for n, part in enumerate(got["dataset_index"]) if int(part) != 1]
            if key == CAM and same:
                assert float(differ[same].max()) <= 3.01
        is_pad = got[f"{CAM}_is_pad"]
        for image, episode, frame, pad in zip(
            got[CAM], got["episode_index"], got["frame_index"], is_pad, strict=True
        ):
            pixels = image if is_uint8 else (image * 255).round().to(torch.uint8)
            assert tuple(read_stamp(pixels[1])) == (int(episode), int(frame))
            assert tuple(read_stamp(pixels[0])) == (int(episode), int(frame) - 1 + int(pad[0]))
    assert parts == {0, 1, 2}
    assert missing
    assert device.opened
    where = {"a": dict.fromkeys(SEVERAL, CPU), "b": dict.fromkeys(SEVERAL, CPU), "c": {CAM: CPU}}
    assert ours.decoded_on == where == cpu.decoded_on


def test_parts_of_a_mixture_that_are_all_alike_are_decoded_together(tmp_path, device):
    for name in "ab":
        make_dataset(tmp_path / name, episodes=[10], cameras={CAM: (64, 96)}, gop=5)
    ours, cpu = mixtures([str(tmp_path / name) for name in "ab"], shuffle=False)
    (batch,) = DataLoader(ours, batch_size=20, num_workers=1)
    assert [len(places) for places, _ in batch[CAM].images.pieces] == [20]
    assert apart(batch[CAM].to(), cpu.read_batch(range(20))[CAM]) <= 3


def test_samples_of_a_mixture_are_cut_and_collated(three_parts, device):
    options = {"image_size": (96, 128), "image_transforms": lambda image: image.flip(-1)}
    ours, cpu = mixtures(three_parts, **options)
    wanted = [7, 0, 3, 21]
    right = torch.utils.data.default_collate([cpu[n] for n in wanted])
    for workers in (0, 1):
        loader = DataLoader(Subset(ours, wanted), 4, num_workers=workers, collate_fn=only_changed)
        (got,) = to_device(loader)
        assert got["more"] == 4
        for key in SEVERAL:
            assert float((got[key].float() - right[key].float()).abs().mean()) < 6
            assert not got[key][right["dataset_index"] == 2].any() or key == CAM


def only_changed(samples):
    """Collate samples that are no longer as they were cut."""
    return torch.utils.data.default_collate([dict(one) for one in samples]) | {"more": len(samples)}


@pytest.mark.parametrize("workers", [0, 2])
def test_a_mixture_resumes_after_what_was_handed_out(three_parts, device, workers):
    ours, cpu = mixtures(three_parts, image_size=(96, 128))
    loader = to_device(DataLoader(ours, batch_size=4, num_workers=workers), ahead=3)
    whole = [int(n) for batch in DataLoader(cpu, batch_size=4) for n in batch["index"]]
    seen, state = [], None
    for number, batch in enumerate(loader):
        seen += batch["index"].tolist()
        assert ours.state_dict()["step"] == len(seen)
        if number == 3:
            state = ours.state_dict()
            break
    again, _ = mixtures(three_parts, image_size=(96, 128))
    again.load_state_dict(state)
    for resumed in (again, ours):  # another process, and the same after a loop that was left
        rest = [n for batch in DataLoader(resumed, batch_size=4) for n in batch["index"].tolist()]
        assert seen + rest[: len(whole) - len(seen)] == whole


@pytest.mark.parametrize("workers", [0, 2])
def test_a_stream_resumes_after_what_was_handed_out(tmp_path, device, workers):
    make_dataset(tmp_path / "ds", episodes=[9, 8], cameras={CAM: (64, 64)})
    options = {"root": tmp_path / "ds", "batch_size": 4, "seed": 3, "decode_device": "cuda"}

    def stream():
        return StreamingLeRobotDataset("a/b", **options)

    whole = torch.cat([batch["index"] for batch in stream()]).tolist()
    ours = stream()
    loader = to_device(ours.loader(num_workers=workers), ahead=4)
    seen = []
    for number, batch in enumerate(loader):
        seen += batch["index"].tolist()
        if number == 2:
            wait_for(lambda: ours.epoch == 1)  # all was read ahead, and the epoch has ended
            break
    assert loader.state_dict() == ours.state_dict()
    assert ours.state_dict()["consumed"] == len(seen)
    assert ours.epoch == 0
    again = stream()
    again.load_state_dict(ours.state_dict())
    rest = [n for batch in to_device(again.loader()) for n in batch["index"].tolist()]
    assert seen + rest == whole
    assert again.epoch == 1
    assert again.state_dict()["consumed"] == 0


class Resumable:
    """A loader that has a state of its own, as torchdata's."""

    def __init__(self):
        self.read = 0

    def __iter__(self):
        while self.read < 9:
            self.read += 1
            yield {"n": torch.tensor(self.read)}

    def state_dict(self):
        return {"read": self.read}

    def load_state_dict(self, state):
        self.read = state["read"]


def test_a_loader_with_a_state_of_its_own_resumes_after_what_was_handed_out(device):
    loader = to_device(Resumable(), ahead=3)
    for batch in loader:
        assert loader.state_dict() == {"read": int(batch["n"])}
        if int(batch["n"]) == 5:
            break
    state = loader.state_dict()
    loader.load_state_dict(state)
    assert [int(batch["n"]) for batch in loader] == [6, 7, 8, 9]


# The numpy core


def test_a_batch_of_the_core_has_the_devices_images(tmp_path, device):
    depth = "observation.images.depth"
    make_dataset(
        tmp_path / "ds", episodes=[12], cameras=SEVERAL, depth_cameras={depth: (32, 32)}, gop=5
    )
    ds = demoreel.open(tmp_path / "ds", windows={CAM: [-1, 0]})
    got, right = ds.batch([5, 0, 11], decode_device="cuda"), ds.batch([5, 0, 11])
    assert list(got) == list(right)
    for key, value in right.items():
        if key in SEVERAL:
            assert isinstance(got[key], torch.Tensor)
            assert apart(got[key], torch.from_numpy(value)) <= 3
        else:
            assert type(got[key]) is type(value)
            assert np.array_equal(got[key], value)
    assert device.opened
    assert isinstance(ds.batch([1], decode_device="cpu")[CAM], np.ndarray)
    scaled = demoreel.open(tmp_path / "ds", image_size=(48, 64))
    assert scaled.batch([4], decode_device="cuda")[CAM].shape == (1, 3, 48, 64)


class CoreBatches(torch.utils.data.Dataset):
    def __init__(self, dataset):
        self.dataset = dataset

    def __len__(self):
        return 3

    def __getitem__(self, number):
        return self.dataset.batch(range(4 * number, 4 * number + 4), decode_device="cuda")


def test_batches_of_the_core_in_workers_are_packets(tmp_path, device):
    make_dataset(tmp_path / "ds", episodes=[12], cameras={CAM: (64, 96)})
    ds = demoreel.open(tmp_path / "ds")
    loader = DataLoader(CoreBatches(ds), batch_size=None, num_workers=1)
    found = torch.cat([batch[CAM] for batch in to_device(loader)])
    assert apart(found, torch.from_numpy(ds.batch(range(12))[CAM])) <= 3
    assert device.opened


def test_without_torch_the_core_names_the_extra(tmp_path):
    make_dataset(tmp_path / "ds", episodes=[3], cameras={CAM: (64, 64)})
    run = (
        "import sys; sys.modules['torch'] = None; import demoreel; "
        f"demoreel.open({str(tmp_path / 'ds')!r}).batch([0], decode_device='cuda')"
    )
    done = subprocess.run([sys.executable, "-c", run], capture_output=True, text=True)
    assert "MissingExtraError" in done.stderr
    assert "demoreel[gpu]" in done.stderr


# One pool of a process


def test_all_datasets_of_a_process_share_their_decoders(three_parts, device):
    ours, _ = mixtures(three_parts, image_size=(96, 128), gpu_memory_mb=600)
    single, _ = both(three_parts[0], gpu_memory_mb=700)
    mine = demoreel.open(three_parts[1])
    ours.read_batch(range(12))
    single.read_batch([3])
    mine.batch([5], decode_device="cuda")
    pools = [key for key in video_decoders._of_devices if key[0] == os.getpid()]
    assert pools == [(os.getpid(), CPU)]
    assert device.memory_mb == 700


def test_closed_decoders_leave_no_thread_and_open_again(tmp_path, device):
    make_dataset(tmp_path / "ds", episodes=[20], cameras={CAM: (64, 64)}, gop=2)
    ours, cpu = both(tmp_path / "ds")
    before = set(threading.enumerate())
    ours.read_batch(range(20))
    assert set(threading.enumerate()) - before
    opened = len(device.opened)
    decoders = weakref.ref(device._decoders[0].decoder)
    close_decoders("cpu")
    wait_for(lambda: not set(threading.enumerate()) - before)
    assert decoders() is None
    assert all(one.buffer is None for one in device._free.queue)
    assert apart(ours.read_batch([5])[CAM], cpu.read_batch([5])[CAM]) <= 3
    assert len(device.opened) > opened
    close_decoders()


def wait_for(is_so):
    end = time.monotonic() + 30
    while not is_so():
        assert time.monotonic() < end
        time.sleep(0.01)


def test_threads_use_the_current_device_of_the_thread_that_trains(tmp_path, device, monkeypatch):
    """As under torchrun: ``torch.cuda.set_device`` holds for the thread that calls it."""
    make_dataset(tmp_path / "ds", episodes=[6], cameras={CAM: (64, 64)})
    ours, _ = both(tmp_path / "ds")
    asked = []

    def current(wanted):
        asked.append(threading.get_ident())
        return CPU

    monkeypatch.setattr(device_loader, "current_device", current)
    list(to_device(DataLoader(ours, batch_size=2)))
    assert asked == [threading.get_ident()]


def test_a_forked_process_that_decodes_is_an_error(monkeypatch):
    def init():
        raise RuntimeError("Cannot re-initialize CUDA in forked subprocess.")

    monkeypatch.setattr(torch.cuda, "init", init)
    for name in ("cuda", "cuda:1"):
        with pytest.raises(ArgumentError, match="spawn"):
            video_decoders.video_decoders(torch.device(name))


def test_errors_of_decoding_threads_say_which_frame(three_parts, device):
    class Broken(CpuFrameDecoder):
        def decode(self, form, span, data, surfaces, slot_of):
            if form.height == 64:
                raise VideoError("It does not decode.")
            super().decode(form, span, data, surfaces, slot_of)

    device._open_decoder = lambda stream: Broken()
    ours, _ = mixtures(three_parts, image_size=(96, 128))
    loader = to_device(DataLoader(ours, batch_size=4, num_workers=1))
    with pytest.raises(VideoError) as caught:
        list(loader)
    where = caught.value.where
    assert str(where["dataset"]) == three_parts[1]
    assert where["camera"] in SEVERAL
    assert str(where["file"]).endswith(".mp4")
    assert 0 <= where["frame"] < 14


@pytest.mark.soak
def test_memory_that_is_used_up_elsewhere_names_the_option_too(three_parts, device, monkeypatch):
    ours, _ = mixtures(three_parts, image_size=(96, 128))

    def full(*size, **options):
        raise torch.OutOfMemoryError("no more")

    monkeypatch.setattr(torch.nn.functional, "interpolate", full)
    with pytest.raises(ShortageError, match="gpu_memory_mb"):
        ours.read_batch(range(24))


def test_packets_are_pickled_pinned_and_iterated(tmp_path, device):
    make_dataset(tmp_path / "ds", episodes=[10], cameras={CAM: (96, 128)})
    ours, cpu = both(tmp_path / "ds", delta_timestamps={CAM: [-1 / 30, 0.0]})
    right = cpu.read_batch(range(4))[CAM]
    (images,) = [batch[CAM] for batch in DataLoader(Subset(ours, range(4)), 4, num_workers=1)]
    assert images.shape == right.shape
    assert images.dtype is right.dtype
    assert apart(pickle.loads(pickle.dumps(images)).to(), right) <= 3
    one = pickle.loads(pickle.dumps(list(images)[2]))
    assert len(one.batch) == 1
    assert apart(one.to(), right[2]) <= 3
    assert pin_memory({CAM: images})[CAM] is images
    assert pin_memory({CAM: [one]})[CAM] == [one]


def test_workers_that_live_on_serve_every_pass(three_parts, device):
    ours, cpu = mixtures(three_parts, image_size=(96, 128))
    loader = to_device(DataLoader(ours, 5, num_workers=2, persistent_workers=True))
    right = DataLoader(cpu, 5)
    for _ in range(3):
        got = [n for batch in loader for n in batch["index"].tolist()]
        assert got == [n for batch in right for n in batch["index"].tolist()]


def test_an_iterator_that_is_dropped_frees_its_threads(tmp_path, device):
    make_dataset(tmp_path / "ds", episodes=[60], cameras={CAM: (64, 64)})
    ours, _ = both(tmp_path / "ds")
    loader = to_device(DataLoader(ours, batch_size=2))
    batches = iter(loader)
    next(batches)
    del loader, batches
    assert not [t for t in threading.enumerate() if t.name.startswith("demoreel-device")]


def test_a_decoder_that_finds_no_memory_names_the_option(tmp_path, device):
    make_dataset(tmp_path / "ds", episodes=[4], cameras={CAM: (64, 64)})
    ours, _ = both(tmp_path / "ds")

    def open_decoder(stream):
        raise ShortageError("There is no memory for a decoder.")

    device._open_decoder = open_decoder
    with pytest.raises(ShortageError, match="gpu_memory_mb") as caught:
        ours[0]
    assert caught.value.where["camera"] == CAM


def test_a_mixtures_file_names_the_device(three_parts, device):
    folder = Path(three_parts[0]).parent
    config = folder / "mix.yaml"
    config.write_text(
        "parts: [a, b]\nimage_size: [96, 128]\ndecode_device: cuda\ngpu_memory_mb: 600\n"
    )
    mixture = Mixture.from_file(config, rank=0, world_size=1)
    assert mixture.decode_device == CPU
    mixture.read_batch([0, 1])
    assert device.opened
    assert device.memory_mb == 600
    assert run_here("mix", config).returncode == 0  # looks at the parts; needs no GPU
