"""Video decoders of a device: packets in, RGB images out, and the memory that this may take.

A process has one ``VideoDecoders`` for each device, which all its datasets share: opening a decoder
is slow, so each thread keeps its decoders open, one for each codec and size.
Frames come out of a decoder as NV12 and are gathered in a buffer of the device; one pass over it
writes the RGB images of a batch.
"""

from __future__ import annotations

import os
import queue
import threading
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from functools import partial
from typing import TYPE_CHECKING, Protocol

import numpy as np
import torch

from demoreel.errors import ArgumentError, ShortageError, VideoError
from demoreel.media.decode import DecodePool, Decoder
from demoreel.packages import load_late
from demoreel.read.packets import EncodedFrames, FrameForm, SpanPackets
from demoreel.torch.nvdec import NvdecDecoder

if TYPE_CHECKING:
    import av
else:
    av = load_late("av")

MEMORY_MB = 512
BATCHES_AT_ONCE = 2
DECODER_THREADS = 4  # more than four of Python's threads only wait for one another
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
    """FFmpeg's decoders behind the same contract; those of devices are compared with them."""

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
class _ThreadDecoder:
    """The decoder of one thread.

    Attributes:
        decoder: The decoder.
        stream: Where it copies frames; None on a CPU.
        ready: The event that the stream has waited for last.
    """

    decoder: FrameDecoder
    stream: torch.cuda.Stream | None
    ready: torch.cuda.Event | None = None


@dataclass
class _BatchWorkspace:
    """Threads and memory that decode one batch at a time.

    Attributes:
        pool: The threads.
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
        memory_mb: int = MEMORY_MB,
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
        self._decoders: list[_ThreadDecoder] = []
        self._process = os.getpid()
        self._threads = threads
        self._batches = batches
        self._free: queue.LifoQueue[_BatchWorkspace] = queue.LifoQueue()
        for _ in range(batches):
            self._free.put(_BatchWorkspace(DecodePool(threads)))
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
        with self.memory_errors(encoded), self._current():
            images = torch.empty((len(order), 3, height, width), dtype=dtype, device=self.device)
            with self._workspace() as workspace:
                for spans, begin in self._portions(encoded):
                    self._portion(workspace, encoded, spans, begin, order, images)
        return images.reshape(*encoded.order.shape, 3, height, width)

    @contextmanager
    def memory_errors(self, encoded: EncodedFrames | None = None) -> Iterator[None]:
        """Let an error of memory that is used up name the option, and what was decoded."""
        try:
            yield
        except torch.OutOfMemoryError as error:
            first = encoded.spans[0] if encoded is not None and encoded.spans else None
            raise ShortageError(
                f"The memory of {self.device} does not suffice to decode video.",
                hint=f"give a smaller gpu_memory_mb (it is {self.memory_mb}) or batch size",
                dataset=None if first is None else first.dataset,
                camera=None if first is None else first.camera,
            ) from error

    def close(self) -> None:
        """Close all decoders, end their threads and free their memory.

        Waits for batches that are being decoded. The next batch opens them again.
        """
        if self._process != os.getpid():
            return  # a forked child: they are its parent's
        workspaces = [self._free.get() for _ in range(self._batches)]
        with self._current():
            self._local = threading.local()
            self._decoders.clear()
            del workspaces  # with their buffers and threads
        for _ in range(self._batches):
            self._free.put(_BatchWorkspace(DecodePool(self._threads)))

    @contextmanager
    def _current(self) -> Iterator[None]:
        """Make the device the calling thread's current one, as the driver's calls need it."""
        if self.device.type != "cuda":
            yield
            return
        with torch.cuda.device(self.device):
            yield

    @contextmanager
    def _workspace(self) -> Iterator[_BatchWorkspace]:
        """Wait until a batch can be decoded."""
        workspace = self._free.get()
        try:
            yield workspace
        finally:
            self._free.put(workspace)

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
        workspace: _BatchWorkspace,
        encoded: EncodedFrames,
        spans: Sequence[tuple[SpanPackets, np.ndarray]],
        begin: int,
        order: np.ndarray,
        images: torch.Tensor,
    ) -> None:
        height, width = encoded.size
        slots = np.cumsum([0, *(len(span.wanted) for span, _ in spans)])
        surfaces = workspace.surfaces(int(slots[-1]), height, width, self.device)
        current = torch.cuda.current_stream(self.device) if surfaces.is_cuda else None
        ready = None
        if current is not None:
            if workspace.read is not None:
                current.wait_event(workspace.read)
            ready = current.record_event()
        used: dict[int, _ThreadDecoder] = {}
        workspace.pool.run(
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
            workspace.read = current.record_event()

    def _span(
        self,
        encoded: EncodedFrames,
        span: SpanPackets,
        data: np.ndarray,
        surfaces: torch.Tensor,
        first: int,
        ready: torch.cuda.Event | None,
        used: dict[int, _ThreadDecoder],
    ) -> None:
        """Decode one span; its wanted frames get the slots from ``first`` on."""
        form = encoded.forms[span.form]
        missing = dict(zip(span.wanted, range(first, first + len(span.wanted)), strict=True))
        try:
            thread = self._decoder()
            used[id(thread)] = thread
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
            frame = min(missing, default=span.wanted[0])
            raise VideoError(
                error.what,
                hint=error.hint or "decode_device='cpu' says more; restore the file from a copy",
                code=error.code,
                **{
                    "dataset": span.dataset,
                    "camera": span.camera,
                    "file": span.file,
                    "frame": frame,
                    **error.where,
                },
            ) from error
        except ShortageError as error:
            where = {"dataset": span.dataset, "camera": span.camera, **error.where}
            hint = f"give a smaller gpu_memory_mb (it is {self.memory_mb}) or batch size"
            raise ShortageError(error.what, hint=error.hint or hint, **where) from error

    def _compare(
        self, form: FrameForm, span: SpanPackets, data: np.ndarray, slots: torch.Tensor
    ) -> None:
        """Compare luma with the CPU's: decoders of a codec agree on every bit of it."""
        count, (height, width) = len(span.wanted), (form.height, form.width)
        right = torch.empty((count, *_surface_shape(height, width)), dtype=torch.uint8)
        CpuFrameDecoder().decode(
            form, span, data, right, dict(zip(span.wanted, range(count), strict=True))
        )
        with _within(self._decoder().stream):
            ours = slots[:count, :height, :width].cpu()
        differ = (ours != right[:, :height, :width]).flatten(1).any(1)
        if differ.any():
            raise VideoError(
                f"{self.device} decodes {form.codec} otherwise than the CPU.",
                frame=span.wanted[int(differ.int().argmax())],
                hint="decode_device='cpu' decodes without it",
            )
        self._compared[form] = self._compared.get(form, 0) + 1

    def _decoder(self) -> _ThreadDecoder:
        """Return the calling thread's decoder, and the stream for its copies."""
        found: _ThreadDecoder | None = getattr(self._local, "decoder", None)
        if found is None:
            if self.device.type == "cuda":
                torch.cuda.set_device(self.device)  # of a thread of the pool, or within _current()
            stream = new_stream(self.device)
            found = _ThreadDecoder(self._open_decoder(stream), stream)
            self._local.decoder = found
            self._decoders.append(found)
        return found


def current_device(device: torch.device) -> torch.device:
    """Return a GPU with its index: without one, the current device of the calling thread.

    Raises:
        ArgumentError: This process was forked from one that uses CUDA.
    """
    if device.type != "cuda":
        return device
    try:
        torch.cuda.init()  # type: ignore[no-untyped-call]
    except RuntimeError as error:
        raise ArgumentError(
            f"The device {device} cannot be used in this process ({error}).",
            hint="a forked process cannot use the GPU of its parent: decode in the parent "
            "(demoreel.torch.to_device), or start it with the method 'spawn'",
        ) from error
    return torch.device("cuda", torch.cuda.current_device()) if device.index is None else device


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


_of_devices: dict[tuple[int, torch.device], VideoDecoders] = {}


def video_decoders(device: torch.device, *, memory_mb: int | None = None) -> VideoDecoders:
    """Return the decoders of a GPU, the same for all datasets of this process.

    Args:
        device: The GPU; without an index, the current one of the calling thread.
        memory_mb: See ``VideoDecoders``; the most that a dataset has asked for counts. None asks
            for nothing.

    Raises:
        ArgumentError: This process was forked from one that uses the GPU.
    """
    device = current_device(device)
    key = (os.getpid(), device)
    found = _of_devices.get(key)
    if found is None:
        made = VideoDecoders(
            device, open_decoder=partial(NvdecDecoder, device), memory_mb=memory_mb or MEMORY_MB
        )
        found = _of_devices.setdefault(key, made)  # several threads may ask
    found.memory_mb = max(found.memory_mb, memory_mb or 0)
    return found


def close_decoders(device: torch.device | str | None = None) -> None:
    """Close the video decoders of this process, end their threads and free their memory.

    Waits for batches that are being decoded. Datasets stay usable: the next batch opens decoders
    again. torch keeps freed memory for later tensors until ``torch.cuda.empty_cache()``.

    Args:
        device: Of this GPU, ``"cuda:1"``; None is all.
    """
    wanted = None if device is None else current_device(torch.device(device))
    for (process, of_device), decoders in list(_of_devices.items()):
        if process == os.getpid() and wanted in (None, of_device):
            decoders.close()
