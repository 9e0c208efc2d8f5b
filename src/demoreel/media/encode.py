"""Encodes images into one mp4 with exactly as many frames as images.

A video that silently lost or gained a frame shifts every frame after it against the
numbers of its row. So the encoder counts what goes in and what comes out, writes timestamps on
an exact grid (frame ``i`` at ``i / fps``), and refuses to finish a file where the two differ.
"""

from __future__ import annotations

import contextlib
import os
import threading
from collections.abc import Iterator
from fractions import Fraction
from pathlib import Path
from typing import TYPE_CHECKING, Protocol, cast

import numpy as np

from demoreel.errors import ArgumentError, VideoError
from demoreel.media.colour import one_thread
from demoreel.media.settings import (
    LOSSLESS_DEPTH,
    LOSSLESS_DEPTH_16,
    Codec,
    VideoSettings,
    encoder_options,
    exact_rate,
)
from demoreel.packages import load_late

if TYPE_CHECKING:
    import av
    from av.container import OutputContainer
    from av.video.stream import VideoStream
else:
    av = load_late("av")

__all__ = [
    "LOSSLESS_DEPTH",
    "LOSSLESS_DEPTH_16",
    "Codec",
    "PacketLog",
    "VideoEncoder",
    "VideoSettings",
]

_SEMIPLANAR = ("h264_qsv", "h264_vaapi")
_LINUX_CAPABILITY_VERSION_3 = 0x20080522
_CAP_SYS_NICE = 23


class PacketLog(Protocol):
    """Where an encoder notes its packets, so that another can continue where it was stopped."""

    def begin(self, header: bytes) -> None:
        """Note the codec's header; raise VideoError if the noted packets have another."""

    def replay(self) -> Iterator[tuple[int, bool, bytes]]:
        """Yield the packets that are noted: frame, whether it is a keyframe, bytes."""

    def append(self, frame: int, keyframe: bool, data: bytes) -> None:
        """Note one more packet; it must outlive this process."""


class VideoEncoder:
    """Encodes frames, one at a time, into one mp4 file.

    Memory is bounded by what the codec itself looks ahead (a few dozen frames for AV1).
    Encoding releases the GIL. Not safe to share between threads; use one per camera.

    Attributes:
        frames: Frames that went in.
        whole: How many frames, counted from the first, are all in the packets that came out: what a
            decoder would show if encoding stopped now.

    Use it as a context manager: leaving the block closes the file, leaving it by an exception
    removes the file.
    """

    def __init__(
        self,
        path: str | os.PathLike[str],
        *,
        fps: float | Fraction,
        width: int,
        height: int,
        settings: VideoSettings | None = None,
        threads: int | None = None,
        log: PacketLog | None = None,
    ) -> None:
        """Open ``path`` for writing; an existing file is replaced.

        Args:
            path: The mp4 file to write; its folder must exist.
            fps: Frames per second; see ``exact_rate``.
            width: Frame width in pixels.
            height: Frame height in pixels.
            settings: Codec and quality; ``VideoSettings()`` when None.
            threads: Most threads this encoder may use; None is one for small frames and up to
                four for large ones.
            log: Where packets are noted before they are written. What it holds already comes first
                in the video, and ``frames`` counts it; the next frame begins a new GOP.
        """
        self.path = Path(path)
        self.settings = settings or VideoSettings()
        self.width = width
        self.height = height
        self.frames = 0
        self.whole = 0
        self._packets = 0
        self._last_shown = -1
        self._log = log
        # How long decoding runs ahead of showing: none of these encoders stacks B-frames deeper.
        self._delay = min(self.settings.b_frames, 2)
        self._rate = exact_rate(fps)
        self._gray = self.settings.pix_fmt.startswith("gray")
        self._reformatter = av.video.reformatter.VideoReformatter()
        self._container: OutputContainer | None = None
        self._stream: VideoStream | None = None
        self._ended: VideoStream | None = None
        _check_size(self.path, self.settings, width, height)
        try:
            self._container = av.open(str(self.path), "w", format="mp4")
            self._stream = self._open_stream(threads or _threads_for(width * height))
            self._container.start_encoding()  # opens the file: a bad path is known now
            self._replay()
        except (av.error.FFmpegError, OSError, ValueError) as error:
            self.abort()
            raise VideoError(
                f"Images of {width}x{height} cannot be encoded as {self.settings.codec} "
                f"{self.settings.pix_fmt}: {error}.",
                hint="try another codec or pix_fmt",
                file=self.path,
            ) from error
        except BaseException:
            self.abort()
            raise

    def add(self, image: np.ndarray) -> None:
        """Encode the next frame; the array may be reused as soon as this returns.

        Args:
            image: Height x width x 3 uint8 RGB, or height x width uint16 for ``gray12le``.
        """
        self.add_frame(self._frame_of(image))

    def add_frame(self, frame: av.VideoFrame) -> None:
        """Encode the next frame as a decoder gave it, without a way through RGB.

        Args:
            frame: A frame of the video's size and pixel format; its time and kind are set here.
        """
        frame.pts = self.frames
        frame.time_base = 1 / self._rate
        frame.pict_type = (
            av.video.frame.PictureType.NONE
        )  # a decoder's would force the encoder's choice of B-frames
        self._write(frame)
        self.frames += 1

    def close(self, *, codec_later: bool = False) -> int:
        """Finish the file and return its number of frames.

        Args:
            codec_later: Let the codec's threads end with this object, not now: that takes longer
                than finishing the file, which may be waited for.
        """
        if self._container is None:
            return self.frames
        if self.frames == 0:
            self.abort()
            raise VideoError("No frames were added, so there is no video.", file=self.path)
        self._write(None)
        self._ended = self._stream if codec_later else None
        container = self._let_go()
        try:
            container.close()
        except (av.error.FFmpegError, OSError) as error:
            self.path.unlink(missing_ok=True)
            raise VideoError(f"The video was not finished: {error}.", file=self.path) from error
        if self._packets != self.frames:
            self.path.unlink(missing_ok=True)
            raise VideoError(
                f"{self.frames} frames went into the {self.settings.codec} encoder but "
                f"{self._packets} packets came out; the video would not match its rows.",
                file=self.path,
            )
        return self.frames

    def abort(self) -> None:
        """Stop and remove the file. Safe to call at any time, and twice."""
        if self._container is None:
            return
        container = self._let_go()
        try:
            container.close()
        except (av.error.FFmpegError, OSError, ValueError):
            pass  # The file is about to be removed; what ended the encoding is the news.
        finally:
            self.path.unlink(missing_ok=True)

    def __enter__(self) -> VideoEncoder:
        """Return the encoder itself."""
        return self

    def __exit__(self, kind: object, *_: object) -> None:
        """Close the file, or remove it if the block failed."""
        if kind is None:
            self.close()
        else:
            self.abort()

    def _open_stream(self, threads: int) -> VideoStream:
        assert self._container is not None
        settings = self.settings
        if settings.codec == "av1":
            # SVT-AV1 prints its settings to stderr; the variable is its only switch.
            os.environ.setdefault("SVT_LOG", "1")
        stream = cast(
            "VideoStream",
            self._container.add_stream(
                settings.encoder_name,
                rate=self._rate,
                options=encoder_options(settings, threads=threads, width=self.width),
            ),
        )
        stream.width, stream.height, stream.pix_fmt = self.width, self.height, self._input_format
        stream.codec_context.time_base = 1 / self._rate
        stream.codec_context.gop_size = settings.gop
        stream.codec_context.max_b_frames = settings.b_frames
        stream.codec_context.thread_count = threads
        with same_priority():
            stream.codec_context.open()
        return stream

    def _let_go(self) -> OutputContainer:
        """Return the container for closing; the codec and its threads end with their last user."""
        assert self._container is not None
        container = self._container
        self._container = self._stream = None
        return container

    def _frame_of(self, image: np.ndarray) -> av.VideoFrame:
        if self._gray:
            wanted: tuple[int, ...] = (self.height, self.width)
            dtype: type[np.generic] = np.uint8 if self.settings.pix_fmt == "gray" else np.uint16
        else:
            wanted, dtype = (self.height, self.width, 3), np.uint8
        if image.shape != wanted or image.dtype != dtype:
            raise ArgumentError(
                f"A frame of shape {wanted} and type {np.dtype(dtype)} was expected, "
                f"not {image.shape} {image.dtype}.",
                file=self.path,
            )
        if self._gray:
            return av.VideoFrame.from_ndarray(image, format=self.settings.pix_fmt)
        frame = av.VideoFrame.from_ndarray(image, format="rgb24")
        return self._reformatter.reformat(frame, format=self._input_format, **one_thread())

    @property
    def _input_format(self) -> str:
        # Intel's encoder takes the same samples in another order only.
        semiplanar = self.settings.encoder in _SEMIPLANAR and self.settings.pix_fmt == "yuv420p"
        return "nv12" if semiplanar else self.settings.pix_fmt

    def _write(self, frame: av.VideoFrame | None) -> None:
        if self._container is None or self._stream is None:
            raise VideoError("This encoder is already closed.", file=self.path)
        try:
            for packet in self._stream.encode(frame):
                if self._log is not None:
                    self._log.append(int(packet.pts or 0), packet.is_keyframe, bytes(packet))
                self._mux(packet)
        except (av.error.FFmpegError, OSError) as error:
            self.abort()
            raise VideoError(
                f"Encoding frame {self.frames} failed: {error}.", file=self.path
            ) from error

    def _mux(self, packet: av.Packet[VideoStream]) -> None:
        assert self._container is not None
        # x265 makes decoding times up for one- and two-frame videos, so the clock is ours.
        packet.dts = self._packets - self._delay
        self._last_shown = max(self._last_shown, int(packet.pts or 0))
        self._container.mux(packet)
        self._packets += 1
        if self._last_shown + 1 == self._packets:
            self.whole = self._packets

    def _replay(self) -> None:
        """Write the packets of an encoder that was stopped."""
        if self._log is None:
            return
        assert self._stream is not None
        self._log.begin(self._stream.codec_context.extradata or b"")
        for frame, keyframe, data in self._log.replay():
            packet = cast("av.Packet[VideoStream]", av.Packet(data))
            packet.stream = self._stream
            packet.time_base = 1 / self._rate
            packet.pts, packet.duration, packet.is_keyframe = frame, 1, keyframe
            try:
                self._mux(packet)
            except av.error.FFmpegError as error:
                raise VideoError(
                    f"A packet that was encoded before cannot be written: {error}.",
                    file=self.path,
                    frame=frame,
                ) from error
        self.frames = self._packets


def encoder_problem(encoder: str) -> str | None:
    """Return why FFmpeg's encoder of this name is of no use here; None if it opens."""
    try:
        context = cast("av.VideoCodecContext", av.CodecContext.create(encoder, "w"))
    except (ValueError, av.error.FFmpegError):
        return f"FFmpeg has no encoder {encoder!r} here."
    try:
        context.width, context.height, context.time_base = 640, 480, Fraction(1, 30)
        context.pix_fmt = "nv12" if encoder in _SEMIPLANAR else "yuv420p"
        context.open()
    except (ValueError, OSError, av.error.FFmpegError) as error:
        why = getattr(error, "strerror", None) or error
        return f"The encoder {encoder!r} does not start on this machine ({why})."
    return None


def _threads_for(pixels: int) -> int:
    """One thread for a small frame, where hand-over costs more than it gains; four at most."""
    return 1 if pixels <= 320 * 240 else min(4, os.cpu_count() or 1)


def _check_size(path: Path, settings: VideoSettings, width: int, height: int) -> None:
    """Raise VideoError for odd sizes where the encoder needs whole chroma samples."""
    if width < 1 or height < 1:
        raise VideoError(f"A frame of {width}x{height} pixels cannot be encoded.", file=path)
    if settings.codec not in ("h264", "hevc"):
        return
    try:
        form = av.video.format.VideoFormat(settings.pix_fmt, width, height)
    except ValueError as error:
        raise VideoError(
            f"There is no pixel format {settings.pix_fmt!r}: {error}.", file=path
        ) from error
    across = 2 if form.chroma_width(2) == 1 else 1
    down = 2 if form.chroma_height(2) == 1 else 1
    if width % across or height % down:
        raise VideoError(
            f"{settings.codec} {settings.pix_fmt} needs even sizes, and {width}x{height} is odd.",
            hint="use pix_fmt='yuv444p', or codec='av1', 'vp9' or 'mpeg4'",
            file=path,
        )


@contextlib.contextmanager
def same_priority() -> Iterator[None]:
    """Give threads that start inside the block the scheduling this thread had; and it, too.

    SVT-AV1 makes the threads that it starts, and the one that starts it, the most urgent of the
    machine (``SCHED_FIFO``, 99) wherever it may: for root, so in most containers, and for users
    with a real-time limit. A control loop then waits for the encoder, whatever its own priority.

    Costs 0.1 ms. Does nothing where there is no ``/proc``.
    """
    before = threads_of_this_process()
    if not before:
        yield
        return
    policy, parameters = os.sched_getscheduler(0), os.sched_getparam(0)
    try:
        yield
    finally:
        for thread in (threads_of_this_process() - before) | {threading.get_native_id()}:
            # One that has ended in the meantime needs nothing.
            with contextlib.suppress(OSError):
                if os.sched_getscheduler(thread) != policy:
                    os.sched_setscheduler(thread, policy, parameters)


def threads_of_this_process() -> set[int]:
    """Return the threads of this process; none where there is no ``/proc``."""
    try:
        return {int(name) for name in os.listdir("/proc/self/task")}
    except OSError:
        return set()


def renounce_urgency() -> None:
    """Give up this thread's right, and that of threads it starts, to become more urgent.

    For a process that only encodes: what is not allowed need not be undone, not even for an
    instant. Does nothing where the system has no such rights.
    """
    import ctypes
    import resource

    # There are two ways to be allowed: a limit above 0, and a capability.
    with contextlib.suppress(OSError, ValueError, AttributeError):
        resource.setrlimit(resource.RLIMIT_RTPRIO, (0, 0))

    class Header(ctypes.Structure):
        _fields_ = (("version", ctypes.c_uint32), ("pid", ctypes.c_int))

    class Rights(ctypes.Structure):
        _fields_ = (
            ("effective", ctypes.c_uint32),
            ("permitted", ctypes.c_uint32),
            ("inheritable", ctypes.c_uint32),
        )

    libc = ctypes.CDLL(None)
    if not (hasattr(libc, "capget") and hasattr(libc, "capset")):
        return
    header, rights = Header(_LINUX_CAPABILITY_VERSION_3, 0), (Rights * 2)()
    if libc.capget(ctypes.byref(header), ctypes.byref(rights)) == 0:
        rights[0].effective &= ~(1 << _CAP_SYS_NICE)
        rights[0].permitted &= ~(1 << _CAP_SYS_NICE)
        libc.capset(ctypes.byref(header), ctypes.byref(rights))
