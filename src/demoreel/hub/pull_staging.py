"""Where a pull puts files before they are a dataset: a hidden folder that one rename makes it.

::

    .NAME.pull-1a2b3c4d5e6f/   beside the target; the letters name what is pulled
        lock                   held while a process pulls
        dataset/               the repository's files, under their own names
        cut/                   the chosen episodes as a dataset of their own

After a kill, Ctrl-C, a full disk, whatever the network does, and where the target is in use, it
stays, and the same pull goes on from there, with the files in it whose check sums are right.
"""

from __future__ import annotations

import hashlib
import os
import shutil
from collections.abc import Collection, Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path

from demoreel.errors import DatasetBusyError, DiskFullError, StoreError, TargetExistsError
from demoreel.hub.records import PulledFolder, read_record, refuse_changed
from demoreel.storage.commit.files import refuse_existing, sync_path, sync_tree
from demoreel.storage.commit.hidden_folder import (
    lock_folder,
    make_parents,
    remove_dead,
    remove_empty,
    remove_hidden,
    remove_outdated,
)
from demoreel.storage.commit.replace import finish_replacing, replacing, wait_for_replacing
from demoreel.storage.commit.writer_lock import WriterLock
from demoreel.storage.hub_calls import HubFile
from demoreel.storage.links import leads_out
from demoreel.storage.names import refuse_folded
from demoreel.storage.no_room import says_no_room

_THEIRS = ".cache"  # where huggingface_hub keeps notes in a folder that it downloads to


@dataclass(frozen=True, slots=True)
class PullTarget:
    """What is at a target before a pull.

    Attributes:
        is_there: Whether there is a dataset, which is to be replaced.
        record: What it was when it was pulled, if it was, and if its files may be of use.
        objection: Why it must not be replaced, unless it turns out that nothing is lost.
    """

    is_there: bool
    record: PulledFolder | None = None
    objection: TargetExistsError | None = None


def look_at_target(
    target: Path, repo_id: str, *, overwrite: bool, dry_run: bool = False
) -> PullTarget:
    """Return what is at a target.

    Args:
        target: The folder.
        repo_id: What is to be pulled to it.
        overwrite: Whether a dataset may be replaced, whatever it holds.
        dry_run: Only look: a replacement that was killed is not finished.
    """
    if not dry_run:
        finish_replacing(target)
    elif not target.exists():
        wait_for_replacing(target)
    if target.is_symlink() or not target.is_dir() or not any(target.iterdir()):
        refuse_existing(target)
        return PullTarget(is_there=False)
    record = read_record(target)
    if record is None and not (target / "meta" / "info.json").is_file():
        refuse_existing(target)
    if overwrite:
        return PullTarget(is_there=True)
    hint = "choose another folder, or pass overwrite (--overwrite) to replace the dataset"
    try:
        if record is None:
            refuse_existing(target, hint=hint)
        elif record.repo_id != repo_id:
            raise TargetExistsError(
                f"The folder was pulled from another repository, {record.repo_id!r}.",
                hint=hint,
                path=target,
            )
        else:
            refuse_changed(target, record)
    except TargetExistsError as objection:
        return PullTarget(is_there=True, objection=objection)
    return PullTarget(is_there=True, record=record)


class PullStaging:
    """The hidden folder of one pull; made by ``pull_staging``.

    Attributes:
        dataset: The folder of the repository's files.
        cut: Where chosen episodes become a dataset; there is nothing yet.
        target: What one of them is to become.
    """

    def __init__(self, folder: Path, target: Path) -> None:
        self.target = target
        self.dataset = folder / "dataset"
        self.cut = folder / "cut"
        self.dataset.mkdir(exist_ok=True)
        shutil.rmtree(self.cut, ignore_errors=True)

    def keep_only(self, files: Collection[str]) -> None:
        """Remove what an earlier attempt left of other commits."""
        refuse_folded(files, self.dataset)
        for parent, _, names in os.walk(self.dataset):
            if _THEIRS not in Path(parent).relative_to(self.dataset).parts[:1]:
                for name in names:
                    place = Path(parent, name)
                    if place.relative_to(self.dataset).as_posix() not in files:
                        place.unlink()

    def has(self, file: HubFile, before: PulledFolder | None) -> bool:
        """Whether a file need not be fetched.

        What an earlier attempt left is kept where it is right, and removed where not. What the
        target has is linked, or copied where the disk has no links.

        Args:
            file: The file.
            before: What the target is, unchanged; None if nothing of it is of use.
        """
        if self._take_over(file, before):
            return True
        place = self.dataset / file.path
        if place.is_symlink() or not file.is_content_of(place):
            place.unlink(missing_ok=True)
            return False
        return True

    def _take_over(self, file: HubFile, before: PulledFolder | None) -> bool:
        if before is None or file.path not in before.files:
            return False
        if before.files[file.path].file != file:
            return False
        old, new = self.target / file.path, self.dataset / file.path
        if leads_out(self.target, old) is not None:
            return False
        new.parent.mkdir(parents=True, exist_ok=True)
        new.unlink(missing_ok=True)
        try:
            os.link(old.resolve(), new)
        except OSError:
            shutil.copy2(old, new)
        return True

    def commit(self, made: Path, *, replace: bool) -> None:
        """Make a folder the target, as one step, when all of it is on disk.

        Args:
            made: ``dataset``, or ``cut``.
            replace: Whether a dataset is there, and is to go.
        """
        shutil.rmtree(made / _THEIRS, ignore_errors=True)
        _remove_empty_folders(made)
        sync_tree(made)
        if replace:
            with WriterLock(self.target), replacing(self.target, keep=None) as new:
                os.rename(made, new)
        else:
            refuse_existing(self.target)
            os.rename(made, self.target)
            sync_path(self.target.parent)
        remove_outdated(self.target)


@contextmanager
def pull_staging(target: Path, *what: object) -> Iterator[PullStaging]:
    """Yield the folder of a pull, with what an earlier attempt at the same has left in it.

    Args:
        target: What is to be made. Its parent is made if need be.
        what: What is pulled; names the folder.
    """
    letters = hashlib.sha256(repr(what).encode()).hexdigest()[:12]
    made = make_parents(target.parent)
    remove_dead(target.parent)
    folder = target.with_name(f".{target.name}.pull-{letters}")
    lock = lock_folder(folder, target)
    keep = False
    try:
        yield PullStaging(folder, target)
    except (KeyboardInterrupt, StoreError, DiskFullError, DatasetBusyError, TargetExistsError):
        keep = True
        raise
    except OSError as error:
        keep = says_no_room(error)
        if keep:
            raise DiskFullError(
                "There is no room left on the disk.",
                hint="free some, and the same pull goes on from here",
                path=target,
                begun=folder,
            ) from error
        raise
    finally:
        if not keep:
            remove_hidden(folder)
            remove_empty(made)
        os.close(lock)


def _remove_empty_folders(root: Path) -> None:
    for parent, _, _ in os.walk(root, topdown=False):
        if Path(parent) != root:
            remove_empty([Path(parent)])
