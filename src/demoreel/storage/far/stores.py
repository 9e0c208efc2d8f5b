"""A folder in an object store: what lies there, and links to read it."""

from __future__ import annotations

import threading
from functools import partial
from typing import Any

from demoreel.errors import AccessError, DatasetNotFoundError, StoreError, TargetExistsError
from demoreel.storage.far.links import Links
from demoreel.storage.far.store_calls import Listed, StoreFailure
from demoreel.storage.far.store_process import ask
from demoreel.storage.far.threads import transfer
from demoreel.storage.far.transfer import Link, changed
from demoreel.storage.lance_places import RemotePlace

_LINK_LIVES_S = 3600
_LINK_IS_OLD_S = 3000


class ObjectStore:
    """Objects below one place. Holds no handle: pickling moves the place.

    Args:
        place: The place.
    """

    pins = True
    """Whether an object's etag says which state of it is read."""

    requests_a_file = 1

    def __init__(self, place: RemotePlace) -> None:
        self.place = place
        self._links = Links(_LINK_IS_OLD_S)
        self._signs = True

    def __getstate__(self) -> dict[str, Any]:
        return {"place": self.place}  # links are secrets

    def __setstate__(self, state: dict[str, Any]) -> None:
        ObjectStore.__init__(self, state["place"])

    @property
    def uri(self) -> str:
        """What to call it."""
        return self.place.uri

    @property
    def direct(self) -> ObjectStore:
        """Itself: credentials that cannot sign a link may read all the same."""
        return self

    @property
    def given(self) -> RemotePlace:
        """Its URI, with the options that the user gave."""
        return self.place

    def folders(self) -> list[str]:
        """Return the names of what looks like a folder here; one request."""
        found: list[str] = self._ask("folders")
        return found

    def files(self, under: str, *, most_pages: int) -> tuple[list[Listed], bool]:
        """Return the objects in a folder here, and whether these are all.

        Cost: a request for every thousand, and no more than ``most_pages``.
        """
        found: tuple[list[Listed], bool] = self._ask("files", under, most_pages)
        return found

    def sha256(self, name: str) -> str | None:
        """Object stores tell none."""
        return None

    def link(self, name: str, *, renew: bool) -> Link | None:
        """Return where an object is read from; None if these credentials cannot sign a link."""
        if not self._signs:
            return None
        known = None if renew else self.link_at_hand(name)
        if known is not None:
            return known
        try:
            url = ask("sign", self.place, name, _LINK_LIVES_S)
        except StoreFailure as failure:
            if failure.kind != "unsigned":
                raise self._error(failure, name) from None
            self._signs = False
            return None
        link = Link(url)
        self._links.put(name, link)
        return link

    def link_at_hand(self, name: str) -> Link | None:
        """Return the link that was signed last, if it still lives."""
        return self._links.get(name)

    def moved(self, name: str, link: Link, location: str) -> Link:
        """Refuse: a store that sends us elsewhere is asked in the wrong region."""
        raise StoreError(
            "The store says that the bucket is elsewhere.",
            hint="name its region: AWS_REGION, or storage_options={'aws_region': ...}",
            object=f"{self.uri}/{name}",
        )

    def read(self, name: str, begin: int, length: int, etag: str | None) -> bytes:
        """Return a range without a link."""
        try:
            data: bytes = self._ask("read", name, begin, length, etag)
        except (DatasetNotFoundError, TargetExistsError) as error:
            gone = isinstance(error, DatasetNotFoundError)
            if etag is None:
                raise StoreError("There is no such object.", object=f"{self.uri}/{name}") from None
            how = "it is gone" if gone else "its etag is another"
            raise changed(f"{self.uri}/{name}", how) from None
        return data

    def look(self, name: str) -> Listed:
        """Return an object's size and etag; one request."""
        found: Listed = self._ask("look", name)
        return found

    def put(self, name: str, path: str, *, new: bool = False) -> None:
        """Send a file; one that is there is replaced, unless it must be new."""
        self._ask("put", name, path, new)

    def delete(self, names: list[str]) -> None:
        """Remove objects; those that are not there do no harm."""
        self._ask("delete", names)

    def _ask(self, call: str, *arguments: Any) -> Any:
        asking = partial(ask, call, self.place, *arguments)
        try:
            if threading.current_thread() is threading.main_thread():
                return transfer(asking).result()  # Ctrl-C does not reach obstore itself
            return asking()
        except StoreFailure as failure:
            name = arguments[0] if arguments and isinstance(arguments[0], str) else ""
            raise self._error(failure, name) from None

    def _error(self, failure: StoreFailure, name: str) -> Exception:
        where = f"{self.uri}/{name}" if name else self.uri
        if failure.kind == "denied":
            return AccessError(
                f"The store refuses: {failure}.",
                hint="check the credentials in the environment, or in storage_options=",
                object=where,
            )
        if failure.kind == "missing":
            return DatasetNotFoundError("There is no such object.", object=where)
        if failure.kind == "exists":
            return TargetExistsError("Another object has come to be there.", object=where)
        return StoreError(
            f"The store does not answer as it should: {failure}.",
            hint="check the URI, the endpoint and the network; if the server's certificate is your "
            "own, SSL_CERT_FILE names a file with it",
            object=where,
        )
