"""The decoder of a thread, over a library that stands for PyNvVideoCodec."""

from __future__ import annotations

from types import SimpleNamespace

import numpy as np
import pytest
import torch

from demoreel.errors import ShortageError, VideoError
from demoreel.read.packets import FrameForm, SpanPackets
from demoreel.torch import nvdec

SPAN = SpanPackets(0, "ds", "cam", "video.mp4", (3, 3), (7, 8), (8,))
DATA = np.arange(6, dtype=np.uint8)


class Library:
    """Opens decoders that give a frame for every packet."""

    PyNvVCException = type("PyNvVCException", (Exception,), {})
    cudaVideoCodec = SimpleNamespace(H264=4, HEVC=8)  # noqa: N815
    OutputColorType = SimpleNamespace(NATIVE=0)
    DisplayDecodeLatencyType = SimpleNamespace(NATIVE=0, LOW=1)
    VideoPacketFlag = SimpleNamespace(ENDOFPICTURE=1)
    PacketData = SimpleNamespace

    def __init__(self):
        self.opened = []
        self.refuses = None

    def CreateDecoder(self, **options):  # noqa: N802
        if self.refuses:
            raise self.PyNvVCException(self.refuses)
        self.opened.append((options["maxheight"], options["maxwidth"]))
        return Opened()


class Opened:
    def Decode(self, packet):  # noqa: N802
        return [SimpleNamespace(getPTS=lambda number=packet.pts: number)] if packet.bsl else []

    def WaitOnCUStream(self, stream):  # noqa: N802
        pass


@pytest.fixture
def library(monkeypatch):
    made = Library()
    monkeypatch.setattr(nvdec, "nvdec_library", lambda: made)
    monkeypatch.setattr(nvdec, "_SurfaceCopy", lambda: lambda *_: None)
    return made


def decoder():
    stream = SimpleNamespace(cuda_stream=0, synchronize=lambda: None)
    return nvdec.NvdecDecoder(torch.device("cuda:0"), stream)


def decode(one, size):
    slots = {8: 0}
    form = FrameForm("h264", "yuv420p", *size, False, 1)
    one.decode(form, SPAN, DATA, torch.empty((1, 1, 1), dtype=torch.uint8), slots)
    assert slots == {}


def test_decoders_stay_open_and_the_one_used_longest_ago_is_closed(library):
    one = decoder()
    sizes = [(64, 64 + 2 * number) for number in range(nvdec._MOST_KINDS)]
    for size in [*sizes, *sizes, sizes[0]]:
        decode(one, size)
    assert library.opened == sizes  # each once
    decode(one, (32, 32))  # one too many: that of sizes[1] is closed
    for size in (sizes[0], *sizes[2:]):
        decode(one, size)
    assert library.opened == [*sizes, (32, 32)]
    decode(one, sizes[1])
    assert library.opened[-1] == sizes[1]


def test_a_decoder_that_does_not_open_is_an_error(library):
    library.refuses = "cuvidCreateDecoder: CUDA_ERROR_OUT_OF_MEMORY"
    with pytest.raises(ShortageError, match="memory"):
        decode(decoder(), (64, 64))
    library.refuses = "cuvidCreateDecoder: CUDA_ERROR_INVALID_VALUE"
    with pytest.raises(VideoError, match="INVALID_VALUE"):
        decode(decoder(), (64, 64))
