"""Remote stores, and their objects as files that are read by position."""

from __future__ import annotations

import threading
import time
from abc import abstractmethod
from collections.abc import Mapping, Sequence
from concurrent.futures import Future, InvalidStateError
from contextlib import suppress
from functools import partial
from typing import Any

from demoreel.errors import StoreError
from demoreel.storage.cache import ByteCache, RangeCache
from demoreel.storage.place import RemotePlace
from demoreel.storage.remote.transfer import (
    Answer,
    Link,
    Received,
    begin_range,
    changed,
    read_range,
    same_state,
)
from demoreel.storage.store import FileInfo, Range, Store, open_store
from demoreel.storage.threads import renew_in_children, transfer

_NEAR = 1 << 14
# Ranges with a smaller gap between them are one request,
_SHARE_WASTED = 8  # unless gaps are more than an eighth of it
_LITTLE = 1 << 9  # and more than this.
_LARGEST_REQUEST = 8 << 20
_SMALL = 1 << 18  # bytes of an object that is kept whole
_MOST_LINKS = 1 << 14


class RemoteStore(Store):
    """A store whose objects are read over HTTP, from links that live for a while.

    Args:
        young_s: Seconds for which a link is used.

    Attributes:
        pins: Whether the etag identifies the state of an object; otherwise objects never change.
        requests_a_file: Requests for reading a complete file.
    """

    pins = True
    requests_a_file = 1

    def __init__(self, young_s: float) -> None:
        self._young_s = young_s
        self._links: ByteCache[str, tuple[float, Link]] = ByteCache(_MOST_LINKS)  # all are secrets

    @property
    @abstractmethod
    def place(self) -> RemotePlace:
        """Where Lance would look for tables."""

    @property
    @abstractmethod
    def given(self) -> RemotePlace:
        """Its URI, with the options that the user gave."""

    def link(self, name: str, *, renew: bool) -> Link | None:
        """Return where an object is read from; None if only ``read_directly`` reads it.

        Args:
            name: The object.
            renew: Whether the last link was refused.
        """
        known = None if renew else self.link_at_hand(name)
        return self._new_link(name) if known is None else known

    @abstractmethod
    def _new_link(self, name: str) -> Link | None:
        """Return a link that was not given before; None as for ``link``."""

    def link_at_hand(self, name: str) -> Link | None:
        """Return the cached link of an object; None if there is none."""
        found = self._links.peek(name)
        if found is None or time.monotonic() - found[0] >= self._young_s:
            return None
        return found[1]

    def _keep_link(self, name: str, link: Link) -> None:
        self._links.put(name, (time.monotonic(), link), 1)

    @abstractmethod
    def moved(self, name: str, link: Link, location: str) -> Link:
        """Return where to read an object that the server says is elsewhere."""

    @abstractmethod
    def read_directly(self, name: str, begin: int, length: int, etag: str | None) -> bytes:
        """Return a range of an object that no link can be had for."""

    def file(
        self, name: str, known: FileInfo | None = None, *, cache: RangeCache | None = None
    ) -> RemoteFile:
        """Return an object to read from; nothing is asked before it is read."""
        size, etag = (None, None) if known is None else known[1:]
        uri = f"{self.uri}/{self._checked(name)}"
        return RemoteFile(self, name, uri=uri, size=size, etag=etag, cache=cache)


def store_of(uri: str, storage_options: Mapping[str, Any] | None = None) -> RemoteStore:
    """Return the store behind a URI; see ``open_store``."""
    store = open_store(uri, storage_options)
    assert isinstance(store, RemoteStore), "a path is no URI"
    return store


class RemoteFile:
    """An object, read by position. Safe for threads; pickling is for the folder that holds it.

    Args:
        store: The store that it is in.
        name: Its name there.
        uri: What to call it.
        size: Its bytes, if they are known; else the first read tells.
        etag: Its state, likewise.
        cache: Keeps ranges that were read; None keeps none.
        for_ever: Whether nothing of that name is ever written again, as in Lance: its name is all
            that there is to know, and no size.
    """

    waits = True

    def __init__(
        self,
        store: RemoteStore,
        name: str,
        *,
        uri: str,
        size: int | None,
        etag: str | None,
        cache: RangeCache | None,
        for_ever: bool = False,
    ) -> None:
        self._store = store
        self._name = name
        self.uri = uri
        self._size = size
        self.etag = etag
        self._cache = cache
        self._for_ever = for_ever
        self.renew()
        renew_in_children(self)

    def renew(self) -> None:
        """Start again in a forked child: what is under way will never arrive there."""
        self._ahead: dict[Range, Future[bytes]] = {}
        self._lock = threading.Lock()

    @property
    def is_known(self) -> bool:
        """Whether its size and state are known without a request."""
        return self._size is not None

    @property
    def known_size(self) -> int | None:
        """Its size, if neither is asked for."""
        return self._size

    def link(self, *, renew: bool) -> Link | None:
        """Return where to read; see ``RemoteStore.link``."""
        return self._store.link(self._name, renew=renew)

    def link_at_hand(self) -> Link | None:
        """Return the cached link; None if there is none."""
        return self._store.link_at_hand(self._name)

    def moved(self, link: Link, location: str) -> Link:
        """Return where to read when the server says that the object is elsewhere."""
        return self._store.moved(self._name, link, location)

    def read_directly(self, begin: int, length: int) -> Answer:
        """Return a range without a link."""
        size, etag = self._size, self.etag
        if size is None:
            found = self._store.stat(self._name)
            size, etag = found.size, etag or found.etag
        length = max(0, min(length, size - begin))
        data = self._store.read_directly(self._name, begin, length, etag) if length else b""
        return Answer(data, size, etag)

    @property
    def size(self) -> int:
        """The object's bytes; costs a request if neither a listing nor a read has told."""
        if self._size is None:
            self.read(0, 1)
        assert self._size is not None
        return self._size

    @property
    def identity(self) -> tuple[object, ...]:
        """Changes when the object does."""
        return (self.uri,) if self._for_ever else (self.uri, self.size, self.etag)

    def read(self, offset: int, length: int) -> bytes:
        """Return the bytes there; fewer than ``length`` only where the object ends."""
        if offset < 0 or length <= 0:
            return b""
        if self._size is not None:
            length = min(length, self._size - offset)
            if length <= 0:
                return b""
        kept = self._kept(offset, length)
        if kept is not None:
            return kept
        data = self._fetch(offset, length)
        if self._cache is not None:
            self._cache.put(self.identity, offset, data)
        return data

    def _fetch(self, offset: int, length: int, trouble: Exception | None = None) -> bytes:
        return self._taken(read_range(self, offset, length, trouble=trouble))

    def _taken(self, answer: Answer) -> bytes:
        self._learn(answer)
        if self._cache is not None and len(answer.data) == answer.size <= _SMALL:
            self._cache.put(self.identity, 0, answer.data)
        return answer.data

    def _learn(self, answer: Answer) -> None:
        """Record the object's state; if two reads are the first, both must agree."""
        etag = answer.etag if self._store.pins else None
        with self._lock:
            if self._size is None:
                self._size, self.etag = answer.size, self.etag or etag
            elif self.etag is None:
                self.etag = etag
            agree = self._size == answer.size and same_state(self.etag, etag)
        if not agree:
            raise changed(self.uri, "two reads found two states")

    def _kept(self, offset: int, length: int) -> bytes | None:
        """Return bytes that were fetched before: this range, or the whole of a small object."""
        if self._cache is None or (self._size is None and not self._for_ever):
            return None
        found = self._cache.get(self.identity, offset, length)
        if found is None and self._size is not None and self._size <= _SMALL:
            whole = self._cache.get(self.identity, 0, self._size)
            return None if whole is None else whole[offset : offset + length]
        return found

    def read_ranges(self, ranges: Sequence[Range]) -> list[Future[bytes]]:
        """Begin to read many ranges that are inside the object.

        Ranges that are near each other are one request. One that is already under way is not asked
        for again.
        """
        found: dict[Range, Future[bytes]] = {}
        missing = []
        for part in dict.fromkeys(ranges):
            kept = self._kept_future(part)
            if kept is not None:
                found[part] = kept
            else:
                missing.append(part)
        with self._lock:
            found.update({part: self._ahead[part] for part in missing if part in self._ahead})
            groups = _merged([part for part in missing if part not in found])
            begun = [_Group({part: Future() for part in group}) for group in groups]
            for group in begun:
                self._ahead.update(group.futures)
        self._begin_groups(begun)
        for group in begun:
            found.update(group.futures)
        return [found[part] for part in ranges]

    def _begin_groups(self, groups: Sequence[_Group]) -> None:
        handed_over = 0
        try:
            for group in groups:
                self._begin_group(group)
                handed_over += 1
        except BaseException as error:  # Ctrl-C, too: what was not begun must not be waited for
            for group in groups[handed_over:]:
                self._fail(group, error)
            raise

    def _kept_future(self, part: Range) -> Future[bytes] | None:
        """Return a future of cached bytes, without a thread; None if they are not cached."""
        data = self._kept(*part)
        if data is None:
            return None
        future: Future[bytes] = Future()
        future.set_result(data)
        return future

    def _begin_group(self, group: _Group) -> None:
        quick = self.is_known and (self._cache is None or self._cache.is_quick) and group.length > 0
        hear = partial(self._hear, group)
        if not quick or not begin_range(self, group.first, group.length, hear):
            transfer(partial(self._read_group, group))

    def _hear(self, group: _Group, received: Received | None) -> None:
        """Handle a response; a failed one is left to a thread, which may wait and retry."""
        answer = None if received is None else received.answer
        trouble = None if received is None else received.trouble
        try:
            data = b""
            if answer is not None:
                try:
                    data = self._taken(answer)
                except StoreError as error:
                    trouble = error
            if len(data) == group.length:
                self._settle(group, data)
            else:
                transfer(partial(self._read_group, group, trouble))
        except BaseException as error:
            self._fail(group, error)

    def _read_group(self, group: _Group, trouble: Exception | None = None) -> None:
        """Fetch ranges that are one request."""
        try:
            data = self._fetch(group.first, group.length, trouble)
            if len(data) < group.length:
                raise StoreError(
                    f"An object is cut off: it has {self._size} bytes.",
                    object=self.uri,
                    range=f"bytes {group.first} to {group.first + group.length}",
                )
            self._settle(group, data)
        except BaseException as error:
            self._fail(group, error)

    def _settle(self, group: _Group, data: bytes) -> None:
        """Keep each range by itself, and set its future."""
        for (begin, length), future in group.futures.items():
            piece = data[begin - group.first : begin - group.first + length]
            if self._cache is not None:
                self._cache.put(self.identity, begin, piece)
            with suppress(InvalidStateError):  # it was given up on
                future.set_result(piece)
        self._forget(group)

    def _fail(self, group: _Group, error: BaseException) -> None:
        self._forget(group)
        for future in group.futures.values():
            with suppress(InvalidStateError):  # it has arrived
                future.set_exception(error)

    def _forget(self, group: _Group) -> None:
        with self._lock:
            for part, future in group.futures.items():
                if self._ahead.get(part) is future:
                    del self._ahead[part]


class RemoteSlice:
    """A part of an object, read by position: a video in a Lance file.

    Args:
        whole: The object.
        begin: Where the part begins.
        size: How long it is.
    """

    waits = True

    def __init__(self, whole: RemoteFile, begin: int, size: int) -> None:
        self._whole = whole
        self._begin = begin
        self.size = size

    @property
    def identity(self) -> tuple[object, ...]:
        """What tells it from others; of a file that is never written to again."""
        return (self._whole.uri, self._begin, self.size)

    def read(self, offset: int, length: int) -> bytes:
        """Return the bytes there; fewer than ``length`` only where the part ends."""
        if offset < 0:
            return b""
        return self._whole.read(self._begin + offset, min(length, self.size - offset))

    def read_ranges(self, ranges: Sequence[Range]) -> list[Future[bytes]]:
        """Begin to read many ranges that are inside the part."""
        inside = [(self._begin + offset, length) for offset, length in ranges]
        return self._whole.read_ranges(inside)


class _Group:
    """Ranges that one request fetches, and their futures."""

    def __init__(self, futures: dict[Range, Future[bytes]]) -> None:
        self.futures = futures
        self.first = min(begin for begin, _ in futures)
        self.length = max(begin + length for begin, length in futures) - self.first


def _merged(ranges: Sequence[Range]) -> list[list[Range]]:
    """Group ranges that one request should bring: near each other, and not too many bytes.

    What is between them is fetched for nothing, and stays a small part of the whole.
    """
    groups: list[list[Range]] = []
    end = wanted = wasted = 0
    for begin, length in sorted(ranges):
        gap = max(0, begin - end)
        new = max(0, begin + length - max(begin, end))
        fits = groups and begin + length - groups[-1][0][0] <= _LARGEST_REQUEST
        little = wasted + gap <= max(_LITTLE, (wanted + new) // _SHARE_WASTED)
        if fits and gap <= _NEAR and little:
            groups[-1].append((begin, length))
            end, wanted, wasted = max(end, begin + length), wanted + new, wasted + gap
        else:
            groups.append([(begin, length)])
            end, wanted, wasted = begin + length, length, 0
    return groups
