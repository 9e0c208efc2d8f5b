"""Frames of a batch as packets: read in one process, to be decoded by a device in another one.

A worker of a ``DataLoader`` cannot use the GPU of its parent. It reads what a decoder needs, and no
pixel: the packets of each GOP, as a chip takes them, and which frames of them belong where.
``PacketDecoder`` is the contract of the device; ``demoreel.torch`` implements it.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, replace
from importlib import import_module
from typing import TYPE_CHECKING, Any, NamedTuple, Protocol, runtime_checkable

import numpy as np

from demoreel.errors import MissingExtraError
from demoreel.layouts.base import Reader
from demoreel.media.annex_b import has_forbidden_bytes, stream_header, stream_packet
from demoreel.media.decode import Decoder, GopSpan, begins_anew, packet_bytes
from demoreel.media.video import Codec
from demoreel.storage.cache import ByteCache

if TYPE_CHECKING:
    from demoreel.read.cameras import Allocate

_FULL_RANGE = 2
_FORMS = 1 << 16  # bytes: of some hundred codecs


class FrameForm(NamedTuple):
    """What a video's frames are, as its own stream says.

    Attributes:
        codec: FFmpeg's name of the decoder: ``h264``, ``hevc``, ``libdav1d``, ``vp9``, ...
        pixels: FFmpeg's name of the pixel format.
        height: In pixels.
        width: In pixels.
        full_range: Whether luma goes from 0 to 255.
        matrix: From YUV to RGB, as FFmpeg numbers it; 2 is unknown.
    """

    codec: str
    pixels: str
    height: int
    width: int
    full_range: bool
    matrix: int


class SpanPackets(NamedTuple):
    """The packets of one GOP, and the frames that are wanted of them.

    Attributes:
        form: Which of the batch's forms its frames have.
        dataset: Where it is from, for errors.
        camera: Likewise.
        file: The video, likewise.
        sizes: Bytes of each packet, in decoding order; the first begins with the stream's header.
        shown: The frame of the video that each packet becomes; -1 if it is never shown.
        wanted: The wanted frames, ascending.
    """

    form: int
    dataset: str
    camera: str
    file: str
    sizes: tuple[int, ...]
    shown: tuple[int, ...]
    wanted: tuple[int, ...]


@dataclass(frozen=True, slots=True)
class EncodedFrames:
    """Images as packets, all of one size.

    Attributes:
        forms: Of the frames.
        spans: What is decoded together, one behind the other in ``data``.
        order: For each image of the batch, which of the spans' wanted frames it is; of windows,
            (samples, offsets).
        data: The bytes of all packets.
    """

    forms: tuple[FrameForm, ...]
    spans: tuple[SpanPackets, ...]
    order: np.ndarray
    data: np.ndarray

    def __len__(self) -> int:
        return len(self.order)

    @property
    def size(self) -> tuple[int, int]:
        """Height and width of the frames."""
        return self.forms[0].height, self.forms[0].width

    def reshaped(self, shape: tuple[int, ...]) -> EncodedFrames:
        """Return the same images as windows: (samples, offsets)."""
        return replace(self, order=self.order.reshape(shape))

    def packets(self) -> Iterable[tuple[SpanPackets, np.ndarray]]:
        """Yield each span and the bytes of its packets, one behind the other."""
        data = np.ascontiguousarray(self.data)
        at = 0
        for span in self.spans:
            end = at + sum(span.sizes)
            yield span, data[at:end]
            at = end

    def of(self, places: np.ndarray) -> EncodedFrames:
        """Return these images alone, with the packets of their spans."""
        order = self.order[places]
        first = np.cumsum([0, *(len(span.wanted) for span in self.spans)])
        begin = np.cumsum([0, *(sum(span.sizes) for span in self.spans)])
        span_of = np.searchsorted(first, order, side="right") - 1
        moved = np.zeros(len(self.spans), np.int64)
        chosen = np.unique(span_of).tolist()
        at = 0
        for number in chosen:
            moved[number] = at - first[number]
            at += len(self.spans[number].wanted)
        return replace(
            self,
            spans=tuple(self.spans[number] for number in chosen),
            order=order + moved[span_of],
            data=np.concatenate([self.data[begin[n] : begin[n + 1]] for n in chosen]),
        )


def camera_form(reader: Reader, key: str) -> FrameForm | None:
    """Return what a camera's first frame is; None where images are in tables.

    Cost: see ``form_of``, and the packet index of a video.
    """
    if reader.in_tables(key) or not len(reader.episodes):
        return None
    clip = reader.clip(0, key)
    first = int(clip.frames(np.array([0]))[0])
    return form_of(GopSpan(clip.video.index, clip.video.file, clip.video.name, (first,)))


def joined(parts: Sequence[EncodedFrames]) -> EncodedFrames:
    """Return the images of several batches, one behind the other; all of one size."""
    if len(parts) == 1:
        return parts[0]
    forms = tuple(dict.fromkeys(form for part in parts for form in part.forms))
    spans: list[SpanPackets] = []
    orders = []
    frames = 0
    for part in parts:
        orders.append(part.order + frames)
        spans += [s._replace(form=forms.index(part.forms[s.form])) for s in part.spans]
        frames += sum(len(span.wanted) for span in part.spans)
    return EncodedFrames(
        forms,
        tuple(spans),
        np.concatenate(orders),
        np.concatenate([np.asarray(part.data) for part in parts]),
    )


Piece = tuple[np.ndarray, "EncodedFrames | np.ndarray"]
"""Which samples of a batch, and their images: packets, or pixels (uint8) decoded by the CPU."""


@dataclass(frozen=True, slots=True)
class PacketImages:
    """The images of one camera in a batch, of which some or all are packets still.

    Attributes:
        pieces: Packets of one size each, and pixels. Samples of no piece have no image: zeros.
        shape: (samples, 3, height, width), once all are decoded and scaled; windows have
            (samples, offsets, 3, height, width).
    """

    pieces: tuple[Piece, ...]
    shape: tuple[int, ...]

    def __len__(self) -> int:
        return self.shape[0]

    @classmethod
    def of_packets(cls, frames: EncodedFrames, shape: tuple[int, ...]) -> PacketImages:
        """Return a batch that has nothing but packets."""
        return cls(((np.arange(len(frames)), frames),), shape)

    def without_window(self) -> PacketImages:
        """Return windows of one frame as single frames."""
        shape = (self.shape[0], *self.shape[2:])
        pieces = tuple(
            (places, images.reshaped((len(images),)))
            if isinstance(images, EncodedFrames)
            else (places, images.reshape(len(images), *shape[1:]))
            for places, images in self.pieces
        )
        return PacketImages(pieces, shape)

    def sample(self, place: int) -> PacketImages:
        """Return the images of one sample, as a batch of one."""
        pieces: list[Piece] = []
        for places, images in self.pieces:
            mine = np.flatnonzero(places == place)
            if len(mine):
                alone = images.of(mine) if isinstance(images, EncodedFrames) else images[mine]
                pieces.append((np.zeros(1, np.int64), alone))
        return PacketImages(tuple(pieces), (1, *self.shape[1:]))


def put_together(
    pieces: Iterable[tuple[np.ndarray, EncodedFrames | np.ndarray]], shape: tuple[int, ...]
) -> PacketImages:
    """Return one batch of pieces: packets of one size are joined, to be decoded at once."""
    by_size: dict[tuple[int, int], list[tuple[np.ndarray, EncodedFrames]]] = {}
    pixels: list[tuple[np.ndarray, np.ndarray]] = []
    for places, images in pieces:
        if isinstance(images, EncodedFrames):
            by_size.setdefault(images.size, []).append((places, images))
        else:
            pixels.append((places, np.asarray(images)))
    found: list[Piece] = [
        (np.concatenate([p for p, _ in same]), joined([images for _, images in same]))
        for same in by_size.values()
    ]
    if len(pixels) > 1:
        pixels = [tuple(np.concatenate(columns) for columns in zip(*pixels, strict=True))]  # type: ignore[list-item]
    return PacketImages((*found, *pixels), shape)


def samples_together(samples: Sequence[PacketImages]) -> PacketImages:
    """Return batches one behind the other as one."""
    first = np.cumsum([0, *map(len, samples)])
    pieces = (
        (places + begin, images)
        for one, begin in zip(samples, first.tolist(), strict=False)
        for places, images in one.pieces
    )
    return put_together(pieces, (int(first[-1]), *samples[0].shape[1:]))


@runtime_checkable
class PacketDecoder(Protocol):
    """A device that decodes video."""

    def is_decoded(self, form: FrameForm) -> bool:
        """Whether it decodes such frames; the CPU decodes the others."""
        ...

    def images(self, images: PacketImages) -> Any:
        """Return the images of a batch in the device's memory, all of them decoded.

        In a process that cannot use the device, return what another one can decode.
        """
        ...

    def synchronize(self) -> None:
        """Wait until the device has done all that was asked for."""
        ...


def decoded(batch: dict[str, Any], decoder: PacketDecoder) -> None:
    """Let a device decode the images of a batch that are packets."""
    for key, column in batch.items():
        if isinstance(column, PacketImages):
            batch[key] = decoder.images(column)


def packet_decoder(wanted: Any) -> PacketDecoder | None:
    """Return the device that a ``decode_device=`` names; None is the CPU.

    Raises:
        ArgumentError: There is no such device.
        MissingExtraError: What decodes there is not installed.
    """
    if wanted is None or wanted == "cpu":
        return None
    if isinstance(wanted, PacketDecoder):
        return wanted
    try:
        # A room above this one, which a process without a GPU never loads.
        devices = import_module("demoreel.torch.device")
    except MissingExtraError as error:
        raise MissingExtraError(
            "Decoding video on a GPU needs torch, which is not installed.",
            hint="pip install 'demoreel[gpu]'; decode_device='cpu' decodes without",
        ) from error
    found: PacketDecoder | None = devices.video_device(wanted)
    return found


def encoded_frames(
    spans: Iterable[tuple[GopSpan, Mapping[int, int]]],
    *,
    key: str,
    dataset: str,
    places: np.ndarray,
    is_decoded: Callable[[FrameForm], bool],
    allocate: Allocate,
) -> EncodedFrames | None:
    """Read the packets of a batch's images.

    Args:
        spans: What is decoded together, and the first place of each of its frames in the batch.
        key: The camera.
        dataset: Where it is from.
        places: For each image, the first place that has the same frame.
        is_decoded: Whether the device decodes such frames.
        allocate: Makes the memory of the packets.

    Returns:
        None where the device does not decode one of them: the CPU then decodes all.
    """
    forms: dict[FrameForm, int] = {}
    found: list[SpanPackets] = []
    parts: list[bytes] = []
    number_of = np.empty(len(places), np.int64)
    frames = 0
    for span, targets in spans:
        form = form_of(span)
        # After a keyframe that is no IDR, a chip conceals what it lacks; the CPU says so.
        if not is_decoded(form) or span.start < 0 or not begins_anew(span, span.start):
            return None
        codec = span.index.codec_at(span.start)
        packets = span.packets(span.start)
        data = [stream_packet(codec, one, span.name) for one in packet_bytes(span, packets)]
        if any(has_forbidden_bytes(codec, one) for one in data):
            return None  # the CPU says what is wrong with them
        data[0] = stream_header(codec, span.name) + data[0]
        for number, frame in enumerate(span.frames, frames):
            number_of[targets[frame]] = number
        frames += len(span.frames)
        found.append(
            SpanPackets(
                forms.setdefault(form, len(forms)),
                dataset,
                key,
                span.name,
                tuple(map(len, data)),
                tuple(span.index.frame_of[packets].tolist()),
                span.frames,
            )
        )
        parts += data
    size = sum(map(len, parts))
    memory = allocate((size,), np.dtype(np.uint8))
    memory[:] = np.frombuffer(b"".join(parts), np.uint8)
    return EncodedFrames(tuple(forms), tuple(found), number_of[places], memory)


_forms: ByteCache[Codec, FrameForm] = ByteCache(_FORMS)


def form_of(span: GopSpan) -> FrameForm:
    """Return what a span's frames are, as the codec says.

    Cost: the CPU decodes one frame, once for each codec's header.
    """
    codec = span.index.codec_at(span.start)

    def decoded() -> tuple[FrameForm, int]:
        _, frame = next(Decoder().frames(span))
        form = FrameForm(
            codec.name,
            frame.format.name,
            frame.height,
            frame.width,
            frame.format.name.startswith("yuvj") or int(frame.color_range) == _FULL_RANGE,
            int(frame.colorspace),
        )
        return form, len(codec.extradata or b"") + 256

    return _forms.get(codec, decoded)
