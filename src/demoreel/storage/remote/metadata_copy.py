"""A copy of a remote dataset's metadata, of one state, in the user's cache."""

from __future__ import annotations

import contextlib
import hashlib
import json
import logging
import os
import shutil
import threading
import time
import uuid
from collections.abc import Mapping, Sequence
from concurrent.futures import FIRST_EXCEPTION, wait
from dataclasses import dataclass
from functools import lru_cache, partial
from pathlib import Path

from demoreel.errors import DemoreelError, StoreError
from demoreel.model.limits import refuse_above
from demoreel.storage.names import refuse_folded
from demoreel.storage.remote.files import RemoteStore
from demoreel.storage.scratch import process_folder
from demoreel.storage.store import FileInfo
from demoreel.storage.threads import transfer

LISTING = "listing.json"
"""What the copy was made by: the dataset's files, and which of them are copied later."""

_COPIES_KEPT = 4
_COPIES_LIVE_S = 86400
_PART_BYTES = 8 << 20  # of a file that are in memory

_log = logging.getLogger(__name__)


@dataclass(frozen=True)
class MetadataCopy:
    """A copy of a dataset's metadata, of one state.

    Attributes:
        store: Where the dataset lies.
        metadata: What is copied.
        waiting: What is copied later.
        rest: What else was listed.
        tables: Folders to make, that tell which Lance tables there are.
    """

    store: RemoteStore
    metadata: Sequence[FileInfo]
    waiting: Sequence[FileInfo]
    rest: Sequence[FileInfo]
    tables: Sequence[str]

    def made_in(self, home: Path) -> Path:
        """Return the copy's folder; made if it is not there, in a temporary folder if need be."""
        what = (self.metadata, self.waiting, self.rest, self.tables)
        state = _digest(repr(what))[:24]
        local = home / _digest(self.store.uri)[:16] / state
        every = [*self.metadata, *self.waiting]
        if self.store.pins and any(file.etag is None for file in every):
            # Nothing tells this state from another: the copy serves this once.
            local = _passing_home() / uuid.uuid4().hex
        if self._is_whole(local):
            with contextlib.suppress(OSError):
                os.utime(local)
            return local
        try:
            self._make(local)
        except OSError as error:
            if isinstance(error, DemoreelError):
                raise
            _log.warning("metadata are not kept in %s: %s", home, error.strerror)
            local = _passing_home() / local.name
            try:
                self._make(local)
            except OSError as again:
                raise cannot_copy(self.store.uri, home, again) from again
        _forget_old_copies(local)
        return local

    def _is_whole(self, local: Path) -> bool:
        """Whether nothing is missing; caches are cleaned by others, and machines lose power."""
        try:
            return (
                json.loads((local / LISTING).read_bytes())["uri"] == self.store.uri
                and all(is_here(local, file) for file in self.metadata)
                and all((local / name).is_dir() for name in self.tables)
                and all((local / file.name).parent.is_dir() for file in self.waiting)
            )
        except (OSError, ValueError, KeyError):
            return False

    def _make(self, local: Path) -> None:
        staged = local.with_name(f".{local.name}.{uuid.uuid4().hex}")
        staged.mkdir(mode=0o700, parents=True)
        try:
            refuse_folded((file.name for file in (*self.metadata, *self.waiting)), staged)
            for name in self.tables:
                (staged / name).mkdir(parents=True)
            for file in self.waiting:  # which versions there are is told by their folders
                (staged / file.name).parent.mkdir(parents=True, exist_ok=True)
            fetch_all(self.store, self.metadata, staged)
            listing = {
                "uri": self.store.uri,
                "files": [*self.metadata, *self.waiting, *self.rest],
                "waiting": [file.name for file in self.waiting],
            }
            (staged / LISTING).write_text(json.dumps(listing))
            self._put_in_place(staged, local)
        finally:
            shutil.rmtree(staged, ignore_errors=True)

    def _put_in_place(self, staged: Path, local: Path) -> None:
        try:
            staged.rename(local)
        except OSError:
            if self._is_whole(local):  # another process was faster
                return
            shutil.rmtree(local, ignore_errors=True)
            staged.rename(local)


def cannot_copy(uri: str, folder: Path, error: OSError) -> StoreError:
    """Return the error for metadata that have no room on this machine."""
    return StoreError(
        f"The metadata cannot be copied to this machine ({error.strerror}).",
        hint="make room, or set DEMOREEL_CACHE to a folder that can be written to",
        uri=uri,
        folder=folder,
    )


def is_here(folder: Path, file: FileInfo) -> bool:
    """Whether a file was copied into a folder."""
    with contextlib.suppress(OSError):
        return (folder / file.name).stat().st_size == file.size
    return False


def fetch_all(store: RemoteStore, files: Sequence[FileInfo], folder: Path) -> None:
    """Copy files into a folder, all at the same time; each is there as a whole or not at all.

    When it raises, nothing is written any more, so that the caller can remove all there is.
    """
    total = sum(file.size for file in files)
    refuse_above("METADATA_BYTES", total, "Metadata have bytes:", StoreError, uri=store.uri)
    writing, given_up = threading.Lock(), threading.Event()
    staged: set[Path] = set()

    def fetch(file: FileInfo) -> None:
        remote = store.file(file.name, file)
        path = folder / file.name
        fresh = path.with_name(f".{uuid.uuid4().hex}")
        try:
            for begin in range(0, max(1, file.size), _PART_BYTES):
                data = remote.read(begin, _PART_BYTES)
                with writing:
                    if given_up.is_set():
                        return
                    path.parent.mkdir(parents=True, exist_ok=True)
                    staged.add(fresh)
                    with open(fresh, "ab") as part:
                        part.write(data)
            with writing:
                if not given_up.is_set():
                    os.replace(fresh, path)  # other processes may be looking
        finally:
            fresh.unlink(missing_ok=True)

    arriving = [transfer(partial(fetch, file)) for file in files]
    try:
        for ended in wait(arriving, return_when=FIRST_EXCEPTION).done:
            ended.result()
    except BaseException:
        with writing:
            given_up.set()
            for fresh in staged:  # not left to threads that are still waiting for an answer
                fresh.unlink(missing_ok=True)
        raise
    finally:
        for waiting in arriving:
            waiting.cancel()


@lru_cache(maxsize=1)
def _passing_home() -> Path:
    """Return a folder that is gone when this process ends."""
    return process_folder()


def _forget_old_copies(newest: Path) -> None:
    """Remove copies of states that were not opened for a day, but for the newest few."""
    found: Mapping[Path, float] = {}
    with contextlib.suppress(OSError):
        found = {place: place.stat().st_mtime for place in newest.parent.iterdir()}
    old = sorted(found, key=lambda place: -found[place])[_COPIES_KEPT:]
    for place in old:
        if time.time() - found[place] > _COPIES_LIVE_S:
            shutil.rmtree(place, ignore_errors=True)


def _digest(text: str) -> str:
    return hashlib.sha256(text.encode()).hexdigest()
