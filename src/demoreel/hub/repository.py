"""The operations on a repository of the Hub that publishing needs."""

from __future__ import annotations

import re
import time
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import TYPE_CHECKING, Any

from demoreel.errors import AccessError, ArgumentError, DatasetNotFoundError, StoreError
from demoreel.hub.snapshot import Snapshot
from demoreel.storage.hub_calls import (
    LOG_IN_TO_WRITE,
    MAIN,
    Hub,
    HubFile,
    HubUnreachableError,
    answered_status,
    hub_endpoint,
    hub_error,
    is_offline,
    no_progress_bars,
    pause_after,
)

if TYPE_CHECKING:
    from huggingface_hub import CommitOperationAdd, HfApi

_BRANCH = re.compile(r"(?!.*(?:\.\.|//|@\{|\.lock$))[\w][\w./-]*(?<![./])")
_CONFLICTS = (409, 412)  # the branch is no longer at the parent that a commit names


class CommitNotMadeError(StoreError):
    """A commit was refused because of another one, or its answer was lost: look again.

    Attributes:
        passes: Whether trying again may help, even where the branch is where it was.
    """

    passes: bool = True


@dataclass(frozen=True, slots=True)
class RepositoryState:
    """What a repository is at one moment.

    Attributes:
        exists: Whether it is there at all.
        head: The commit that the branch points to, or would begin with; None without a commit.
        has_branch: Whether the branch is there.
        files: Files at that commit, by name.
        tags: Commits by tag.
        is_new: Whether it was made for this push.
    """

    exists: bool
    head: str | None = None
    has_branch: bool = False
    files: Mapping[str, HubFile] = field(default_factory=dict)
    tags: Mapping[str, str] = field(default_factory=dict)
    is_new: bool = False


def check_names(repo_id: object, branch: object) -> None:
    """Refuse what cannot name a repository or a branch, before anything is done."""
    from huggingface_hub.errors import HFValidationError
    from huggingface_hub.utils._validators import validate_repo_id

    example = "such as 'me/my_task'"
    if not isinstance(repo_id, str) or repo_id.count("/") != 1 or repo_id != repo_id.strip():
        raise ArgumentError(f"{repo_id!r} is not the name of a repository, {example}.")
    try:
        validate_repo_id(repo_id)
    except HFValidationError as error:
        raise ArgumentError(
            f"{repo_id!r} is not the name of a repository, {example}.", hint=str(error)
        ) from None
    if branch is not None and (not isinstance(branch, str) or not _BRANCH.fullmatch(branch)):
        raise ArgumentError(f"{branch!r} is not the name of a branch.")


class Repository:
    """A dataset's repository, which need not exist.

    Args:
        repo_id: Its name.
        branch: The branch that is looked at and committed to.
        token: A token; None takes ``HF_TOKEN`` or the login.
    """

    def __init__(self, repo_id: str, branch: str, token: str | None) -> None:
        self.repo_id = repo_id
        self.branch = branch
        self._hub = Hub(token)
        self._named: dict[str, Any] = {"repo_id": repo_id, "repo_type": "dataset"}

    @property
    def endpoint(self) -> str:
        """The Hub's address."""
        from huggingface_hub import constants

        return hub_endpoint() or constants.ENDPOINT

    @property
    def url(self) -> str:
        """The address of its page."""
        return f"{self.endpoint}/datasets/{self.repo_id}"

    def require_token(self) -> None:
        """Refuse to begin without a login."""
        from huggingface_hub import get_token

        if is_offline():
            raise StoreError(
                "HF_HUB_OFFLINE is set, and publishing asks the Hub.",
                hint="unset it",
                repository=self.repo_id,
            )
        if not (self._hub.token or get_token()):
            raise AccessError(
                "Publishing on the Hub needs a token, and there is none.",
                hint=LOG_IN_TO_WRITE,
                repository=self.repo_id,
            )

    def look(self) -> RepositoryState:
        """Return what the repository is now. Two requests, and one more for every 1000 files."""
        try:
            refs = self._hub.refs(self.repo_id)
        except DatasetNotFoundError:
            return RepositoryState(exists=False)
        except HubUnreachableError as error:
            if is_offline():
                raise
            raise HubUnreachableError(
                error.what, hint="check the network and HF_ENDPOINT, then push again", **error.where
            ) from None
        head = refs.branches.get(self.branch) or refs.branches.get(MAIN)
        return RepositoryState(
            exists=True,
            head=head,
            has_branch=self.branch in refs.branches,
            files=self.files_at(head) if head else {},
            tags=refs.tags,
        )

    def files_at(self, commit: str) -> dict[str, HubFile]:
        """Return the files of a commit, by name."""
        return self._hub.files(self.repo_id, commit)

    def fetch(self, state: RepositoryState, names: Sequence[str], folder: Path) -> None:
        """Fetch files of a state into a folder."""
        assert state.head is not None
        snapshot = Snapshot(self._hub, self.repo_id, state.head, folder, state.files)
        snapshot.fetch(names)

    def create(self, *, private: bool | None) -> None:
        """Make the repository; one that is there stays as it is."""
        self._change(lambda api: api.create_repo(**self._named, private=private, exist_ok=True))

    def create_branch(self, start: str) -> None:
        """Make the branch, beginning at a commit."""
        self._change(
            lambda api: api.create_branch(
                **self._named, branch=self.branch, revision=start, exist_ok=True
            )
        )

    def send(self, additions: Sequence[CommitOperationAdd]) -> None:
        """Send the content of large files; what the Hub has is not sent again.

        Small ones, which are no LFS objects, travel with the commit.
        """
        # Most releases of the client retry by themselves; so few attempts do.
        self._change(
            lambda api: api.preupload_lfs_files(
                **self._named, additions=additions, revision=self.branch, free_memory=False
            ),
            attempts=3,
        )

    def commit(self, operations: Sequence[Any], *, message: str, parent: str | None) -> str:
        """Commit, if the branch still is at ``parent``; else ``CommitNotMadeError``."""

        def request(api: HfApi) -> str:
            try:
                made = api.create_commit(
                    **self._named,
                    operations=operations,
                    commit_message=message,
                    revision=self.branch,
                    parent_commit=parent,
                )
            except Exception as error:
                status, pause = answered_status(error), pause_after(error, 1, write=True)
                # The client may also have failed to read the answer.
                lost = status is None and isinstance(error, (RuntimeError, ValueError))
                if status not in _CONFLICTS and pause is None and not lost:
                    raise
                failed = hub_error(error, self.repo_id, self.branch, write=True)
                ours = CommitNotMadeError(failed.what, hint=failed.hint, **failed.where)
                ours.passes = not lost or pause is not None
                time.sleep(pause or 0)
                raise ours from None
            return str(made.oid)

        return str(self._change(request))

    def move_tag(self, tag: str, commit: str) -> None:
        """Let a tag point to a commit; between its two requests, there may be no such tag."""

        def request(api: HfApi) -> None:
            try:
                api.create_tag(**self._named, tag=tag, revision=commit)
            except Exception as error:
                if answered_status(error) != 409:
                    raise
                api.delete_tag(**self._named, tag=tag)
                api.create_tag(**self._named, tag=tag, revision=commit)

        self._change(request)

    def _change(self, request: Any, *, attempts: int = 5) -> Any:
        with no_progress_bars():
            return self._hub.ask(request, self.repo_id, self.branch, write=True, attempts=attempts)
