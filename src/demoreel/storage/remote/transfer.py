"""Reads ranges of objects over HTTP: retries failures, and checks responses before use.

Whatever goes wrong on the way (a busy server, a cut connection, a body that is too short, an object
that is another one by now), the bytes that come out are the bytes that were asked for, or there is
an error that names the object and the range.
"""

from __future__ import annotations

import os
import random
import re
import threading
import time
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from functools import lru_cache, partial
from typing import TYPE_CHECKING, Any, Protocol
from urllib.parse import urlsplit

from demoreel.errors import AccessError, ObjectChangedError, StoreError, shortage
from demoreel.storage.remote import http
from demoreel.storage.remote.http import Outcome, event_loop
from demoreel.storage.secrets import hide_signatures
from demoreel.storage.threads import CONNECTIONS, renew_in_children

if TYPE_CHECKING:
    from urllib3 import PoolManager

_MOST_TRIES = 10
_FIRST_PAUSE_S = 0.1
_LONGEST_PAUSE_S = 10.0
_LONGEST_WAIT_S = 60.0  # that a server may ask for
_CONNECT_S = 10.0
_READ_S = 30.0  # without a byte, if DEMOREEL_READ_TIMEOUT says nothing else
_BUSY = frozenset({408, 425, 429, 500, 502, 503, 504})
_DENIED = frozenset({400, 401, 403})  # Amazon calls an expired token a bad request
_MOVED = frozenset({301, 302, 303, 307, 308})
_MOST_MOVES = 5
_CONTENT_RANGE = re.compile(r"bytes (\d{1,18})-(\d{1,18})/(\d{1,18})")
_AT_ONCE = 1 << 20


@dataclass(frozen=True, slots=True)
class Link:
    """Where an object is read from; a signature or a token in it is a secret."""

    url: str = field(repr=False)
    headers: Mapping[str, str] = field(default_factory=dict, repr=False)


class RangeSource(Protocol):
    """An object as a transfer sees it.

    Attributes:
        uri: What to call it.
        etag: What the server calls this state of it; None if not known, or of no use.
    """

    uri: str
    etag: str | None

    @property
    def known_size(self) -> int | None:
        """Its bytes; None if not known yet."""
        ...

    def link(self, *, renew: bool) -> Link | None:
        """Return where to read; None if it can only be read by ``read_directly``."""
        ...

    def link_at_hand(self) -> Link | None:
        """Return where to read, if that is known without waiting for anything."""
        ...

    def moved(self, link: Link, location: str) -> Link:
        """Return where to read when the server says that the object is elsewhere."""
        ...

    def read_directly(self, begin: int, length: int) -> Answer:
        """Return a range without a link."""
        ...


@dataclass(frozen=True, slots=True)
class Answer:
    """What a request brought.

    Attributes:
        data: The bytes.
        size: The object's size.
        etag: Its state; None if the server tells none.
    """

    data: bytes
    size: int
    etag: str | None


class _Again(Exception):
    """What went wrong may go right the next time, perhaps after so many seconds."""

    def __init__(self, what: str, *, after_s: float | None = None) -> None:
        super().__init__(what)
        self.after_s = after_s


class Received:
    """What came of a request that ``begin_range`` made.

    Attributes:
        answer: The bytes; None if they are not what was asked for.
        trouble: What ``read_range`` deals with instead.
    """

    __slots__ = ("answer", "trouble")

    def __init__(self, judge: Callable[[], Answer]) -> None:
        self.answer: Answer | None = None
        self.trouble: Exception | None = None
        try:
            self.answer = judge()
        except Exception as error:
            self.trouble = error


def begin_range(
    source: RangeSource, begin: int, length: int, done: Callable[[Received | None], None]
) -> bool:
    """Begin to read a range in the quickest way, if nothing stands against it.

    Args:
        source: The object; its size is known.
        begin: The first byte.
        length: How many, all inside the object.
        done: Called by another thread, with what came; None if nothing did. It must neither raise
            nor wait for anything.

    Returns:
        Whether it has begun; if not, ``done`` is never called.
    """
    link = source.link_at_hand()
    if link is None or _proxy_for(link.url) is not None:
        return False
    try:
        address, request = http.question(link.url, _headers(source, link, begin, length))
    except (http.NotPlainError, ValueError):
        return False

    def hear(outcome: Outcome) -> None:
        received = None
        if outcome is not None:
            received = Received(partial(_received, source, outcome, begin, length))
            if isinstance(received.trouble, _Again):
                event_loop.let_rest(address, _pause(0, received.trouble.after_s))
        done(received)

    return event_loop.ask(address, request, most_bytes=length, read_s=_read_s(), done=hear)


def _received(source: RangeSource, outcome: Outcome, begin: int, length: int) -> Answer:
    if not isinstance(outcome, http.Reply):
        raise _Again(f"the connection failed ({type(outcome).__name__})")
    return _judged(source, outcome, begin, length)


def read_range(
    source: RangeSource, begin: int, length: int, *, trouble: Exception | None = None
) -> Answer:
    """Return the bytes from ``begin`` on: ``length`` of them, fewer only where the object ends.

    Cost: a request; up to ten where the server is busy or the connection fails, with pauses that
    grow, or that the server asks for.
    """
    renew = False
    tries = 0
    while True:
        try:
            if trouble is not None:
                raise trouble
            link = source.link(renew=renew)
            if link is None:
                return _directly(source, begin, length)
            return _followed(source, link, begin, length)
        except _Moved:
            trouble = None  # by asking again it is found out where
        except _Refused as refused:
            if renew:
                raise _denied(source, refused, begin, length) from None
            renew, trouble = True, None  # a link does not live for ever
        except _Again as again:
            tries, trouble = tries + 1, None
            if tries == _MOST_TRIES:
                raise StoreError(
                    f"An object cannot be read: {again} ({_MOST_TRIES} tries).",
                    hint="look at the network and the server, then read again",
                    object=source.uri,
                    range=_as_words(begin, length),
                ) from None
            time.sleep(_pause(tries - 1, again.after_s))


class _Refused(Exception):
    """The server wants other credentials."""

    def __init__(self, status: int) -> None:
        super().__init__(f"the server answered {status}")
        self.status = status


def _pause(number: int, asked_s: float | None) -> float:
    grown = min(_FIRST_PAUSE_S * 2.0**number, _LONGEST_PAUSE_S)
    pause = grown * (0.5 + random.random() / 2)  # so that many readers do not come back together
    return max(pause, min(asked_s or 0.0, _LONGEST_WAIT_S))


def _directly(source: RangeSource, begin: int, length: int) -> Answer:
    answer = source.read_directly(begin, length)
    wanted = max(0, min(length, answer.size - begin))
    if len(answer.data) != wanted:
        raise _Again(f"{len(answer.data)} of {wanted} bytes came")
    return answer


def _followed(source: RangeSource, link: Link, begin: int, length: int) -> Answer:
    for _ in range(_MOST_MOVES):
        try:
            return _request(source, link, begin, length)
        except _Moved as moved:
            link = source.moved(link, str(moved))
    raise _Again("the server sends us round in circles")


class _Moved(Exception):
    """The server says that the object is at another address."""


def _request(source: RangeSource, link: Link, begin: int, length: int) -> Answer:
    size = source.known_size
    if size is not None:
        length = min(length, size - begin)
    if length <= 0:
        return Answer(b"", size or 0, source.etag)
    headers = _headers(source, link, begin, length)
    wait_s = _read_s()
    try:
        if _proxy_for(link.url) is None:
            connect_s = min(_CONNECT_S, wait_s)
            reply = http.get(
                link.url, headers, most_bytes=length, connect_s=connect_s, read_s=wait_s
            )
        else:
            reply = None
    except http.NotPlainError:
        reply = None
    except (OSError, ValueError) as error:
        raise _failed(source, error, begin, length) from None
    if reply is None:
        return _unusual_request(source, link.url, headers, wait_s, begin, length)
    return _judged(source, reply, begin, length)


def _headers(source: RangeSource, link: Link, begin: int, length: int) -> dict[str, str]:
    headers = {**link.headers, "Range": f"bytes={begin}-{begin + length - 1}"}
    if source.etag is not None:
        headers["If-Match"] = f'"{_bare(source.etag)}"'
    return headers


def _read_s() -> float:
    return float(os.environ.get("DEMOREEL_READ_TIMEOUT") or _READ_S)


def _unusual_request(
    source: RangeSource,
    url: str,
    headers: Mapping[str, str],
    wait_s: float,
    begin: int,
    length: int,
) -> Answer:
    """Make a request through a proxy, or to a server that does not say how much it sends."""
    import urllib3

    try:
        response = _pool_for(url).request(
            "GET",
            url,
            headers=headers,
            preload_content=False,
            decode_content=False,
            redirect=False,
            retries=False,
            timeout=urllib3.Timeout(connect=min(_CONNECT_S, wait_s), read=wait_s),
        )
        try:
            return _judged(source, response, begin, length)
        finally:
            if response.closed:
                response.release_conn()
            else:  # what is left of the answer would be taken for the next one
                response.close()
    except (urllib3.exceptions.HTTPError, OSError) as error:
        raise _failed(source, error, begin, length) from None


def _failed(source: RangeSource, error: Exception, begin: int, length: int) -> Exception:
    """Return what to raise when a connection fails; by its kind only: its words may hold a link."""
    causes = (error, *error.args)
    short = None if isinstance(error, BlockingIOError) else shortage(error)
    if short is not None:
        return short
    if any(type(cause).__name__ == "SSLCertVerificationError" for cause in causes):
        return StoreError(
            "An object cannot be read: the server's certificate is not trusted.",
            hint="name a file with the certificates that you trust: SSL_CERT_FILE",
            object=source.uri,
            range=_as_words(begin, length),
        )
    return _Again(f"the connection failed ({type(error).__name__})")


class _Response(Protocol):
    """An answer, received by either client."""

    @property
    def status(self) -> int: ...
    @property
    def headers(self) -> Mapping[str, str]: ...
    def read(self, size: int, decode_content: bool) -> bytes: ...


def _judged(source: RangeSource, response: _Response, begin: int, length: int) -> Answer:
    _refuse_status(source, response, begin, length)
    return _checked(source, response, begin, length)


def _refuse_status(source: RangeSource, response: _Response, begin: int, length: int) -> None:
    status = response.status
    if status in (200, 206):
        return
    response.read(_AT_ONCE, decode_content=False)  # what it says about it is short
    if status in _BUSY:
        raise _Again(f"the server answered {status}", after_s=_retry_after(response))
    if status in _MOVED and response.headers.get("location"):
        raise _Moved(response.headers["location"])
    if status in _DENIED:
        raise _Refused(status)
    if status in (412, 416):
        raise changed(source.uri, f"the server answered {status}")
    if status == 404:
        if source.etag is not None:
            raise changed(source.uri, "it is gone")
        raise StoreError("There is no such object.", hint="fetch or restore it", object=source.uri)
    raise _unreadable(source, f"the server answered {status}", begin, length)


def _checked(source: RangeSource, response: _Response, begin: int, length: int) -> Answer:
    """Return the bytes if they are those that were asked for."""
    etag = response.headers.get("etag")
    if not same_state(source.etag, etag):
        raise changed(source.uri, "its etag is another")
    first, last, total = _promised(response, begin, length)
    if source.known_size is not None and total != source.known_size:
        raise changed(source.uri, f"it had {source.known_size} bytes, and has {total}")
    wanted = max(0, min(length, total - begin))
    if (first, last) != (begin, begin + wanted - 1):
        raise _Again(f"bytes {first} to {last} came, where {wanted} from {begin} on were wanted")
    if response.status == 200:
        _skip(response, begin)
    data = response.read(wanted, decode_content=False)
    more = b"" if response.status == 200 else response.read(1, decode_content=False)
    if len(data) != wanted or more:
        raise _Again(f"{len(data)}{'+' if more else ''} bytes came, where {wanted} were wanted")
    return Answer(data, total, etag)


def _promised(response: _Response, begin: int, length: int) -> tuple[int, int, int]:
    """Return the first and the last byte that are to come, and the object's size."""
    if response.status == 206:
        found = _CONTENT_RANGE.fullmatch(response.headers.get("content-range", ""))
        if found is None:
            raise _Again("the server does not say which bytes it sends")
        return int(found[1]), int(found[2]), int(found[3])
    text = response.headers.get("content-length", "")  # a server that knows no ranges sends all
    if not text.isdecimal():
        raise _Again("the server does not say how many bytes it sends")
    return begin, min(begin + length, int(text)) - 1, int(text)


def _skip(response: _Response, length: int) -> None:
    while length > 0:
        data = response.read(min(length, _AT_ONCE), decode_content=False)
        if not data:
            raise _Again("the answer ends too early")
        length -= len(data)


def _bare(etag: str) -> str:
    """Return an etag without quotes, which some stores leave out of listings."""
    return etag.removeprefix("W/").strip('"')


def _as_words(begin: int, length: int) -> str:
    return f"bytes {begin} to {begin + length}"


def _unreadable(source: RangeSource, why: str, begin: int, length: int) -> StoreError:
    return StoreError(
        f"An object cannot be read: {why}.", object=source.uri, range=_as_words(begin, length)
    )


def _retry_after(response: _Response) -> float | None:
    text = response.headers.get("retry-after")
    if text is None:
        return None
    try:
        return float(text)
    except ValueError:
        pass
    from email.utils import parsedate_to_datetime  # heavy, and rarely needed

    try:
        return max(0.0, parsedate_to_datetime(text).timestamp() - time.time())
    except (ValueError, OverflowError):
        return None


def changed(uri: str, how: str) -> ObjectChangedError:
    """Return the error for an object that is not the one that was opened."""
    return ObjectChangedError(
        f"An object has changed since the dataset was opened: {how}.",
        hint="open the dataset again",
        object=uri,
    )


def same_state(etag: str | None, other: str | None) -> bool:
    """Whether two etags are the same, as far as they are known."""
    return etag is None or other is None or _bare(etag) == _bare(other)


def _denied(source: RangeSource, refused: _Refused, begin: int, length: int) -> StoreError:
    if refused.status not in (401, 403):
        return _unreadable(source, str(refused), begin, length)
    return AccessError(
        f"An object may not be read: {refused}.",
        hint="check the credentials in the environment, or in storage_options=",
        object=source.uri,
    )


class _Pools:
    """Connections that stay open; every process has its own."""

    def __init__(self) -> None:
        self.renew()
        renew_in_children(self)

    def renew(self) -> None:
        """Start again in a forked child."""
        # A connection that two processes read from mixes up their answers.
        self.lock = threading.Lock()
        self.by_proxy: dict[str | None, Any] = {}


_pools = _Pools()


def _pool_for(url: str) -> PoolManager:
    """Return the connections that serve a URL, through a proxy if the environment wants one."""
    import urllib3

    proxy = _proxy_for(url)
    with _pools.lock:
        if proxy not in _pools.by_proxy:
            hide_signatures()
            options: dict[str, Any] = {"num_pools": 8, "maxsize": CONNECTIONS}
            _pools.by_proxy[proxy] = (
                urllib3.PoolManager(**options)
                if proxy is None
                else urllib3.ProxyManager(proxy, **options)
            )
        pool: PoolManager = _pools.by_proxy[proxy]
        return pool


def _proxy_for(url: str) -> str | None:
    """Return the proxy that the environment wants for a URL."""
    parts = urlsplit(url)
    return _proxy_of(parts.scheme, parts.netloc)


@lru_cache(64)  # a look at the whole environment takes longer than a request
def _proxy_of(scheme: str, host: str) -> str | None:
    from urllib.request import getproxies, proxy_bypass  # heavy

    known = getproxies()
    return known[scheme] if scheme in known and not proxy_bypass(host) else None
