"""Files on the Hub, read in place: a dataset's repository at one commit, or a bucket.

A repository is read at a commit, whose files never change. The Hub hands out an address for each
file, of a server that knows ranges; it is asked for once, and again when it has run out.
"""

from __future__ import annotations

import os
from collections.abc import Callable, Iterable, Mapping, Sequence
from functools import cached_property
from itertools import islice
from typing import Any, NamedTuple, TypeVar
from urllib.parse import quote, urljoin, urlsplit

from demoreel.errors import ArgumentError, DatasetNotFoundError, StoreError, TargetExistsError
from demoreel.storage.cache import RangeCache
from demoreel.storage.hub_calls import (
    Hub,
    HubUnreachableError,
    hub_endpoint,
    is_offline,
    resolve_revision,
    stated_size,
)
from demoreel.storage.names import EndlessListing, Listing
from demoreel.storage.place import RemotePlace
from demoreel.storage.remote.files import RemoteFile, RemoteStore
from demoreel.storage.remote.transfer import Link
from demoreel.storage.store import FileInfo

T = TypeVar("T")

_PAGE = 1000
_LINK_IS_OLD_S = 2400
_DEFAULT_ENDPOINT = "https://huggingface.co"
_MAIN = "main"


class HubPlace(NamedTuple):
    """What an ``hf://`` URI names.

    Attributes:
        kind: ``datasets`` or ``buckets``.
        repo_id: The repository or the bucket, ``owner/name``.
        revision: A tag, a branch or a commit; None is the newest version that can be read.
        path: A folder in it; empty for the whole.
    """

    kind: str
    repo_id: str
    revision: str | None
    path: str


def hub_place(uri: str) -> HubPlace:
    """Return what ``hf://datasets/owner/name[@revision][/path]`` or ``hf://buckets/...`` names."""
    parts = urlsplit(uri)
    names = [part for part in parts.path.split("/") if part]
    revision = None
    if len(names) >= 2 and "@" in names[1]:
        names[1], _, revision = names[1].partition("@")
    odd = parts.query or parts.fragment or parts.username or ".." in names
    if parts.netloc not in ("datasets", "buckets") or len(names) < 2 or odd or not names[1]:
        raise ArgumentError(
            "This is no place on the Hub that datasets are read from.",
            hint="hf://datasets/owner/name, hf://datasets/owner/name@v3.0, hf://buckets/owner/name",
            uri=uri,
        )
    if revision is not None and parts.netloc == "buckets":
        raise ArgumentError("A bucket has no revisions.", hint="leave '@...' out", uri=uri)
    return HubPlace(parts.netloc, f"{names[0]}/{names[1]}", revision or None, "/".join(names[2:]))


def hub_store(uri: str, storage_options: Mapping[str, Any] | None) -> HubStore:
    """Return the store behind an ``hf://`` URI; nothing is asked yet.

    Args:
        uri: The URI.
        storage_options: ``hf_token``, if not the login's; ``hf_revision``, if not in the URI.
    """
    options = {str(name).lower(): str(value) for name, value in (storage_options or {}).items()}
    token = options.pop("hf_token", None) or options.pop("token", None)
    revision = options.pop("hf_revision", None)
    if options:
        raise ArgumentError(
            f"storage_options[{next(iter(options))!r}] means nothing to the Hub.",
            hint="there are hf_token and hf_revision",
        )
    place = hub_place(uri)
    if revision is not None:
        place = place._replace(revision=revision)
    return HubStore(place, RemotePlace(uri, (("hf_token", token),) if token else ()))


class HubStore(RemoteStore):
    """A folder on the Hub.

    Args:
        at: The folder.
        known_as: Its URI, with a token as an option if one was given.
    """

    requests_a_file = 2
    """The Hub is asked where a file is, and then the server that has it."""

    def __init__(self, at: HubPlace, known_as: RemotePlace) -> None:
        super().__init__(_LINK_IS_OLD_S)
        self._at = at
        self._known_as = known_as
        # Files of a commit never change, and its servers have different names for their state.
        self.pins = at.kind == "buckets"
        self._sums: dict[str, str] = {}

    def __getstate__(self) -> dict[str, Any]:
        at = self._at if self._at.kind == "buckets" else self._at._replace(revision=self._commit)
        return {"at": at, "known_as": self._known_as}  # other processes need not ask again

    def __setstate__(self, state: dict[str, Any]) -> None:
        HubStore.__init__(self, state["at"], state["known_as"])

    @property
    def uri(self) -> str:
        """What to call it: with the commit that is read."""
        at = self._at
        revision = "" if at.kind == "buckets" else f"@{self._commit}"
        return f"hf://{at.kind}/{at.repo_id}{revision}" + (f"/{at.path}" if at.path else "")

    @property
    def place(self) -> RemotePlace:
        """Where Lance finds tables."""
        at = self._at
        options = {"hf_token": self._token} if self._token else {}
        if at.kind == "datasets":
            options["hf_revision"] = self._commit
        path = f"/{at.path}" if at.path else ""
        return RemotePlace(f"hf://{at.kind}/{at.repo_id}{path}", tuple(sorted(options.items())))

    @property
    def given(self) -> RemotePlace:
        """Its URI, at the commit that is read, with the options that the user gave."""
        return RemotePlace(self.uri, self._known_as.options)

    @property
    def _token(self) -> str | None:
        given = dict(self._known_as.options).get("hf_token")
        if given:
            return given
        from huggingface_hub import get_token

        return get_token()

    @property
    def _hub(self) -> Hub:
        return Hub(dict(self._known_as.options).get("hf_token"))

    @cached_property
    def _commit(self) -> str:
        """The commit that is read; found once."""
        return resolve_revision(self._hub, self._at.repo_id, self._at.revision).commit

    def folders(self) -> Sequence[str]:
        """Return the names of the folders directly here; one request, and one for the commit."""
        found = self._tree(self._at.path, recursive=False, most=_PAGE)
        return [entry.path.rpartition("/")[2] for entry in found if not hasattr(entry, "size")]

    def list(
        self, under: str = "", *, most_pages: int | None = None
    ) -> tuple[Sequence[FileInfo], bool]:
        """Return the files in a folder here, and whether these are all."""
        most = None if most_pages is None else most_pages * _PAGE
        entries = self._tree((self._root + under).rstrip("/"), recursive=True, most=most)
        files = [self._described(entry) for entry in entries if hasattr(entry, "size")]
        return files, most is None or len(entries) < most  # one more would be another page

    def stat(self, name: str) -> FileInfo:
        """Return a file's size; one request, and one for the commit."""
        at, path = self._at, self._root + self._checked(name)

        def described(api: Any) -> Any:
            if at.kind == "buckets":
                return list(api.get_bucket_paths_info(at.repo_id, [path]))
            commit = self._commit
            return api.get_paths_info(at.repo_id, [path], revision=commit, repo_type="dataset")

        found = [entry for entry in self._ask(described) if hasattr(entry, "size")]
        if not found:
            raise DatasetNotFoundError("There is no such file.", object=f"{self.uri}/{name}")
        return self._described(found[0])

    def put(self, name: str, path: str | os.PathLike[str], *, new: bool = False) -> None:
        """Upload a file: a commit of its own on the branch that the URI names, then read here.

        A dataset is published by ``demoreel.push``, in one commit.
        """
        at, target = self._at, self._root + self._checked(name)
        if new:
            try:
                self.stat(name)
            except DatasetNotFoundError:
                pass
            else:
                raise TargetExistsError("There is such a file.", object=f"{self.uri}/{name}")

        def upload(api: Any) -> Any:
            if at.kind == "buckets":
                return api.batch_bucket_files(at.repo_id, add=[(os.fspath(path), target)])
            return api.upload_file(
                path_or_fileobj=os.fspath(path),
                path_in_repo=target,
                repo_id=at.repo_id,
                repo_type="dataset",
                revision=at.revision or _MAIN,
                # Where it must be new, no commit may come between the look and this one.
                parent_commit=self._commit if new else None,
            )

        self._go_on_from(self._ask(upload))

    def delete(self, names: Iterable[str]) -> None:
        """Remove files, in a commit of its own; those that are not there do no harm."""
        at = self._at
        wanted = {self._root + self._checked(name) for name in names}
        found = {self._root + file.name for file in self.list()[0]} & wanted
        if not found:
            return

        def remove(api: Any) -> Any:
            if at.kind == "buckets":
                return api.batch_bucket_files(at.repo_id, delete=sorted(found))
            from huggingface_hub import CommitOperationDelete

            return api.create_commit(
                at.repo_id,
                [CommitOperationDelete(path_in_repo=name) for name in sorted(found)],
                commit_message=f"Remove {len(found)} files",
                repo_type="dataset",
                revision=at.revision or _MAIN,
            )

        self._go_on_from(self._ask(remove))

    def _go_on_from(self, done: Any) -> None:
        """Read the commit that was just made; files that were opened before stay as they were."""
        if self._at.kind == "datasets":
            self._commit = str(done.oid)
            self.__dict__.pop("_pinned", None)

    def file(
        self, name: str, known: FileInfo | None = None, *, cache: RangeCache | None = None
    ) -> RemoteFile:
        """Return a file to read from, of the commit that is read now."""
        return RemoteStore.file(self._pinned, name, known, cache=cache)

    @cached_property
    def _pinned(self) -> HubStore:
        """This store at its commit, and its links."""
        if self._at.kind == "buckets":
            return self
        pinned = HubStore(self._at._replace(revision=self._commit), self._known_as)
        pinned._commit = self._commit
        return pinned

    @property
    def _root(self) -> str:
        return f"{self._at.path}/" if self._at.path else ""

    def _described(self, entry: Any) -> FileInfo:
        name = entry.path.removeprefix(self._root)
        large = getattr(entry, "lfs", None)
        if large is not None:
            self._sums[name] = str(large.sha256)
        return FileInfo(name, stated_size(entry.size if large is None else large.size), None)

    def sha256(self, name: str) -> str | None:
        """Return the check sum of a file that was listed; the Hub tells those of large ones."""
        return self._sums.get(name)

    def _tree(self, path: str, *, recursive: bool, most: int | None) -> Sequence[Any]:
        at = self._at

        def listed(api: Any) -> Sequence[Any]:
            entries: Iterable[Any]
            if at.kind == "buckets":
                prefix = f"{path}/" if path else None
                entries = api.list_bucket_tree(at.repo_id, prefix=prefix, recursive=recursive)
            else:
                entries = api.list_repo_tree(
                    at.repo_id,
                    path_in_repo=path or None,
                    recursive=recursive,
                    revision=self._commit,
                    repo_type="dataset",
                )
            from huggingface_hub.errors import EntryNotFoundError

            listing, found = Listing(), []
            try:
                for entry in islice(entries, most):
                    listing.add(entry.path)
                    found.append(entry)
            except EntryNotFoundError:  # a folder that is not there holds no files
                return []
            return found

        try:
            return self._ask(listed)
        except EndlessListing as error:
            raise error.told(uri=self.uri) from None
        except DatasetNotFoundError:
            if path != at.path or at.kind == "buckets":
                raise
            return []

    def _new_link(self, name: str) -> Link:
        """Return a link to the Hub, which names another server when it is asked."""
        if is_offline():
            raise HubUnreachableError(
                "HF_HUB_OFFLINE is set, so the Hub is not asked.",
                hint="fetch the dataset while online: demoreel pull",
                uri=self.uri,
            )
        at = self._at
        path = quote(f"{at.path}/{name}" if at.path else name, safe="/")
        revision = "" if at.kind == "buckets" else f"/{self._commit}"
        endpoint = hub_endpoint() or _DEFAULT_ENDPOINT
        headers = {"Authorization": f"Bearer {self._token}"} if self._token else {}
        repository = quote(at.repo_id, safe="/")
        return Link(f"{endpoint}/{at.kind}/{repository}/resolve{revision}/{path}", headers)

    def moved(self, name: str, link: Link, location: str) -> Link:
        """Return where the Hub says that a file is; another server must not see the token."""
        url = urljoin(link.url, location)
        if urlsplit(url).scheme not in ("https", urlsplit(link.url).scheme):
            raise StoreError(
                "The Hub sends us to an address that is not safe to read from.",
                hint="check HF_ENDPOINT, and proxies on the way",
                object=f"{self.uri}/{name}",
            )
        same = urlsplit(url)[:2] == urlsplit(link.url)[:2]
        found = Link(url, link.headers if same else {})
        self._keep_link(name, found)
        return found

    def read_directly(self, name: str, begin: int, length: int, etag: str | None) -> bytes:
        """Refuse: the Hub always gives a link."""
        raise AssertionError("a link is never None")

    def _ask(self, request: Callable[[Any], T]) -> T:
        return self._hub.ask(request, self._at.repo_id, self._at.revision)
