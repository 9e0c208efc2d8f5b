"""A folder in an object store: what lies there, and links to read it."""

from __future__ import annotations

import os
import threading
from collections.abc import Iterable, Sequence
from functools import partial
from typing import Any

from demoreel.errors import AccessError, DatasetNotFoundError, StoreError, TargetExistsError
from demoreel.storage.names import EndlessListing
from demoreel.storage.place import RemotePlace
from demoreel.storage.remote.files import RemoteStore
from demoreel.storage.remote.store_calls import StoreFailure, ask
from demoreel.storage.remote.transfer import Link, changed
from demoreel.storage.store import FileInfo
from demoreel.storage.threads import transfer

_LINK_LIVES_S = 3600
_LINK_IS_OLD_S = 3000


class ObjectStore(RemoteStore):
    """Objects below one place.

    Args:
        place: The place.
    """

    def __init__(self, place: RemotePlace) -> None:
        super().__init__(_LINK_IS_OLD_S)
        self._place = place
        self._signs = True

    def __getstate__(self) -> dict[str, Any]:
        return {"place": self._place}  # links are secrets

    def __setstate__(self, state: dict[str, Any]) -> None:
        ObjectStore.__init__(self, state["place"])

    @property
    def uri(self) -> str:
        """What to call it."""
        return self._place.uri

    @property
    def place(self) -> RemotePlace:
        """Where Lance would look for tables."""
        return self._place

    given = place

    def folders(self) -> Sequence[str]:
        """Return the names of what looks like a folder here; one request."""
        found: Sequence[str] = self._ask("folders")
        return found

    def list(
        self, under: str = "", *, most_pages: int | None = None
    ) -> tuple[Sequence[FileInfo], bool]:
        """Return the objects in a folder here, and whether these are all."""
        found: tuple[Sequence[FileInfo], bool] = self._ask("files", under, most_pages)
        return found

    def link(self, name: str, *, renew: bool) -> Link | None:
        """Return where an object is read from; None if these credentials cannot sign a link."""
        if not self._signs:
            return None
        known = None if renew else self.link_at_hand(name)
        if known is not None:
            return known
        try:
            url = ask("sign", self._place, name, _LINK_LIVES_S)
        except StoreFailure as failure:
            if failure.kind != "unsigned":
                raise self._error(failure, name) from None
            self._signs = False
            return None
        link = Link(url)
        self._keep_link(name, link)
        return link

    def moved(self, name: str, link: Link, location: str) -> Link:
        """Refuse: a store that sends us elsewhere is asked in the wrong region."""
        raise StoreError(
            "The store says that the bucket is elsewhere.",
            hint="name its region: AWS_REGION, or storage_options={'aws_region': ...}",
            object=f"{self.uri}/{name}",
        )

    def read_directly(self, name: str, begin: int, length: int, etag: str | None) -> bytes:
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

    def stat(self, name: str) -> FileInfo:
        """Return an object's size and etag; one request."""
        found: FileInfo = self._ask("look", self._checked(name))
        return found

    def put(self, name: str, path: str | os.PathLike[str], *, new: bool = False) -> None:
        """Send a file; one that is there is replaced, unless it must be new."""
        self._ask("put", self._checked(name), os.fspath(path), new)

    def delete(self, names: Iterable[str]) -> None:
        """Remove objects; those that are not there do no harm."""
        self._ask("delete", [self._checked(name) for name in names])

    def _ask(self, call: str, *arguments: Any) -> Any:
        asking = partial(ask, call, self._place, *arguments)
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
        if failure.kind == "many":
            return EndlessListing(str(failure), is_many=True).told(uri=where)
        if failure.kind == "exists":
            return TargetExistsError("Another object has come to be there.", object=where)
        return StoreError(
            f"The store does not answer as it should: {failure}.",
            hint="check the URI, the endpoint and the network; if the server's certificate is your "
            "own, SSL_CERT_FILE names a file with it",
            object=where,
        )
