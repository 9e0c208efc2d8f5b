"""Where a conversion is written before it is one: a hidden folder, a journal, a lock, a rename.

::

    .NAME.convert/           beside the target; no reader looks at it
        lock                 held while a conversion runs
        journal.jsonl        the plan's fingerprint, then a line for every part that is on disk
        dataset/             becomes the target
        made.json            which dataset has become the target, or is about to

Ctrl-C and errors remove it. A killed process leaves it, and the same command, if the source has not
changed since, goes on from what the journal names, or finds that nothing is left to do. Anything
else begins anew.
"""

from __future__ import annotations

import json
import os
import shutil
import threading
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import Any

from demoreel.errors import TargetExistsError
from demoreel.storage.atomic import refuse_existing, sync_path
from demoreel.storage.hidden_folder import lock_folder, make_parents, remove_empty
from demoreel.storage.made import forget_made, is_made, note_made, remove_with_note
from demoreel.storage.replace import exchange

_IN_PARTS = {"data", "videos"}  # folders whose files are forced to disk as they are written
_FLUSHES_AT_ONCE = 8


class Staging:
    """A conversion's folder while it is being filled; made by ``staging``.

    Attributes:
        dataset: The folder to fill.
        done: What the journal says of the parts that are on disk already, by name.
        committed: Whether the target is there: from the start, if an earlier attempt was killed
            when it had done all.
    """

    def __init__(self, folder: Path, target: Path, *, overwrite: bool) -> None:
        self.folder = folder
        self.dataset = folder / "dataset"
        self.done: dict[str, Any] = {}
        self.committed = False
        self._work = ""
        self._target = target
        self._overwrite = overwrite
        self._journal = folder / "journal.jsonl"
        self._lock = threading.Lock()

    def begin(self, fingerprint: str) -> None:
        """Go on from what a killed conversion with the same plan has left, or begin anew."""
        self._work = fingerprint
        if is_made(self.folder, self._target, fingerprint):
            self.committed = True
            return
        forget_made(self.folder)
        lines = self._read_journal()
        same = bool(lines) and lines[0] == {"plan": fingerprint}
        if same and {"committing": True} not in lines and self.dataset.is_dir():
            self.done = {line["part"]: line["note"] for line in lines[1:] if "part" in line}
            return
        shutil.rmtree(self.dataset, ignore_errors=True)
        self._journal.unlink(missing_ok=True)
        self.dataset.mkdir()
        self._append({"plan": fingerprint})

    def _read_journal(self) -> list[dict[str, Any]]:
        lines = []
        with suppress(OSError):
            for line in self._journal.read_text().splitlines():
                try:
                    lines.append(json.loads(line))
                except ValueError:
                    break  # the line that was being written when the process was killed
        return lines

    def note(self, part: str, note: Any) -> None:
        """Note that a part is on disk.

        The note itself is not forced to disk: if it is lost, the part is written once more.
        """
        with self._lock:
            self._append({"part": part, "note": note})
            self.done[part] = note

    def _append(self, line: dict[str, Any]) -> None:
        handle = os.open(self._journal, os.O_WRONLY | os.O_APPEND | os.O_CREAT, 0o644)
        try:
            os.write(handle, json.dumps(line).encode() + b"\n")
        finally:
            os.close(handle)

    def commit(self) -> None:
        """Make the folder the target, as one step.

        Raises:
            TargetExistsError: Something has come to be there since.
            OSError: The disk is full or not writable; what was there is there still.
        """
        _sync(self.dataset)
        check_target(self._target, overwrite=self._overwrite)
        self._append({"committing": True})
        sync_path(self._journal)
        note_made(self.folder, self.dataset, self._work)
        if _has_something(self._target):
            self._replace()
        else:
            os.rename(self.dataset, self._target)
        self.committed = True
        sync_path(self._target.parent)

    def _replace(self) -> None:
        """Put the new dataset in the old one's place; the old one goes with this folder."""
        if exchange(self.dataset, self._target):
            return
        aside = self.folder / "before"
        os.rename(self._target, aside)
        try:
            os.rename(self.dataset, self._target)
        except BaseException:
            os.rename(aside, self._target)
            raise


def _sync(dataset: Path) -> None:
    """Force to disk what the parts have not: their own files are there already.

    Many at a time: a disk flushes several files in one go.
    """
    paths = []
    for folder, _, files in os.walk(dataset, topdown=False):
        if not _IN_PARTS.intersection(Path(folder).relative_to(dataset).parts):
            paths += [Path(folder, name) for name in files]
        paths.append(Path(folder))
    with ThreadPoolExecutor(_FLUSHES_AT_ONCE) as pool:
        list(pool.map(sync_path, paths))


@contextmanager
def staging(target: Path, fingerprint: str, *, overwrite: bool) -> Iterator[Staging]:
    """Yield a folder to fill; unless it is committed in the block, nothing of it stays.

    An earlier attempt may have done all: then it is committed when the block begins.

    Args:
        target: What it is to become.
        fingerprint: Equal for two conversions only if they would write the same.
        overwrite: Whether a dataset that is there may be replaced.

    Raises:
        TargetExistsError: There is something at ``target``.
        DatasetBusyError: Another conversion to the same target is running.
    """
    folder = _hidden(target)
    if not made_before(target, fingerprint):
        check_target(target, overwrite=overwrite)
    made = make_parents(target.parent)
    lock = lock_folder(folder, target)
    try:
        _put_back(folder / "before", target)
        stage = Staging(folder, target, overwrite=overwrite)
        stage.begin(fingerprint)
        yield stage
    finally:
        remove_with_note(folder)
        os.close(lock)
        remove_empty(made)


def made_before(target: Path, fingerprint: str) -> bool:
    """Whether a conversion with this very plan was killed when it had done all."""
    return is_made(_hidden(target), target, fingerprint)


def _hidden(target: Path) -> Path:
    return target.with_name(f".{target.name}.convert")


def check_target(target: Path, *, overwrite: bool) -> None:
    """Refuse to write over what is there.

    Raises:
        TargetExistsError: There is a file, or a folder with something in it. With ``overwrite``,
            a folder that is a dataset may be there.
    """
    if not (overwrite and _has_something(target)):
        options = "choose another folder, or pass overwrite (--overwrite) to replace a dataset"
        refuse_existing(target, hint=options)
    elif not (target / "meta" / "info.json").is_file():
        raise TargetExistsError(
            "What is in the folder to be overwritten is not a dataset.",
            hint="choose another folder, or delete this one yourself",
            path=target,
        )


def _has_something(target: Path) -> bool:
    return target.is_dir() and any(target.iterdir())


def _put_back(aside: Path, target: Path) -> None:
    """Undo a replacement that was killed halfway, where they cannot be exchanged as one step."""
    if aside.is_dir() and not target.exists():
        os.rename(aside, target)
