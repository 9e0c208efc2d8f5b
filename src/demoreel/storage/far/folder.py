"""A dataset's folder that lies far away: its metadata copied here, all else read where it lies.

Metadata are small, and every reader wants all of them; so they are copied, once for each state of
the dataset, into the user's cache, and read like those of any other dataset. The copy's name is
made from the listing that it was copied by: a dataset that changes gets another one.
"""

from __future__ import annotations

import atexit
import contextlib
import hashlib
import json
import logging
import os
import shutil
import tempfile
import time
import uuid
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from functools import cached_property, lru_cache, partial
from pathlib import Path
from typing import Any, Protocol

from demoreel.errors import (
    ArgumentError,
    DatasetNotFoundError,
    DemoreelError,
    ObjectChangedError,
    StoreError,
    UnsafePathError,
    call_place,
)
from demoreel.storage.far.cache import RangeCache, size_in_bytes
from demoreel.storage.far.files import FarFile, Opener
from demoreel.storage.far.store_calls import Listed
from demoreel.storage.far.threads import transfer
from demoreel.storage.lance_places import RemotePlace
from demoreel.storage.lru import ByteCache
from demoreel.storage.names import OLD_METADATA, leads_elsewhere

_MOST_REQUESTS = 20  # that opening makes, however many files there are
_SPARE = 2  # for what a listing may cost more
_META_PAGES = 3
_LEFT_FAR = ("meta/demoreel/",)  # counts of levels, which only statistics want
_LISTING = "listing.json"
_COPIES_KEPT = 4
_COPIES_LIVE_S = 86400
_TRIES = 4
_DEFAULT_CACHE = "50GB"
_MOST_FILES = 1 << 14

_log = logging.getLogger(__name__)


class FarStore(Opener, Protocol):
    """A store that can say what lies in a folder."""

    @property
    def requests_a_file(self) -> int:
        """Requests that a file costs which is read as a whole."""
        ...

    @property
    def uri(self) -> str:
        """What to call it."""
        ...

    @property
    def place(self) -> RemotePlace | None:
        """Where Lance would look for tables; None if Lance cannot."""
        ...

    @property
    def given(self) -> RemotePlace:
        """Its URI, with the options that the user gave."""
        ...

    def folders(self) -> list[str]:
        """Return the names of the folders directly in it; one request."""
        ...

    def files(self, under: str, *, most_pages: int) -> tuple[list[Listed], bool]:
        """Return the files under a folder, and whether these are all."""
        ...

    def sha256(self, name: str) -> str | None:
        """Return the check sum of a file that was listed; None where the store tells none."""
        ...


class FarFolder:
    """A dataset's folder in a store. Holds no handle: pickling moves names.

    Args:
        store: Where it lies.
        local: The copy of its metadata.
        cache: Folder and bytes of the cache of ranges; None keeps them in memory alone.
    """

    def __init__(self, store: FarStore, local: Path, cache: tuple[str, int] | None) -> None:
        self.store = store
        self.local = local
        self._cache_at = cache
        self._files: ByteCache[str, FarFile] = ByteCache(_MOST_FILES)
        call_place(str(local), store.uri)

    def __getstate__(self) -> dict[str, Any]:
        return {"store": self.store, "local": self.local, "cache": self._cache_at}

    def __setstate__(self, state: dict[str, Any]) -> None:
        FarFolder.__init__(self, state["store"], state["local"], state["cache"])

    @property
    def uri(self) -> str:
        """What to call it."""
        return self.store.uri

    @property
    def tables(self) -> RemotePlace:
        """Where Lance finds the tables that lie in it.

        Raises:
            ArgumentError: Lance cannot read from such a place.
        """
        if self.store.place is None:
            raise ArgumentError(
                "Lance tables cannot be read from this place.",
                hint="fetch the dataset: demoreel pull",
                uri=self.uri,
            )
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
    def _listed(self) -> dict[str, tuple[int, str | None]]:
        listing = json.loads((self.local / _LISTING).read_bytes())
        return {name: (size, etag) for name, size, etag in listing["files"]}

    def file(self, name: str) -> FarFile:
        """Return a file; nothing is asked for before it is read.

        Its state is pinned: to that of the listing when the dataset was opened if it was listed,
        else to that of the first read.
        """

        def make() -> tuple[FarFile, int]:
            size, etag = self._listed.get(name, (None, None))
            uri = f"{self.uri}/{name}"
            return FarFile(self.store, name, uri=uri, size=size, etag=etag, cache=self.cache), 1

        return self._files.get(name, make)


def open_folder(
    store: FarStore,
    *,
    cache_dir: str | os.PathLike[str] | None,
    cache_size: int | str | None,
    with_versions: bool = False,
) -> FarFolder:
    """Open a dataset's folder: list it, and copy its metadata if that was not done before.

    Cost: at most 20 requests if the metadata are at most 14 files, whatever the number of others; a
    request for each file of metadata more. Those of the same state are not fetched again.

    Args:
        store: Where it lies.
        cache_dir: Where ranges are kept on disk; None keeps them in memory alone.
        cache_size: How much may be kept there.
        with_versions: Whether the metadata of older versions are wanted, too.

    Raises:
        DatasetNotFoundError: There is no ``meta/info.json``.
        StoreError: The store does not answer.
    """
    cache = _cache_of(cache_dir, cache_size)
    for attempt in range(_TRIES):
        folders = store.folders()
        metadata = _metadata(store, folders, with_versions)
        used = 2 + len(metadata) * store.requests_a_file
        rest = _listing(store, folders, used=used)
        copy = _Copy(store, metadata, rest, _empty_tables(folders, rest))
        try:
            return FarFolder(store, copy.made_in(cache_home(cache_dir)), cache)
        except ObjectChangedError:  # someone is just replacing it
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


def _metadata(store: FarStore, folders: Sequence[str], with_versions: bool) -> list[Listed]:
    found, _ = store.files("meta/", most_pages=_META_PAGES) if "meta" in folders else ([], True)
    if not any(file.name == "meta/info.json" for file in found):
        inside = ", ".join(f"{store.uri}/{name}" for name in folders[:3])
        raise DatasetNotFoundError(
            "There is no dataset at this place: no meta/info.json.",
            hint=f"is it one of these? {inside}" if inside else "check the URI",
            uri=store.uri,
        )
    if with_versions and OLD_METADATA in folders:
        found = found + store.files(f"{OLD_METADATA}/", most_pages=_META_PAGES)[0]
    wanted = [
        file for file in found if not file.name.startswith(_LEFT_FAR) and file.name[-1] != "/"
    ]
    for file in wanted:
        if leads_elsewhere(file.name):
            raise UnsafePathError(
                f"A file of metadata has a name that leads elsewhere: {file.name!r}.",
                uri=store.uri,
            )
    return sorted(wanted)


def _listing(store: FarStore, folders: Sequence[str], *, used: int) -> list[Listed]:
    """Return the files that hold rows and pictures, as far as a few requests tell them."""
    if any(name.endswith(".lance") for name in folders):
        return []  # Lance names its own files, and never writes to one again
    found: list[Listed] = []
    pages = max(1, (_MOST_REQUESTS - _SPARE - used) // 2)
    for name in ("data", "videos"):
        if name in folders:
            found += store.files(f"{name}/", most_pages=pages)[0]
    return sorted(found)


def _empty_tables(folders: Sequence[str], rest: Sequence[Listed]) -> list[str]:
    """Return the folders that stand for Lance tables in a copy: they tell which layout it is."""
    found = {name for name in folders if name.endswith(".lance")}
    for file in rest:
        parts = file.name.split("/")
        if len(parts) > 2 and parts[1].endswith(".lance"):  # an older layout of the Hub
            found.add(f"{parts[0]}/{parts[1]}")
    return sorted(found)


@dataclass(frozen=True)
class _Copy:
    """A copy of a dataset's metadata, of one state.

    Attributes:
        store: Where the dataset lies.
        metadata: What is copied.
        rest: What else was listed.
        tables: Folders to make, that tell which Lance tables there are.
    """

    store: FarStore
    metadata: Sequence[Listed]
    rest: Sequence[Listed]
    tables: Sequence[str]

    def made_in(self, home: Path) -> Path:
        """Return the copy's folder; made if it is not there, in a temporary folder if need be.

        Raises:
            StoreError: The metadata cannot be had, or there is no room for them anywhere.
        """
        state = _digest(repr((self.metadata, self.rest, self.tables)))[:24]
        local = home / _digest(self.store.uri)[:16] / state
        if self.store.pins and any(file.etag is None for file in self.metadata):
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
                raise StoreError(
                    f"The metadata cannot be copied to this machine ({again.strerror}).",
                    hint="set DEMOREEL_CACHE to a folder that can be written to",
                    uri=self.store.uri,
                    folder=home,
                ) from again
        _forget_old_copies(local)
        return local

    def _is_whole(self, local: Path) -> bool:
        """Whether nothing is missing; caches are cleaned by others, and machines lose power."""
        try:
            return (
                json.loads((local / _LISTING).read_bytes())["uri"] == self.store.uri
                and all((local / file.name).stat().st_size == file.size for file in self.metadata)
                and all((local / name).is_dir() for name in self.tables)
            )
        except (OSError, ValueError, KeyError):
            return False

    def _make(self, local: Path) -> None:
        staged = local.with_name(f".{local.name}.{uuid.uuid4().hex}")
        staged.mkdir(mode=0o700, parents=True)
        try:
            for name in self.tables:
                (staged / name).mkdir(parents=True)
            arriving = [transfer(partial(self._bring, file, staged)) for file in self.metadata]
            try:
                for ended in arriving:
                    ended.result()
            finally:
                for waiting in arriving:
                    waiting.cancel()
            listing = {"uri": self.store.uri, "files": [*self.metadata, *self.rest]}
            (staged / _LISTING).write_text(json.dumps(listing))
            self._put_in_place(staged, local)
        finally:
            shutil.rmtree(staged, ignore_errors=True)

    def _bring(self, file: Listed, folder: Path) -> None:
        uri = f"{self.store.uri}/{file.name}"
        far = FarFile(self.store, file.name, uri=uri, size=file.size, etag=file.etag, cache=None)
        data = far.read(0, file.size)
        path = folder / file.name
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_bytes(data)

    def _put_in_place(self, staged: Path, local: Path) -> None:
        try:
            staged.rename(local)
        except OSError:
            if self._is_whole(local):  # another process was faster
                return
            shutil.rmtree(local, ignore_errors=True)
            staged.rename(local)


@lru_cache(maxsize=1)
def _passing_home() -> Path:
    """Return a folder that is gone when this process ends."""
    folder = tempfile.mkdtemp(prefix="demoreel-")
    owner = os.getpid()

    def remove() -> None:
        if os.getpid() == owner:  # forked children use it, too
            shutil.rmtree(folder, ignore_errors=True)

    atexit.register(remove)
    return Path(folder)


def _forget_old_copies(newest: Path) -> None:
    """Remove copies of states that nobody has opened for a day, but for the newest few."""
    found: Mapping[Path, float] = {}
    with contextlib.suppress(OSError):
        found = {place: place.stat().st_mtime for place in newest.parent.iterdir()}
    old = sorted(found, key=lambda place: -found[place])[_COPIES_KEPT:]
    for place in old:
        if time.time() - found[place] > _COPIES_LIVE_S:
            shutil.rmtree(place, ignore_errors=True)


def _digest(text: str) -> str:
    return hashlib.sha256(text.encode()).hexdigest()
