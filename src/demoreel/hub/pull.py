"""Downloads a dataset from the Hub or an object store to a folder, or updates the folder.

Files are staged and committed as all new datasets are (``storage/commit/staging.py``). They go into
the staging folder's ``dataset``; where episodes are chosen, into its ``parts``, and the cut of them
into ``dataset``. After a kill, Ctrl-C, a full disk, a failure of the network, and where the target
is in use, the staging folder stays, and the same pull continues with the files in it whose
checksums are right.
"""

from __future__ import annotations

import hashlib
import os
import re
import shutil
from collections.abc import Collection, Iterable, Iterator, Mapping
from contextlib import AbstractContextManager, contextmanager
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any, cast

from demoreel.edit.cut import cut
from demoreel.edit.form import Layout
from demoreel.errors import (
    ArgumentError,
    DatasetBusyError,
    DatasetNotFoundError,
    DiskFullError,
    StoreError,
    TargetExistsError,
)
from demoreel.hub.records import PulledFolder, as_if_pulled, look_at_target, write_record
from demoreel.hub.snapshot import INFO, Files, Report, Snapshot, files_to_fetch, opening_files
from demoreel.layouts.base import Reader, episode_files
from demoreel.layouts.detect import open_reader
from demoreel.read.dataset import Dataset
from demoreel.storage.commit.files import sync_tree
from demoreel.storage.commit.hidden_folder import remove_empty
from demoreel.storage.commit.staging import Staging, refuse_small_disk, staging
from demoreel.storage.external import AllowExternal
from demoreel.storage.external import allow_external as allow
from demoreel.storage.folder import leads_out
from demoreel.storage.hub_calls import Hub, HubFile, Revision, hub_endpoint, resolve_revision
from demoreel.storage.names import refuse_folded
from demoreel.storage.remote.fetch import fetch_folder, list_files, part_of, state_of
from demoreel.storage.remote.files import store_of
from demoreel.storage.scratch import scratch_folder
from demoreel.storage.store import is_uri

PathLike = str | os.PathLike[str]
Chosen = tuple[int, ...] | None

_HF = re.compile(r"hf://datasets/([^/@]+/[^/@]+)(?:@([^/]+))?/?")
_FETCHING = 0.9  # share of the work, where a cut comes after it
_HF_NOTES = ".cache"  # where huggingface_hub keeps notes in a folder that it downloads to
_RESUMABLE = (StoreError, DiskFullError, DatasetBusyError, TargetExistsError)


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
    allow_external: AllowExternal | None = None,
    dry_run: bool = False,
    report: Report | None = None,
) -> Pulled:
    """Fetch a dataset from the Hub, or from an object store, into a plain folder.

    The folder appears whole, or not at all; each file is compared with its size and check sum. A
    pull that was interrupted continues from the files that it had. Where the folder was pulled from
    the same repository before, only files that have changed there are fetched.

    Cost: two requests, and two for each file. With ``episodes``, only files that these are in are
    fetched, and their packets and rows are copied once more; of a Lance dataset, all.

    Args:
        source: ``me/my_task``, or ``hf://datasets/me/my_task@v3.0``; or where else it is:
            ``s3://bucket/path``, ``gs://``, ``az://``, ``hf://buckets/owner/name``.
        target: The folder to make, or one that was pulled before and has not been changed.
        revision: A tag, a branch or a commit; None is the newest version that demoreel reads,
            v3.0 first, or ``main`` where no tag or branch names one.
        episodes: Pull a dataset of these only, by ``episode_index``. They are counted from 0 in it.
        overwrite: Replace the dataset that is in the folder, whatever it is.
        token: A token; None uses ``HF_TOKEN`` or the login. False uses none.
        storage_options: Of object stores and buckets: as for ``demoreel.open``.
        allow_external: With ``episodes``, what the Lance tables may name outside the dataset: as
            for ``demoreel.open``.
        dry_run: Say what would be fetched, and write nothing.
        report: Called with the share that is done.

    Raises:
        DatasetNotFoundError: There is no such dataset or revision, or none for this login.
        UnsupportedVersionError: It has no version that demoreel reads; what it has, is listed.
        TargetExistsError: There is something in the folder, or it was changed since it was pulled;
            the error says what.
        OutOfRangeError: An episode does not exist.
        UnsafePathError: A file's name would lead outside the folder.
        AccessError: The Hub requires another token.
        StoreError: The Hub does not answer as it should, or a file arrived damaged.
        DiskFullError: There is no room.
        ArgumentError: An argument makes no sense.
    """
    final, chosen = Path(target), _chosen(episodes)
    if is_uri(source) and not _HF.fullmatch(source):
        allow(source, allow_external)
        if revision is not None or token is not None:
            raise ArgumentError("revision= and token= are for the Hub.", hint="leave them out")
        return _pull_remote(
            source.rstrip("/"), final, chosen, storage_options, overwrite, dry_run, report
        )
    if storage_options:
        raise ArgumentError(
            "storage_options= is for object stores and buckets.", hint="give a token= instead"
        )
    repo_id, revision = _named(source, revision)
    there = look_at_target(final, repo_id, overwrite=overwrite, dry_run=dry_run)
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
        needed = files if chosen is None else _needed_on_hub(hub, repo_id, found, files, chosen)
        here = {} if before is None else {n: pulled.file for n, pulled in before.files.items()}
        return told(needed, {n: file for n, file in needed.items() if here.get(n) != file})
    replaces, is_cut = there.is_there, chosen is not None
    with pulling(
        hub,
        repo_id,
        found,
        files,
        final,
        key=(revision, chosen),
        before=before,
        replaces=replaces,
        is_cut=is_cut,
    ) as work:
        if work.stage.committed:  # by an attempt that was killed at its end
            return told(work.needed, work.fetched, current=True)
        if chosen is None:
            work.fetch(files, report)
        else:
            work.fetch_what_opens()
            allow(work.folder, allow_external)
            reader = open_reader(work.folder)
            positions = [reader.episodes.position_of(number) for number in chosen]
            cameras = reader.info.video_keys
            fetching = part_of(report, 0.0, _FETCHING)
            work.fetch_episodes(reader, positions, cameras=cameras, report=fetching)
            cutting = part_of(report, _FETCHING, 1.0)
            clips = cut(work.folder).keep(list(chosen))
            clips.render(work.stage.dataset, layout=_written(reader.layout), report=cutting)
        of_theirs = files if chosen is None else None
        write_record(
            work.stage.dataset,
            repo_id=repo_id,
            commit=found.commit,
            episodes=chosen,
            files=of_theirs,
        )
        commit(work.stage)
    return told(work.needed, work.fetched)


class PullWork(Snapshot):
    """A pull under way; made by ``pulling``.

    Attributes:
        stage: The staging folder, with the repository's files in ``folder``.
        needed: The files that were wanted so far.
        fetched: Those of them that were not here.
    """

    def __init__(
        self,
        stage: Staging,
        hub: Hub,
        repo_id: str,
        found: Revision,
        files: Files,
        before: PulledFolder | None,
        *,
        is_cut: bool,
    ) -> None:
        super().__init__(hub, repo_id, found, stage.parts if is_cut else stage.dataset, files)
        self.stage = stage
        self.needed: dict[str, HubFile] = {}
        self.fetched: dict[str, HubFile] = {}
        self._before = {} if before is None else before.files

    def keep_only(self, files: Collection[str]) -> None:
        """Remove what an earlier attempt left of other commits."""
        refuse_folded(files, self.folder)
        for parent, _, names in os.walk(self.folder):
            if _HF_NOTES not in Path(parent).relative_to(self.folder).parts[:1]:
                for name in names:
                    place = Path(parent, name)
                    if place.relative_to(self.folder).as_posix() not in files:
                        place.unlink()

    def _missing(self, names: Collection[str]) -> list[HubFile]:
        wanted = self._known(names)
        missing = [file for file in wanted if not self._has(file)]
        self.needed.update({file.path: file for file in wanted})
        self.fetched.update({file.path: file for file in missing})
        refuse_small_disk(self.stage.target, sum(file.size for file in missing))
        return missing

    def _has(self, file: HubFile) -> bool:
        """Whether a file need not be fetched; what an earlier attempt left damaged is removed."""
        if self._take_over(file):
            return True
        place = self.folder / file.path
        if place.is_symlink() or not file.is_content_of(place):
            place.unlink(missing_ok=True)
            return False
        return True

    def _take_over(self, file: HubFile) -> bool:
        """Link, or copy, a file that the target holds already; False if it does not."""
        if file.path not in self._before or self._before[file.path].file != file:
            return False
        old, new = self.stage.target / file.path, self.folder / file.path
        if leads_out(self.stage.target, old) is not None:
            return False
        new.parent.mkdir(parents=True, exist_ok=True)
        new.unlink(missing_ok=True)
        try:
            os.link(old.resolve(), new)
        except OSError:
            shutil.copy2(old, new)
        return True


@contextmanager
def pulling(
    hub: Hub,
    repo_id: str,
    found: Revision,
    files: Files,
    target: Path,
    *,
    key: object,
    before: PulledFolder | None = None,
    replaces: bool = False,
    is_cut: bool = False,
) -> Iterator[PullWork]:
    """Yield the work of fetching files to a staging folder.

    Args:
        hub: The Hub.
        repo_id: The repository.
        found: The revision.
        files: All of its files that belong to a dataset.
        target: What is to be made.
        key: What else tells this pull from another to the same folder.
        before: What the target is, unchanged; None if nothing of it is of use.
        replaces: Whether a dataset is there, which is to be replaced.
        is_cut: Whether the caller makes ``stage.dataset`` of the files, instead of fetching to it.
    """
    with _staged(target, (hub_endpoint(), repo_id, key), found.commit, replaces) as stage:
        work = PullWork(stage, hub, repo_id, found, files, before, is_cut=is_cut)
        work.keep_only(files)
        if is_cut and not stage.committed:
            shutil.rmtree(stage.dataset)
        yield work


def _staged(
    target: Path, what: object, commit: str, replaces: bool
) -> AbstractContextManager[Staging]:
    return staging(
        target,
        kind="pull",
        fingerprint=hashlib.sha256(repr(what).encode()).hexdigest(),
        work=commit,
        resumable_after=_RESUMABLE,
        replaces=replaces,
    )


def commit(stage: Staging) -> None:
    """Force what was pulled to disk, and make it the target."""
    shutil.rmtree(stage.dataset / _HF_NOTES, ignore_errors=True)
    folders = [Path(parent) for parent, _, _ in os.walk(stage.dataset, topdown=False)]
    remove_empty(folders[:-1])
    sync_tree(stage.dataset)
    stage.commit()


def _pull_remote(
    uri: str,
    target: Path,
    chosen: Chosen,
    storage_options: Mapping[str, Any] | None,
    overwrite: bool,
    dry_run: bool,
    report: Report | None,
) -> Pulled:
    """Fetch a dataset from an object store, or from a bucket on the Hub.

    The result names the URI as the repository, and letters that change with the dataset as the
    commit.
    """
    there = look_at_target(target, uri, overwrite=overwrite, dry_run=dry_run)
    if there.objection is not None:
        raise there.objection
    files = list_files(store_of(uri, storage_options))
    if INFO not in files:
        raise DatasetNotFoundError(
            f"There is no dataset at this place: no {INFO}.", hint="check the URI", uri=uri
        )
    state = state_of(files, uri)
    needed, layout = files, ""
    if chosen is not None:
        dataset = Dataset(uri, storage_options=storage_options)
        names, layout = _needed_by(dataset.reader, chosen, files), dataset.layout
        needed = {name: files[name] for name in names if name in files}
    size = sum(file.size for file in needed.values())
    before = there.record
    current = before is not None and (before.commit, before.episodes) == (state, chosen)
    fetched = 0 if current else size
    if not current and not dry_run:
        refuse_small_disk(target, size)
        with _staged(target, (uri, chosen), state, there.is_there) as stage:
            made = stage.dataset
            if stage.committed:  # by an attempt that was killed at its end
                fetched = 0
            else:
                if chosen is None:
                    done = fetch_folder(uri, made, storage_options=storage_options, report=report)
                    fetched = done.fetched_bytes
                else:
                    shutil.rmtree(made)
                    clips = cut(uri, storage_options=storage_options).keep(list(chosen))
                    clips.render(made, layout=_written(layout), report=report)
                write_record(made, repo_id=uri, commit=state, episodes=chosen, files=None)
                commit(stage)
    return Pulled(
        repo_id=uri,
        target=str(target),
        revision=state,
        commit=state,
        episodes=chosen,
        files=len(needed),
        bytes=size,
        fetched_files=0 if current else len(needed),
        fetched_bytes=fetched,
        was_up_to_date=current,
        dry_run=dry_run,
    )


def _named(source: str, revision: str | None) -> tuple[str, str | None]:
    """Return the repository that a source names, and the revision."""
    match = _HF.fullmatch(source)
    if match is None:
        return source, revision
    if match[2] and revision is not None and match[2] != revision:
        raise ArgumentError(f"The source names the revision {match[2]!r}, and revision= another.")
    return match[1], match[2] or revision


def _chosen(episodes: Iterable[int] | None) -> Chosen:
    if episodes is None:
        return None
    chosen = tuple(sorted({int(number) for number in episodes}))
    if not chosen or chosen[0] < 0:
        raise ArgumentError(
            "episodes= names no episode." if not chosen else f"There is no episode {chosen[0]}.",
            hint="leave it out to pull all",
        )
    return chosen


def _needed_by(reader: Reader, chosen: tuple[int, ...], files: Collection[str]) -> list[str]:
    """Return the files that episodes need: of a Lance dataset, all."""
    if reader.layout.startswith("lance"):
        return list(files)
    positions = [reader.episodes.position_of(number) for number in chosen]
    names = episode_files(reader, positions, cameras=reader.info.video_keys)
    return [*(name for name in files if name.startswith("meta/")), *names]


def _needed_on_hub(
    hub: Hub, repo_id: str, found: Revision, files: Files, chosen: tuple[int, ...]
) -> Files:
    """Return the files that episodes need. Fetches the metadata, and keeps nothing."""
    names = opening_files(files)
    if all(name.startswith("meta/") for name in names):
        with scratch_folder() as folder:
            Snapshot(hub, repo_id, found, folder, files).fetch_what_opens()
            names = _needed_by(open_reader(folder), chosen, files)
    return {name: files[name] for name in names if name in files}


def _written(layout: str) -> Layout:
    """Return the layout that a cut of a dataset is written in."""
    return cast("Layout", "v2.1" if layout.startswith("v2") else layout)


def _size(files: Files) -> int:
    return sum(file.size for file in files.values())
