"""The files of one commit of a repository, fetched into a folder as far as they are needed.

Files are fetched by ``huggingface_hub``, several at a time; each is compared with the size and
check sum that the Hub states before it counts as fetched.
"""

from __future__ import annotations

import os
import re
from collections.abc import Callable, Collection, Iterable, Mapping, Sequence
from pathlib import Path

from demoreel.errors import DatasetNotFoundError, StoreError
from demoreel.layouts.base import Reader, episode_files
from demoreel.storage.amounts import ShareDone
from demoreel.storage.hub_calls import Hub, HubFile, Revision, accept_unmarked, no_progress_bars
from demoreel.storage.names import OLD_METADATA, is_hidden, refuse_waiting_copy
from demoreel.storage.threads import parallel_map

Files = Mapping[str, HubFile]
Report = Callable[[float], None]

INFO = "meta/info.json"

_TABLES = re.compile(r"[^/]+\.lance/")
_ROWS = re.compile(r"data/[^/]+/[^/]+\.parquet")
_AT_A_TIME = 8
_DELIVERIES = 2


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
    """Return the files that open a dataset: the metadata, and Lance tables if it lies in such.

    ``info.json`` is the last: other programs take a dataset that has it for one that is there.
    """
    metadata = sorted(path for path in files if path.startswith("meta/") and path != INFO)
    return [*table_files(files), *metadata, INFO]


def table_files(files: Collection[str]) -> list[str]:
    """Return the files of a dataset that lies in Lance tables; none if it does not."""
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
        """Fetch the metadata, and of a dataset that lies in Lance tables all of them."""
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
