"""The files of one commit of a repository, downloaded to a folder when they are needed.

Files are fetched by ``huggingface_hub``, several at a time; each is compared with the size and
check sum that the Hub states before it counts as fetched. They go into a folder of their own, or
into the cache of datasets that demoreel shares with lerobot::

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
import re
import warnings
from collections.abc import Callable, Collection, Iterable, Mapping, Sequence
from contextlib import suppress
from pathlib import Path

from demoreel.errors import (
    DatasetNotFoundError,
    DemoreelError,
    DemoreelWarning,
    StoreError,
    count,
    refuse_shortage,
)
from demoreel.layouts.base import Reader, episode_files
from demoreel.layouts.detect import open_reader
from demoreel.storage.amounts import ShareDone
from demoreel.storage.commit.files import write_file
from demoreel.storage.hub_calls import (
    MAIN,
    Hub,
    HubFile,
    HubUnreachableError,
    Refs,
    Revision,
    accept_unmarked,
    is_commit,
    is_offline,
    no_progress_bars,
    readable_name,
    refuse_unsafe,
    resolve_revision,
)
from demoreel.storage.names import OLD_METADATA, is_hidden, leads_elsewhere, refuse_waiting_copy
from demoreel.storage.threads import parallel_map

Files = Mapping[str, HubFile]
Report = Callable[[float], None]
INFO = "meta/info.json"
_TABLES = re.compile(r"[^/]+\.lance/")
_ROWS = re.compile(r"data/[^/]+/[^/]+\.parquet")
_AT_A_TIME = 8
_DELIVERIES = 2
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
    """Return the folder of the cache that demoreel shares with lerobot."""
    return lerobot_home() / "hub"


def files_to_fetch(files: Files, repo_id: str) -> dict[str, HubFile]:
    """Return the files of a repository that are put into a dataset's folder.

    Hidden ones are not, but for the metadata of older versions.
    """
    if INFO not in files:
        raise DatasetNotFoundError(
            f"The repository {repo_id!r} holds no LeRobot dataset: there is no {INFO}.",
            hint="check the name and the revision",
        )
    refuse_waiting_copy(files, repo_id)
    return {path: file for path, file in files.items() if not is_hidden(path)}


def opening_files(files: Collection[str]) -> list[str]:
    """Return the files that open a dataset: the metadata, and Lance tables if it is in such.

    ``info.json`` is the last: other programs take a dataset that has it for one that is there.
    """
    metadata = sorted(path for path in files if path.startswith("meta/") and path != INFO)
    return [*table_files(files), *metadata, INFO]


def table_files(files: Collection[str]) -> list[str]:
    """Return the files of a dataset that is in Lance tables; none if it is not."""
    tables = [path for path in files if _TABLES.match(path)]
    if not tables:
        return []
    names = {path.split("/", 1)[0] for path in tables}
    native = {"frames.lance", "videos.lance"} <= names
    if not native and any(_ROWS.fullmatch(path) for path in files):
        return []
    return tables + [path for path in files if path.startswith(f"{OLD_METADATA}/")]


class Snapshot:
    """A commit's files in a folder, as far as they were fetched.

    Args:
        hub: The Hub.
        repo_id: The repository.
        found: Its commit, or the revision that names it.
        folder: The folder.
        files: The commit's files; None asks for them when they are needed.
    """

    in_cache = False
    """Whether the folder is one of huggingface_hub's cache, with links to contents."""

    def __init__(
        self,
        hub: Hub,
        repo_id: str,
        found: str | Revision,
        folder: Path,
        files: Files | None = None,
    ) -> None:
        self.repo_id = repo_id
        self.folder = folder
        self._hub = hub
        self._found = Revision(found, found) if isinstance(found, str) else found
        self._listed = files

    @property
    def commit(self) -> str:
        """The commit's full name."""
        return self._found.commit

    @property
    def files(self) -> Files:
        """The commit's files that may be fetched, by name."""
        if self._listed is None:
            self._listed = files_to_fetch(self._hub.files(self.repo_id, self.commit), self.repo_id)
        return self._listed

    def fetch_what_opens(self, report: Report | None = None) -> None:
        """Fetch the metadata, and of a dataset that is in Lance tables all of them."""
        self.fetch(opening_files(self.files), report)

    def fetch_episodes(
        self,
        reader: Reader,
        positions: Sequence[int],
        *,
        cameras: Collection[str],
        report: Report | None = None,
    ) -> None:
        """Fetch the tables and videos of episodes; of a Lance dataset, all are there.

        Args:
            reader: The dataset, opened in ``folder``.
            positions: Positions of the episodes.
            cameras: Those whose videos are wanted.
            report: Called with the share of bytes that are here.
        """
        if not reader.layout.startswith("lance"):
            self.fetch(episode_files(reader, positions, cameras=cameras), report)

    def fetch(self, names: Collection[str], report: Report | None = None) -> None:
        """Fetch files that are not there; after an error, those that have arrived stay.

        Args:
            names: The files; the repository need not have them.
            report: Called with the share of bytes that are here.
        """
        missing = self._missing(names)
        if INFO in names and not self._found.is_marked:
            self._download([file for file in missing if file.path == INFO], None)
            accept_unmarked(self.folder / INFO, self.repo_id, self._found)
            missing = [file for file in missing if file.path != INFO]
        self._download(missing, report)

    def _missing(self, names: Collection[str]) -> list[HubFile]:
        """Return the files to fetch."""
        return self._known(name for name in names if not (self.folder / name).is_file())

    def _known(self, names: Iterable[str]) -> list[HubFile]:
        # What the metadata name but the repository lacks is an error when it is read, not before.
        return [self.files[name] for name in names if name in self.files]

    def _download(self, files: list[HubFile], report: Report | None) -> None:
        whole = sum(file.size for file in files) or 1
        here = 0
        with no_progress_bars():
            for file in parallel_map(self._download_one, files, most=_AT_A_TIME):
                here += file.size
                if report is not None:
                    report(ShareDone(here, whole, "bytes"))

    def _download_one(self, file: HubFile) -> None:
        for _ in range(_DELIVERIES):
            place = self._hub.download(
                self.repo_id,
                self.commit,
                file.path,
                cache=hub_cache(),
                folder=None if self.in_cache else self.folder,
            )
            if file.is_content_of(place):
                return
            # In a cache the name is a link to the content, which would be taken again.
            place.resolve().unlink(missing_ok=True)
            place.unlink(missing_ok=True)
        raise StoreError(
            f"A file arrived damaged {_DELIVERIES} times: it is not what the Hub says it is.",
            hint="try again later; if it stays so, its owner must upload it again",
            repo_id=self.repo_id,
            file=file.path,
            revision=self.commit,
        )


class CachedDataset(Snapshot):
    """A commit of a repository in the cache, as far as it was fetched."""

    in_cache = True

    def __init__(self, hub: Hub, repo_id: str, found: str | Revision) -> None:
        commit = found if isinstance(found, str) else found.commit
        super().__init__(hub, repo_id, found, _folder_of(repo_id) / "snapshots" / commit)
        self._listing = _folder_of(repo_id) / _LISTINGS / f"{commit}.json"

    def has_metadata(self) -> bool:
        """Whether the dataset can be opened as it is there; the Hub is not asked."""
        if not (self.folder / INFO).is_file():
            return False
        known = self._noted_files()
        if known is not None:
            return all((self.folder / name).is_file() for name in opening_files(known))
        # Fetched by another program, which may have been killed while it did.
        try:
            reader = open_reader(self.folder)
        except DemoreelError as error:
            refuse_shortage(error)
            return False
        return len(reader.episodes) >= reader.info.total_episodes

    def is_complete(self) -> bool:
        """Whether nothing needs to be asked to open it: its files are known, and those are here."""
        return self._listing.is_file() and self.has_metadata()

    def remove_outdated(self) -> None:
        """List the files again, and remove those that have another size here."""
        self._listing.unlink(missing_ok=True)
        for name, file in self.files.items():
            place = self.folder / name
            if place.is_file() and place.stat().st_size != file.size:
                place.resolve().unlink()
                place.unlink(missing_ok=True)

    @property
    def files(self) -> Files:
        """The commit's files: as noted, else as the Hub says; then they are noted."""
        if self._listed is None:
            self._listed = self._noted_files()
        if self._listed is None:
            noted = {n: [f.size, f.sha256, f.git_sha1] for n, f in super().files.items()}
            self._listing.parent.mkdir(parents=True, exist_ok=True)
            write_file(self._listing, json.dumps(noted).encode())
        return super().files

    def _noted_files(self) -> dict[str, HubFile] | None:
        try:
            noted = json.loads(self._listing.read_bytes())
            return {
                path: HubFile(path, int(size), sha256, git_sha1)
                for path, (size, sha256, git_sha1) in noted.items()
            }
        except (OSError, ValueError, TypeError, AttributeError):
            return None

    def _missing(self, names: Collection[str]) -> list[HubFile]:
        missing = [name for name in names if not (self.folder / name).is_file()]
        if missing and is_offline():
            raise DatasetNotFoundError(
                f"This machine lacks {count(len(missing), 'file')} of {self.repo_id!r}, and "
                "HF_HUB_OFFLINE is set.",
                hint="choose episodes that are here, with episodes=; or unset HF_HUB_OFFLINE",
                first_missing=missing[0],
                looked_in=self.folder,
            )
        return self._known(missing)


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
    ``HF_HUB_OFFLINE`` or where ``revision`` is a commit. Else the metadata; of a dataset that is
    in Lance tables, all of them.

    Args:
        repo_id: The repository.
        revision: A tag, a branch or a commit; None is the newest version that demoreel reads.
        token: A token; None uses the login, if there is one.
        fresh: Ask the Hub even where a commit is cached, and compare the sizes of files.
        report: Called with the share of bytes that are here.
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
    dataset = CachedDataset(hub, repo_id, found)
    if fresh:
        dataset.remove_outdated()
    if fresh or not found.is_marked or not dataset.is_complete():
        dataset.fetch_what_opens(report)
    _note_commit(repo_id, found)
    return dataset


def cached_folder(repo_id: str, revision: str | None) -> Path | None:
    """Return the folder of a dataset in the cache; the Hub is not asked."""
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
        if leads_elsewhere(commit):  # another program wrote it
            continue
        dataset = CachedDataset(hub, repo_id, commit)
        if dataset.has_metadata():
            return dataset
    return None


def _folder_of(repo_id: str) -> Path:
    return hub_cache() / ("datasets--" + repo_id.replace("/", "--"))


def _note_commit(repo_id: str, found: Revision) -> None:
    """Note what a tag or branch names, for when the Hub must not be asked."""
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
        hint="pass root= if it is elsewhere; or fetch it where the Hub can be reached: "
        f"demoreel pull {repo_id} FOLDER",
        looked_in=_folder_of(repo_id),
    )
