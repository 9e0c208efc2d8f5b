"""Where a dataset lies: its folder or URI, or a ``repo_id`` on this machine and on the Hub."""

from __future__ import annotations

import os
import sys
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING

from demoreel.errors import ArgumentError, DatasetNotFoundError, StoreError
from demoreel.read.dataset import Dataset
from demoreel.storage.commit.replace import wait_for_replacing
from demoreel.storage.folder import DatasetFolder
from demoreel.storage.place import RemotePlace
from demoreel.storage.store import is_uri

# The Hub's modules load where a dataset is looked for or fetched: most are opened from a folder.
if TYPE_CHECKING:
    from demoreel.hub.pull import PullWork
    from demoreel.hub.snapshot import Report, Snapshot

PathLike = str | os.PathLike[str]
Token = str | bool | None


def recorded_root(repo_id: str) -> Path:
    """Return the folder that a dataset of this name is recorded into."""
    from demoreel.hub.snapshot import lerobot_home

    parts = Path(repo_id).parts
    if not parts or Path(repo_id).is_absolute() or ".." in parts or repo_id.startswith("."):
        is_folder = Path(repo_id).is_absolute() or Path(repo_id).is_dir()
        raise ArgumentError(
            f"{repo_id!r} is not a repo_id such as 'me/my_task'.",
            hint=_as_root(repo_id) if is_folder else None,
        )
    return lerobot_home() / repo_id


def _as_root(folder: str) -> str:
    """Return the hint for a folder that was given as a repo_id."""
    name = "/".join(p for p in Path(folder).parts[-2:] if p != "..").lstrip("/") or "me/my_task"
    return f"a folder is given as root=: ({name!r}, root={folder!r})"


def is_dataset(folder: Path) -> bool:
    """Whether a folder holds the metadata of a dataset."""
    return (folder / "meta" / "info.json").is_file()


def local_root(repo_id: str, root: str | Path | None, revision: str | None) -> Path:
    """Return the folder of a dataset that is on this machine; the Hub is not asked.

    Looks in ``root`` if given; else in ``HF_LEROBOT_HOME/repo_id``, then among the snapshots that
    lerobot or demoreel have fetched.
    """
    if root is not None:
        return Path(root)
    recorded = recorded_root(repo_id)
    if is_dataset(recorded):
        return recorded
    from demoreel.hub.snapshot import cached_folder

    cached = cached_folder(repo_id, revision)
    if cached is not None:
        return cached
    raise DatasetNotFoundError(
        f"The dataset {repo_id!r} is not on this machine.",
        hint=f"pass its folder, or fetch it: demoreel pull {repo_id} {recorded}",
        looked_in=recorded,
    )


def metadata_root(
    repo_id: str,
    root: str | Path | None,
    revision: str | None,
    *,
    sync: bool = False,
    token: Token = None,
) -> Path:
    """Return a folder that holds a dataset's metadata, and Lance tables if it lies in such.

    Looks in ``root`` if given; else in ``HF_LEROBOT_HOME/repo_id``; else in the cache, which is
    filled from the Hub.

    Args:
        repo_id: What it is called.
        root: Its folder.
        revision: Of the repository.
        sync: Ask the Hub even where the dataset lies in ``HF_LEROBOT_HOME/repo_id``.
        token: For the Hub.
    """
    if root is not None:
        return Path(root)
    found = _recorded_or_cached(repo_id, revision, sync, token)
    return found if isinstance(found, Path) else found.folder


def _recorded_or_cached(
    repo_id: str, revision: str | None, sync: bool, token: Token
) -> Path | Snapshot:
    recorded = recorded_root(repo_id)
    if not sync and is_dataset(recorded):
        return recorded
    from demoreel.hub.snapshot import cached_dataset

    with _bar(repo_id) as show:
        try:
            return cached_dataset(repo_id, revision, token=token, fresh=sync, report=show)
        except (ArgumentError, DatasetNotFoundError) as error:
            if not is_dataset(Path(repo_id)):
                raise
            raise type(error)(error.what, hint=_as_root(repo_id), **error.where) from error


def update_pulled(repo_id: str, root: Path, revision: str | None, token: Token = None) -> None:
    """Pull what has changed on the Hub into a folder that was pulled from there."""
    from demoreel.hub.pull import pull
    from demoreel.hub.records import read_record

    if read_record(root) is None:
        raise ArgumentError(
            "force_cache_sync=True asks the network for a newer dataset, and would write over this "
            "folder, which was not pulled from there.",
            hint="leave force_cache_sync out, or root=",
            path=root,
        )
    with _bar(repo_id) as show:
        pull(repo_id, root, revision=revision, token=token, report=show)


def fetch_to_record(
    repo_id: str, root: Path, revision: str | None, *, sync: bool, token: Token
) -> None:
    """Pull a dataset into a folder that is to be recorded to, where it is not there yet.

    Args:
        repo_id: What it is called.
        root: The folder.
        revision: Of the repository.
        sync: Pull what is newer, too, if the folder was pulled.
        token: For the Hub.
    """
    if not is_there(root):
        from demoreel.hub.pull import pull
        from demoreel.storage.hub_calls import HubUnreachableError

        try:
            with _bar(repo_id) as show:
                pull(repo_id, root, revision=revision, token=token, report=show)
        except HubUnreachableError as error:
            raise _not_here(error, root) from None
    elif sync:
        update_pulled(repo_id, root, revision, token)


class FoundDataset:
    """A dataset that can be opened, and the way to the rest of its files.

    Attributes:
        folder: The folder to open.
    """

    def __init__(self, repo_id: str, folder: Path, source: Snapshot | None) -> None:
        self.folder = folder
        self._repo_id = repo_id
        self._source = source

    def fetch(self, dataset: Dataset, *, videos: bool) -> Path:
        """Fetch the files that an open dataset needs and that are not here; return its folder.

        Args:
            dataset: The dataset, opened in ``folder``: its episodes and cameras are what counts.
            videos: Whether videos are wanted at all.
        """
        if self._source is None:
            return self.folder
        every = dataset.reader.episodes
        positions: Sequence[int] = range(len(every))
        if len(dataset.episodes) < len(every):
            positions = [every.position_of(int(n)) for n in dataset.episodes.episode_index]
        cameras = dataset.cameras if videos else ()
        with _bar(self._repo_id) as show:
            self._source.fetch_episodes(dataset.reader, positions, cameras=cameras, report=show)
        from demoreel.hub.pull import PullWork, commit

        if not isinstance(self._source, PullWork):
            return self.folder
        commit(self._source.stage)
        return self._source.stage.target


@contextmanager
def found_dataset(
    repo_id: str, root: Path | None, revision: str | None, *, sync: bool, token: Token
) -> Iterator[FoundDataset]:
    """Yield a dataset that can be opened: on this machine, or from the Hub.

    A ``root`` that is there is never asked about. One that is not is made, when ``fetch`` has ended
    well; else files are put into the cache that lerobot uses.

    Args:
        repo_id: What it is called.
        root: Its folder, there or not; None looks where lerobot does.
        revision: Of the repository.
        sync: Ask the Hub whether there is something newer.
        token: For the Hub.
    """
    if root is None:
        found = _recorded_or_cached(repo_id, revision, sync, token)
        source = None if isinstance(found, Path) else found
        yield FoundDataset(repo_id, found if isinstance(found, Path) else found.folder, source)
    elif is_there(root):
        if sync:
            update_pulled(repo_id, root, revision, token)
        yield FoundDataset(repo_id, root, None)
    else:
        with _fetched_to(root, repo_id, revision, token) as work:
            yield FoundDataset(repo_id, work.folder, work)


def is_there(root: Path) -> bool:
    """Whether there is something in a folder."""
    if not root.exists():
        wait_for_replacing(root)
    return root.is_symlink() or (root.exists() and not (root.is_dir() and not any(root.iterdir())))


@contextmanager
def _fetched_to(root: Path, repo_id: str, revision: str | None, token: Token) -> Iterator[PullWork]:
    """Yield the work of fetching a dataset to a folder, with what opens it fetched."""
    from demoreel.hub.pull import pulling
    from demoreel.hub.snapshot import files_to_fetch
    from demoreel.storage.hub_calls import Hub, HubUnreachableError, resolve_revision

    recorded_root(repo_id)  # refuses what is no repo_id
    hub = Hub(token)
    try:
        found = resolve_revision(hub, repo_id, revision)
    except HubUnreachableError as error:
        raise _not_here(error, root) from None
    files = files_to_fetch(hub.files(repo_id, found.commit), repo_id)
    with pulling(hub, repo_id, found, files, root, key=("root", revision)) as work:
        with _bar(repo_id) as show:
            work.fetch_what_opens(show)
        yield work


def _not_here(error: StoreError, root: Path) -> DatasetNotFoundError:
    return DatasetNotFoundError(
        f"There is nothing at this path, and it cannot be fetched. {error.what}",
        hint="check root=; or fetch the dataset where the Hub can be reached",
        path=root,
    )


@contextmanager
def _bar(repo_id: str) -> Iterator[Report | None]:
    """Yield a function that shows on a terminal how much has been fetched."""
    if not sys.stderr.isatty():
        yield None
        return
    from huggingface_hub.utils.tqdm import are_progress_bars_disabled
    from tqdm import tqdm

    look = "{desc}: {percentage:3.0f}%|{bar}| {elapsed}<{remaining}"
    hidden = are_progress_bars_disabled()
    with tqdm(total=1.0, desc=f"fetching {repo_id}", bar_format=look, disable=hidden) as bar:

        def show(share: float) -> None:
            bar.update(share - bar.n)

        yield show


@dataclass(frozen=True, slots=True)
class DatasetPlace:
    """Where a dataset lies.

    Attributes:
        repo_id: What it is called.
        folder: The folder that holds ``meta/``.
        tables: The folder of the Lance tables, or the table of rows, which may lie in an object
            store; None if they lie in ``folder``.
    """

    repo_id: str
    folder: DatasetFolder
    tables: Path | RemotePlace | None = None

    @classmethod
    def at(cls, repo_id: str | None, remote: DatasetFolder) -> DatasetPlace:
        """Return the place of a remote dataset."""
        return cls(repo_id or remote.uri.rpartition("/")[2].partition("@")[0], remote)


def remote_uri(
    repo_id: str, root: PathLike | None, revision: str | None, *, stream: bool
) -> str | None:
    """Return where a dataset is read that is not to be fetched; None if it is on this machine."""
    if is_uri(root) or (root is None and is_uri(repo_id)):
        return str(root if root is not None else repo_id)
    if not stream:
        return None
    if root is not None:
        raise ArgumentError(
            "root= is a folder on this machine; stream=True reads what lies on the Hub.",
            hint="leave one of them out",
        )
    return f"hf://datasets/{repo_id}" + (f"@{revision}" if revision else "")


def place_of_type(
    repo_id: str, root: str | os.PathLike[str] | None, repo_type: str
) -> str | os.PathLike[str] | None:
    """Return ``root``, or where a repository of this type lies if that is no dataset's."""
    if repo_type not in ("dataset", "bucket"):
        raise ArgumentError(f"repo_type must be 'dataset' or 'bucket', got {repo_type!r}.")
    return f"hf://buckets/{repo_id}" if repo_type == "bucket" and root is None else root
