"""Images that a worker hands over as packets: how they travel, are collated, and become tensors."""

from __future__ import annotations

import threading
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, replace
from typing import Any

import numpy as np
import torch
from torch.utils.data._utils.collate import default_collate_fn_map

from demoreel.read.packets import EncodedFrames, PacketImages, samples_together
from demoreel.torch.device import VideoDevice

_here = threading.local()

Mark = Callable[[torch.Tensor], torch.Tensor]


@dataclass(frozen=True, slots=True)
class EncodedImages:
    """Images of one camera that a worker has read as packets; ``to`` decodes them.

    ``demoreel.torch.to_device(loader)`` does that for all cameras, while the training computes.

    Attributes:
        images: The packets; of a mixture, some images may be pixels, and some missing.
        video: Where they are to be decoded, and to which dtype.
    """

    images: PacketImages
    video: VideoDevice

    @property
    def shape(self) -> torch.Size:
        """Of the tensor that they become."""
        return torch.Size(self.images.shape)

    @property
    def ndim(self) -> int:
        """Its dimensions."""
        return len(self.images.shape)

    @property
    def dtype(self) -> torch.dtype:
        """Its dtype: uint8, or float32 from 0 to 1."""
        return self.video.dtype

    def __len__(self) -> int:
        return len(self.images)

    def __iter__(self) -> Iterator[EncodedImage]:
        return (EncodedImage(self, place) for place in range(len(self)))

    def squeeze(self, dim: int) -> EncodedImages:
        """Return windows of one frame as single frames; as ``Tensor.squeeze(1)``."""
        assert dim == 1, "only windows of one frame have a dimension to drop"
        return replace(self, images=self.images.without_window())

    def to(
        self, device: torch.device | str | None = None, *, non_blocking: bool = False
    ) -> torch.Tensor:
        """Return the images as a tensor on the device.

        Args:
            device: Where to move them once they are decoded; by default they stay on the device
                of ``decode_device=``.
            non_blocking: As in ``Tensor.to``.

        Raises:
            VideoError: A packet is damaged.
            ShortageError: The device's memory does not suffice.
            ArgumentError: This process cannot use the device: it was forked.
        """
        images = self._decoded()
        return images if device is None else images.to(device, non_blocking=non_blocking)

    def _decoded(self) -> torch.Tensor:
        decoders = self.video.decoders
        pieces, shape = self.images.pieces, self.images.shape
        with decoders.memory_errors():
            # A camera of one dataset: nothing is copied.
            if len(pieces) == 1 and np.array_equal(pieces[0][0], np.arange(len(self))):
                return self._piece(pieces[0][1])
            whole = torch.zeros(shape, dtype=self.dtype, device=decoders.device)
            for places, images in pieces:
                target = torch.from_numpy(places).to(decoders.device, non_blocking=True)
                whole[target] = self._piece(images)
            return whole

    def _piece(self, images: EncodedFrames | np.ndarray) -> torch.Tensor:
        """Return images of one size in the size, dtype and place of all."""
        decoders = self.video.decoders
        if not isinstance(images, EncodedFrames):  # decoded and scaled by the CPU
            pixels = torch.as_tensor(images).to(decoders.device, non_blocking=True)
            return pixels if self.dtype is torch.uint8 else pixels.to(self.dtype).div_(255.0)
        found = decoders.decode(images, dtype=self.dtype)
        size = self.images.shape[-2:]
        if images.size == size:
            return found
        scaled = torch.nn.functional.interpolate(
            found.reshape(-1, *found.shape[-3:]).float(),
            size=list(size),
            mode="bilinear",
            antialias=True,
        )
        if self.dtype is torch.uint8:
            scaled = scaled.round_().clamp_(0, 255)
        return scaled.to(self.dtype).reshape(*found.shape[:-2], *size)

    def ready_to_travel(self, mark: Mark) -> EncodedImages:
        """Return the images as a worker sends them: bytes in a block that is lent, not copied."""
        pieces: list[Any] = []
        for places, images in self.images.pieces:
            if isinstance(images, EncodedFrames):
                data: Any = mark(torch.from_numpy(np.asarray(images.data)))
                pieces.append((places, replace(images, data=data)))
            else:
                pieces.append((places, mark(torch.from_numpy(np.asarray(images)))))
        return replace(self, images=replace(self.images, pieces=tuple(pieces)))


@dataclass(frozen=True, slots=True)
class EncodedImage:
    """One sample's image, or window of images, of a batch of packets.

    Attributes:
        batch: The images of all samples.
        place: Which of them.
    """

    batch: EncodedImages
    place: int

    def to(
        self, device: torch.device | str | None = None, *, non_blocking: bool = False
    ) -> torch.Tensor:
        """Return the image as a tensor; see ``EncodedImages.to``."""
        return self._alone().to(device, non_blocking=non_blocking)[0]

    def _alone(self) -> EncodedImages:
        return replace(self.batch, images=self.batch.images.sample(self.place))

    def __reduce__(self) -> tuple[Any, ...]:
        # One that travels alone must not take its whole batch along.
        return EncodedImage, (self._alone(), 0)


def decodes_later() -> bool:
    """Whether images are to stay packets here: in a worker, and in a thread of ``to_device``."""
    return torch.utils.data.get_worker_info() is not None or getattr(_here, "decodes_later", False)


@contextmanager
def decoding_later() -> Iterator[None]:
    """Let images that the calling thread reads stay packets."""
    before = getattr(_here, "decodes_later", False)
    _here.decodes_later = True
    try:
        yield
    finally:
        _here.decodes_later = before


def _collated(images: Sequence[EncodedImage], *, collate_fn_map: object = None) -> EncodedImages:
    together = samples_together([one._alone().images for one in images])
    return replace(images[0].batch, images=together)


default_collate_fn_map[EncodedImage] = _collated
