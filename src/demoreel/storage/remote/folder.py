"""A remote dataset's folder: metadata are copied to this machine, other data is read in place.

Metadata are small, and every reader wants all of them; so they are copied, once for each state of
the dataset, into the user's cache, and read like those of any other dataset. The copy's name is
made from the listing that it was copied by: a dataset that changes gets another one.

Where they are many files, those about episodes and older versions are left where they are, and
fetched when they are wanted first (``RemoteFolder.fetch``): opening costs the same for all.
"""

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
from collections.abc import Callable, Hashable, Iterable, Mapping, Sequence
from concurrent.futures import FIRST_EXCEPTION, wait
from dataclasses import dataclass
from functools import cached_property, lru_cache, partial
from pathlib import Path
from typing import TYPE_CHECKING, Any, TypeVar

from demoreel.errors import (
    DatasetNotFoundError,
    DemoreelError,
    ObjectChangedError,
    StoreError,
    UnsafePathError,
    call_place,
)
from demoreel.model.limits import refuse_above
from demoreel.storage.cache import ByteCache, RangeCache, size_in_bytes
from demoreel.storage.folder import DatasetFolder
from demoreel.storage.names import (
    OLD_METADATA,
    WAITING,
    leads_elsewhere,
    refuse_folded,
    refuse_waiting_copy,
)
from demoreel.storage.place import RemotePlace
from demoreel.storage.remote.files import RemoteFile, RemoteStore, store_of
from demoreel.storage.scratch import process_folder
from demoreel.storage.store import FileInfo
from demoreel.storage.threads import transfer

if TYPE_CHECKING:
    from pyarrow.parquet import FileMetaData

    from demoreel.storage.parquet import Parquet

_MOST_REQUESTS = 20  # that opening makes, however many files there are
_SPARE = 2  # for what a listing may cost more
_ALWAYS = {  # what readers look at when they open, in one layout or another
    f"meta/{name}"
    for name in (
        *("info.json", "stats.json", "tasks.parquet"),
        *("tasks.jsonl", "episodes.jsonl", "episodes_stats.jsonl"),
    )
}
_FILES_A_PAGE = 1000  # that stores list in one answer
_LEFT_FAR = "meta/demoreel/"  # counts of levels, which only statistics want
_WANTED_LATER = "meta/demoreel/capture_times/"  # by few readers
_TRIES = 4
_LISTED_PAGES = 20  # of a listing of all files, a thousand each
_DEFAULT_CACHE = "50GB"
_MOST_FILES = 1 << 14
_FOOTER_BYTES = 64 << 20

T = TypeVar("T")


class RemoteFolder(DatasetFolder):
    """A dataset's folder in a store. Holds no handle: pickling moves names.

    Args:
        store: Where it is.
        local: The copy of its metadata.
        cache: Folder and bytes of the cache of ranges; None keeps them in memory alone.
    """

    def __init__(self, store: RemoteStore, local: Path, cache: tuple[str, int] | None) -> None:
        super().__init__(local)
        self.store = store
        self._cache_at = cache
        self._files: ByteCache[str, RemoteFile] = ByteCache(_MOST_FILES)
        self._footers: ByteCache[tuple[str, int], FileMetaData] = ByteCache(_FOOTER_BYTES)
        call_place(str(local), store.uri)

    waits = True
    grows = False

    def __getstate__(self) -> dict[str, Any]:
        return {"store": self.store, "local": self.local, "cache": self._cache_at}

    def __setstate__(self, state: dict[str, Any]) -> None:
        RemoteFolder.__init__(self, state["store"], state["local"], state["cache"])

    @cached_property
    def uri(self) -> str:
        """What to call it."""
        return self.store.uri

    @property
    def tables(self) -> RemotePlace:
        """Where Lance finds the tables that are in it."""
        return self.store.place

    @property
    def kept_in(self) -> tuple[str, int] | None:
        """Folder and bytes of the cache of ranges on disk; None where there is none."""
        return self._cache_at

    @cached_property
    def cache(self) -> RangeCache:
        """Keeps the ranges that were read."""
        if self._cache_at is None:
            return RangeCache()
        return RangeCache(Path(self._cache_at[0]) / "ranges", self._cache_at[1])

    @cached_property
    def _listing(self) -> dict[str, Any]:
        listing: dict[str, Any] = json.loads((self.local / LISTING).read_bytes())
        return listing

    @cached_property
    def _listed(self) -> dict[str, FileInfo]:
        return {listed[0]: FileInfo(*listed) for listed in self._listing["files"]}

    @property
    def given(self) -> str | RemotePlace:
        """What opens it in another process, or on another machine that shares the place."""
        return self.store.given

    def every_file(self) -> tuple[Iterable[tuple[str, int]], bool]:
        """Return names and sizes of its files, and whether these are all."""
        files, is_whole = self.store.list(most_pages=_LISTED_PAGES)
        return ((file.name, file.size) for file in files), is_whole

    def deferred(self, under: str, *, leaving: str | None = None) -> Sequence[FileInfo]:
        """Return the metadata under a folder that are not copied yet, but for those to be left."""
        names = (name for name in self._listing.get("waiting", ()) if name.startswith(under))
        found = [self._listed[name] for name in names]
        return [
            file
            for file in found
            if not (leaving and file.name.startswith(leaving)) and not is_here(self.local, file)
        ]

    def fetch(self, under: str, *, leaving: str | None = None) -> None:
        """Copy the metadata under a folder that are not here yet."""
        files = self.deferred(under, leaving=leaving)
        try:
            fetch_all(self.store, files, self.local)
        except OSError as error:
            if isinstance(error, DemoreelError):
                raise
            raise cannot_copy(self.uri, self.local.parent, error) from error

    def file(self, name: str) -> RemoteFile:
        """Return a file; nothing is asked for before it is read.

        Its state is pinned: to that of the listing when the dataset was opened if it was listed,
        else to that of the first read.
        """

        def make() -> tuple[RemoteFile, int]:
            known = self._listed.get(name)
            return self.store.file(name, known, cache=self.cache), 1

        return self._files.get(name, make)

    def known_size(self, name: str) -> int | None:
        """Return a file's size, if it was listed or read before."""
        return self.file(name).known_size

    def identity(self, name: str) -> Hashable:
        """Return its size, once that is known: while it is read from, its state is pinned."""
        return self.known_size(name)

    def begin(self, work: Callable[[], T]) -> Callable[[], T]:
        """Let another thread begin work that reads files; return what gives its result."""
        return transfer(work).result

    def parquet(self, name: str) -> Parquet:
        """Open a table; its footer is read once."""
        from demoreel.storage.remote.tables import FetchedParquet, read_footer

        file, uri = self.file(name), f"{self.uri}/{name}"
        footer = self._footers.get((name, file.size), partial(read_footer, file, uri))
        return FetchedParquet(file, uri, footer)

    def arrow_files(self) -> tuple[Any, str]:
        """Return a file system of Arrow for reading; nothing is asked for before a file is read."""
        from demoreel.storage.remote.tables import arrow_files

        return arrow_files(self.file), ""


def open_remote(
    uri: str,
    *,
    storage_options: Mapping[str, Any] | None = None,
    cache_dir: str | os.PathLike[str] | None = None,
    cache_size: int | str | None = None,
    with_versions: bool = False,
) -> RemoteFolder:
    """Open the folder that a URI names; see ``open_folder``."""
    return open_folder(
        store_of(uri, storage_options),
        cache_dir=cache_dir,
        cache_size=cache_size,
        with_versions=with_versions,
    )


def open_folder(
    store: RemoteStore,
    *,
    cache_dir: str | os.PathLike[str] | None,
    cache_size: int | str | None,
    with_versions: bool = False,
) -> RemoteFolder:
    """Open a dataset's folder: list it, and copy its metadata if that was not done before.

    Cost: at most 20 requests, whatever the number of files: where those about episodes and older
    versions are too many, they come when they are wanted first. Metadata of the same state are not
    fetched again.

    Args:
        store: Where it is.
        cache_dir: Where ranges are kept on disk; None keeps them in memory alone.
        cache_size: How much may be kept there.
        with_versions: Whether the metadata of older versions are wanted, too.
    """
    cache = _cache_of(cache_dir, cache_size)
    for attempt in range(_TRIES):
        folders = store.folders()
        _refuse_unsafe(store, (name for name in folders if name.endswith(".lance")))
        if WAITING.split("/")[0] in folders:
            hidden, _ = store.list(WAITING, most_pages=1)
            refuse_waiting_copy((file.name for file in hidden), store.uri)
        metadata, pages = _metadata(store, folders, with_versions)
        at_once, waiting = _divided(metadata, _left_for_metadata(store, pages))
        rest = _listing(store, folders, used=pages + len(at_once) * store.requests_a_file)
        copy = MetadataCopy(store, at_once, waiting, rest, _empty_tables(folders, rest))
        try:
            return RemoteFolder(store, copy.made_in(cache_home(cache_dir)), cache)
        except ObjectChangedError:  # it is just being replaced
            if attempt + 1 == _TRIES:
                raise
    raise AssertionError("the last try raises or returns")


def _cache_of(
    cache_dir: str | os.PathLike[str] | None, cache_size: int | str | None
) -> tuple[str, int] | None:
    if cache_dir is None and cache_size is None:
        return None
    most = size_in_bytes(_DEFAULT_CACHE if cache_size is None else cache_size)
    return (str(cache_home(cache_dir)), most) if most else None


def cache_home(cache_dir: str | os.PathLike[str] | None) -> Path:
    """Return the user's cache: the folder given, ``DEMOREEL_CACHE``, or the system's place."""
    if cache_dir is not None:
        return Path(cache_dir).expanduser().absolute()
    given = os.environ.get("DEMOREEL_CACHE")
    if given:
        return Path(given).expanduser().absolute()
    return Path(os.environ.get("XDG_CACHE_HOME") or "~/.cache").expanduser() / "demoreel" / "far"


def _metadata(
    store: RemoteStore, folders: Sequence[str], with_versions: bool
) -> tuple[list[FileInfo], int]:
    """Return the files of metadata, and how many requests it took to hear of them."""
    found, _ = store.list("meta/") if "meta" in folders else ([], True)
    pages = 2 + len(found) // _FILES_A_PAGE
    if not any(file.name == "meta/info.json" for file in found):
        inside = ", ".join(f"{store.uri}/{name}" for name in folders[:3])
        raise DatasetNotFoundError(
            "There is no dataset at this place: no meta/info.json.",
            hint=f"is it one of these? {inside}" if inside else "check the URI",
            uri=store.uri,
        )
    if with_versions and OLD_METADATA in folders:
        older, _ = store.list(f"{OLD_METADATA}/")
        found, pages = [*found, *older], pages + 1 + len(older) // _FILES_A_PAGE
    wanted = [file for file in found if _is_wanted(file.name)]
    _refuse_unsafe(store, (file.name for file in wanted))
    return sorted(wanted), pages


def _is_wanted(name: str) -> bool:
    """Whether a file of metadata is copied, at once or later."""
    left = name.startswith(_LEFT_FAR) and not name.startswith(_WANTED_LATER)
    return not left and name[-1] != "/"


def _refuse_unsafe(store: RemoteStore, names: Iterable[str]) -> None:
    """Refuse names that would be made, or looked up, outside the copy of a dataset's folder."""
    for name in names:
        if leads_elsewhere(name.removesuffix("/")):
            raise UnsafePathError(
                f"A file has a name that leads elsewhere: {name!r}.",
                hint="do not use this dataset; nothing of it was kept",
                uri=store.uri,
            )


def _left_for_metadata(store: RemoteStore, used: int) -> int:
    """Return how many files may be read as a whole when the folders of the rest are listed, too."""
    return (_MOST_REQUESTS - _SPARE - used - 2) // store.requests_a_file


def _divided(metadata: Sequence[FileInfo], most: int) -> tuple[list[FileInfo], list[FileInfo]]:
    """Return what is copied at once, and what may wait until it is wanted."""
    at_once = [file for file in metadata if not file.name.startswith(_WANTED_LATER)]
    if len(at_once) > most:
        at_once = [file for file in at_once if file.name in _ALWAYS]
    chosen = set(at_once)
    return at_once, [file for file in metadata if file not in chosen]


def _listing(store: RemoteStore, folders: Sequence[str], *, used: int) -> list[FileInfo]:
    """Return the files that hold rows and images, as far as a few requests tell them."""
    if any(name.endswith(".lance") for name in folders):
        return []  # Lance names its own files, and never writes to one again
    found: list[FileInfo] = []
    pages = max(1, (_MOST_REQUESTS - _SPARE - used) // 2)
    for name in ("data", "videos"):
        if name in folders:
            found += store.list(f"{name}/", most_pages=pages)[0]
    _refuse_unsafe(store, (file.name for file in found))
    return sorted(found)


def _empty_tables(folders: Sequence[str], rest: Sequence[FileInfo]) -> list[str]:
    """Return the folders that stand for Lance tables in a copy: they tell which layout it is."""
    found = {name for name in folders if name.endswith(".lance")}
    for file in rest:
        parts = file.name.split("/")
        if len(parts) > 2 and parts[1].endswith(".lance"):  # an older layout of the Hub
            found.add(f"{parts[0]}/{parts[1]}")
    return sorted(found)


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
        store: Where the dataset is.
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
