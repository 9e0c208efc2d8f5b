"""What the Hub is asked: its references, its files and their bytes. All errors are ours.

The endpoint (``HF_ENDPOINT``), the login (``HF_TOKEN``) and ``HF_HUB_OFFLINE`` are looked up when
something is asked, and not when a module is loaded. Answers that say "later" are waited for; the
client of huggingface_hub does that for some requests only.
"""

from __future__ import annotations

import hashlib
import os
import sys
import time
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import TYPE_CHECKING, TypeVar

from demoreel.errors import (
    AccessError,
    ArgumentError,
    DatasetNotFoundError,
    DemoreelError,
    DiskFullError,
    StoreError,
    UnsafePathError,
)
from demoreel.storage.names import leads_elsewhere
from demoreel.storage.no_room import says_no_room
from demoreel.storage.quiet_logs import hide_signatures

if TYPE_CHECKING:
    from huggingface_hub import HfApi

Answer = TypeVar("Answer")

_LATER = (408, 429, 500, 502, 503, 504)
_ATTEMPTS = 5
_ATTEMPTS_TO_CONNECT = 2
_FIRST_PAUSE_S = 0.5
_LONGEST_PAUSE_S = 60.0
_AT_ONCE = 1 << 20  # bytes that are hashed at a time
_TRUE = ("1", "on", "yes", "true")


class HubUnreachableError(StoreError):
    """The Hub does not answer at all, or not now: what is cached may serve instead."""


@dataclass(frozen=True, slots=True)
class HubFile:
    """A file of a repository at a commit.

    Attributes:
        path: Where it lies in the repository.
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
        """Return the tags and branches of a dataset's repository. One request.

        Raises:
            DatasetNotFoundError: There is none, or none that this user may see.
            AccessError: The Hub wants another token.
            HubUnreachableError: It does not answer, or is too busy.
            StoreError: It answers something else.
        """
        answer = self.ask(
            lambda api: api.list_repo_refs(repo_id, repo_type="dataset"), repo_id, None
        )
        return Refs(
            {ref.name: ref.target_commit for ref in answer.tags},
            {ref.name: ref.target_commit for ref in answer.branches},
        )

    def commit_of(self, repo_id: str, revision: str) -> str:
        """Return the commit that a revision of any kind names. One request; raises as ``refs``."""
        answer = self.ask(
            lambda api: api.repo_info(repo_id, repo_type="dataset", revision=revision),
            repo_id,
            revision,
        )
        return str(answer.sha)

    def files(self, repo_id: str, commit: str) -> dict[str, HubFile]:
        """Return the files of a commit by path. One request for some thousand files.

        Raises:
            UnsafePathError: A name would lead outside the folder that the files are put into.
            DemoreelError: As ``refs``.
        """
        from huggingface_hub.hf_api import RepoFile

        entries = self.ask(
            lambda api: list(
                api.list_repo_tree(repo_id, repo_type="dataset", revision=commit, recursive=True)
            ),
            repo_id,
            commit,
        )
        found = {}
        for entry in entries:
            if isinstance(entry, RepoFile):
                refuse_unsafe(entry.path, repo_id)
                large = entry.lfs
                found[entry.path] = HubFile(
                    entry.path,
                    entry.size if large is None else large.size,
                    sha256=None if large is None else large.sha256,
                    git_sha1=entry.blob_id if large is None else None,
                )
        return found

    def download(
        self,
        repo_id: str,
        commit: str,
        path: str,
        *,
        cache: Path,
        folder: Path | None = None,
    ) -> Path:
        """Fetch one file and return where it is; if it is there already, nothing is asked.

        Args:
            repo_id: The repository.
            commit: Its full name.
            path: The file.
            cache: The cache that it is put into, or copied from if it has it.
            folder: The folder that it is put into instead.

        Raises:
            DemoreelError: As ``refs``.
            DiskFullError: There is no room.
        """
        from huggingface_hub import hf_hub_download

        refuse_unsafe(path, repo_id)
        place = self.ask(
            lambda _: hf_hub_download(
                repo_id,
                path,
                repo_type="dataset",
                revision=commit,
                cache_dir=cache,
                local_dir=folder,
                token=self.token,
                endpoint=hub_endpoint(),
            ),
            repo_id,
            commit,
            path,
        )
        return Path(place)

    def ask(
        self,
        request: Callable[[HfApi], Answer],
        repo_id: str,
        revision: str | None,
        file: str | None = None,
    ) -> Answer:
        """Return the answer to a request, asked again while the Hub says "later".

        Args:
            request: Asks.
            repo_id: What it is about, for errors; and so on.
            revision: Of the repository.
            file: In it.

        Raises:
            DemoreelError: As ``refs``.
        """
        if is_offline():
            raise HubUnreachableError(
                "HF_HUB_OFFLINE is set, so the Hub is not asked.", repo_id=repo_id
            )
        from huggingface_hub import HfApi

        hide_signatures()
        api = HfApi(endpoint=hub_endpoint(), token=self.token)
        attempt = 0
        while True:
            attempt += 1
            try:
                return request(api)
            except Exception as error:
                if isinstance(error, DemoreelError):
                    raise
                pause = _pause_before_another(error, attempt)
                if pause is None:
                    # Not "from error": its text may hold an address that is signed.
                    ours = _our_error(error, repo_id, revision)
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
    """Refuse a file's name that would lead out of the folder that it is put into.

    Raises:
        UnsafePathError: It is absolute, climbs, or is not a plain name on some system.
    """
    if leads_elsewhere(path):
        raise UnsafePathError(
            "The repository holds a file whose name would lead outside the dataset's folder.",
            hint="do not use this repository; nothing of it was kept",
            repo_id=repo_id,
            file=repr(path),
        )


def content_digest(place: Path, *, sha256: bool) -> str:
    """Return a file's sha256, or the sha1 that git would give it."""
    with open(place, "rb") as file:
        if sha256:
            sum_of = hashlib.sha256()
        else:
            size = os.fstat(file.fileno()).st_size
            sum_of = hashlib.sha1(b"blob %d\0" % size, usedforsecurity=False)
        while block := file.read(_AT_ONCE):
            sum_of.update(block)
    return sum_of.hexdigest()


def _status(error: BaseException) -> int | None:
    response = getattr(error, "response", None)
    status = getattr(response, "status_code", None)
    return status if isinstance(status, int) else None


def _is_of_the_line(error: BaseException) -> bool:
    """Whether a connection could not be made, or broke; clients of several makes raise these."""
    maker = type(error).__module__.split(".")[0]
    return _status(error) is None and (
        maker in ("httpx", "httpx2", "httpcore", "requests", "urllib3")
        or isinstance(error, (ConnectionError, TimeoutError))
    )


def _pause_before_another(error: Exception, attempt: int) -> float | None:
    """Return how long to wait before asking again; None if that is no use."""
    if _status(error) not in _LATER and not _is_of_the_line(error):
        return None
    nobody_there = type(error).__name__ in ("ConnectError", "ConnectionRefusedError")
    if attempt >= (_ATTEMPTS_TO_CONNECT if nobody_there else _ATTEMPTS):
        return None
    pause = _FIRST_PAUSE_S * 2.0 ** (attempt - 1)
    headers = getattr(getattr(error, "response", None), "headers", {})
    asked = str(headers.get("Retry-After", ""))
    if asked.isdigit():
        pause = max(float(asked), 0.01)
    return min(pause, _LONGEST_PAUSE_S)


def _our_error(error: Exception, repo_id: str, revision: str | None) -> DemoreelError:
    from huggingface_hub import errors as theirs

    if isinstance(error, theirs.LocalEntryNotFoundError) and error.__cause__ is not None:
        return _our_error(_as_exception(error.__cause__), repo_id, revision)
    if isinstance(error, theirs.HFValidationError):
        return ArgumentError(f"{repo_id!r} is not a repo_id such as 'me/my_task'.")
    if isinstance(error, theirs.GatedRepoError):
        return AccessError(
            f"The dataset {repo_id!r} is open only to those who accept its terms.",
            hint=f"accept them at {_page(repo_id)}, then log in: hf auth login, or set HF_TOKEN",
        )
    gone = (theirs.RepositoryNotFoundError, getattr(theirs, "BucketNotFoundError", ()))
    if isinstance(error, gone):  # buckets are of huggingface_hub 2
        return _not_found(repo_id)
    if isinstance(error, theirs.RevisionNotFoundError):
        return DatasetNotFoundError(
            f"The dataset {repo_id!r} has no revision {revision!r} on the Hub.",
            hint="give a tag, a branch or a commit that it has",
        )
    if isinstance(error, theirs.EntryNotFoundError):
        return StoreError(
            "A file is listed in the repository, but the Hub does not have it.",
            hint="the dataset's owner must upload it again",
            repo_id=repo_id,
            revision=revision,
        )
    if isinstance(error, theirs.LocalTokenNotFoundError):
        return AccessError(
            "There is no login on this machine.", hint="log in: hf auth login, or set HF_TOKEN"
        )
    return _our_other_error(error, repo_id, revision)


def _our_other_error(error: Exception, repo_id: str, revision: str | None) -> DemoreelError:
    status = _status(error)
    if status in (401, 403):
        return AccessError(
            f"The Hub does not accept this token for {repo_id!r} (status {status}).",
            hint="log in anew: hf auth login; or set HF_TOKEN to a token that may read it",
        )
    if status in _LATER:
        busy = "asks to wait" if status == 429 else "has trouble"
        return HubUnreachableError(
            f"The Hub {busy} (status {status}), and did so {_ATTEMPTS} times.",
            hint="try again later; what has been fetched is kept",
            repo_id=repo_id,
            revision=revision,
        )
    if isinstance(error, OSError) and says_no_room(error):
        return DiskFullError(
            "There is no room left on the disk for what is being fetched.",
            hint="free some, and the same call goes on from here",
            repo_id=repo_id,
        )
    if status is None and _is_of_the_line(error):
        return HubUnreachableError(
            f"The Hub cannot be reached ({type(error).__name__}).",
            hint="check the network and HF_ENDPOINT; what has been fetched is kept",
            repo_id=repo_id,
        )
    return StoreError(
        f"The Hub did not answer as it should ({type(error).__name__}"
        f"{'' if status is None else f', status {status}'}).",
        hint="try again; what has been fetched is kept",
        repo_id=repo_id,
        revision=revision,
    )


def _as_exception(error: BaseException) -> Exception:
    return error if isinstance(error, Exception) else RuntimeError(type(error).__name__)


def _not_found(repo_id: str) -> DatasetNotFoundError:
    from huggingface_hub import get_token

    if get_token() is None:
        hint = "check the name; if it is private, log in: hf auth login, or set HF_TOKEN"
    else:
        hint = "check the name; if it is private, use a token that may read it: hf auth login"
    return DatasetNotFoundError(
        f"There is no dataset {repo_id!r} on the Hub, or it is private and this login may not "
        "read it.",
        hint=hint,
    )


def _page(repo_id: str) -> str:
    return f"{hub_endpoint() or 'https://huggingface.co'}/datasets/{repo_id}"
