"""Where images are decoded: ``decode_device``, for videos and JPEGs, and JPEGs on a GPU.

A GPU decodes the JPEGs of a batch in one call, straight into its own memory. Only JPEG in colour
is decoded there; other codecs and depth are decoded by the CPU, and colour is then moved.
"""

from __future__ import annotations

import warnings
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from importlib import import_module
from typing import TYPE_CHECKING, Literal

import numpy as np
import simplejpeg
import torch

from demoreel.errors import ArgumentError, DemoreelWarning, MissingExtraError, PictureError
from demoreel.layouts.base import Reader
from demoreel.read.cameras import Camera, Size, wrong_size
from demoreel.torch.nvdec import nvdec_forms, nvdec_library
from demoreel.torch.video_decoders import VideoDecoders, video_decoders

if TYPE_CHECKING:
    from demoreel.read.packets import FrameForm, PacketImages
    from demoreel.torch.packet_images import EncodedImages

DecodeDevice = Literal["auto", "cuda", "cpu"] | str | torch.device | None

JpegDecoder = Callable[[list[torch.Tensor]], Sequence[torch.Tensor]]
"""Decodes encoded JPEGs (1-D, uint8) to RGB images (3, height, width; uint8) on a device."""

_JPEG = b"\xff\xd8\xff"
_INSTALL = "pip install torchvision, of the version that belongs to your torch"
_has_warned = False


def chosen_device(wanted: DecodeDevice, *, video: bool = False) -> torch.device | None:
    """Return the GPU that is to decode; None is the CPU.

    ``"auto"`` takes a GPU where it can, and says once per process why it does not.

    Args:
        wanted: What was asked for.
        video: Whether it is to decode video, or JPEGs.
    """
    what_is_missing = missing_for_video if video else missing_for_jpeg
    if wanted is None or wanted == "auto":
        missing = what_is_missing()
        if wanted == "auto" and missing is not None:
            say_once(f"decode_device='auto': images are decoded by the CPU ({missing.what})")
        return None if wanted is None or missing is not None else torch.device("cuda")
    try:
        device = torch.device(wanted)
    except (RuntimeError, TypeError) as error:
        raise ArgumentError(
            f"decode_device={wanted!r} is no device.", hint="it is 'auto', 'cuda' or 'cpu'"
        ) from error
    if device.type == "cpu":
        return None
    if device.type != "cuda":
        raise ArgumentError(
            f"Images are not decoded by a device of type {device.type!r}.",
            hint="decode_device is 'auto', 'cuda' or 'cpu'",
        )
    missing = what_is_missing()
    if missing is not None:
        raise missing
    if device.index is not None and device.index >= torch.cuda.device_count():
        raise ArgumentError(
            f"There is no device {device}.", hint=f"there are {torch.cuda.device_count()}"
        )
    return device


@dataclass(frozen=True)
class VideoDevice:
    """A GPU that decodes video: a ``PacketDecoder``. Workers have it too, and do not touch the GPU.

    Attributes:
        device: The GPU. Without an index, the current one of the thread that trains.
        forms: Whether it decodes such frames.
        memory_mb: Memory that decoding may take there; None leaves it as it is.
        dtype: Of images: uint8, or float32 from 0 to 1.
    """

    device: torch.device
    forms: Callable[[FrameForm], bool]
    memory_mb: int | None = None
    dtype: torch.dtype = torch.uint8

    def is_decoded(self, form: FrameForm) -> bool:
        """Whether the GPU decodes such frames."""
        return self.forms(form)

    def images(self, images: PacketImages) -> torch.Tensor | EncodedImages:
        """Return images in the GPU's memory; packets where ``to_device`` decodes them later."""
        from demoreel.torch.packet_images import EncodedImages, decodes_later

        found = EncodedImages(images, self)
        return found if decodes_later() else found.to()

    def synchronize(self) -> None:
        """Wait until the GPU has done all that was asked for."""
        if self.device.type == "cuda":
            torch.cuda.synchronize(self.device)

    @property
    def decoders(self) -> VideoDecoders:
        """The GPU's decoders in this process."""
        return video_decoders(self.device, memory_mb=self.memory_mb)

    def __str__(self) -> str:
        return str(self.device)


def video_device(wanted: DecodeDevice, *, memory_mb: int | None = None) -> VideoDevice | None:
    """Return the GPU that is to decode videos; None is the CPU.

    Raises:
        ArgumentError: There is no such device, or ``memory_mb`` is not positive.
        MissingExtraError: PyNvVideoCodec does not load.
    """
    if memory_mb is not None and memory_mb < 1:
        raise ArgumentError(f"gpu_memory_mb is {memory_mb}; it is 1 at least.")
    device = chosen_device("cpu" if wanted is None else wanted, video=True)
    return None if device is None else VideoDevice(device, nvdec_forms(device), memory_mb)


def missing_for_video() -> ArgumentError | MissingExtraError | None:
    """Return why this machine's GPU cannot decode video, as an error; None if it can."""
    missing = missing_for_cuda()
    if missing is None:
        try:
            nvdec_library()
        except MissingExtraError as error:
            return error
    return missing


def missing_for_cuda() -> ArgumentError | None:
    """Return why torch cannot use a GPU, as an error; None if it can."""
    cpu = "decode_device='cpu' decodes without"
    if torch.version.cuda is None:
        return ArgumentError(
            "This torch is built without CUDA.",
            hint=f"install a CUDA build of torch (https://pytorch.org); {cpu}",
        )
    if not torch.cuda.is_available():
        return ArgumentError(
            "torch finds no CUDA device.", hint=f"look at nvidia-smi and the driver; {cpu}"
        )
    return None


def missing_for_jpeg() -> ArgumentError | MissingExtraError | None:
    """Return why this machine's GPU cannot decode JPEGs, as an error; None if it can."""
    missing = missing_for_cuda()
    if missing is not None:
        return missing
    try:
        import_module("torchvision.io")
    except (ImportError, RuntimeError) as error:  # RuntimeError: built for another torch
        return MissingExtraError(
            f"torchvision, which decodes JPEG on the GPU, does not load ({error}).", hint=_INSTALL
        )
    return None


def say_once(text: str) -> None:
    """Warn, once per process."""
    global _has_warned
    if not _has_warned:
        _has_warned = True
        warnings.warn(text, DemoreelWarning, stacklevel=4)


def torchvision_decoder(device: torch.device) -> JpegDecoder:
    """Return the decoder of a device: NVJPEG on a GPU, libjpeg-turbo on the CPU."""
    io = import_module("torchvision.io")

    def decode(encoded: list[torch.Tensor]) -> Sequence[torch.Tensor]:
        found: Sequence[torch.Tensor] = io.decode_jpeg(
            encoded, mode=io.ImageReadMode.RGB, device=device
        )
        return found

    return decode


class DeviceImages:
    """Images from tables, decoded to a device's memory.

    Args:
        reader: The dataset's layout.
        cameras: Colour cameras whose images lie in its tables.
        device: Where the images end up.
        size: Height and width to scale to; the CPU does that.
        decode_jpegs: Decodes JPEGs there; torchvision's if None.
    """

    def __init__(
        self,
        reader: Reader,
        cameras: Sequence[str],
        *,
        device: torch.device,
        size: Size | None = None,
        decode_jpegs: JpegDecoder | None = None,
    ) -> None:
        self._reader = reader
        self.device = device
        self._size = size
        features = reader.info.features
        self._cameras = {key: Camera(reader, features[key], size, "mm") for key in cameras}
        self._decode_jpegs = decode_jpegs or torchvision_decoder(device)

    def read(self, rows: np.ndarray, key: str) -> torch.Tensor:
        """Return a camera's images of these rows: (rows, 3, height, width), uint8.

        Cost: each image is decoded once; all JPEGs in one call.
        """
        unique, places = np.unique(rows, return_inverse=True)
        images = self._decoded(unique, key)
        wanted = self._size or self._cameras[key].declared
        for image in images:
            found = (int(image.shape[1]), int(image.shape[2]))
            if found != wanted:
                raise PictureError(
                    wrong_size(found, wanted),
                    hint="restore the table from a copy, or leave the episode out with episodes=",
                    dataset=self._reader.root,
                    camera=key,
                )
        stacked = torch.stack(list(images))
        if len(unique) == len(rows) and bool((np.diff(places) == 1).all()):
            return stacked
        return stacked[torch.from_numpy(places).to(self.device)]

    def _decoded(self, rows: np.ndarray, key: str) -> list[torch.Tensor]:
        encoded = self._reader.encoded(rows, key)
        here = [place for place, data in enumerate(encoded) if self._for_the_device(data)]
        images: dict[int, torch.Tensor] = {}
        try:
            # A copy of the bytes: torch warns of buffers that it may not write to.
            given = [torch.from_numpy(np.frombuffer(encoded[p], np.uint8).copy()) for p in here]
            images.update(zip(here, self._decode_jpegs(given) if given else (), strict=True))
        except RuntimeError:
            images.clear()  # one is damaged, or not for it: the CPU says which, or decodes it
        for place, data in enumerate(encoded):
            if place not in images:
                image = self._cameras[key].decoded(int(rows[place]), data)
                images[place] = torch.from_numpy(np.array(image, order="C")).to(self.device)
        return [images[place] for place in range(len(encoded))]

    def _for_the_device(self, data: bytes | None) -> bool:
        if self._size is not None or not data or data[:3] != _JPEG:
            return False
        try:
            return simplejpeg.decode_jpeg_header(data)[2] in ("YCbCr", "Gray", "RGB")
        except ValueError:
            return False
