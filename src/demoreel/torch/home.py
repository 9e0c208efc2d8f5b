"""Where a dataset with a ``repo_id`` lies on this machine; what is missing comes from the Hub."""

from __future__ import annotations

import sys
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path

from demoreel.errors import ArgumentError, DatasetNotFoundError
from demoreel.hub.cache import CachedDataset, cached_dataset, cached_folder, lerobot_home
from demoreel.hub.fetch import Report
from demoreel.hub.needed import INFO, files_to_fetch
from demoreel.hub.pull import Work, pull, pulling
from demoreel.hub.pulled import read_record
from demoreel.read.dataset import Dataset
from demoreel.storage.hub_calls import Hub, HubUnreachableError
from demoreel.storage.hub_revisions import resolve_revision
from demoreel.storage.replace import finish_replacing

Token = str | bool | None


def recorded_root(repo_id: str) -> Path:
    """Return the folder that a dataset of this name is recorded into.

    Raises:
        ArgumentError: ``repo_id`` would lead outside ``HF_LEROBOT_HOME``.
    """
    parts = Path(repo_id).parts
    if not parts or Path(repo_id).is_absolute() or ".." in parts:
        raise ArgumentError(f"{repo_id!r} is not a repo_id such as 'me/my_task'.")
    return lerobot_home() / repo_id


def local_root(repo_id: str, root: str | Path | None, revision: str | None) -> Path:
    """Return the folder of a dataset that is on this machine; nobody else is asked.

    Looks in ``root`` if given; else in ``HF_LEROBOT_HOME/repo_id``, then among the snapshots that
    lerobot or demoreel have fetched.

    Raises:
        DatasetNotFoundError: It is not there.
        ArgumentError: ``repo_id`` would lead outside ``HF_LEROBOT_HOME``.
    """
    if root is not None:
        return Path(root)
    recorded = recorded_root(repo_id)
    if (recorded / INFO).is_file():
        return recorded
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

    Raises:
        DemoreelError: As ``cached_dataset``.
    """
    if root is not None:
        return Path(root)
    recorded = recorded_root(repo_id)
    if not sync and (recorded / INFO).is_file():
        return recorded
    with _bar(repo_id) as show:
        return cached_dataset(repo_id, revision, token=token, fresh=sync, report=show).folder


def bring_up_to_date(repo_id: str, root: Path, revision: str | None, token: Token = None) -> None:
    """Pull what has changed on the Hub into a folder that was pulled from there.

    Raises:
        ArgumentError: It was not.
        TargetExistsError: It was changed since; the error says what.
        DemoreelError: As ``pull``.
    """
    if read_record(root) is None:
        raise ArgumentError(
            "force_cache_sync=True asks the network for a newer dataset, and would write over this "
            "folder, which was not pulled from there.",
            hint="leave force_cache_sync out, or root=",
            path=root,
        )
    with _bar(repo_id) as show:
        pull(repo_id, root, revision=revision, token=token, report=show)


class Found:
    """A dataset that can be opened, and the way to the rest of its files.

    Attributes:
        folder: The folder to open.
    """

    def __init__(self, repo_id: str, folder: Path, source: CachedDataset | Work | None) -> None:
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
        if not isinstance(self._source, Work):
            return self.folder
        self._source.staging.commit(self.folder, replace=False)
        return self._source.staging.target


@contextmanager
def found_dataset(
    repo_id: str, root: Path | None, revision: str | None, *, sync: bool, token: Token
) -> Iterator[Found]:
    """Yield a dataset that can be opened: on this machine, or from the Hub.

    A ``root`` that is there is never asked about. One that is not is made, when ``fetch`` has ended
    well; else files are put into the cache that lerobot uses.

    Args:
        repo_id: What it is called.
        root: Its folder, there or not; None looks where lerobot does.
        revision: Of the repository.
        sync: Ask the Hub whether there is something newer.
        token: For the Hub.

    Raises:
        DatasetNotFoundError: It is neither here nor on the Hub, or the Hub cannot be asked.
        ArgumentError: ``sync`` would write over something that is not from the Hub.
        DemoreelError: As ``pull`` and ``cached_dataset``.
    """
    if root is None:
        folder = metadata_root(repo_id, None, revision, sync=sync, token=token)
        recorded = folder == recorded_root(repo_id)
        source = None if recorded else CachedDataset(Hub(token), repo_id, folder.name)
        yield Found(repo_id, folder, source)
    elif is_there(root):
        if sync:
            bring_up_to_date(repo_id, root, revision, token)
        yield Found(repo_id, root, None)
    else:
        with _fetched_to(root, repo_id, revision, token) as work:
            yield Found(repo_id, work.folder, work)


def is_there(root: Path) -> bool:
    """Whether there is something in a folder; if a kill has left it elsewhere, it is put back."""
    if not root.exists():
        finish_replacing(root)
    return root.is_symlink() or (root.exists() and not (root.is_dir() and not any(root.iterdir())))


@contextmanager
def _fetched_to(root: Path, repo_id: str, revision: str | None, token: Token) -> Iterator[Work]:
    """Yield the work of fetching a dataset to a folder, with what opens it fetched."""
    recorded_root(repo_id)  # refuses what is no repo_id
    hub = Hub(token)
    try:
        found = resolve_revision(hub, repo_id, revision)
    except HubUnreachableError as error:
        raise DatasetNotFoundError(
            f"There is nothing at this path, and it cannot be fetched. {error.what}",
            hint="check root=; or fetch the dataset where the Hub can be reached",
            path=root,
        ) from None
    files = files_to_fetch(hub.files(repo_id, found.commit), repo_id)
    with pulling(hub, repo_id, found, files, root, key=("root", revision)) as work:
        with _bar(repo_id) as show:
            work.fetch_what_opens(show)
        yield work


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
