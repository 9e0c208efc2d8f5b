"""NVDEC, the video decoders of NVIDIA's GPUs, through PyNvVideoCodec."""

from __future__ import annotations

import ctypes
from collections.abc import Mapping
from dataclasses import dataclass
from functools import cache
from importlib import import_module
from typing import Any

import numpy as np
import torch

from demoreel.errors import MissingExtraError, ShortageError, VideoError
from demoreel.read.packets import FrameForm, SpanPackets

_NV12 = ("yuv420p", "yuvj420p", "nv12")
_CODECS = {"h264": "h264", "hevc": "hevc", "libdav1d": "av1", "vp9": "vp9", "vp8": "vp8"}
_MOST_KINDS = 8  # codecs and sizes for which a thread keeps a decoder open


class NvdecDecoder:
    """NVDEC through PyNvVideoCodec, for one thread.

    Decoders stay open for the codecs and sizes used last, with and without reordered frames.

    Args:
        device: The GPU.
        stream: Where frames are decoded and copied.
    """

    def __init__(self, device: torch.device, stream: torch.cuda.Stream) -> None:
        self._nvc = nvdec_library()
        self._device = device
        self._stream = stream.cuda_stream
        stream.synchronize()  # gives this thread the GPU's context, which the driver's calls need
        self._open: dict[tuple[str, int, int, bool], Any] = {}
        self._packet = self._nvc.PacketData()
        self._pictures = 0  # that this thread has decoded
        self._copy = _SurfaceCopy()

    def decode(
        self,
        form: FrameForm,
        span: SpanPackets,
        data: np.ndarray,
        surfaces: torch.Tensor,
        slot_of: dict[int, int],
    ) -> None:
        """Decode one GOP; see ``FrameDecoder``."""
        shown_in_turn = [shown for shown in span.shown if shown >= 0]
        # Without delay, the parser gives reordered frames the times of others.
        is_reordered = shown_in_turn != sorted(shown_in_turn)
        kind = (form.codec, form.height, form.width, is_reordered)
        decoder = self._open.pop(kind, None) or self._opened(form, is_reordered)
        flags, packet = self._nvc.VideoPacketFlag, self._packet
        # A number of its own for every picture: one left over from another GOP is never wanted.
        # In the order of display, because the parser may sort them.
        first = self._pictures
        self._pictures += len(span.sizes) + 1
        number_of = {shown: number for number, shown in enumerate(sorted(shown_in_turn), first)}
        numbers = [number_of.get(shown, self._pictures - 1) for shown in span.shown]
        slot_of_picture = {
            number_of[shown]: (shown, slot) for shown, slot in slot_of.items() if shown in number_of
        }
        due = len(shown_in_turn)
        address = data.__array_interface__["data"][0]
        try:
            packet.decode_flag = int(flags.ENDOFPICTURE)  # so that none is held until the next
            for number, size in zip((*numbers, 0), (*span.sizes, 0), strict=True):
                if size == 0 and due <= 0:
                    break  # an empty packet drains the decoder: only reordered frames need it
                packet.bsl, packet.bsl_data, packet.pts = size, address if size else 0, number
                address += size
                for frame in decoder.Decode(packet):
                    picture = frame.getPTS()
                    due -= 1 if first <= picture else 0
                    shown, slot = slot_of_picture.get(picture, (-1, -1))
                    if slot >= 0:
                        decoder.WaitOnCUStream(self._stream)
                        self._copy(frame, surfaces, slot, self._stream)
                        slot_of.pop(shown, None)
        except self._nvc.PyNvVCException as error:
            raise VideoError(f"The GPU does not decode the video: {error}.") from error
        self._open[kind] = decoder  # one that failed is not used again
        if len(self._open) > _MOST_KINDS:
            del self._open[next(iter(self._open))]  # used longest ago

    def _opened(self, form: FrameForm, is_reordered: bool) -> Any:
        nvc = self._nvc
        latency = nvc.DisplayDecodeLatencyType
        try:
            return nvc.CreateDecoder(
                gpuid=self._device.index or 0,
                codec=getattr(nvc.cudaVideoCodec, _CODECS[form.codec].upper()),
                cudacontext=0,
                cudastream=self._stream,
                usedevicememory=True,
                maxwidth=form.width,
                maxheight=form.height,
                outputColorType=nvc.OutputColorType.NATIVE,
                latency=latency.NATIVE if is_reordered else latency.LOW,
            )
        except nvc.PyNvVCException as error:
            if "OUT_OF_MEMORY" in str(error):
                raise ShortageError(
                    f"The memory of {self._device} does not suffice to open a decoder.",
                ) from error
            raise VideoError(f"The GPU opens no decoder for the video: {error}.") from error


class _Copy2d(ctypes.Structure):
    """``CUDA_MEMCPY2D`` of the CUDA driver."""

    _fields_ = (
        ("src_x", ctypes.c_size_t),
        ("src_y", ctypes.c_size_t),
        ("src_kind", ctypes.c_int),
        ("src_host", ctypes.c_void_p),
        ("src", ctypes.c_uint64),
        ("src_array", ctypes.c_void_p),
        ("src_pitch", ctypes.c_size_t),
        ("dst_x", ctypes.c_size_t),
        ("dst_y", ctypes.c_size_t),
        ("dst_kind", ctypes.c_int),
        ("dst_host", ctypes.c_void_p),
        ("dst", ctypes.c_uint64),
        ("dst_array", ctypes.c_void_p),
        ("dst_pitch", ctypes.c_size_t),
        ("width", ctypes.c_size_t),
        ("height", ctypes.c_size_t),
    )


_ON_DEVICE = 2  # CU_MEMORYTYPE_DEVICE


class _SurfaceCopy:
    """Copies a decoder's frames to slots, by one call of the driver.

    A tensor over each frame costs more of Python's time than all else: threads wait for that.
    """

    def __init__(self) -> None:
        self._call = ctypes.CDLL("libcuda.so.1").cuMemcpy2DAsync_v2
        self._what = _Copy2d(src_kind=_ON_DEVICE, dst_kind=_ON_DEVICE)
        self._where = ctypes.byref(self._what)

    def __call__(self, frame: Any, surfaces: torch.Tensor, slot: int, stream: int) -> None:
        rows, width = (int(n) for n in frame.shape[:2])
        _, most, pitch = surfaces.shape
        what = self._what
        what.src, what.src_pitch = frame.GetPtrToPlane(0), int(frame.strides[0])
        what.dst, what.dst_pitch = surfaces.data_ptr() + slot * most * pitch, pitch
        what.width, what.height = min(width, pitch), min(rows, most)
        status = self._call(self._where, ctypes.c_void_p(stream))
        if status:
            raise VideoError(f"A frame cannot be copied on the GPU (CUDA error {status}).")


def nvdec_library() -> Any:
    """Return PyNvVideoCodec.

    Raises:
        MissingExtraError: It is not installed, or it finds no driver with NVDEC.
    """
    try:
        return import_module("PyNvVideoCodec")
    except (ImportError, RuntimeError, OSError) as error:
        raise MissingExtraError(
            f"PyNvVideoCodec, which decodes video on the GPU, does not load ({error}).",
            hint="pip install 'demoreel[gpu]'; decode_device='cpu' decodes without",
        ) from error


@dataclass(frozen=True)
class DecodedForms:
    """Which frames a chip decodes; known in workers, which do not touch the GPU.

    Attributes:
        sizes: By FFmpeg's name of a decoder: the least and the greatest (height, width).
    """

    sizes: Mapping[str, tuple[tuple[int, int], tuple[int, int]]]

    def __call__(self, form: FrameForm) -> bool:
        """Whether it decodes such frames: 8 bit, 4:2:0, a codec and a size that the chip has."""
        bounds = self.sizes.get(form.codec)
        # Of an odd height, swscale blends chroma where it repeats that of others.
        if bounds is None or form.pixels not in _NV12 or form.height % 2:
            return False
        (low, narrow), (high, wide) = bounds
        return low <= form.height <= high and narrow <= form.width <= wide


def nvdec_forms(device: torch.device) -> DecodedForms:
    """Return what this GPU decodes.

    Raises:
        MissingExtraError: PyNvVideoCodec does not load.
    """
    index: int | None = device.index
    if index is None:  # this may be a process that is to leave the GPU alone: CUDA is not begun
        index = torch.cuda.current_device() if torch.cuda.is_initialized() else 0  # type: ignore[no-untyped-call]
    return _forms_of(index)


@cache
def _forms_of(gpu: int) -> DecodedForms:
    nvc = nvdec_library()
    sizes = {}
    for codec, name in _CODECS.items():
        found = nvc.GetDecoderCaps(
            gpuid=gpu, codec=getattr(nvc.cudaVideoCodec, name.upper()), bitdepth=8
        )  # chroma 4:2:0 is the default
        if found.get("num_decoder_engines", 0) and found.get("width_max", 0):
            low, high = (
                (found[f"height_{edge}"], found[f"width_{edge}"]) for edge in ("min", "max")
            )
            sizes[codec] = (low, high)
    return DecodedForms(sizes)
