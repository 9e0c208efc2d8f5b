"""Requests to the Hub, all through ``huggingface_hub``, with demoreel's errors; and revisions.

The endpoint (``HF_ENDPOINT``), the login (``HF_TOKEN``) and ``HF_HUB_OFFLINE`` are looked up at
each request, and not when a module is loaded. The client retries some requests only, so ``Hub.ask``
retries all. Names, sizes and commits that a server states are checked before they are used.
Errors never carry the address of a request: a signed one is as good as a password.

LeRobot marks versions of its format by tags, ``v2.1`` and ``v3.0``, or by branches of these names.
A repository may carry several; the newest that demoreel reads is taken, ``v3.0`` first, as
lerobot 0.6 does. One without such a name is read from ``main``, if that is a dataset that can be.
"""

from __future__ import annotations

import hashlib
import io
import os
import re
import sys
import time
import warnings
from collections.abc import Callable, Iterable, Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass, field
from pathlib import Path
from typing import TYPE_CHECKING, Any, TypeVar

from demoreel.errors import (
    AccessError,
    ArgumentError,
    DatasetNotFoundError,
    DemoreelError,
    DemoreelWarning,
    DiskFullError,
    StoreError,
    UnsafePathError,
    UnsupportedVersionError,
    nearest,
)
from demoreel.model.info import READABLE_VERSIONS
from demoreel.storage.commit.files import says_no_room
from demoreel.storage.json_files import read_json
from demoreel.storage.names import (
    EndlessListing,
    Listing,
    both_file_and_folder,
    leads_elsewhere,
)
from demoreel.storage.secrets import hide_signatures

if TYPE_CHECKING:
    from huggingface_hub import HfApi

Answer = TypeVar("Answer")

LATER = (408, 429, 500, 502, 503, 504)
"""Statuses of answers that say "later"."""

LOG_IN_TO_WRITE = "log in with `hf auth login`, or put a token that may write into HF_TOKEN"

_ATTEMPTS = 5
_ATTEMPTS_TO_CONNECT = 2
_FIRST_PAUSE_S = 0.5
_LONGEST_PAUSE_S = 60.0
_LONGEST_PAUSE_OF_WRITES_S = 300.0  # the Hub counts requests over five minutes
_TRUE = ("1", "on", "yes", "true")
_QUERY = re.compile(r"\?[^\s'\"<>]+")
_COMMIT = re.compile(r"[0-9a-f]{40}(?:[0-9a-f]{24})?")


class HubUnreachableError(StoreError):
    """The Hub does not answer at all, or not now: what is cached may serve instead."""


@dataclass(frozen=True, slots=True)
class HubFile:
    """A file of a repository at a commit.

    Attributes:
        path: Where it is in the repository.
        size: Bytes.
        sha256: Of its content, for files in the large file storage; else None.
        git_sha1: Of its content as git counts it, for the others; else None.
    """

    path: str
    size: int
    sha256: str | None = None
    git_sha1: str | None = None

    @property
    def digest(self) -> str:
        """What tells its content from any other's."""
        return self.sha256 or self.git_sha1 or ""

    def is_content_of(self, place: Path) -> bool:
        """Whether the file at ``place`` has this size and content. Reads all of it."""
        try:
            if place.stat().st_size != self.size:
                return False
            return content_digest(place, sha256=self.sha256 is not None) == self.digest
        except FileNotFoundError:
            return False


@dataclass(frozen=True, slots=True)
class Refs:
    """The names that a repository's commits have."""

    tags: Mapping[str, str]
    branches: Mapping[str, str]


@dataclass(frozen=True, slots=True)
class Hub:
    """A Hugging Face Hub, as one user sees it.

    Attributes:
        token: A token; True demands the login's, False uses none, None uses it if there is one.
    """

    token: str | bool | None = field(default=None, repr=False)

    def refs(self, repo_id: str) -> Refs:
        """Return the tags and branches of a dataset's repository. One request."""
        answer = self.ask(
            lambda api: api.list_repo_refs(repo_id, repo_type="dataset"), repo_id, None
        )
        return Refs(
            {ref.name: _commit(ref.target_commit, repo_id) for ref in answer.tags},
            {ref.name: _commit(ref.target_commit, repo_id) for ref in answer.branches},
        )

    def commit_of(self, repo_id: str, revision: str) -> str:
        """Return the commit that a revision of any kind names. One request."""
        answer = self.ask(
            lambda api: api.repo_info(repo_id, repo_type="dataset", revision=revision),
            repo_id,
            revision,
        )
        return _commit(answer.sha, repo_id)

    def files(self, repo_id: str, commit: str) -> dict[str, HubFile]:
        """Return the files of a commit by path. One request for some thousand files."""
        from huggingface_hub.hf_api import RepoFile

        def listed(api: Any) -> list[Any]:
            listing, entries = Listing(), []
            for entry in api.list_repo_tree(
                repo_id, repo_type="dataset", revision=commit, recursive=True
            ):
                listing.add(entry.path)
                entries.append(entry)
            return entries

        try:
            entries = self.ask(listed, repo_id, commit)
        except EndlessListing as error:
            raise error.told(repo_id=repo_id) from None
        found = {}
        for entry in entries:
            if isinstance(entry, RepoFile):
                refuse_unsafe(entry.path, repo_id)
                large = entry.lfs
                found[entry.path] = HubFile(
                    entry.path,
                    stated_size(entry.size if large is None else large.size),
                    sha256=None if large is None else large.sha256,
                    git_sha1=entry.blob_id if large is None else None,
                )
        twice = both_file_and_folder(found)
        if twice is not None:
            raise UnsafePathError(
                f"{twice!r} is both a file and a folder, which a disk cannot hold.",
                repo_id=repo_id,
            )
        return found

    def download(
        self, repo_id: str, commit: str, path: str, *, cache: Path, folder: Path | None = None
    ) -> Path:
        """Fetch one file and return where it is; if it is there already, nothing is asked.

        Args:
            repo_id: The repository.
            commit: Its full name.
            path: The file.
            cache: The cache that it is put into, or copied from if it has it.
            folder: The folder that it is put into instead.
        """
        refuse_unsafe(path, repo_id)
        place = self.ask(
            lambda api: api.hf_hub_download(
                repo_id,
                path,
                repo_type="dataset",
                revision=commit,
                cache_dir=cache,
                local_dir=folder,
            ),
            repo_id,
            commit,
            file=path,
        )
        return Path(place)

    def ask(
        self,
        request: Callable[[HfApi], Answer],
        repo_id: str,
        revision: str | None,
        *,
        file: str | None = None,
        write: bool = False,
        attempts: int = _ATTEMPTS,
    ) -> Answer:
        """Return the answer to a request, repeated while the Hub says "later".

        Args:
            request: Makes the request.
            repo_id: The repository, for errors; and so on.
            revision: Of the repository.
            file: In it.
            write: Whether the request changes the repository: for what errors advise.
            attempts: How often it is made at most.
        """
        if is_offline():
            raise HubUnreachableError(
                "HF_HUB_OFFLINE is set, so the Hub is not asked.",
                hint="unset it",
                repo_id=repo_id,
            )
        from huggingface_hub import HfApi

        hide_signatures()
        api = HfApi(endpoint=hub_endpoint(), token=self.token, library_name="demoreel")
        attempt = 0
        while True:
            attempt += 1
            try:
                return request(api)
            except (DemoreelError, EndlessListing):
                raise
            except Exception as error:
                pause = pause_after(error, attempt, write=write) if attempt < attempts else None
                if pause is None:
                    ours = hub_error(error, repo_id, revision, write=write)
                    # Not "from error": its text may hold an address that is signed.
                    raise type(ours)(ours.what, hint=ours.hint, **ours.where, file=file) from None
            time.sleep(pause)


def hub_endpoint() -> str | None:
    """Return the Hub's address as the environment says now; None is huggingface_hub's own."""
    return (os.environ.get("HF_ENDPOINT") or "").rstrip("/") or None


def is_offline() -> bool:
    """Whether the Hub must not be asked."""
    said = os.environ.get("HF_HUB_OFFLINE") or os.environ.get("TRANSFORMERS_OFFLINE") or ""
    loaded = sys.modules.get("huggingface_hub.constants")
    return said.strip().lower() in _TRUE or bool(getattr(loaded, "HF_HUB_OFFLINE", False))


def refuse_unsafe(path: str, repo_id: str) -> None:
    """Refuse a file's name that would lead out of the folder that it is put into."""
    if leads_elsewhere(path):
        raise UnsafePathError(
            "The repository holds a file whose name would lead outside the dataset's folder.",
            hint="do not use this repository; nothing of it was kept",
            repo_id=repo_id,
            file=repr(path),
        )


def stated_size(size: object) -> int:
    """Return the size that a server states."""
    if not isinstance(size, int) or not 0 <= size < 1 << 63:
        raise StoreError(
            f"The Hub lists a file with the size {str(size)[:40]}.", hint="check HF_ENDPOINT"
        )
    return size


def _commit(name: object, repo_id: str) -> str:
    """Return the name of a commit that a server states: folders are called by it."""
    if not isinstance(name, str) or _COMMIT.fullmatch(name) is None:
        raise StoreError(
            f"The Hub states a commit that is none: {str(name)[:60]!r}.",
            hint="check HF_ENDPOINT",
            repo_id=repo_id,
        )
    return name


def content_digest(content: Path | bytes, *, sha256: bool) -> str:
    """Return the sha256 of a file or of bytes, or the sha1 that git would give them."""
    with io.BytesIO(content) if isinstance(content, bytes) else open(content, "rb") as file:
        size = file.seek(0, os.SEEK_END)
        file.seek(0)

        def begun() -> Any:
            if sha256:
                return hashlib.sha256()
            return hashlib.sha1(b"blob %d\0" % size, usedforsecurity=False)

        return hashlib.file_digest(file, begun).hexdigest()


@contextmanager
def no_progress_bars() -> Iterator[None]:
    """Keep huggingface_hub from drawing progress bars, unless the user insists on them."""
    from huggingface_hub import constants
    from huggingface_hub.utils.tqdm import (
        are_progress_bars_disabled,
        disable_progress_bars,
        enable_progress_bars,
    )

    if constants.HF_HUB_DISABLE_PROGRESS_BARS is False or are_progress_bars_disabled():
        yield
        return
    disable_progress_bars()
    try:
        yield
    finally:
        enable_progress_bars()


def answered_status(error: BaseException) -> int | None:
    """Return the status that the Hub answered with; None if it did not answer."""
    status = getattr(getattr(_root(error), "response", None), "status_code", None)
    return status if isinstance(status, int) else None


def pause_after(error: Exception, attempt: int, *, write: bool) -> float | None:
    """Return how long to wait before a request is repeated; None if that is of no use."""
    root = _root(error)
    if answered_status(error) not in LATER and not _is_of_connection(root):
        return None
    refused = type(root).__name__ in ("ConnectError", "ConnectionRefusedError")
    if refused and attempt >= _ATTEMPTS_TO_CONNECT:
        return None
    asked = str(getattr(getattr(root, "response", None), "headers", {}).get("Retry-After", ""))
    pause = max(float(asked), 0.01) if asked.isdigit() else _FIRST_PAUSE_S * 2.0 ** (attempt - 1)
    return min(pause, _LONGEST_PAUSE_OF_WRITES_S if write else _LONGEST_PAUSE_S)


def _root(error: BaseException) -> BaseException:
    """Return the error that huggingface_hub made others from: an answer, or of the connection."""
    chain = [error]
    while (cause := chain[-1].__cause__) is not None:
        chain.append(cause)
    for link in chain:
        if getattr(link, "response", None) is not None:
            return link
    return next((link for link in chain if _is_of_connection(link)), error)


def _is_of_connection(error: BaseException) -> bool:
    """Whether a connection could not be made, or broke; clients of several makes raise these."""
    maker = type(error).__module__.split(".")[0]
    return getattr(error, "response", None) is None and (
        maker in ("httpx", "httpx2", "httpcore", "requests", "urllib3")
        or isinstance(error, (ConnectionError, TimeoutError))
    )


def hub_error(
    error: Exception, repo_id: str, revision: str | None, *, write: bool = False
) -> DemoreelError:
    """Return a failure of huggingface_hub as demoreel's, without addresses; see ``Hub.ask``."""
    from huggingface_hub import errors as theirs

    root, status = _root(error), answered_status(error)
    where = {"repo_id": repo_id, "revision": revision}
    if write and status in (401, 403, 404):
        return AccessError(
            f"The Hub does not accept this token for writing to {repo_id!r} (status {status}).",
            hint=LOG_IN_TO_WRITE,
            said=_said(root),
        )
    if isinstance(root, theirs.HFValidationError):
        return ArgumentError(f"{repo_id!r} is not a repo_id such as 'me/my_task'.")
    if isinstance(root, theirs.GatedRepoError):
        page = f"{hub_endpoint() or 'https://huggingface.co'}/datasets/{repo_id}"
        return AccessError(
            f"The dataset {repo_id!r} is open only to users who have accepted its terms.",
            hint=f"accept them at {page}, then log in: hf auth login, or set HF_TOKEN",
        )
    gone = (theirs.RepositoryNotFoundError, getattr(theirs, "BucketNotFoundError", ()))
    if isinstance(root, gone):  # buckets are of huggingface_hub 2
        from huggingface_hub import get_token

        token = "log in: hf auth login, or set HF_TOKEN"
        if get_token() is not None:
            token = "use a token that may read it: hf auth login"
        return DatasetNotFoundError(
            f"There is no dataset {repo_id!r} on the Hub, or it is private and this login may not "
            "read it.",
            hint=f"check the name; if it is private, {token}",
        )
    if isinstance(root, theirs.RevisionNotFoundError):
        return DatasetNotFoundError(
            f"The dataset {repo_id!r} has no revision {revision!r} on the Hub.",
            hint="give a tag, a branch or a commit that it has",
        )
    if isinstance(root, theirs.EntryNotFoundError):
        return StoreError(
            "A file is listed in the repository, but the Hub does not have it.",
            hint="the dataset's owner must upload it again",
            **where,
        )
    if isinstance(root, theirs.LocalTokenNotFoundError):
        return AccessError(
            "There is no login on this machine.", hint="log in: hf auth login, or set HF_TOKEN"
        )
    if status in (401, 403):
        return AccessError(
            f"The Hub does not accept this token for {repo_id!r} (status {status}).",
            hint="log in again: hf auth login; or set HF_TOKEN to a token that may read it",
        )
    kept = "what has been sent is not sent twice" if write else "what has been fetched is kept"
    if status in LATER:
        busy = "asks to wait" if status == 429 else "has trouble"
        return HubUnreachableError(
            f"The Hub {busy} (status {status}), again and again.",
            hint=f"try again later; {kept}",
            **where,
        )
    if isinstance(error, OSError) and says_no_room(error):
        return DiskFullError(
            "There is no room left on the disk for what is being fetched.",
            hint="free some, and the same call continues from here",
            repo_id=repo_id,
        )
    if _is_of_connection(root):
        return HubUnreachableError(
            f"The Hub cannot be reached ({type(root).__name__}).",
            hint=f"check the network and HF_ENDPOINT; {kept}",
            repo_id=repo_id,
        )
    answered = "" if status is None else f", status {status}"
    return StoreError(
        f"The Hub did not answer as it should ({type(root).__name__}{answered}).",
        hint=f"try again; {kept}",
        said=_said(root) if write else None,
        **where,
    )


def _said(error: BaseException) -> str | None:
    """Return what the Hub said of a failure, without what a signed address ends with."""
    said = getattr(error, "server_message", None) or ""
    if not said and getattr(error, "response", None) is None:
        said = next(iter(str(error).splitlines()), "")
    return _QUERY.sub("?...", str(said)).strip() or None


MAIN = "main"

_FULL_NAME = re.compile(r"[0-9a-f]{40}")
_VERSION = re.compile(r"v?(\d+)\.(\d+)((?:\.\d+)*)", re.IGNORECASE)
_SHOWN = 12


@dataclass(frozen=True, slots=True)
class Revision:
    """A revision of a repository.

    Attributes:
        name: The tag or branch, or the commit itself.
        commit: The commit's full name.
        is_marked: Whether its name says of which version of the format it is, or a user named it;
            if not, it is ``main`` for want of a better one.
        refs: What the repository has, as far as it was asked.
    """

    name: str
    commit: str
    is_marked: bool = True
    refs: Refs | None = None


def is_commit(revision: str) -> bool:
    """Whether this is the full name of a commit, which never changes what it means."""
    return _FULL_NAME.fullmatch(revision) is not None


def readable_name(refs: Refs) -> str | None:
    """Return the tag or branch with the newest version that demoreel reads; None if there is none.

    Tags go before branches. Of several names for one version, ``v3.0`` goes before ``v3.0.1``, and
    that before ``3.0``.
    """
    for version in sorted(READABLE_VERSIONS, reverse=True):
        for names in (refs.tags, refs.branches):
            of_it = [name for name in names if _version_of(name) == version]
            if of_it:
                return version if version in of_it else max(of_it, key=_fineness)
    return None


def commit_named(refs: Refs, name: str) -> str | None:
    """Return the commit that a tag, or else a branch, names."""
    return refs.tags.get(name) or refs.branches.get(name)


def resolve_revision(hub: Hub, repo_id: str, revision: str | None) -> Revision:
    """Return the revision to read. One request; none for a commit, two for a rare kind of name.

    Args:
        hub: The Hub.
        repo_id: The repository.
        revision: A tag, a branch or a commit; None is the newest version that demoreel reads.
    """
    if revision is not None and is_commit(revision):
        return Revision(revision, revision)
    refs = hub.refs(repo_id)
    name = revision if revision is not None else readable_name(refs)
    if name is not None:
        commit = commit_named(refs, name) or _otherwise_named(hub, repo_id, name, refs)
        return Revision(name, commit, refs=refs)
    commit = refs.branches.get(MAIN, "")
    if not commit:
        raise no_version_fits(repo_id, refs)
    return Revision(MAIN, commit, is_marked=False, refs=refs)


def no_version_fits(
    repo_id: str, refs: Refs | None, of_main: str | None = None
) -> UnsupportedVersionError:
    """Return the error that says which versions there are, and which would do."""
    has = "it has no tags and no branches" if refs is None else _what_there_is(refs)
    if of_main is not None:
        has += f"; {MAIN} is {of_main}"
    return UnsupportedVersionError(
        f"The dataset {repo_id!r} has no version that demoreel reads "
        f"({', '.join(READABLE_VERSIONS)}): {has}.",
        hint="name one of these with revision= if you know better; a version before v2.0 is "
        "converted with the lerobot that wrote it",
    )


def accept_unmarked(info: Path, repo_id: str, found: Revision) -> None:
    """Accept a revision whose name says nothing if its ``info.json`` does, with a warning."""
    said = read_json(info)
    version = str(said.get("codebase_version")) if isinstance(said, dict) else "no dataset"
    if version not in READABLE_VERSIONS:
        raise no_version_fits(repo_id, found.refs, of_main=version)
    warnings.warn(
        f"The dataset {repo_id!r} has no tag that names a version demoreel reads; its branch "
        f"{found.name} is read, which is {version}.",
        DemoreelWarning,
        stacklevel=2,
    )


def _otherwise_named(hub: Hub, repo_id: str, name: str, refs: Refs) -> str:
    """Return the commit of a short hash, a pull request and the like."""
    try:
        return hub.commit_of(repo_id, name)
    except DatasetNotFoundError:
        known = [*refs.tags, *refs.branches]
        raise DatasetNotFoundError(
            f"The dataset {repo_id!r} has no revision {name!r} on the Hub: {_what_there_is(refs)}.",
            hint=nearest(name, known[:_SHOWN]),
        ) from None


def _what_there_is(refs: Refs) -> str:
    tags = f"its tags are {_listed(refs.tags)}" if refs.tags else "it has no tags"
    branches = f"its branches {_listed(refs.branches)}" if refs.branches else "no branches"
    return f"{tags}, {branches}"


def _listed(names: Iterable[str]) -> str:
    every = sorted(names)
    rest = f" and {len(every) - _SHOWN} more" if len(every) > _SHOWN else ""
    return ", ".join(every[:_SHOWN]) + rest


def _version_of(name: str) -> str | None:
    """Return ``v3.0`` for ``v3.0``, ``3.0`` and ``v3.0.1``."""
    match = _VERSION.fullmatch(name)
    return f"v{int(match[1])}.{int(match[2])}" if match else None


def _fineness(name: str) -> tuple[list[int], bool]:
    """Return what to order names of one version by: the numbers behind it, then the ``v``."""
    match = _VERSION.fullmatch(name)
    assert match is not None
    return [int(part) for part in match[3].split(".")[1:]], name[0] in "vV"
