"""Files on the Hub, read where they lie: a dataset's repository at one commit, or a bucket.

A repository is read at a commit, whose files never change. The Hub hands out an address for each
file, of a server that knows ranges; it is asked for once, and again when it has run out.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping
from functools import cached_property
from itertools import islice
from typing import Any, NamedTuple, TypeVar
from urllib.parse import quote, urljoin, urlsplit

from demoreel.errors import ArgumentError, DatasetNotFoundError
from demoreel.storage.far.links import Links
from demoreel.storage.far.store_calls import Listed
from demoreel.storage.far.transfer import Link
from demoreel.storage.hub_calls import Hub, HubUnreachableError, hub_endpoint, is_offline
from demoreel.storage.hub_revisions import resolve_revision
from demoreel.storage.lance_places import RemotePlace

T = TypeVar("T")

_PAGE = 1000
_LINK_IS_OLD_S = 2400
_DEFAULT_ENDPOINT = "https://huggingface.co"


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
    """Return what ``hf://datasets/owner/name[@revision][/path]`` or ``hf://buckets/...`` names.

    Raises:
        ArgumentError: It is no such URI.
    """
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

    Raises:
        ArgumentError: It is no such URI, or an option makes no sense for the Hub.
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
    known_as = RemotePlace(uri, (("hf_token", token),) if token else ())
    known_as.share_secrets()
    return HubStore(place, known_as)


class HubStore:
    """A folder on the Hub. Holds no handle: pickling moves names, and no token.

    Args:
        at: The folder.
        known_as: Its URI, with a token as an option if one was given.
    """

    requests_a_file = 2
    """The Hub is asked where a file is, and then the server that has it."""

    direct = None
    """There always is a link."""

    def __init__(self, at: HubPlace, known_as: RemotePlace) -> None:
        self._at = at
        self._known_as = known_as
        # Files of a commit never change, and its servers have different names for their state.
        self.pins = at.kind == "buckets"
        self._links = Links(_LINK_IS_OLD_S)
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

    def folders(self) -> list[str]:
        """Return the names of the folders directly here; one request, and one for the commit."""
        found = self._tree(self._at.path, recursive=False, most=_PAGE)
        return [entry.path.rpartition("/")[2] for entry in found if not hasattr(entry, "size")]

    def files(self, under: str, *, most_pages: int) -> tuple[list[Listed], bool]:
        """Return the files in a folder here, and whether these are all."""
        most = most_pages * _PAGE
        root = f"{self._at.path}/" if self._at.path else ""
        entries = self._tree((root + under).rstrip("/"), recursive=True, most=most)
        files = []
        for entry in entries:
            if hasattr(entry, "size"):
                name = entry.path.removeprefix(root)
                files.append(Listed(name, _size(entry), None))
                large = getattr(entry, "lfs", None)
                if large is not None:
                    self._sums[name] = str(large.sha256)
        return files, len(entries) < most  # one more would be another page

    def sha256(self, name: str) -> str | None:
        """Return the check sum of a file that was listed; the Hub tells those of large ones."""
        return self._sums.get(name)

    def _tree(self, path: str, *, recursive: bool, most: int) -> list[Any]:
        at = self._at

        def listed(api: Any) -> list[Any]:
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
            return list(islice(entries, most))

        try:
            return self._ask(listed)
        except DatasetNotFoundError:
            if path != at.path or at.kind == "buckets":
                raise
            return []

    def link(self, name: str, *, renew: bool) -> Link:
        """Return where a file is read from: the Hub, until it has named another server."""
        known = None if renew else self.link_at_hand(name)
        if known is not None:
            return known
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
        return Link(f"{endpoint}/{at.kind}/{at.repo_id}/resolve{revision}/{path}", headers)

    def link_at_hand(self, name: str) -> Link | None:
        """Return where the Hub last said that a file is, if that was not long ago."""
        return self._links.get(name)

    def moved(self, name: str, link: Link, location: str) -> Link:
        """Return where the Hub says that a file is; another server must not see the token."""
        url = urljoin(link.url, location)
        same = urlsplit(url)[:2] == urlsplit(link.url)[:2]
        found = Link(url, link.headers if same else {})
        self._links.put(name, found)
        return found

    def _ask(self, request: Callable[[Any], T]) -> T:
        return self._hub.ask(request, self._at.repo_id, self._at.revision)


def _size(entry: Any) -> int:
    large = getattr(entry, "lfs", None)
    return int(entry.size if large is None else large.size)
