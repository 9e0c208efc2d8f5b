"""Video decoders of a device: packets in, RGB images out, and the memory that this may take.

A process has one ``VideoDecoders`` for a device. Its threads have a decoder each, which stays open
for the videos of a codec; decoders are what is dear, and all datasets of the process share them.
Frames come out of a decoder as NV12 and are gathered in a buffer of the device; one pass over it
writes the RGB images of a batch.
"""

from __future__ import annotations

import ctypes
import os
import queue
import threading
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
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

BATCHES_AT_ONCE = 2
DECODER_THREADS = 4  # more than four of Python's threads only wait for one another
_NV12 = ("yuv420p", "yuvj420p", "nv12")
_CODECS = {"h264": "h264", "hevc": "hevc", "libdav1d": "av1", "vp9": "vp9", "vp8": "vp8"}
_LUMA = {1: (0.2126, 0.0722), 4: (0.30, 0.11), 7: (0.212, 0.087), 9: (0.2627, 0.0593)}
_BT601 = (0.299, 0.114)
_COMPARED = 8  # GOPs of every kind of frames that the CPU decodes, too
_MB = 1 << 20


class FrameDecoder(Protocol):
    """Decodes GOPs, for one thread."""

    def decode(
        self,
        form: FrameForm,
        span: SpanPackets,
        data: np.ndarray,
        surfaces: torch.Tensor,
        slot_of: dict[int, int],
    ) -> None:
        """Decode one GOP, and write the wanted frames as NV12.

        Rows are those of luma, then those of chroma, U and V in turns.

        Args:
            form: What the frames are.
            span: The packets.
            data: Their bytes, one behind the other.
            surfaces: (slots, rows, pitch) of uint8.
            slot_of: The slot of each wanted frame. Frames that are written are taken out.

        Raises:
            VideoError: A packet is damaged.
        """
        ...


class CpuFrameDecoder:
    """FFmpeg's decoders behind the contract of a device's: what those are compared with."""

    def decode(
        self,
        form: FrameForm,
        span: SpanPackets,
        data: np.ndarray,
        surfaces: torch.Tensor,
        slot_of: dict[int, int],
    ) -> None:
        """Decode one GOP; see ``FrameDecoder``."""
        context = av.CodecContext.create(form.codec, "r")
        assert isinstance(context, av.VideoCodecContext)
        context.thread_count = 1
        context.options = {"err_detect": "crccheck+explode", "strict": "strict"}
        ends = np.cumsum(span.sizes)[:-1]
        try:
            for number, one in zip(span.shown, np.split(data, ends), strict=True):
                packet = av.Packet(one.tobytes())
                packet.pts = number
                self._write(context.decode(packet), surfaces, slot_of)
            self._write(context.decode(None), surfaces, slot_of)
        except av.error.FFmpegError as error:
            raise VideoError(f"A frame of the video does not decode: {error}.") from error

    def _write(
        self, frames: list[av.VideoFrame], surfaces: torch.Tensor, slot_of: dict[int, int]
    ) -> None:
        for frame in frames:
            slot = slot_of.pop(int(frame.pts or 0), None)
            if slot is not None:
                found = nv12(frame)
                surfaces[slot, : found.shape[0], : found.shape[1]] = found


def nv12(frame: av.VideoFrame) -> torch.Tensor:
    """Return a frame of 4:2:0 as NV12: (rows, pitch)."""
    height, width = frame.height, frame.width
    rows, pitch = _surface_shape(height, width)
    out = torch.empty((rows, pitch), dtype=torch.uint8)
    planes = [
        torch.frombuffer(bytearray(memoryview(plane)), dtype=torch.uint8).view(-1, plane.line_size)
        for plane in frame.planes
    ]
    out[:height, :width] = planes[0][:height, :width]
    chroma = out[height:].view(rows - height, pitch // 2, 2)
    for number in (0, 1):
        chroma[..., number] = planes[1 + number][: rows - height, : pitch // 2]
    return out


@dataclass
class _Thread:
    """What a decoding thread keeps.

    Attributes:
        decoder: Its decoder.
        stream: Where its copies run; None on a CPU.
        ready: What the stream has waited for.
    """

    decoder: FrameDecoder
    stream: torch.cuda.Stream | None
    ready: torch.cuda.Event | None = None


@dataclass
class _Lane:
    """What the decoding of one batch needs.

    Attributes:
        pool: Its threads.
        buffer: Memory for NV12 frames, the same for every batch while it suffices.
        read: When the buffer may be written again.
    """

    pool: DecodePool
    buffer: torch.Tensor | None = None
    read: torch.cuda.Event | None = None

    def surfaces(self, frames: int, height: int, width: int, device: torch.device) -> torch.Tensor:
        size = frames * _surface_bytes(height, width)
        if self.buffer is None or len(self.buffer) < size:
            self.buffer = None  # freed before more is taken
            self.buffer = torch.empty(size, dtype=torch.uint8, device=device)
        rows, pitch = _surface_shape(height, width)
        return self.buffer[:size].view(frames, rows, pitch)


class VideoDecoders:
    """The decoders of one device. For all datasets of a process, and all its threads.

    Args:
        device: Where frames are decoded, and where images end up.
        open_decoder: Makes the decoder of a thread, whose copies run in this stream.
        memory_mb: Memory of the device for frames on their way to images, in MB.
        threads: How many decode a batch at once.
        batches: How many batches are decoded at once: while the last GOPs of one are decoded, the
            threads of another one are busy.
    """

    def __init__(
        self,
        device: torch.device,
        *,
        open_decoder: Callable[[torch.cuda.Stream | None], FrameDecoder],
        memory_mb: int = 512,
        threads: int = DECODER_THREADS,
        batches: int = BATCHES_AT_ONCE,
    ) -> None:
        if memory_mb < 1:
            raise ArgumentError(f"gpu_memory_mb is {memory_mb}; it is 1 at least.")
        self.device = device
        self.memory_mb = memory_mb
        self._open_decoder = open_decoder
        self._local = threading.local()
        # A forked child drops what belonged to the other threads. Freeing a decoder there would
        # call CUDA, which ends the process: this list keeps decoders alive.
        self._threads: list[_Thread] = []
        self._process = os.getpid()
        self._batches = batches
        self._free: queue.LifoQueue[_Lane] = queue.LifoQueue()
        for _ in range(batches):
            self._free.put(_Lane(DecodePool(threads)))
        self._compared: dict[FrameForm, int] = {}

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
            with self._lane() as lane:
                for spans, begin in self._portions(encoded):
                    self._portion(lane, encoded, spans, begin, order, images)
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
        if self._process != os.getpid():
            return  # a forked child: they are its parent's
        lanes = [self._free.get() for _ in range(self._batches)]
        self._local = threading.local()
        self._threads.clear()
        for lane in lanes:
            lane.buffer = None
            self._free.put(lane)

    @contextmanager
    def _lane(self) -> Iterator[_Lane]:
        """Wait until a batch can be decoded."""
        lane = self._free.get()
        try:
            yield lane
        finally:
            self._free.put(lane)

    def _portions(
        self, encoded: EncodedFrames
    ) -> Iterator[tuple[list[tuple[SpanPackets, np.ndarray]], int]]:
        """Yield spans whose frames fit into the memory together, and the number of the first."""
        height, width = encoded.size
        most = max(1, self.memory_mb * _MB // self._batches // _surface_bytes(height, width))
        spans: list[tuple[SpanPackets, np.ndarray]] = []
        begin = frames = 0
        for span, data in encoded.packets():
            if frames and frames + len(span.wanted) > most:
                yield spans, begin
                begin, frames, spans = begin + frames, 0, []
            spans.append((span, data))
            frames += len(span.wanted)
        if spans:
            yield spans, begin

    def _portion(
        self,
        lane: _Lane,
        encoded: EncodedFrames,
        spans: Sequence[tuple[SpanPackets, np.ndarray]],
        begin: int,
        order: np.ndarray,
        images: torch.Tensor,
    ) -> None:
        height, width = encoded.size
        slots = np.cumsum([0, *(len(span.wanted) for span, _ in spans)])
        surfaces = lane.surfaces(int(slots[-1]), height, width, self.device)
        current = torch.cuda.current_stream(self.device) if surfaces.is_cuda else None
        ready = None
        if current is not None:
            if lane.read is not None:
                current.wait_event(lane.read)
            ready = current.record_event()
        used: dict[int, _Thread] = {}
        lane.pool.run(
            _as_job(partial(self._span, encoded, span, data, surfaces, slot, ready, used))
            for (span, data), slot in zip(spans, slots.tolist(), strict=False)
        )
        if current is not None:
            for thread in used.values():
                if thread.stream is not None:
                    current.wait_stream(thread.stream)
        form_of = np.repeat([span.form for span, _ in spans], np.diff(slots))
        here = (order >= begin) & (order < begin + slots[-1])
        wanted = np.where(here, order - begin, 0)
        for number in np.unique(form_of).tolist():
            places = np.flatnonzero(here & (form_of[wanted] == number))
            write_rgb(surfaces, wanted[places], encoded.forms[number], images, places)
        if current is not None:
            lane.read = current.record_event()

    def _span(
        self,
        encoded: EncodedFrames,
        span: SpanPackets,
        data: np.ndarray,
        surfaces: torch.Tensor,
        first: int,
        ready: torch.cuda.Event | None,
        used: dict[int, _Thread],
    ) -> None:
        """Decode one span; its wanted frames get the slots from ``first`` on."""
        form = encoded.forms[span.form]
        missing = dict(zip(span.wanted, range(first, first + len(span.wanted)), strict=True))
        thread = self._thread()
        used[id(thread)] = thread
        try:
            if thread.stream is not None and ready is not None and thread.ready is not ready:
                thread.stream.wait_event(ready)
                thread.ready = ready
            thread.decoder.decode(form, span, data, surfaces, missing)
            if missing:
                raise VideoError(
                    "A frame of the video does not decode: the device gave none.",
                    frame=min(missing),
                    code="video-decodes-short",
                )
            if self._compared.get(form, 0) < _COMPARED:
                self._compare(form, span, data, surfaces[first:])
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
        self, form: FrameForm, span: SpanPackets, data: np.ndarray, slots: torch.Tensor
    ) -> None:
        """Compare luma with the CPU's: decoders of a codec agree on every bit of it."""
        count, (height, width) = len(span.wanted), (form.height, form.width)
        right = torch.empty((count, *_surface_shape(height, width)), dtype=torch.uint8)
        CpuFrameDecoder().decode(
            form, span, data, right, dict(zip(span.wanted, range(count), strict=True))
        )
        with _within(self._thread().stream):
            ours = slots[:count, :height, :width].cpu()
        differ = (ours != right[:, :height, :width]).flatten(1).any(1)
        if differ.any():
            raise VideoError(
                f"{self.device} decodes {form.codec} otherwise than the CPU.",
                frame=span.wanted[int(differ.int().argmax())],
                hint="decode_device='cpu' decodes without it",
            )
        self._compared[form] = self._compared.get(form, 0) + 1

    def _thread(self) -> _Thread:
        """Return what the calling thread keeps: a decoder, and a stream for its copies."""
        found: _Thread | None = getattr(self._local, "thread", None)
        if found is None:
            stream = new_stream(self.device)
            found = _Thread(self._open_decoder(stream), stream)
            self._local.thread = found
            self._threads.append(found)
        return found


def new_stream(device: torch.device | None) -> torch.cuda.Stream | None:
    """Return a stream of a GPU; None if the device is none."""
    if device is None or device.type != "cuda":
        return None
    return torch.cuda.Stream(device)  # type: ignore[no-untyped-call]


@contextmanager
def _within(stream: torch.cuda.Stream | None) -> Iterator[None]:
    """Let what this thread does on the GPU run in a stream."""
    if stream is None:
        yield
        return
    with torch.cuda.stream(stream):
        yield


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

    A decoder is kept for each codec and size, with and without reordered frames.

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

    def _opened(self, form: FrameForm, is_reordered: bool) -> Any:
        nvc = self._nvc
        latency = nvc.DisplayDecodeLatencyType
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
