"""Videos decoded by a device, in the training process, from packets that workers have read.

FFmpeg's decoders stand behind the contract of the GPU's: all but the chip itself is tested here.
`make gpu` runs bench/gpu_video.py, which tests the chip, on a machine that has one.
"""

from __future__ import annotations

import json
import os
import pickle
import threading

import av
import numpy as np
import pytest
import torch
from torch.utils.data import DataLoader, Subset

from demoreel.errors import ArgumentError, FrameMismatchError, ShortageError, VideoError
from demoreel.media.colour import Painter
from demoreel.read.packets import FrameForm
from demoreel.testing import make_dataset, read_stamp
from demoreel.torch import LeRobotDataset, StreamingLeRobotDataset, to_device, video_decoders
from demoreel.torch import dataset as dataset_module
from demoreel.torch.device import VideoDevice
from demoreel.torch.video_decoders import (
    CpuFrameDecoder,
    DecodedForms,
    VideoDecoders,
    nv12,
    write_rgb,
)

CPU = torch.device("cpu")
CAM = "observation.images.cam0"
SEVERAL = {CAM: (96, 128), "observation.images.b": (48, 64)}


EVERY_SIZE = ((16, 16), (4096, 4096))
OF_THE_CHIP = DecodedForms(dict.fromkeys(("h264", "hevc", "libdav1d", "vp9"), EVERY_SIZE))


@pytest.fixture
def device(monkeypatch):
    """A device of its own, whose decoders count."""
    opened = []

    def open_decoder(stream):
        opened.append(threading.get_ident())
        return CpuFrameDecoder()

    decoders = VideoDecoders(CPU, open_decoder=open_decoder)
    monkeypatch.setitem(video_decoders._of_devices, (os.getpid(), CPU), decoders)
    monkeypatch.setattr(
        dataset_module,
        "_video_device",
        lambda wanted, memory_mb: (
            None if wanted == "cpu" else VideoDevice(CPU, OF_THE_CHIP, memory_mb)
        ),
    )
    decoders.opened = opened
    return decoders


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
    buffers = [lane.buffer.numel() for lane in device._free.queue if lane.buffer is not None]
    assert 0 < sum(buffers) <= 9 * 240 * 320 * 3 // 2
    device.close()
    assert apart(ours.read_batch([5])[CAM], cpu.read_batch([5])[CAM]) <= 3


def test_no_memory_names_the_option(tmp_path, device, monkeypatch):
    make_dataset(tmp_path / "ds", episodes=[4], cameras={CAM: (64, 64)})
    ours, _ = both(tmp_path / "ds")

    def full(*size, **options):
        raise torch.OutOfMemoryError("no more")

    monkeypatch.setattr(video_decoders._Lane, "surfaces", full)
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
