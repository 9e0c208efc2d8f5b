"""A dataset's repository on the Hub, as far as publishing needs it; and what its failures mean.

Errors name the repository and what the Hub said. They never carry the address of a request: that
may be a signed one, as good as a password.
"""

from __future__ import annotations

import logging
import re
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field
from functools import cached_property
from pathlib import Path
from typing import TYPE_CHECKING, Any, TypeVar

from demoreel.errors import AccessError, ArgumentError, DatasetNotFoundError, StoreError
from demoreel.storage.hub_calls import Hub, HubFile, hub_endpoint, is_offline
from demoreel.storage.hub_revisions import MAIN

if TYPE_CHECKING:
    from huggingface_hub import CommitOperationAdd, HfApi

T = TypeVar("T")

_TRIES = 5
_FIRST_PAUSE_S = 0.5
_LONGEST_PAUSE_S = 300.0
_PASSING = (408, 429, 500, 502, 503, 504)
_BRANCH = re.compile(r"(?!.*(?:\.\.|//|@\{|\.lock$))[\w][\w./-]*(?<![./])")
_QUERY = re.compile(r"\?[^\s'\"<>]+")
_LOGGERS = ("huggingface_hub.utils._http", "huggingface_hub.lfs", "httpx", "httpx2")
_LOG_IN = "log in with `hf auth login`, or put a token that may write into HF_TOKEN"


class Overtaken(Exception):
    """Somebody else has committed meanwhile, or nobody knows whether a commit happened.

    Args:
        cause: What it looked like, for when it does not end.
        passes: Whether trying again may help, even where the branch is where it was.
    """

    def __init__(self, cause: Exception, *, passes: bool) -> None:
        super().__init__(str(cause))
        self.cause = cause
        self.passes = passes


@dataclass(frozen=True, slots=True)
class State:
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
    """Refuse what cannot name a repository or a branch, before anything is done.

    Raises:
        ArgumentError: One of them cannot.
    """
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
        self._token = token
        self._hub = Hub(token)

    @property
    def endpoint(self) -> str:
        """The Hub's address."""
        return str(self._api.endpoint)

    @cached_property
    def _api(self) -> HfApi:
        from huggingface_hub import HfApi

        return HfApi(endpoint=hub_endpoint(), token=self._token, library_name="demoreel")

    @property
    def url(self) -> str:
        """Where people look at it."""
        return f"{self.endpoint}/datasets/{self.repo_id}"

    @property
    def _named(self) -> dict[str, Any]:
        return {"repo_id": self.repo_id, "repo_type": "dataset"}

    def require_token(self) -> None:
        """Refuse to begin where nobody is logged in.

        Raises:
            AccessError: There is no token.
        """
        from huggingface_hub import get_token

        if is_offline():
            raise StoreError(
                "HF_HUB_OFFLINE is set, and publishing asks the Hub.",
                hint="unset it",
                repository=self.repo_id,
            )
        if not (self._token or get_token()):
            raise AccessError(
                "Publishing on the Hub needs a token, and there is none.",
                hint=_LOG_IN,
                repository=self.repo_id,
            )

    def look(self) -> State:
        """Return what the repository is now. Two requests, and one more for every 1000 files.

        Raises:
            StoreError: The Hub does not answer.
        """
        try:
            refs = self._hub.refs(self.repo_id)
        except DatasetNotFoundError:
            return State(exists=False)
        head = refs.branches.get(self.branch) or refs.branches.get(MAIN)
        return State(
            exists=True,
            head=head,
            has_branch=self.branch in refs.branches,
            files=self.files_at(head) if head else {},
            tags=refs.tags,
        )

    def files_at(self, commit: str) -> dict[str, HubFile]:
        """Return the files of a commit, by name."""
        return self._hub.files(self.repo_id, commit)

    def fetch(self, name: str, commit: str, folder: Path) -> Path:
        """Fetch a file of a commit into a folder; return where it is."""
        return self._hub.download(
            self.repo_id, commit, name, cache=folder / ".cache", folder=folder
        )

    def create(self, *, private: bool | None) -> None:
        """Make the repository; one that is there stays as it is.

        Raises:
            AccessError: The token may not.
        """
        self._asked(lambda: self._api.create_repo(**self._named, private=private, exist_ok=True))

    def create_branch(self, start: str) -> None:
        """Make the branch, beginning at a commit."""
        self._asked(
            lambda: self._api.create_branch(
                **self._named, branch=self.branch, revision=start, exist_ok=True
            )
        )

    def send(self, additions: Sequence[CommitOperationAdd]) -> None:
        """Send the content of large files; what the Hub has is not sent again.

        Small ones, which are no LFS objects, travel with the commit.

        Raises:
            StoreError: That failed; what was sent stays there.
        """
        # Most releases of the client wait by themselves, and send objects again; so few tries do.
        self._asked(
            lambda: self._api.preupload_lfs_files(
                **self._named, additions=additions, revision=self.branch, free_memory=False
            ),
            tries=3,
        )

    def commit(self, operations: Sequence[Any], *, message: str, parent: str | None) -> str:
        """Commit, if the branch still is at ``parent``; return the commit.

        Raises:
            Overtaken: It is not, or the answer was lost: look again.
            StoreError: The Hub refuses.
        """
        try:
            with _quiet():
                made = self._api.create_commit(
                    **self._named,
                    operations=operations,
                    commit_message=message,
                    revision=self.branch,
                    parent_commit=parent,
                )
        except _failures() as error:
            status = _status(error)
            if status is not None and status not in (409, 412, *_PASSING):
                raise self._failed(error) from None
            # Without a status: the line broke, or the client did not understand the answer.
            passes = status is not None or not isinstance(error, ValueError)
            if passes:
                _pause_for(error, 0)
            raise Overtaken(self._failed(error), passes=passes) from None
        return str(made.oid)

    def move_tag(self, tag: str, commit: str) -> None:
        """Let a tag point to a commit; between its two requests, there may be no such tag.

        Raises:
            StoreError: The Hub refuses.
        """
        from huggingface_hub.errors import HfHubHTTPError

        def put() -> None:
            try:
                self._api.create_tag(**self._named, tag=tag, revision=commit)
            except HfHubHTTPError as error:
                if _status(error) != 409:
                    raise
                self._api.delete_tag(**self._named, tag=tag)
                self._api.create_tag(**self._named, tag=tag, revision=commit)

        self._asked(put)

    def _asked(self, call: Callable[[], T], *, tries: int = _TRIES) -> T:
        """Return what the Hub answers; what passes by itself is waited for.

        Raises:
            StoreError: The Hub refuses, or does not answer in time.
        """
        for attempt in range(tries):
            try:
                with _quiet():
                    return call()
            except _failures() as error:
                if attempt == tries - 1 or not _passes(error):
                    raise self._failed(error) from None
                _pause_for(error, attempt)
        raise AssertionError("unreachable")

    def _failed(self, error: Exception) -> StoreError:
        """Return a failure of huggingface_hub as ours, without addresses."""
        status = _status(error)
        said = _said(error)
        where = {"repository": f"{self.repo_id} ({self.branch})"}
        if status == 401:
            return AccessError(
                "The Hub does not accept the token.", hint=_LOG_IN, said=said, **where
            )
        if status in (403, 404):
            return AccessError(
                "The Hub does not let this token write here, or there is no such place.",
                hint="check the name; a token needs the right to write: "
                "https://huggingface.co/settings/tokens",
                said=said,
                **where,
            )
        if status is None and isinstance(error, ValueError):
            return StoreError("The Hub does not take what it was sent.", said=said, **where)
        if status is None:
            return StoreError(
                f"The Hub cannot be reached ({said or type(error).__name__}).",
                hint="push again: what was sent already is not sent twice",
                **where,
            )
        return StoreError(
            f"The Hub answered with an error ({status}).",
            hint="push again: what was sent already is not sent twice",
            said=said,
            **where,
        )


def _failures() -> tuple[type[Exception], ...]:
    """Return what huggingface_hub raises; its HTTP library differs between releases."""
    from huggingface_hub.errors import HfHubHTTPError, LocalTokenNotFoundError

    http = next(kind for kind in HfHubHTTPError.__mro__ if kind.__name__ == "HTTPError")
    return (http, LocalTokenNotFoundError, ConnectionError, TimeoutError, RuntimeError, ValueError)


def _cause(error: BaseException) -> BaseException:
    """Return the failure that others were made from."""
    while getattr(error, "response", None) is None and error.__cause__ is not None:
        error = error.__cause__
    return error


def _status(error: Exception) -> int | None:
    response = getattr(_cause(error), "response", None)
    status = getattr(response, "status_code", None)
    return int(status) if status is not None else None


def _said(error: Exception) -> str | None:
    cause = _cause(error)
    said = getattr(cause, "server_message", None) or ""
    if not said and getattr(cause, "response", None) is None:
        said = next(iter(str(cause).splitlines()), "")
    return _QUERY.sub("?...", str(said)).strip() or None


def _passes(error: Exception) -> bool:
    status = _status(error)
    if status is None:
        return not isinstance(error, ValueError)
    return status in _PASSING


def _pause_for(error: Exception, attempt: int) -> None:
    pause = _FIRST_PAUSE_S * 2**attempt
    headers = getattr(getattr(_cause(error), "response", None), "headers", None) or {}
    asked = str(headers.get("Retry-After", ""))
    if asked.isdigit():
        pause = float(asked)
    time.sleep(min(pause, _LONGEST_PAUSE_S))


class _WithoutQueries(logging.Filter):
    """Takes what follows the ``?`` out of addresses in log lines: signatures stand there."""

    def filter(self, record: logging.LogRecord) -> bool:
        record.msg, record.args = _QUERY.sub("?...", record.getMessage()), ()
        return True


@contextmanager
def _quiet() -> Iterator[None]:
    """Keep huggingface_hub's own progress bars, and signed addresses in its log, from showing."""
    from huggingface_hub.utils.tqdm import (
        are_progress_bars_disabled,
        disable_progress_bars,
        enable_progress_bars,
    )

    loggers = [logging.getLogger(name) for name in _LOGGERS]
    without = _WithoutQueries()
    shown = not are_progress_bars_disabled()
    for logger in loggers:
        logger.addFilter(without)
    if shown:
        disable_progress_bars()
    try:
        yield
    finally:
        for logger in loggers:
            logger.removeFilter(without)
        if shown:
            enable_progress_bars()
