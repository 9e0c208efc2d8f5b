"""Batches on a device: images that workers hand over as packets are decoded in this process."""

from __future__ import annotations

import queue
import threading
from collections.abc import Callable, Generator, Iterable, Iterator
from contextlib import nullcontext
from typing import Any, NamedTuple, Protocol, runtime_checkable

import torch

from demoreel.errors import ArgumentError
from demoreel.torch.packet_images import EncodedImage, EncodedImages, decoding_later
from demoreel.torch.video_decoders import BATCHES_AT_ONCE, current_device, new_stream

_THREADS_AT_MOST = 64


@runtime_checkable
class CountsBatches(Protocol):
    """A dataset that counts the batches that a training was given, to resume after them.

    ``to_device`` reads ahead: what it has read is more than what it has handed out.
    """

    def note_read(self) -> Any:
        """Return how far the pass is, after a batch was read."""
        ...

    def note_handed_out(self, read: Any, *, is_left: bool = False) -> None:
        """Let ``state_dict`` say that a training was given what had been read then.

        Args:
            read: What ``note_read`` returned; None is all that was read.
            is_left: The loop ends here, though more was read.
        """
        ...


class Taken(NamedTuple):
    """A batch of the loader, or the error instead of it, which is the last.

    Attributes:
        number: Which batch.
        batch: It; on the device, once it is ready.
        read: How far its dataset was read then.
        error: ``StopIteration`` at the end.
        event: When the batch is ready.
    """

    number: int
    batch: Any
    read: Any
    error: BaseException | None
    event: torch.cuda.Event | None = None


class _OrderedBatches:
    """Batches that several threads take, and return in the order in which they came.

    Args:
        batches: Where they come from.
        ahead: How many may be ready.
        note_read: Called after each.
    """

    def __init__(
        self, batches: Iterator[Any], ahead: int, note_read: Callable[[], Any] = lambda: None
    ) -> None:
        self._ready: queue.Queue[Taken] = queue.Queue()
        self._batches = batches
        self._note_read = note_read
        self._room = threading.Semaphore(ahead)
        self._taking = threading.Lock()
        self._taken = self._returned = 0
        self._changed = threading.Condition()
        self._ended = False

    def __iter__(self) -> Iterator[Taken]:
        while True:
            with self._taking:
                if self._ended:
                    return
                batch, read, error = None, None, None
                try:
                    batch = next(self._batches)
                    read = self._note_read()
                except BaseException as raised:
                    self._ended, error = True, raised
                taken = Taken(self._taken, batch, read, error)
                self._taken += 1
            yield taken

    def put(self, ready: Taken) -> None:
        with self._changed:
            self._changed.wait_for(lambda: self._returned == ready.number)
        self._room.acquire()
        with self._changed:
            self._ready.put(ready)
            self._returned += 1
            self._ended |= ready.error is not None
            self._changed.notify_all()

    def get(self) -> Taken:
        """Return the next one."""
        ready = self._ready.get()
        self._room.release()
        return ready

    def stop(self) -> None:
        """Let the threads end, which may wait for room."""
        self._ended = True
        self._room.release(_THREADS_AT_MOST)


class DeviceLoader:
    """The batches of a loader, on a device; see ``to_device``."""

    def __init__(
        self, loader: Iterable[Any], device: torch.device | None, *, ahead: int, at_once: int
    ) -> None:
        self.loader = loader
        self.device = device
        self._ahead = ahead
        self._at_once = at_once
        self._state: Any = None

    def __len__(self) -> int:
        return len(self.loader)  # type: ignore[arg-type]

    def __getattr__(self, name: str) -> Any:
        if name == "loader":  # not there yet: while it is unpickled
            raise AttributeError(name)
        return getattr(self.loader, name)  # set_epoch, dataset, ...

    def state_dict(self) -> Any:
        """Return the loader's state after the last batch that was handed out here."""
        loader: Any = self.loader
        return loader.state_dict() if self._state is None else self._state

    def load_state_dict(self, state: Any) -> None:
        """Let the loader's next pass go on from there."""
        loader: Any = self.loader
        self._state = None
        loader.load_state_dict(state)

    def __iter__(self) -> Generator[Any]:
        # "cuda" is the current device of the thread that trains; other threads have another one.
        device = None if self.device is None else current_device(self.device)
        if device is None and torch.cuda.is_initialized():  # type: ignore[no-untyped-call]
            device = current_device(torch.device("cuda"))
        counter = self._counter()
        self._state = None
        batches = _OrderedBatches(
            iter(self.loader),
            self._ahead,
            self._note_state if counter is None else counter.note_read,
        )
        threads = [
            threading.Thread(
                target=self._read,
                args=(batches, device),
                name=f"demoreel-device-{number}",
                daemon=True,
            )
            for number in range(self._at_once)
        ]
        for thread in threads:
            thread.start()
        last: Taken | None = None
        is_over = False
        try:
            while True:
                ready = batches.get()
                if isinstance(ready.error, StopIteration):
                    is_over = True
                    return
                if ready.error is not None:
                    raise ready.error
                if ready.event is not None:
                    stream = torch.cuda.current_stream(device)
                    ready.event.wait(stream)
                    _used_in(ready.batch, stream)
                last = ready._replace(batch=None)
                if counter is not None:
                    counter.note_handed_out(ready.read)
                else:
                    self._state = ready.read
                yield ready.batch
        finally:
            batches.stop()
            for thread in threads:
                thread.join()
            if counter is not None and last is not None:
                counter.note_handed_out(None if is_over else last.read, is_left=not is_over)
            if is_over:
                self._state = None

    def _note_state(self) -> Any:
        """Return the state of a loader that has one of its own, as torchdata's."""
        state = getattr(self.loader, "state_dict", None)
        return None if state is None else state()

    def _counter(self) -> CountsBatches | None:
        """Return the dataset that counts what is handed out, through wrappers."""
        found = next((one for one in _inside(self.loader) if isinstance(one, CountsBatches)), None)
        return found

    def _read(self, batches: _OrderedBatches, device: torch.device | None) -> None:
        is_gpu = device is not None and device.type == "cuda"
        with decoding_later(), torch.cuda.device(device) if is_gpu else nullcontext():
            stream = new_stream(device) if self.device is not None else None
            with torch.cuda.stream(stream):  # None is no other stream
                for taken in batches:
                    ready = taken
                    if taken.error is None:
                        try:
                            found = self.moved(taken.batch)
                            event = None if stream is None else stream.record_event()
                            ready = taken._replace(batch=found, event=event)
                        except BaseException as raised:
                            ready = taken._replace(batch=None, error=raised)
                    batches.put(ready)
                    del taken, ready  # a thread that waits keeps no batch

    def moved(self, batch: Any) -> Any:
        """Return a batch with its images decoded, and all tensors on the device."""
        device = self.device
        if isinstance(batch, (EncodedImages, EncodedImage)):
            return batch.to(device)
        if isinstance(batch, torch.Tensor):
            return batch if device is None else batch.to(device, non_blocking=True)
        if isinstance(batch, dict):
            found = {key: self.moved(value) for key, value in batch.items()}
            self._transform(batch, found)
            return found
        if isinstance(batch, (list, tuple)) and not any(isinstance(v, str) for v in batch):
            return type(batch)(self.moved(value) for value in batch)
        return batch

    def _transform(self, batch: dict[str, Any], found: dict[str, Any]) -> None:
        """Apply the dataset's ``image_transforms``, which workers could not apply to packets."""
        transform = image_transforms_of(self.loader)
        if transform is None:
            return
        for key, value in batch.items():
            if isinstance(value, EncodedImages):
                found[key] = torch.stack([transform(image) for image in found[key]])
            elif isinstance(value, EncodedImage):
                found[key] = transform(found[key])


def _used_in(batch: Any, stream: torch.cuda.Stream) -> None:
    """Keep the memory of a batch from serving again before this stream is done with it."""
    if isinstance(batch, torch.Tensor):
        if batch.is_cuda:
            batch.record_stream(stream)
    elif isinstance(batch, (dict, list, tuple)):
        for value in batch.values() if isinstance(batch, dict) else batch:
            _used_in(value, stream)


def _inside(loader: Any) -> Iterator[Any]:
    """Yield the dataset of a loader, and those that it wraps."""
    inside = getattr(loader, "dataset", None)
    while inside is not None:
        yield inside
        inside = getattr(inside, "dataset", None)


def image_transforms_of(loader: Any) -> Callable[[torch.Tensor], torch.Tensor] | None:
    """Return the ``image_transforms`` of the dataset that a loader reads, through subsets."""
    found = (getattr(one, "image_transforms", None) for one in _inside(loader))
    return next((transform for transform in found if transform is not None), None)


def to_device(
    loader: Iterable[Any],
    *,
    device: torch.device | str | None = None,
    ahead: int = 2,
    at_once: int = 2,
) -> DeviceLoader:
    """Return the batches of a ``DataLoader`` on a device, each ready before it is asked for.

    Workers of a dataset with ``decode_device="cuda"`` read packets; they are decoded here, in the
    training process, by threads that are ``ahead`` batches ahead of the training.

        loader = DataLoader(dataset, batch_size=32, num_workers=4)
        for batch in to_device(loader): ...

    Cost: memory of the device for ``ahead`` + 1 batches.

    Args:
        loader: Any iterable of batches: dicts of tensors.
        device: Where tensors are moved, and images that were decoded elsewhere; None is the device
            of ``decode_device=``, or leaves them where they are.
        ahead: How many batches to keep ready.
        at_once: How many batches to decode at once, 1 or 2: two keep the decoders busy, one takes
            fewer cores.

    ``state_dict`` of a ``Mixture``, a stream or its ``loader()`` says what was handed out here, not
    what was read ahead.

    Returns:
        An iterable with the length, and all attributes, of ``loader``.

    Raises:
        ArgumentError: ``ahead`` or ``at_once`` is out of range.
    """
    if ahead < 1:
        raise ArgumentError(f"ahead is {ahead}; it is 1 at least.")
    if not 1 <= at_once <= BATCHES_AT_ONCE:
        raise ArgumentError(f"at_once is {at_once}; it is 1 or {BATCHES_AT_ONCE}.")
    chosen = None if device is None else torch.device(device)
    if chosen is None:
        found = (getattr(one, "decode_device", None) for one in _inside(loader))
        chosen = next((device for device in found if device is not None), None)
    return DeviceLoader(loader, chosen, ahead=ahead, at_once=at_once)
