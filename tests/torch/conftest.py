"""A device of its own: FFmpeg's decoders behind the contract of a GPU's."""

from __future__ import annotations

import os
import threading

import pytest
import torch

from demoreel.torch import device as device_module
from demoreel.torch import video_decoders
from demoreel.torch.device import VideoDevice
from demoreel.torch.nvdec import DecodedForms
from demoreel.torch.video_decoders import CpuFrameDecoder, VideoDecoders

CPU = torch.device("cpu")
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
        device_module,
        "video_device",
        lambda wanted, memory_mb=None: (
            None if wanted == "cpu" else VideoDevice(CPU, OF_THE_CHIP, memory_mb)
        ),
    )
    decoders.opened = opened
    return decoders
