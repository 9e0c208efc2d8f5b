"""Video decoders of a device: packets in, RGB images out, and the memory that this may take.

A process has one ``VideoDecoders`` for a device. Its threads have a decoder each, which stays open
for the videos of a codec; decoders are what is dear, and all datasets of the process share them.
Frames come out of a decoder as NV12 and are gathered in a buffer of the device; one pass over it
writes the RGB images of a batch.
"""

from __future__ import annotations

import os
import threading
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import AbstractContextManager, contextmanager, nullcontext
from dataclasses import dataclass
from functools import cache, partial
from importlib import import_module
from typing import TYPE_CHECKING, Any, Protocol

import numpy as np
import torch

from demoreel.errors import ArgumentError, MissingExtraError, ShortageError, VideoError
from demoreel.media.decode import DecodePool, Decoder
from demoreel.packages import load_late
from demoreel.read.packets import EncodedFrames, FrameForm, SpanPackets

if TYPE_CHECKING:
    import av
else:
    av = load_late("av")

DECODER_THREADS = 4  # more than four of Python's threads only wait for one another
_NV12 = ("yuv420p", "yuvj420p", "nv12")
_CODECS = {"h264": "h264", "hevc": "hevc", "libdav1d": "av1", "vp9": "vp9", "vp8": "vp8"}
_LUMA = {1: (0.2126, 0.0722), 4: (0.30, 0.11), 7: (0.212, 0.087), 9: (0.2627, 0.0593)}
_BT601 = (0.299, 0.114)
_APART = 3.0  # of 255, on average: a chip's frame and a CPU's are the same, another frame is not
_MB = 1 << 20


class FrameDecoder(Protocol):
    """Decodes GOPs, for one thread."""

    def frames(
        self, form: FrameForm, packets: Sequence[tuple[int, memoryview]]
    ) -> Iterator[tuple[int, torch.Tensor]]:
        """Yield the frames of one GOP as NV12: (number, (rows, pitch) of uint8).

        Rows are those of luma, then those of chroma, U and V in turns; a tensor holds until the
        next one is asked for.

        Args:
            form: What the frames are.
            packets: (number, bytes) of each packet, in decoding order.

        Raises:
            VideoError: A packet is damaged.
        """
        ...


class CpuFrameDecoder:
    """FFmpeg's decoders behind the contract of a device's: what those are compared with."""

    def frames(
        self, form: FrameForm, packets: Sequence[tuple[int, memoryview]]
    ) -> Iterator[tuple[int, torch.Tensor]]:
        """Yield the frames; see ``FrameDecoder``."""
        context = av.CodecContext.create(form.codec, "r")
        assert isinstance(context, av.VideoCodecContext)
        context.thread_count = 1
        context.options = {"err_detect": "crccheck+explode", "strict": "strict"}
        try:
            for number, data in packets:
                packet = av.Packet(len(data))
                packet.update(bytes(data))
                packet.pts = number
                for frame in context.decode(packet):
                    yield int(frame.pts or 0), _nv12(frame)
            for frame in context.decode(None):
                yield int(frame.pts or 0), _nv12(frame)
        except av.error.FFmpegError as error:
            raise VideoError(f"A frame of the video does not decode: {error}.") from error


def _nv12(frame: av.VideoFrame) -> torch.Tensor:
    height, width = frame.height, frame.width
    pitch = width + width % 2
    out = torch.empty((height + (height + 1) // 2, pitch), dtype=torch.uint8)
    planes = [
        torch.frombuffer(bytearray(memoryview(plane)), dtype=torch.uint8).view(-1, plane.line_size)
        for plane in frame.planes
    ]
    out[:height, :width] = planes[0][:height, :width]
    chroma = out[height:].view((height + 1) // 2, pitch // 2, 2)
    for number in (0, 1):
        chroma[..., number] = planes[1 + number][: (height + 1) // 2, : pitch // 2]
    return out


class VideoDecoders:
    """The decoders of one device. For all datasets of a process, and all its threads.

    Args:
        device: Where frames are decoded, and where images end up.
        open_decoder: Makes the decoder of a thread.
        memory_mb: Memory of the device for frames on their way to images, in MB.
        threads: How many decode at once.
    """

    def __init__(
        self,
        device: torch.device,
        *,
        open_decoder: Callable[[], FrameDecoder],
        memory_mb: int = 512,
        threads: int = DECODER_THREADS,
    ) -> None:
        if memory_mb < 1:
            raise ArgumentError(f"gpu_memory_mb is {memory_mb}; it is 1 at least.")
        self.device = device
        self.memory_mb = memory_mb
        self._open_decoder = open_decoder
        self._pool = DecodePool(threads)
        self._local = threading.local()
        self._buffer: torch.Tensor | None = None
        self._one_batch = threading.Lock()  # the buffer serves one batch at a time
        self._compared: set[FrameForm] = set()

    def decode(self, encoded: EncodedFrames, *, dtype: torch.dtype = torch.uint8) -> torch.Tensor:
        """Return the images of packets: (..., 3, height, width) on the device.

        Cost: every packet is decoded once, and every image written once.

        Args:
            encoded: The packets.
            dtype: uint8 from 0 to 255, or float32 from 0 to 1.

        Raises:
            VideoError: A packet is damaged, or the device's frames are not those of the CPU.
            ShortageError: The device's memory does not suffice.
        """
        height, width = encoded.size
        order = encoded.order.reshape(-1)
        try:
            images = torch.empty((len(order), 3, height, width), dtype=dtype, device=self.device)
            with self._one_batch:
                for spans, begin in self._portions(encoded):
                    self._portion(encoded, spans, begin, order, images)
        except torch.OutOfMemoryError as error:
            raise ShortageError(
                f"The memory of {self.device} does not suffice to decode video.",
                hint=f"give a smaller gpu_memory_mb (it is {self.memory_mb}) or batch size",
                dataset=encoded.dataset,
                camera=encoded.key,
            ) from error
        return images.reshape(*encoded.order.shape, 3, height, width)

    def close(self) -> None:
        """Close all decoders and free their memory; the next batch opens them again."""
        with self._one_batch:
            self._local = threading.local()
            self._buffer = None

    def _portions(
        self, encoded: EncodedFrames
    ) -> Iterator[tuple[list[tuple[SpanPackets, list[memoryview]]], int]]:
        """Yield spans whose frames fit into the memory together, and the number of the first."""
        height, width = encoded.size
        most = max(1, self.memory_mb * _MB // _surface_bytes(height, width))
        spans: list[tuple[SpanPackets, list[memoryview]]] = []
        begin = frames = 0
        for span, packets in encoded.packets():
            if frames and frames + len(span.wanted) > most:
                yield spans, begin
                begin, frames, spans = begin + frames, 0, []
            spans.append((span, packets))
            frames += len(span.wanted)
        if spans:
            yield spans, begin

    def _portion(
        self,
        encoded: EncodedFrames,
        spans: Sequence[tuple[SpanPackets, list[memoryview]]],
        begin: int,
        order: np.ndarray,
        images: torch.Tensor,
    ) -> None:
        height, width = encoded.size
        slots = np.cumsum([0, *(len(span.wanted) for span, _ in spans)])
        surfaces = self._surfaces(int(slots[-1]), height, width)
        waits: list[Any] = []
        self._pool.run(
            _as_job(partial(self._span, encoded, span, packets, surfaces[slot:], waits))
            for (span, packets), slot in zip(spans, slots.tolist(), strict=False)
        )
        for event in waits:
            torch.cuda.current_stream(self.device).wait_event(event)
        form_of = np.repeat([span.form for span, _ in spans], np.diff(slots))
        here = (order >= begin) & (order < begin + slots[-1])
        wanted = np.where(here, order - begin, 0)
        for number in np.unique(form_of).tolist():
            places = np.flatnonzero(here & (form_of[wanted] == number))
            write_rgb(surfaces, wanted[places], encoded.forms[number], images, places)

    def _span(
        self,
        encoded: EncodedFrames,
        span: SpanPackets,
        packets: list[memoryview],
        slots: torch.Tensor,
        waits: list[Any],
    ) -> None:
        """Decode one span, and copy its wanted frames into their slots."""
        form = encoded.forms[span.form]
        slot_of = {frame: slot for slot, frame in enumerate(span.wanted)}
        numbered = list(zip(span.shown, packets, strict=True))
        try:
            with self._stream() as stream:
                last = -1
                for frame, surface in self._decoder().frames(form, numbered):
                    if frame < 0:
                        continue
                    if frame < last:
                        raise VideoError(
                            "The device gives a frame after frames that are later.", frame=frame
                        )
                    last = frame
                    slot = slot_of.pop(frame, None)
                    if slot is not None:
                        rows, pitch = surface.shape
                        slots[slot, :rows, :pitch].copy_(surface)
                if stream is not None:
                    waits.append(stream.record_event())
            if slot_of:
                raise VideoError(
                    "A frame of the video does not decode: the device gave none.",
                    frame=min(slot_of),
                    code="video-decodes-short",
                )
            self._compare(form, span, numbered, slots)
        except VideoError as error:
            where = {"file": span.file, **error.where}
            raise VideoError(
                error.what,
                hint=error.hint or "decode_device='cpu' says more; restore the file from a copy",
                code=error.code,
                dataset=encoded.dataset,
                camera=encoded.key,
                **where,
            ) from error

    def _compare(
        self,
        form: FrameForm,
        span: SpanPackets,
        numbered: Sequence[tuple[int, memoryview]],
        slots: torch.Tensor,
    ) -> None:
        """Compare the first GOP of every kind of frames with the CPU's, once."""
        if form in self._compared:
            return
        height, width = form.height, form.width
        slot_of = {frame: slot for slot, frame in enumerate(span.wanted)}
        for frame, surface in CpuFrameDecoder().frames(form, numbered):
            if frame in slot_of:
                ours = slots[slot_of[frame], :height, :width].cpu().float()
                apart = float((ours - surface[:height, :width].float()).abs().mean())
                if apart > _APART:
                    raise VideoError(
                        f"{self.device} decodes {form.codec} otherwise than the CPU: frames "
                        f"differ by {apart:.1f} of 255.",
                        frame=frame,
                        hint="decode_device='cpu' decodes without it",
                    )
        self._compared.add(form)

    def _decoder(self) -> FrameDecoder:
        decoder = getattr(self._local, "decoder", None)
        if decoder is None:
            decoder = self._local.decoder = self._open_decoder()
        found: FrameDecoder = decoder
        return found

    def _stream(self) -> AbstractContextManager[torch.cuda.Stream | None]:
        """Let this thread's copies run in a stream of their own."""
        stream = getattr(self._local, "stream", None)
        if stream is None:
            stream = self._local.stream = new_stream(self.device)
        return nullcontext(None) if stream is None else _within(stream)

    def _surfaces(self, frames: int, height: int, width: int) -> torch.Tensor:
        """Return memory for NV12 frames, the same for every batch while it suffices."""
        size = frames * _surface_bytes(height, width)
        if self._buffer is None or len(self._buffer) < size:
            self._buffer = None  # freed before more is taken
            self._buffer = torch.empty(size, dtype=torch.uint8, device=self.device)
        rows, pitch = _surface_shape(height, width)
        return self._buffer[:size].view(frames, rows, pitch)


def new_stream(device: torch.device | None) -> torch.cuda.Stream | None:
    """Return a stream of a GPU; None if the device is none."""
    if device is None or device.type != "cuda":
        return None
    return torch.cuda.Stream(device)  # type: ignore[no-untyped-call]


@contextmanager
def _within(stream: torch.cuda.Stream) -> Iterator[torch.cuda.Stream]:
    with torch.cuda.stream(stream):
        yield stream


def _as_job(run: Callable[[], None]) -> Callable[[Decoder], None]:
    return lambda _: run()


def _surface_shape(height: int, width: int) -> tuple[int, int]:
    return height + (height + 1) // 2, width + width % 2


def _surface_bytes(height: int, width: int) -> int:
    rows, pitch = _surface_shape(height, width)
    return rows * pitch


def write_rgb(
    surfaces: torch.Tensor,
    wanted: np.ndarray,
    form: FrameForm,
    images: torch.Tensor,
    places: np.ndarray,
) -> None:
    """Write NV12 frames as RGB, in one pass over the images.

    Chroma is that of the nearest sample, as swscale has it: results differ by rounding.

    Args:
        surfaces: (frames, rows, pitch), uint8.
        wanted: Which frame each image is.
        form: What the frames are.
        images: (images, 3, height, width), uint8 from 0 to 255 or float32 from 0 to 1.
        places: Which of the images are written.
    """
    red, blue = _LUMA.get(form.matrix, _BT601)
    green = 1 - red - blue
    scale, chroma = (1.0, 1.0) if form.full_range else (255 / 219, 255 / 224)
    factors = (
        2 * (1 - red) * chroma,
        2 * (1 - blue) * chroma,
        2 * blue * (1 - blue) / green * chroma,
        2 * red * (1 - red) / green * chroma,
    )
    black = 0.0 if form.full_range else 16.0
    write = _write_on_gpu if surfaces.is_cuda else _write_on_cpu
    write(surfaces, wanted, form, images, places, scale, black, factors)


Factors = tuple[float, float, float, float]
"""Of V in red, U in blue, U in green and V in green."""


def _write_on_cpu(
    surfaces: torch.Tensor,
    wanted: np.ndarray,
    form: FrameForm,
    images: torch.Tensor,
    places: np.ndarray,
    scale: float,
    black: float,
    factors: Factors,
) -> None:
    height, width = form.height, form.width
    rows = torch.arange(height) // 2
    columns = torch.arange(width) // 2 * 2
    for slot, place in zip(wanted.tolist(), places.tolist(), strict=True):
        surface = surfaces[slot].float()
        luma = (surface[:height, :width] - black) * scale
        u = surface[height:][rows][:, columns] - 128
        v = surface[height:][rows][:, columns + 1] - 128
        planes = (
            luma + factors[0] * v,
            luma - factors[2] * u - factors[3] * v,
            luma + factors[1] * u,
        )
        for channel, plane in enumerate(planes):
            rounded = plane.round_().clamp_(0, 255)
            images[place, channel] = rounded / 255 if images.is_floating_point() else rounded


def _write_on_gpu(
    surfaces: torch.Tensor,
    wanted: np.ndarray,
    form: FrameForm,
    images: torch.Tensor,
    places: np.ndarray,
    scale: float,
    black: float,
    factors: Factors,
) -> None:
    from demoreel.torch.rgb_kernel import launch

    device = surfaces.device
    slots = torch.from_numpy(wanted.astype(np.int64)).to(device, non_blocking=True)
    targets = torch.from_numpy(places.astype(np.int64)).to(device, non_blocking=True)
    launch(surfaces, slots, targets, images, form.height, form.width, scale, black, factors)


class NvdecDecoder:
    """NVDEC through PyNvVideoCodec, for one thread.

    A decoder is kept for each codec and size.

    Args:
        device: The GPU.
    """

    def __init__(self, device: torch.device) -> None:
        self._nvc = nvdec_library()
        self._number = device.index or 0
        self._open: dict[tuple[str, int, int], Any] = {}

    def frames(
        self, form: FrameForm, packets: Sequence[tuple[int, memoryview]]
    ) -> Iterator[tuple[int, torch.Tensor]]:
        """Yield the frames; see ``FrameDecoder``."""
        nvc = self._nvc
        kind = (form.codec, form.height, form.width)
        decoder = self._open.pop(kind, None) or self._opened(form)
        try:
            for number, data in (*packets, (0, memoryview(b""))):  # the empty one: the stream ends
                packet = nvc.PacketData()
                held = np.frombuffer(data, np.uint8)
                packet.bsl = len(held)
                packet.bsl_data = held.__array_interface__["data"][0] if len(held) else 0
                packet.pts = number
                for frame in decoder.Decode(packet):
                    decoder.WaitOnCUStream(torch.cuda.current_stream(self._number).cuda_stream)
                    yield frame.getPTS(), torch.utils.dlpack.from_dlpack(frame)
        except nvc.PyNvVCException as error:
            raise VideoError(f"The GPU does not decode the video: {error}.") from error
        self._open[kind] = decoder  # one that failed is not used again

    def _opened(self, form: FrameForm) -> Any:
        nvc = self._nvc
        return nvc.CreateDecoder(
            gpuid=self._number,
            codec=getattr(nvc.cudaVideoCodec, _CODECS[form.codec].upper()),
            cudacontext=0,
            cudastream=torch.cuda.current_stream(self._number).cuda_stream,
            usedevicememory=True,
            maxwidth=form.width,
            maxheight=form.height,
            outputColorType=nvc.OutputColorType.NATIVE,
            latency=nvc.DisplayDecodeLatencyType.LOW,
        )


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


@cache
def nvdec_forms(device: torch.device) -> DecodedForms:
    """Return what this GPU decodes.

    Raises:
        MissingExtraError: PyNvVideoCodec does not load.
    """
    nvc = nvdec_library()
    sizes = {}
    for codec, name in _CODECS.items():
        found = nvc.GetDecoderCaps(
            gpuid=device.index or 0, codec=getattr(nvc.cudaVideoCodec, name.upper()), bitdepth=8
        )  # chroma 4:2:0 is the default
        if found.get("num_decoder_engines", 0) and found.get("width_max", 0):
            low, high = (
                (found[f"height_{edge}"], found[f"width_{edge}"]) for edge in ("min", "max")
            )
            sizes[codec] = (low, high)
    return DecodedForms(sizes)


_of_devices: dict[tuple[int, torch.device], VideoDecoders] = {}


def video_decoders(device: torch.device, *, memory_mb: int) -> VideoDecoders:
    """Return the decoders of a GPU, the same for all datasets of this process.

    Args:
        device: The GPU.
        memory_mb: See ``VideoDecoders``; the most that a dataset has asked for counts.
    """
    key = (os.getpid(), device)
    found = _of_devices.get(key)
    if found is None:
        found = _of_devices[key] = VideoDecoders(
            device, open_decoder=partial(NvdecDecoder, device), memory_mb=memory_mb
        )
    found.memory_mb = max(found.memory_mb, memory_mb)
    return found
