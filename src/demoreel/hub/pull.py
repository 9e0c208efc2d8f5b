"""From the Hub to a plain folder: whole, or some episodes; new, or brought up to date."""

from __future__ import annotations

import os
import re
import tempfile
from collections.abc import Collection, Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any, cast

from demoreel.edit.cut import cut
from demoreel.edit.target_info import Layout
from demoreel.errors import ArgumentError
from demoreel.hub.cache import hub_cache
from demoreel.hub.fetch import Report, Shelf
from demoreel.hub.needed import INFO, files_to_fetch, metadata_files, table_files
from demoreel.hub.pull_staging import PullStaging, look_at_target, pull_staging
from demoreel.hub.pulled import PulledFolder, as_if_pulled, write_record
from demoreel.layouts.base import Reader
from demoreel.layouts.detect import open_reader
from demoreel.layouts.episode_files import episode_files
from demoreel.run.staging import refuse_small_disk
from demoreel.storage.far.uris import is_far
from demoreel.storage.hub_calls import Hub, HubFile, hub_endpoint
from demoreel.storage.hub_revisions import Revision, accept_unmarked, resolve_revision

PathLike = str | os.PathLike[str]
Files = Mapping[str, HubFile]

_HF = re.compile(r"hf://datasets/([^/@]+/[^/@]+)(?:@([^/]+))?/?")
_FETCHING = 0.9  # share of the work, where a cut comes after it


@dataclass(frozen=True, slots=True)
class Pulled:
    """What a pull did, or would do.

    Attributes:
        repo_id: The repository.
        target: The folder.
        revision: The tag or branch that was taken, or the commit.
        commit: The commit's full name.
        episodes: The chosen episodes by their numbers in the repository; None is all. In the
            folder they are counted from 0.
        files: Files of the repository that were needed.
        bytes: Their size.
        fetched_files: Those that were not here.
        fetched_bytes: Their size.
        was_up_to_date: The folder held this commit already; nothing was done.
        dry_run: Nothing was written.
    """

    repo_id: str
    target: str
    revision: str
    commit: str
    episodes: tuple[int, ...] | None
    files: int
    bytes: int
    fetched_files: int
    fetched_bytes: int
    was_up_to_date: bool
    dry_run: bool

    def to_json(self) -> dict[str, Any]:
        """Return everything as plain values."""
        return asdict(self)


def pull(
    source: str,
    target: PathLike,
    *,
    revision: str | None = None,
    episodes: Iterable[int] | None = None,
    overwrite: bool = False,
    token: str | bool | None = None,
    storage_options: Mapping[str, Any] | None = None,
    dry_run: bool = False,
    report: Report | None = None,
) -> Pulled:
    """Fetch a dataset from the Hub, or from an object store, into a plain folder.

    The folder appears whole, or not at all; each file is compared with its size and check sum. A
    pull that was interrupted goes on from the files that it had. Where the folder was pulled from
    the same repository before, only files that have changed there are fetched.

    Cost: two requests, and two for each file. With ``episodes``, only files that these lie in are
    fetched, and their packets and rows are copied once more; of a Lance dataset, all.

    Args:
        source: ``me/my_task``, or ``hf://datasets/me/my_task@v3.0``; or where else it lies:
            ``s3://bucket/path``, ``gs://``, ``az://``, ``hf://buckets/owner/name``.
        target: The folder to make, or one that was pulled before and has not been changed.
        revision: A tag, a branch or a commit; None is the newest version that demoreel reads,
            v3.0 first, or ``main`` where no tag or branch names one.
        episodes: Pull a dataset of these only, by ``episode_index``. They are counted from 0 in it.
        overwrite: Replace the dataset that is in the folder, whatever it is.
        token: A token; None uses ``HF_TOKEN`` or the login. False uses none.
        storage_options: Of object stores and buckets: as for ``demoreel.open``.
        dry_run: Say what would be fetched, and write nothing.
        report: Called with the share that is done.

    Raises:
        DatasetNotFoundError: There is no such dataset or revision, or none for this login.
        UnsupportedVersionError: It has no version that demoreel reads; what it has, is listed.
        TargetExistsError: There is something in the folder, or it was changed since it was pulled;
            the error says what.
        OutOfRangeError: An episode does not exist.
        UnsafePathError: A file's name would lead outside the folder.
        AccessError: The Hub wants another token.
        StoreError: The Hub does not answer as it should, or a file arrived damaged.
        DiskFullError: There is no room.
        ArgumentError: An argument makes no sense.
    """
    if is_far(source) and not _HF.fullmatch(source):
        from demoreel.hub.pull_far import pull_far  # which tells what it did as this module does

        if revision is not None or token is not None:
            raise ArgumentError("revision= and token= are for the Hub.", hint="leave them out")
        return pull_far(
            source.rstrip("/"),
            Path(target),
            episodes=_chosen(episodes),
            overwrite=overwrite,
            storage_options=storage_options,
            dry_run=dry_run,
            report=report,
        )
    if storage_options:
        raise ArgumentError(
            "storage_options= is for object stores and buckets.", hint="give a token= instead"
        )
    repo_id, revision = _named(source, revision)
    chosen = _chosen(episodes)
    final = Path(target)
    there = look_at_target(final, repo_id, overwrite=overwrite)
    hub = Hub(token)
    found = resolve_revision(hub, repo_id, revision)

    def told(needed: Files, fetched: Files, *, current: bool = False) -> Pulled:
        return Pulled(
            repo_id=repo_id,
            target=str(final),
            revision=found.name,
            commit=found.commit,
            episodes=chosen,
            files=len(needed),
            bytes=_size(needed),
            fetched_files=len(fetched),
            fetched_bytes=_size(fetched),
            was_up_to_date=current,
            dry_run=dry_run,
        )

    before = there.record
    if before is not None and (before.commit, before.episodes) == (found.commit, chosen):
        return told({name: pulled.file for name, pulled in before.files.items()}, {}, current=True)
    if before is not None and (chosen is not None or before.episodes is not None):
        before = None  # a cut's files are not the repository's
    files = files_to_fetch(hub.files(repo_id, found.commit), repo_id)
    if there.objection is not None:
        before = None if chosen else as_if_pulled(final, repo_id, files)
        if before is None:
            raise there.objection
    if dry_run:
        needed = files if chosen is None else _needed_by(hub, repo_id, found, files, chosen)
        return told(needed, _not_in(needed, before))
    with pulling(hub, repo_id, found, files, final, key=(revision, chosen)) as work:
        if chosen is None:
            work.fetch(files, before=before, report=report)
            made, of_theirs = work.folder, files
        else:
            work.fetch_what_opens()
            reader = open_reader(work.folder)
            work.fetch_episodes(
                reader,
                [reader.episodes.position_of(number) for number in chosen],
                cameras=reader.info.video_keys,
                report=_part_of(report, 0.0, _FETCHING),
            )
            made, of_theirs = work.staging.cut, None
            _cut_out(work.staging, chosen, reader.layout, _part_of(report, _FETCHING, 1.0))
        write_record(made, repo_id=repo_id, commit=found.commit, episodes=chosen, files=of_theirs)
        work.staging.commit(made, replace=there.is_there)
    return told(work.needed, work.fetched)


class Work:
    """A pull under way; made by ``pulling``.

    Attributes:
        staging: The hidden folder.
        folder: The repository's files in it.
        needed: The files that were wanted so far.
        fetched: Those of them that were not here.
    """

    def __init__(self, staging: PullStaging, shelf: Shelf, found: Revision, files: Files) -> None:
        self.staging = staging
        self.folder = staging.dataset
        self.needed: dict[str, HubFile] = {}
        self.fetched: dict[str, HubFile] = {}
        self._shelf = shelf
        self._found = found
        self._files = files

    def fetch_what_opens(self, report: Report | None = None) -> None:
        """Fetch the metadata, and of a dataset that lies in Lance tables all of them."""
        names = [*table_files(self._files), *metadata_files(self._files)]
        self.fetch(_only(self._files, names), report=report)

    def fetch_episodes(
        self,
        reader: Reader,
        positions: Sequence[int],
        *,
        cameras: Collection[str],
        report: Report | None = None,
    ) -> None:
        """Fetch the tables and videos of episodes; see ``episode_files``."""
        if not reader.layout.startswith("lance"):
            names = episode_files(reader, positions, cameras=cameras)
            self.fetch(_only(self._files, names), report=report)

    def fetch(
        self, wanted: Files, *, before: PulledFolder | None = None, report: Report | None = None
    ) -> None:
        """Fetch files that are not here, metadata first.

        Raises:
            DiskFullError: There is no room for them.
            UnsupportedVersionError: The revision is not marked, and not one that demoreel reads.
            DemoreelError: As ``Shelf.fetch``.
        """
        missing = self.staging.missing(wanted, before)
        refuse_small_disk(self.staging.target, _size(missing))
        self.needed.update(wanted)
        self.fetched.update(missing)
        first = {name: file for name, file in missing.items() if name.startswith("meta/")}
        self._shelf.fetch(first.values())
        if INFO in wanted and not self._found.is_marked:
            accept_unmarked(self.folder / INFO, self._shelf.repo_id, self._found)
        self._shelf.fetch((f for name, f in missing.items() if name not in first), report)


@contextmanager
def pulling(
    hub: Hub, repo_id: str, found: Revision, files: Files, target: Path, *, key: object
) -> Iterator[Work]:
    """Yield the work of fetching files to a hidden folder beside a target; see ``pull_staging``.

    Args:
        hub: Whom to ask.
        repo_id: The repository.
        found: The revision.
        files: All of its files that belong to a dataset.
        target: What is to be made.
        key: What else tells this pull from another to the same folder.
    """
    with pull_staging(target, hub_endpoint(), repo_id, key) as staging:
        staging.keep_only(files)
        shelf = Shelf(hub, repo_id, found.commit, hub_cache(), staging.dataset)
        yield Work(staging, shelf, found, files)


def _named(source: str, revision: str | None) -> tuple[str, str | None]:
    """Return the repository that a source names, and the revision."""
    match = _HF.fullmatch(source)
    if match is None:
        return source, revision
    if match[2] and revision is not None and match[2] != revision:
        raise ArgumentError(f"The source names the revision {match[2]!r}, and revision= another.")
    return match[1], match[2] or revision


def _chosen(episodes: Iterable[int] | None) -> tuple[int, ...] | None:
    if episodes is None:
        return None
    chosen = tuple(sorted({int(number) for number in episodes}))
    if not chosen or chosen[0] < 0:
        raise ArgumentError(
            "episodes= names no episode." if not chosen else f"There is no episode {chosen[0]}.",
            hint="leave it out to pull all",
        )
    return chosen


def _needed_by(
    hub: Hub, repo_id: str, found: Revision, files: Files, chosen: tuple[int, ...]
) -> Files:
    """Return the files that episodes need. Fetches the metadata, and keeps nothing."""
    tables = table_files(files)
    if tables:
        return _only(files, [*tables, *metadata_files(files)])
    with tempfile.TemporaryDirectory(prefix="demoreel-") as name:
        folder = Path(name)
        shelf = Shelf(hub, repo_id, found.commit, hub_cache(), folder)
        shelf.fetch(_only(files, metadata_files(files)).values())
        if not found.is_marked:
            accept_unmarked(folder / INFO, repo_id, found)
        reader = open_reader(folder)
        positions = [reader.episodes.position_of(number) for number in chosen]
        names = episode_files(reader, positions, cameras=reader.info.video_keys)
    return _only(files, [*metadata_files(files), *names])


def _cut_out(
    staging: PullStaging, chosen: tuple[int, ...], layout: str, report: Report | None
) -> None:
    """Make a dataset of the chosen episodes, in the layout that they came in."""
    form = cast("Layout", "v2.1" if layout.startswith("v2") else layout)
    cut(staging.dataset).keep(list(chosen)).render(staging.cut, layout=form, report=report)


def _only(files: Files, names: Iterable[str]) -> dict[str, HubFile]:
    # What the metadata name but the repository lacks is an error when it is read, not before.
    return {name: files[name] for name in names if name in files}


def _not_in(files: Files, before: PulledFolder | None) -> Files:
    if before is None:
        return files
    here = {name: pulled.file for name, pulled in before.files.items()}
    return {name: file for name, file in files.items() if here.get(name) != file}


def _size(files: Files) -> int:
    return sum(file.size for file in files.values())


def _part_of(report: Report | None, first: float, last: float) -> Report | None:
    if report is None:
        return None
    return lambda share: report(first + share * (last - first))
