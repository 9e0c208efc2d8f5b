"""A ``DataLoader`` over a stream that knows how far the training has come."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from typing import TYPE_CHECKING, Any

from torch.utils.data import DataLoader

if TYPE_CHECKING:
    from demoreel.torch.streaming import StreamingLeRobotDataset


class StreamLoader:
    """Batches of a stream in its order, from workers that live through all epochs.

    Made by ``StreamingLeRobotDataset.loader``. Workers read ahead, so what they have read is more
    than what the training has seen. Here only what was handed out counts, and ``state_dict`` is
    right whatever is under way.

    Args:
        stream: The dataset.
        num_workers: Processes that read; 0 reads in this one.
        options: Of torch's ``DataLoader``.
    """

    def __init__(
        self, stream: StreamingLeRobotDataset, num_workers: int, options: Mapping[str, Any]
    ) -> None:
        self.dataset = stream
        self.num_workers = num_workers
        self._loader: DataLoader[dict[str, Any]] = DataLoader(
            stream,
            batch_size=None,
            num_workers=num_workers,
            persistent_workers=num_workers > 0,
            **options,
        )

    def __len__(self) -> int:
        return len(self.dataset)

    def __iter__(self) -> Iterator[dict[str, Any]]:
        """Begin a pass where the dataset stands; see ``StreamingLeRobotDataset.__iter__``."""
        if not self.num_workers:
            return iter(self._loader)  # the dataset itself counts
        return _Delivery(self.dataset, self._loader)

    def set_epoch(self, epoch: int) -> None:
        """Go to an epoch; see the dataset's method."""
        self.dataset.set_epoch(epoch)

    def state_dict(self) -> dict[str, Any]:
        """Return where the training stands: after the last batch that was handed out."""
        return self.dataset.state_dict()

    def load_state_dict(self, state: Mapping[str, Any]) -> None:
        """Let the next pass go on from there; see the dataset's method."""
        self.dataset.load_state_dict(state)


class _Delivery(Iterator[dict[str, Any]]):
    """Counts what workers deliver. After an error it goes on where it stood, and never just ends.

    Args:
        stream: Is told how far the training has come.
        loader: Its workers read.
    """

    def __init__(self, stream: StreamingLeRobotDataset, loader: DataLoader[dict[str, Any]]) -> None:
        self._stream = stream
        self._loader = loader
        self._is_over = False
        self._begin()

    def _begin(self) -> None:
        self._progress = self._stream.start_pass()
        self._batches: Iterator[dict[str, Any]] | None = iter(self._loader)

    def __next__(self) -> dict[str, Any]:
        if self._is_over:
            raise StopIteration
        if self._batches is None:
            self._stream.go_to(self._progress.position)
            self._begin()
        assert self._batches is not None
        try:
            batch = next(self._batches)
        except StopIteration:
            self._is_over = True
            self._stream.end_pass(self._progress.begin)
            raise
        except Exception as error:
            # Other workers are further already; all of them begin again at what is missing.
            self._batches = None
            # torch's frames would keep the workers from being let go; their words are in the error.
            raise error.with_traceback(None) from None
        self._progress.delivered += 1
        return batch
