"""The cache of datasets from the Hub that demoreel shares with lerobot.

::

    HF_LEROBOT_HOME/hub/datasets--me--my_task/
        refs/v3.0             the commit that the tag named when it was last asked
        snapshots/COMMIT/     the files of a commit, as far as they were fetched
        blobs/                their content
        demoreel/COMMIT.json  which files the commit has: sizes and hashes; ours, others ignore it

The rest is huggingface_hub's own layout, so that either program uses what the other has fetched.
"""

from __future__ import annotations

import json
import os
import warnings
from collections.abc import Collection, Iterable, Sequence
from contextlib import suppress
from pathlib import Path

from demoreel.errors import DatasetNotFoundError, DemoreelError, DemoreelWarning
from demoreel.hub.fetch import Report, Shelf
from demoreel.hub.needed import INFO, files_to_fetch, metadata_files, table_files
from demoreel.layouts.base import Reader
from demoreel.layouts.detect import open_reader
from demoreel.layouts.episode_files import episode_files
from demoreel.storage.atomic import write_file
from demoreel.storage.hub_calls import (
    Hub,
    HubFile,
    HubUnreachableError,
    Refs,
    is_offline,
    refuse_unsafe,
)
from demoreel.storage.hub_revisions import (
    MAIN,
    Revision,
    accept_unmarked,
    is_commit,
    readable_name,
    resolve_revision,
)

_LISTINGS = "demoreel"


def lerobot_home() -> Path:
    """Return ``HF_LEROBOT_HOME``, or its default under ``HF_HOME``."""
    home = os.environ.get("HF_LEROBOT_HOME")
    if home:
        return Path(home).expanduser()
    cache = Path(os.environ.get("XDG_CACHE_HOME") or "~/.cache").expanduser()
    hub = os.environ.get("HF_HOME") or cache / "huggingface"
    return Path(hub).expanduser() / "lerobot"


def hub_cache() -> Path:
    """Return the folder of the cache."""
    return lerobot_home() / "hub"


class CachedDataset:
    """A commit of a repository in the cache, as far as it was fetched.

    Attributes:
        repo_id: The repository.
        commit: The commit's full name.
        folder: The folder to open: its metadata are there, and Lance tables whole.
    """

    def __init__(self, hub: Hub, repo_id: str, commit: str) -> None:
        self.repo_id = repo_id
        self.commit = commit
        self._repo = _folder_of(repo_id)
        self.folder = self._repo / "snapshots" / commit
        self._shelf = Shelf(hub, repo_id, commit, hub_cache())

    def is_listed(self) -> bool:
        """Whether it is known here which files the commit has."""
        return self._listing.is_file()

    def has_metadata(self) -> bool:
        """Whether the dataset can be opened as it lies there; nobody is asked."""
        if not (self.folder / INFO).is_file():
            return False
        known = self._known_files()
        if known is not None:
            return not self._missing([*metadata_files(known), *table_files(known)])
        # Fetched by another program, which may have been killed while it did.
        try:
            reader = open_reader(self.folder)
        except DemoreelError:
            return False
        return len(reader.episodes) >= reader.info.total_episodes

    def fetch_metadata(self, found: Revision, *, fresh: bool, report: Report | None) -> None:
        """Fetch what is missing to open the dataset: the metadata, and Lance tables as a whole.

        Args:
            found: The revision, for errors.
            fresh: Ask for the list of files again, and for files that have another size here.
            report: Called with the share of bytes that are here.

        Raises:
            UnsupportedVersionError: It is not marked, and of a version that is not read.
            DatasetNotFoundError: The repository holds no dataset.
            DemoreelError: As ``Shelf.fetch``.
        """
        files = self._files(fresh=fresh)
        if fresh:
            self._drop_those_of_another_size(files)
        if not found.is_marked:
            self._fetch([INFO], files, None)
            accept_unmarked(self.folder / INFO, self.repo_id, found)
        self._fetch([*table_files(files), *metadata_files(files)], files, report)

    def fetch_episodes(
        self,
        reader: Reader,
        positions: Sequence[int],
        *,
        cameras: Collection[str],
        report: Report | None = None,
    ) -> None:
        """Fetch the tables and videos of episodes that are not there yet.

        Args:
            reader: The dataset, opened in ``folder``.
            positions: Positions of the episodes.
            cameras: Those whose videos are wanted.
            report: Called with the share of bytes that are here.

        Raises:
            DatasetNotFoundError: Something is missing, and the Hub must not be asked.
            DemoreelError: As ``Shelf.fetch``.
        """
        if reader.layout.startswith("lance"):
            return
        missing = self._missing(episode_files(reader, positions, cameras=cameras))
        if not missing:
            return
        if is_offline():
            raise DatasetNotFoundError(
                f"{len(missing)} files of {self.repo_id!r} are not on this machine, and "
                "HF_HUB_OFFLINE is set.",
                hint="choose episodes that are, with episodes=; or unset HF_HUB_OFFLINE",
                first_missing=missing[0],
                looked_in=self.folder,
            )
        self._fetch(missing, self._files(fresh=False), report)

    def _fetch(
        self, names: Iterable[str], files: dict[str, HubFile], report: Report | None
    ) -> None:
        # What the metadata name but the repository lacks is an error when it is read, not before.
        wanted = [files[name] for name in self._missing(names) if name in files]
        if wanted:
            self._shelf.fetch(wanted, report)

    def _missing(self, names: Iterable[str]) -> list[str]:
        return [name for name in names if not (self.folder / name).is_file()]

    def _drop_those_of_another_size(self, files: dict[str, HubFile]) -> None:
        for name, file in files.items():
            place = self.folder / name
            if place.is_file() and place.stat().st_size != file.size:
                place.resolve().unlink()
                place.unlink(missing_ok=True)

    @property
    def _listing(self) -> Path:
        return self._repo / _LISTINGS / f"{self.commit}.json"

    def _known_files(self) -> dict[str, HubFile] | None:
        try:
            noted = json.loads(self._listing.read_bytes())
            return {
                path: HubFile(path, int(size), sha256, git_sha1)
                for path, (size, sha256, git_sha1) in noted.items()
            }
        except (OSError, ValueError, TypeError, AttributeError):
            return None

    def _files(self, *, fresh: bool) -> dict[str, HubFile]:
        """Return the dataset's files at this commit: as noted, else as the Hub says. Note them."""
        known = None if fresh else self._known_files()
        if known is None:
            every = self._shelf.hub.files(self.repo_id, self.commit)
            known = files_to_fetch(every, self.repo_id)
            noted = {name: [f.size, f.sha256, f.git_sha1] for name, f in known.items()}
            self._listing.parent.mkdir(parents=True, exist_ok=True)
            write_file(self._listing, json.dumps(noted).encode())
        return known


def cached_dataset(
    repo_id: str,
    revision: str | None = None,
    *,
    token: str | bool | None = None,
    fresh: bool = False,
    report: Report | None = None,
) -> CachedDataset:
    """Return a dataset of the Hub in the cache, fetched so far that it can be opened.

    Cost: where it is cached, one request, which asks what the tag names now; none with
    ``HF_HUB_OFFLINE`` or where ``revision`` is a commit. Else the metadata; of a dataset that lies
    in Lance tables, all of them.

    Args:
        repo_id: The repository.
        revision: A tag, a branch or a commit; None is the newest version that demoreel reads.
        token: A token; None uses the login, if there is one.
        fresh: Ask the Hub even where a commit is cached, and compare the sizes of files.
        report: Called with the share of bytes that are here.

    Raises:
        DatasetNotFoundError: It is neither here nor on the Hub, or the Hub cannot be asked.
        UnsupportedVersionError: It has no version that demoreel reads.
        AccessError: The Hub wants another token.
        StoreError: The Hub does not answer as it should.
        DiskFullError: There is no room.
    """
    hub = Hub(token)
    pinned = revision is not None and is_commit(revision) and not fresh
    if pinned or is_offline():
        cached = _cached(hub, repo_id, revision)
        if cached is not None:
            return cached
    try:
        found = resolve_revision(hub, repo_id, revision)
    except HubUnreachableError as error:
        cached = None if fresh else _cached(hub, repo_id, revision)
        if cached is None:
            raise _not_here(repo_id, error) from None
        warnings.warn(
            f"{error.what} The dataset {repo_id!r} is read as it was fetched before "
            f"({cached.commit[:7]}).",
            DemoreelWarning,
            stacklevel=2,
        )
        return cached
    dataset = CachedDataset(hub, repo_id, found.commit)
    if fresh or not found.is_marked or not dataset.is_listed() or not dataset.has_metadata():
        dataset.fetch_metadata(found, fresh=fresh, report=report)
    _note_commit(repo_id, found)
    return dataset


def cached_folder(repo_id: str, revision: str | None) -> Path | None:
    """Return the folder of a dataset in the cache, as far as it was fetched; nobody is asked."""
    cached = _cached(Hub(), repo_id, revision)
    return None if cached is None else cached.folder


def _cached(hub: Hub, repo_id: str, revision: str | None) -> CachedDataset | None:
    refs = _folder_of(repo_id) / "refs"
    if revision is None:
        known = {str(place.relative_to(refs)): "" for place in refs.rglob("*") if place.is_file()}
        name = readable_name(Refs({}, known))
        wanted = [MAIN] if name is None else [name, MAIN]
    else:
        refuse_unsafe(revision, repo_id)
        wanted = [revision]
    for name in wanted:
        commit = name
        with suppress(OSError):
            commit = (refs / name).read_text().strip()
        dataset = CachedDataset(hub, repo_id, commit)
        if dataset.has_metadata():
            return dataset
    return None


def _folder_of(repo_id: str) -> Path:
    return hub_cache() / ("datasets--" + repo_id.replace("/", "--"))


def _note_commit(repo_id: str, found: Revision) -> None:
    """Note what a tag or branch names, for those who must not ask."""
    if found.name == found.commit:
        return
    refuse_unsafe(found.name, repo_id)
    reference = _folder_of(repo_id) / "refs" / found.name
    with suppress(OSError):
        if reference.read_text() == found.commit:
            return
    reference.parent.mkdir(parents=True, exist_ok=True)
    write_file(reference, found.commit.encode())


def _not_here(repo_id: str, error: HubUnreachableError) -> DatasetNotFoundError:
    return DatasetNotFoundError(
        f"The dataset {repo_id!r} is not on this machine. {error.what}",
        hint="pass root= if it lies elsewhere; or fetch it where the Hub can be reached: "
        f"demoreel pull {repo_id} FOLDER",
        looked_in=_folder_of(repo_id),
    )
