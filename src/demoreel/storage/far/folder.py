"""A dataset's folder that lies far away: its metadata copied here, all else read where it lies.

Metadata are small, and every reader wants all of them; so they are copied, once for each state of
the dataset, into the user's cache, and read like those of any other dataset. The copy's name is
made from the listing that it was copied by: a dataset that changes gets another one.

Where they are many files, those about episodes and older versions are left where they lie, and
brought when they are wanted first (``FarFolder.bring``): opening costs the same for all.
"""

from __future__ import annotations

import json
import os
from collections.abc import Sequence
from functools import cached_property
from pathlib import Path
from typing import Any, Protocol

from demoreel.errors import (
    ArgumentError,
    DatasetNotFoundError,
    DemoreelError,
    ObjectChangedError,
    UnsafePathError,
    call_place,
)
from demoreel.storage.far.cache import RangeCache, size_in_bytes
from demoreel.storage.far.files import FarFile, Opener
from demoreel.storage.far.metadata_copy import (
    LISTING,
    MetadataCopy,
    bring_all,
    cannot_copy,
    is_here,
)
from demoreel.storage.far.store_calls import Listed
from demoreel.storage.lance_places import RemotePlace
from demoreel.storage.lru import ByteCache
from demoreel.storage.names import OLD_METADATA, leads_elsewhere

_MOST_REQUESTS = 20  # that opening makes, however many files there are
_SPARE = 2  # for what a listing may cost more
_ALWAYS = {  # what readers look at when they open, in one layout or another
    f"meta/{name}"
    for name in (
        *("info.json", "stats.json", "tasks.parquet"),
        *("tasks.jsonl", "episodes.jsonl", "episodes_stats.jsonl"),
    )
}
_ALL_PAGES = 1 << 20  # metadata of which some are missing would be wrong
_FILES_A_PAGE = 1000  # that stores list in one answer
_LEFT_FAR = ("meta/demoreel/",)  # counts of levels, which only statistics want
_TRIES = 4
_DEFAULT_CACHE = "50GB"
_MOST_FILES = 1 << 14


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
    def _listing(self) -> dict[str, Any]:
        listing: dict[str, Any] = json.loads((self.local / LISTING).read_bytes())
        return listing

    @cached_property
    def _listed(self) -> dict[str, tuple[int, str | None]]:
        return {name: (size, etag) for name, size, etag in self._listing["files"]}

    def waits(self, under: str, *, leaving: str | None = None) -> list[Listed]:
        """Return the metadata under a folder that lie far away still, but for those to be left."""
        names = (name for name in self._listing.get("waiting", ()) if name.startswith(under))
        found = [Listed(name, *self._listed[name]) for name in names]
        return [
            file
            for file in found
            if not (leaving and file.name.startswith(leaving)) and not is_here(self.local, file)
        ]

    def bring(self, under: str, *, leaving: str | None = None) -> None:
        """Copy the metadata under a folder that lie far away still.

        Cost: a request for each file, all at the same time; nothing if they are here.

        Args:
            under: The folder's name, with a slash at its end.
            leaving: What in it to leave where it lies.

        Raises:
            ObjectChangedError: One is not what it was when the dataset was opened.
            StoreError: The store does not answer, or there is no room.
        """
        files = self.waits(under, leaving=leaving)
        try:
            bring_all(self.store, self.uri, files, self.local)
        except OSError as error:
            if isinstance(error, DemoreelError):
                raise
            raise cannot_copy(self.uri, self.local.parent, error) from error

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

    Cost: at most 20 requests, whatever the number of files: where those about episodes and older
    versions are too many, they come when they are wanted first. Metadata of the same state are not
    fetched again.

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
        metadata, pages = _metadata(store, folders, with_versions)
        at_once, waiting = _divided(metadata, _left_for_metadata(store, pages))
        rest = _listing(store, folders, used=pages + len(at_once) * store.requests_a_file)
        copy = MetadataCopy(store, store.uri, at_once, waiting, rest, _empty_tables(folders, rest))
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


def _metadata(
    store: FarStore, folders: Sequence[str], with_versions: bool
) -> tuple[list[Listed], int]:
    """Return the files of metadata, and how many requests it took to hear of them."""
    found, _ = store.files("meta/", most_pages=_ALL_PAGES) if "meta" in folders else ([], True)
    pages = 2 + len(found) // _FILES_A_PAGE
    if not any(file.name == "meta/info.json" for file in found):
        inside = ", ".join(f"{store.uri}/{name}" for name in folders[:3])
        raise DatasetNotFoundError(
            "There is no dataset at this place: no meta/info.json.",
            hint=f"is it one of these? {inside}" if inside else "check the URI",
            uri=store.uri,
        )
    if with_versions and OLD_METADATA in folders:
        older, _ = store.files(f"{OLD_METADATA}/", most_pages=_ALL_PAGES)
        found, pages = found + older, pages + 1 + len(older) // _FILES_A_PAGE
    wanted = [
        file for file in found if not file.name.startswith(_LEFT_FAR) and file.name[-1] != "/"
    ]
    for file in wanted:
        if leads_elsewhere(file.name):
            raise UnsafePathError(
                f"A file of metadata has a name that leads elsewhere: {file.name!r}.",
                uri=store.uri,
            )
    return sorted(wanted), pages


def _left_for_metadata(store: FarStore, used: int) -> int:
    """Return how many files may be read as a whole when the folders of the rest are listed, too."""
    return (_MOST_REQUESTS - _SPARE - used - 2) // store.requests_a_file


def _divided(metadata: Sequence[Listed], most: int) -> tuple[list[Listed], list[Listed]]:
    """Return what is copied at once, and what may wait until someone wants it."""
    if len(metadata) <= most:
        return list(metadata), []
    at_once = [file for file in metadata if file.name in _ALWAYS]
    return at_once, [file for file in metadata if file not in at_once]


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
