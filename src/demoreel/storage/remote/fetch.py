"""Downloads files of a remote dataset into a local folder.

Many at a time, large ones in parts. A journal beside the folder holds a check sum of every part
that has arrived: a later fetch into the same folder reads the parts, and asks only for those
that are not what they were. A file counts as here when its size is right, and its check sum too
where the store tells one.

Work on remote datasets has folders of its own: copies, and what is to be sent::

    ~/.cache/demoreel/far/work/     DEMOREEL_STAGING, if that is set
        copy-1a2b3c4d5e6f7a8b/      the letters name what it is about
            lock                    held while a process works here
            NAME/                   the dataset

A folder is gone when the work is done, and after an error that would come again. It stays after a
kill, Ctrl-C, a full disk and any failure of the network; the same work continues from there. What
was not used for a week is removed by the next work.
"""

from __future__ import annotations

import contextlib
import hashlib
import json
import os
import re
import shutil
import threading
import time
import zlib
from collections.abc import Callable, Collection, Iterable, Iterator, Mapping
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from demoreel.errors import (
    DatasetBusyError,
    DatasetNotFoundError,
    DiskFullError,
    StoreError,
    UnsafePathError,
    call_place,
)
from demoreel.model.limits import refuse_above
from demoreel.storage.amounts import ShareDone
from demoreel.storage.commit.files import says_no_room
from demoreel.storage.commit.hidden_folder import lock_folder, remove_hidden
from demoreel.storage.external import allow_as
from demoreel.storage.names import (
    both_file_and_folder,
    is_hidden,
    leads_elsewhere,
    refuse_folded,
    refuse_waiting_copy,
)
from demoreel.storage.remote.files import RemoteStore, store_of
from demoreel.storage.remote.folder import RemoteFolder, cache_home
from demoreel.storage.store import FileInfo, is_uri
from demoreel.storage.threads import CONNECTIONS, parallel_map

Report = Callable[[float], None]
"""Called with the share of the bytes that are here, from 0 to 1."""

_PART_BYTES = 8 << 20
_AT_A_TIME = CONNECTIONS // 2
_READ_BYTES = 1 << 20
_OF_LANCE = {"_versions", "_refs", "_transactions"}  # folders of a table's descriptions
_MD5 = re.compile(r'"?([0-9a-f]{32})"?')


@dataclass(frozen=True, slots=True)
class Fetched:
    """What a fetch did.

    Attributes:
        files: Files that were wanted.
        bytes: Their size.
        fetched_bytes: Bytes that were not here already.
    """

    files: int
    bytes: int
    fetched_bytes: int


def list_files(store: RemoteStore) -> dict[str, FileInfo]:
    """Return every file of a dataset by its name; hidden ones are left out.

    The metadata of older versions are hidden, too, and belong to the dataset.

    Cost: a request for every thousand files.
    """
    found, _ = store.list()
    refuse_waiting_copy((file.name for file in found), store.uri)
    files = {}
    for file in found:
        if not file.name:
            continue  # what a store's console calls a folder: this one
        if leads_elsewhere(file.name.removesuffix("/")):
            raise UnsafePathError(
                f"A file has a name that leads elsewhere: {file.name!r}.", uri=store.uri
            )
        if file.name[-1] != "/" and not is_hidden(file.name):
            files[file.name] = file
    twice = both_file_and_folder(files)
    if twice is not None:
        raise UnsafePathError(
            f"{twice!r} is both a file and a folder, which a disk cannot hold.", uri=store.uri
        )
    if not files:
        raise DatasetNotFoundError(
            "There is nothing at this place.", hint="check the URI", uri=store.uri
        )
    return files


def state_of(files: Mapping[str, FileInfo], uri: str) -> str:
    """Return letters that change when one of a dataset's files does."""
    listed = sorted(files.values(), key=lambda file: file.name)
    return hashlib.sha256(repr((uri, listed)).encode()).hexdigest()


def remote_state(
    source: RemoteFolder | str, storage_options: Mapping[str, Any] | None = None
) -> str:
    """Return letters that change when a file of a dataset does; costs a listing."""
    store = _store(source, storage_options)
    return state_of(list_files(store), store.uri)


def fetch_folder(
    source: RemoteFolder | RemoteStore | str,
    target: Path,
    *,
    names: Collection[str] | None = None,
    storage_options: Mapping[str, Any] | None = None,
    report: Report | None = None,
) -> Fetched:
    """Bring files of a remote dataset into a folder.

    What an earlier call left in the folder is not asked for again where it still is the same; what
    is no longer there is removed. The folder is not a dataset before this returns: put it in place
    then, or remove it. Errors call it by the dataset's URI.

    Cost: a listing, and a request for each file, or for every 8 MiB of it; 16 at a time, so that
    128 MiB are in memory at most. Parts that are here already are read once.

    Args:
        source: The dataset.
        target: The folder to fill; made if need be.
        names: Only these files, and all of ``meta/``; those that are not there are passed over.
            None is all.
        storage_options: As for ``demoreel.open``, if the source is a URI.
        report: Called with the share that is done.
    """
    store = _store(source, storage_options)
    listed = list_files(store)
    wanted = listed
    if names is not None:
        wanted = {n: f for n, f in listed.items() if n.startswith("meta/") or n in names}
    _refuse_large_descriptions(wanted.values(), store.uri)
    call_place(str(target), store.uri)
    target.mkdir(parents=True, exist_ok=True)
    refuse_folded(wanted, target)
    _keep_only(target, listed)
    journal = _Journal(target, store)
    files = [_Incoming(store, file, target / file.name, journal) for file in wanted.values()]
    _refuse_small_disk(target, files)
    for file in files:
        file.make_room()
    total = sum(file.size for file in files)
    done = 0
    parts = (part for file in files for part in file.parts())
    with journal:
        for _, _, length in parallel_map(_fetch_part, parts, most=_AT_A_TIME):
            done += length
            if report is not None:
                report(ShareDone(done, total, "bytes"))
    return Fetched(len(files), total, sum(file.fetched for file in files))


def _refuse_large_descriptions(files: Collection[FileInfo], uri: str) -> None:
    """Refuse what no reader would take, before gigabytes of it are fetched."""
    metadata = sum(file.size for file in files if file.name.startswith("meta/"))
    refuse_above("METADATA_BYTES", metadata, "Metadata have bytes:", StoreError, uri=uri)
    for file in files:
        if _OF_LANCE.intersection(file.name.split("/")[:-1]):
            what = f"{file.name!r} has bytes:"
            refuse_above("MANIFEST_BYTES", file.size, what, StoreError, uri=uri)


def _keep_only(target: Path, listed: Mapping[str, FileInfo]) -> None:
    for parent, _, names in os.walk(target):
        for name in names:
            path = Path(parent, name)
            if path.relative_to(target).as_posix() not in listed:
                path.unlink()


@contextmanager
def local_copy(
    source: RemoteFolder | str,
    *,
    names: Collection[str] | None = None,
    storage_options: Mapping[str, Any] | None = None,
    report: Report | None = None,
) -> Iterator[Path]:
    """Yield a folder with a copy of a remote dataset; it is gone when the block ends.

    It stays where the block ends by Ctrl-C, a fault of the store or a full disk; the next call
    continues from there. See ``fetch_folder`` for the arguments.
    """
    store = _store(source, storage_options)
    with working_folder("copy", store.uri, alone=False) as folder:
        place = folder / name_of(store.uri)
        fetch_folder(store, place, names=names, report=report)
        allow_as(place, store.uri)
        yield place


@contextmanager
def local_copies(
    places: Iterable[object],
    *,
    storage_options: Mapping[str, Any] | None = None,
    report: Report | None = None,
) -> Iterator[dict[str, Path]]:
    """Yield copies of those of the places that are URIs, by URI; see ``local_copy``."""
    uris = list(dict.fromkeys(str(place) for place in places if is_uri(place)))
    with ExitStack() as copies:
        found = {}
        for number, uri in enumerate(uris):
            share = part_of(report, number / len(uris), (number + 1) / len(uris))
            copy = local_copy(uri, storage_options=storage_options, report=share)
            found[uri] = copies.enter_context(copy)
        yield found


def part_of(report: Report | None, first: float, last: float) -> Report | None:
    """Return what reports a part of the work as its share of the whole."""
    if report is None:
        return None
    return lambda share: report(
        share.within(first, last)
        if isinstance(share, ShareDone)
        else first + share * (last - first)
    )


def name_of(uri: str) -> str:
    """Return what a dataset's folder would be called."""
    last = uri.rstrip("/").rsplit("/", 1)[-1]
    return re.sub(r"[^\w.-]+", "_", last.split("@")[0]).lstrip(".") or "dataset"


def _store(
    source: RemoteFolder | RemoteStore | str, storage_options: Mapping[str, Any] | None
) -> RemoteStore:
    if isinstance(source, RemoteFolder):
        return source.store
    return store_of(source, storage_options) if isinstance(source, str) else source


def _refuse_small_disk(target: Path, files: list[_Incoming]) -> None:
    wanted = sum(file.size - file.taken() for file in files)
    free = shutil.disk_usage(target).free
    if free < wanted:
        raise DiskFullError(
            f"The disk has {free / 1e6:,.0f} MB left; {wanted / 1e6:,.0f} MB are needed.",
            hint="free some room, or set DEMOREEL_STAGING to a folder on another disk",
            folder=str(target.parent),
        )


@dataclass
class _Journal:
    """The parts that have arrived, with their check sums; a file beside the folder."""

    target: Path
    store: RemoteStore
    known: dict[tuple[str, int, str | None], dict[int, int]] = field(default_factory=dict)

    def __post_init__(self) -> None:
        self._path = self.target.with_name(f".{self.target.name}.fetched")
        self._lock = threading.Lock()
        self._handle = -1
        # Without an etag, only a commit's files are known to be the same as before.
        if not self._read_known():
            self.known = {}
            self._path.unlink(missing_ok=True)

    def _read_known(self) -> bool:
        try:
            head, *lines = self._path.read_text().splitlines()
        except (OSError, ValueError):
            return False
        if head != self.store.uri:
            return False
        for line in lines:
            try:
                name, size, etag, begin, checksum = json.loads(line)
            except ValueError:
                continue  # the line that was being written when the process was killed
            if etag is not None or not self.store.pins:
                self.known.setdefault((name, size, etag), {})[begin] = checksum
        return True

    def __enter__(self) -> None:
        self._handle = os.open(self._path, os.O_WRONLY | os.O_APPEND | os.O_CREAT, 0o600)
        if os.fstat(self._handle).st_size == 0:
            os.write(self._handle, f"{self.store.uri}\n".encode())

    def __exit__(self, *_: object) -> None:
        with self._lock:
            os.close(self._handle)
            self._handle = -1

    def note(self, file: FileInfo, begin: int, checksum: int) -> None:
        line = json.dumps([file.name, file.size, file.etag, begin, checksum])
        with self._lock:
            if self._handle >= 0:  # else the fetch is over
                os.write(self._handle, f"{line}\n".encode())


class _Incoming:
    """A file on its way."""

    def __init__(self, store: RemoteStore, file: FileInfo, path: Path, journal: _Journal) -> None:
        self.uri = f"{store.uri}/{file.name}"
        self.size = file.size
        self.fetched = 0
        self._path = path
        self._file = file
        self._journal = journal
        self._known = journal.known.get((file.name, file.size, file.etag), {})
        self._sha256 = store.sha256(file.name)
        self._pins = store.pins
        self._pinning = threading.Lock()
        self._lock = threading.Lock()
        self._left = len(self._ranges)
        self._remote = store.file(file.name, file)

    @property
    def _ranges(self) -> list[tuple[int, int]]:
        begins = range(0, self.size, _PART_BYTES)
        return [(begin, min(_PART_BYTES, self.size - begin)) for begin in begins]

    def parts(self) -> Iterator[tuple[_Incoming, int, int]]:
        return ((self, begin, length) for begin, length in self._ranges)

    def taken(self) -> int:
        """Return the bytes that it has on disk already."""
        try:
            return min(self.size, 512 * os.lstat(self._path).st_blocks)
        except OSError:
            return 0

    def make_room(self) -> None:
        """Make a file of the right size, unless there is one."""
        self._path.parent.mkdir(parents=True, exist_ok=True)
        if self._path.is_symlink():
            self._path.unlink()
        with open(self._path, "ab") as file:
            file.truncate(self.size)

    def fetch(self, begin: int, length: int) -> None:
        if self._known.get(begin) != self._checksum(begin, length):
            self._pin()
            self._bring(begin, length)
        with self._lock:
            self._left -= 1
            last = self._left == 0
        if last:
            self._compare()

    def _pin(self) -> None:
        """Find out which state of an object is read, where its listing did not tell."""
        if self._file.etag is None and self._pins and len(self._ranges) > 1:
            with self._pinning:  # all parts must be of the same
                if self._remote.etag is None:
                    self._remote.read(0, 1)

    def _checksum(self, begin: int, length: int) -> int:
        if begin not in self._known:
            return -1
        with open(self._path, "rb") as file:
            file.seek(begin)
            return zlib.crc32(file.read(length))

    def _bring(self, begin: int, length: int) -> None:
        data = self._remote.read(begin, length)
        handle = os.open(self._path, os.O_WRONLY)
        try:
            written = 0
            while written < length:
                written += os.pwrite(handle, data[written:], begin + written)
        finally:
            os.close(handle)
        self._journal.note(self._file, begin, zlib.crc32(data))
        with self._lock:
            self.fetched += length

    def _compare(self) -> None:
        """Refuse a file that is not what the store says it is; one more try is made before."""
        md5 = _MD5.fullmatch(self._file.etag or "")
        if self._sha256 is None and md5 is None:
            return
        kind, stated = ("sha256", self._sha256) if self._sha256 else ("md5", md5[1] if md5 else "")
        found = digest_of(self._path, kind)
        if found == stated:
            return
        for begin, length in self._ranges:
            self._bring(begin, length)
        again = digest_of(self._path, kind)
        # An encrypted object's etag looks like a check sum, and is none.
        if again != stated and (kind == "sha256" or again != found):
            raise StoreError(
                "A file arrived damaged twice: it is not what the store says it is.",
                hint="try again later; if it stays so, its owner must upload it again",
                object=self.uri,
            )


def _fetch_part(part: tuple[_Incoming, int, int]) -> None:
    file, begin, length = part
    file.fetch(begin, length)


def digest_of(path: Path, kind: str) -> str:
    """Return a file's check sum, ``md5`` or ``sha256``."""
    digest = hashlib.new(kind, usedforsecurity=False)
    with open(path, "rb") as file:
        while data := file.read(_READ_BYTES):
            digest.update(data)
    return digest.hexdigest()


_OURS = re.compile(r"(copy|send)-[0-9a-f]{16}(-\d+)?")
_LIVES_S = 7 * 86400
_MOST_AT_ONCE = 64  # pieces of work of the same name


def working_home() -> Path:
    """Return where such folders are: ``DEMOREEL_STAGING``, else in the user's cache."""
    given = os.environ.get("DEMOREEL_STAGING")
    return Path(given).expanduser().absolute() if given else cache_home(None) / "work"


@contextmanager
def working_folder(kind: str, *what: object, alone: bool) -> Iterator[Path]:
    """Yield a folder for a piece of work, with what an earlier attempt at the same left in it.

    Args:
        kind: Names the folder, with ``what``: ``copy`` or ``send``.
        what: What the work is about; the first is the URI of the dataset.
        alone: Whether no other process may do the same at the same time; else later ones get
            folders of their own.
    """
    home = working_home()
    home.mkdir(parents=True, exist_ok=True, mode=0o700)
    _remove_old(home)
    letters = hashlib.sha256(repr(what).encode()).hexdigest()[:16]
    most = 1 if alone else _MOST_AT_ONCE
    folder, lock = _locked(home / f"{kind}-{letters}", most, about=str(what[0]))
    keep = False
    try:
        os.utime(folder)
        yield folder
    except (KeyboardInterrupt, SystemExit, StoreError, DiskFullError):
        keep = True
        raise
    except OSError as error:
        keep = says_no_room(error)
        if keep:
            raise DiskFullError(
                "There is no room left on the disk for the work on a remote dataset.",
                hint="free some, and the same call continues from here; or set DEMOREEL_STAGING",
                folder=folder,
            ) from error
        raise
    finally:
        if not keep:
            remove_hidden(folder)
        os.close(lock)


def working_folders() -> list[Path]:
    """Return the folders of such work, in use or not."""
    with contextlib.suppress(OSError):
        return sorted(p for p in working_home().iterdir() if _OURS.fullmatch(p.name))
    return []


def _locked(first: Path, most: int, *, about: str) -> tuple[Path, int]:
    for number in range(most):
        folder = first if number == 0 else first.with_name(f"{first.name}-{number}")
        try:
            return folder, lock_folder(folder, first, about=about)
        except DatasetBusyError:
            if number + 1 == most:
                raise
    raise AssertionError("the last try raises or returns")


def _remove_old(home: Path) -> None:
    """Remove what was not used for a week; other programs may have files of theirs here."""
    with contextlib.suppress(OSError):
        for folder in home.iterdir():
            old = time.time() - folder.stat().st_mtime > _LIVES_S
            if not (old and _OURS.fullmatch(folder.name) and (folder / "lock").is_file()):
                continue
            try:
                lock = lock_folder(folder, folder)
            except (DatasetBusyError, OSError):
                continue
            remove_hidden(folder)
            os.close(lock)
