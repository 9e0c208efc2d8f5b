"""Fetching many files at a time, each compared with what the Hub says of it."""

from __future__ import annotations

import queue
import threading
from collections.abc import Callable, Iterable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path

from demoreel.errors import StoreError
from demoreel.storage.hub_calls import Hub, HubFile

_AT_A_TIME = 8
_DELIVERIES = 2

Report = Callable[[float], None]


@dataclass(frozen=True, slots=True)
class Shelf:
    """Where files of one commit are put.

    Attributes:
        hub: Whom to ask for them.
        repo_id: The repository.
        commit: Its commit's full name.
        cache: The cache that the files are put into, or copied from.
        folder: The folder that they are put into instead, under their own names.
    """

    hub: Hub
    repo_id: str
    commit: str
    cache: Path
    folder: Path | None = None

    def fetch(self, files: Iterable[HubFile], report: Report | None = None) -> None:
        """Fetch files, eight at a time; those that are there are not asked for.

        Each is compared with its size and hash when it has arrived, and asked for once more if it
        is another. After an error the files that had arrived are there for the next call.

        Args:
            files: The files.
            report: Called with the share of bytes that are here.

        Raises:
            StoreError: A file arrived damaged twice; or the Hub is at fault.
            AccessError: It wants another token.
            DiskFullError: There is no room.
        """
        wanted = list(files)
        whole = sum(file.size for file in wanted) or 1
        here = 0
        with _no_bars_of_theirs():
            for file in _in_threads(self._fetch_one, wanted):
                here += file.size
                if report is not None:
                    report(here / whole)

    def _fetch_one(self, file: HubFile) -> None:
        for _ in range(_DELIVERIES):
            place = self.hub.download(
                self.repo_id, self.commit, file.path, cache=self.cache, folder=self.folder
            )
            if file.is_content_of(place):
                return
            # In a cache the name is a link to the content, which would be taken again.
            place.resolve().unlink(missing_ok=True)
            place.unlink(missing_ok=True)
        raise StoreError(
            f"A file arrived damaged {_DELIVERIES} times: it is not what the Hub says it is.",
            hint="try again later; if it stays so, its owner must upload it again",
            repo_id=self.repo_id,
            file=file.path,
            revision=self.commit,
        )


def _in_threads(work: Callable[[HubFile], None], files: list[HubFile]) -> Iterator[HubFile]:
    """Yield files when they are done; the first error ends it.

    Threads of a pool are waited for when the process ends. These are not: after Ctrl-C nobody wants
    to wait for a download.
    """
    waiting: queue.SimpleQueue[HubFile] = queue.SimpleQueue()
    done: queue.SimpleQueue[tuple[HubFile, BaseException | None]] = queue.SimpleQueue()
    over = threading.Event()
    for file in files:
        waiting.put(file)

    def serve() -> None:
        while not over.is_set():
            try:
                file = waiting.get_nowait()
            except queue.Empty:
                return
            try:
                work(file)
                done.put((file, None))
            except BaseException as error:
                done.put((file, error))

    threads = [
        threading.Thread(target=serve, name="demoreel-fetch", daemon=True)
        for _ in range(min(_AT_A_TIME, len(files)))
    ]
    for thread in threads:
        thread.start()
    try:
        for _ in files:
            file, error = done.get()
            if error is not None:
                raise error
            yield file
    except Exception:
        over.set()
        for thread in threads:  # nothing is written any more when the caller hears of it
            thread.join()
        raise
    finally:
        over.set()


@contextmanager
def _no_bars_of_theirs() -> Iterator[None]:
    """Keep huggingface_hub from drawing a bar for each file."""
    from huggingface_hub import constants
    from huggingface_hub.utils.tqdm import (
        are_progress_bars_disabled,
        disable_progress_bars,
        enable_progress_bars,
    )

    wanted = constants.HF_HUB_DISABLE_PROGRESS_BARS is False  # the user insists on them
    if wanted or are_progress_bars_disabled():
        yield
        return
    disable_progress_bars()
    try:
        yield
    finally:
        enable_progress_bars()
