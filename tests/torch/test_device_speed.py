"""What `bench --device` and `convert --for-training --device` say of a GPU; it is a fake one."""

from __future__ import annotations

import ctypes
import json
import multiprocessing
import time
from types import SimpleNamespace

import pytest
import torch

from demoreel.convert.training import measure_for_training
from demoreel.errors import ArgumentError
from demoreel.testing import make_dataset
from demoreel.torch import device as device_module
from demoreel.torch import nvml
from demoreel.torch.device import VideoDevice
from demoreel.torch.device_speed import measure_device_speed, processor_time
from demoreel.torch.nvdec import DecodedForms
from support.command import run_here

CAM = "observation.images.cam0"
DEPTH = "observation.images.depth"


@pytest.fixture(scope="module")
def root(tmp_path_factory):
    return make_dataset(
        tmp_path_factory.mktemp("speed") / "ds",
        episodes=[12, 8],
        cameras={CAM: (64, 96)},
        depth_cameras={DEPTH: (32, 32)},
        gop=4,
    )


@pytest.mark.soak
def test_bench_says_how_fast_batches_arrive_on_a_device(root, device):
    options = ["--device", "cuda", "--seconds", 0.3, "--batch-size", 4, "--window", 3]
    done = run_here("bench", root, *options, "--workers", 1, "--json")
    assert done.returncode == 0, done.stderr
    single, windows = json.loads(done.stdout)["speeds"]
    assert (single["window"], windows["window"]) == (1, 3)
    for speed in (single, windows):
        assert speed["samples_per_s"] > 0
        assert speed["floor_samples_per_s"] > 0
        assert speed["share"] == speed["samples_per_s"] / speed["floor_samples_per_s"]
        assert speed["cores"] > 0
        assert speed["workers"] == 1
        assert speed["bytes_per_sample"] > 0
        assert speed["decoders_busy"] is None
        assert "no GPU" in speed["decoders_unknown"]
    assert device.opened
    shown = run_here("bench", root, *options, "--workers", 0)
    assert "the same decoders" in shown.stdout
    assert "decoders busy" in shown.stdout
    assert f"{DEPTH} is decoded by the CPU" in shown.stderr
    refused = run_here("bench", root, *options, "--reuse", "1GB")
    assert refused.returncode == 2
    assert "--reuse" in refused.stderr


def test_what_the_device_does_not_decode_has_no_floor(tmp_path, device):
    root = make_dataset(
        tmp_path / "ds", episodes=[9], cameras={CAM: (64, 64)}, pix_fmt="yuv444p", codec="h264"
    )
    speed = measure_device_speed(root, seconds=0.2, batch_size=2, workers=0)
    assert speed.samples_per_s > 0
    assert speed.floor_samples_per_s is speed.share is None
    assert not device.opened
    for name in ("window", "batch_size", "seconds"):
        with pytest.raises(ArgumentError, match=name):
            measure_device_speed(root, **{name: 0})


@pytest.mark.skipif(torch.cuda.is_available(), reason="there is a GPU")
@pytest.mark.parametrize(
    "command", [("bench",), ("convert", "--for-training")], ids=lambda words: words[0]
)
def test_without_a_gpu_the_error_names_what_is_missing(root, command):
    verb, *options = command
    done = run_here(verb, root, *options, "--device", "cuda")
    assert done.returncode == 2
    assert "CUDA" in done.stderr
    assert done.stdout == ""
    nonsense = run_here(verb, root, *options, "--device", "toaster")
    assert nonsense.returncode == 2
    assert "toaster" in nonsense.stderr


def test_a_device_is_for_the_proposal_only(root, tmp_path):
    done = run_here("convert", root, tmp_path / "out", "--to", "v3.0", "--device", "cuda")
    assert done.returncode == 2
    assert "--for-training" in done.stderr
    assert not (tmp_path / "out").exists()


def test_a_proposal_for_a_device_knows_what_it_decodes(root, device, monkeypatch):
    only = DecodedForms({"h264": ((48, 48), (4096, 4096))})
    monkeypatch.setattr(
        device_module, "video_device", lambda *_, **__: VideoDevice(torch.device("cpu"), only)
    )
    monkeypatch.setattr(VideoDevice, "__str__", lambda _: "the chip")
    source, *ways = measure_for_training(
        root, codecs=("h264", "hevc"), gops=(2,), image_size=(32, 48), device="cuda"
    )
    assert source.decoded_on == "the chip"  # make_dataset's is H.264
    assert source.frames_per_s > 0
    found = {(way.codec, way.image_size): way for way in ways}
    best = found["h264", None]
    assert ways[0] is best  # the only one that can be proposed
    assert best.problem is None
    assert best.decoded_on == "the chip"
    assert best.frames_per_s > 0
    assert best.windows_per_s > 0
    for key in (("hevc", None), ("h264", (32, 48)), ("hevc", (32, 48))):
        assert found[key].problem == "the chip does not decode it"
        assert found[key].frames_per_s == 0
    assert device.opened


def busy(seconds):
    end = time.process_time() + seconds
    while time.process_time() < end:
        pass


def test_processor_time_is_that_of_all_processes():
    before = processor_time()
    if before is None:
        pytest.skip("no /proc")
    busy(0.05)
    child = multiprocessing.get_context("fork").Process(target=lambda: (busy(0.3), time.sleep(60)))
    child.start()
    try:
        end = time.monotonic() + 60
        while processor_time() - before < 0.3:
            assert time.monotonic() < end
            time.sleep(0.02)
    finally:
        child.kill()
        child.join()


class Nvml:
    """The functions of NVML that are called."""

    def __init__(self, percent=37, known=b"GPU-1234", status=0):
        self.percent, self.known, self.status = percent, known, status

    def nvmlInit_v2(self):  # noqa: N802
        return 0

    def nvmlDeviceGetHandleByUUID(self, name, handle):  # noqa: N802
        return 0 if name == self.known else 6

    def nvmlDeviceGetDecoderUtilization(self, handle, percent, period):  # noqa: N802
        percent._obj.value = self.percent
        return self.status


def load_with(monkeypatch, library):
    monkeypatch.setattr(nvml, "_EVERY_S", 0.001)
    monkeypatch.setattr(ctypes, "CDLL", library)
    monkeypatch.setattr(
        torch.cuda, "get_device_properties", lambda device: SimpleNamespace(uuid="1234")
    )
    load = nvml.DecoderLoad(torch.device("cuda:0"))
    with load:
        end = time.monotonic() + 30
        while load.missing is None and load.share is None:
            assert time.monotonic() < end
            time.sleep(0.001)
    return load


def test_how_busy_decoders_are_comes_from_nvml(monkeypatch):
    load = load_with(monkeypatch, lambda name: Nvml())
    assert load.share == pytest.approx(0.37)
    assert load.missing is None


def no_library(name):
    raise OSError(f"{name}: cannot open shared object file")


@pytest.mark.parametrize(
    ("library", "why"),
    [
        (no_library, "libnvidia-ml"),
        (lambda name: Nvml(known=b"GPU-5"), "GPU-1234"),
        (lambda name: Nvml(status=3), "error 3"),
    ],
)
def test_where_nvml_does_not_say_the_reason_is_known(monkeypatch, library, why):
    load = load_with(monkeypatch, library)
    assert load.share is None
    assert why in load.missing
