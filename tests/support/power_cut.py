"""What a disk may hold when the power fails, at every instant of a piece of work.

A write reaches the disk when its file is forced there (fsync); an entry of a folder, when the
folder is. What was not forced may be there or not. ``watch`` follows a folder through a piece of
work and keeps, after each operation that matters, two readings of what would be left:

- **strict**, as POSIX has it: only what was forced; a file that has an entry but was never forced
  itself is empty.
- **ordered**, as journaling filesystems have it: entries survive in the order in which they were
  made, but contents only where they were forced, so there may be empty files under new names.
"""

from __future__ import annotations

import os
import stat
import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

_WATCHED = ("fsync", "rename", "replace", "link", "unlink", "mkdir", "rmdir")

Tree = dict[str, bytes | None]
"""Path below the folder -> content; None for folders."""


class PowerCuts:
    """The states that a power cut may have left, in the order of time, without repetitions."""

    def __init__(self, root: Path) -> None:
        self.root = root
        self.events: list[str] = []
        self.states: list[Tree] = []
        self._content: dict[int, bytes] = {}  # by inode, as last forced to disk
        self._entries: dict[int, dict[str, int]] = {}  # by a folder's inode
        self._open: dict[int, int] = {}  # handles, so that no inode is used twice
        self._lock = threading.Lock()
        self._see_all_as_forced()

    @property
    def last(self) -> Tree:
        """What is left for certain if the power fails now."""
        return self._strict(os.stat(self.root).st_ino)

    def build(self, state: Tree, target: Path) -> Path:
        """Write a state to a folder."""
        target.mkdir(parents=True)
        for name, content in sorted(state.items()):
            path = target / name
            if content is None:
                path.mkdir(parents=True, exist_ok=True)
            else:
                path.parent.mkdir(parents=True, exist_ok=True)
                path.write_bytes(content)
        return target

    def note(self, operation: str, argument: Any) -> None:
        """Look at the folder after an operation."""
        with self._lock:
            self.events.append(f"{operation} {argument}")
            self._look()
            if operation == "fsync":
                self._force(int(argument))
            root = os.stat(self.root).st_ino
            for state in (self._strict(root), self._ordered()):
                if not self.states or state not in self.states[-4:]:
                    self.states.append(state)

    def close(self) -> None:
        """Let go of the files."""
        for handle in self._open.values():
            os.close(handle)
        self._open.clear()

    def _see_all_as_forced(self) -> None:
        self._look()
        for handle in list(self._open.values()):
            self._force(handle)

    def _look(self) -> None:
        for path in [self.root, *self.root.rglob("*")]:
            try:
                inode = os.stat(path).st_ino
                if inode not in self._open:
                    self._open[inode] = os.open(path, os.O_RDONLY)
            except FileNotFoundError:
                continue  # another thread removed it

    def _force(self, handle: int) -> None:
        status = os.fstat(handle)
        if stat.S_ISDIR(status.st_mode):
            here = self._open.get(status.st_ino)
            if here is not None:
                self._entries[status.st_ino] = {
                    entry.name: entry.inode() for entry in os.scandir(here)
                }
        else:
            self._content[status.st_ino] = os.pread(
                self._open.get(status.st_ino, handle), status.st_size, 0
            )

    def _strict(self, folder: int, prefix: str = "") -> Tree:
        tree: Tree = {}
        for name, inode in self._entries.get(folder, {}).items():
            handle = self._open.get(inode)
            if handle is not None and stat.S_ISDIR(os.fstat(handle).st_mode):
                tree[prefix + name] = None
                tree |= self._strict(inode, f"{prefix}{name}/")
            else:
                tree[prefix + name] = self._content.get(inode, b"")
        return tree

    def _ordered(self) -> Tree:
        tree: Tree = {}
        for path in self.root.rglob("*"):
            status = os.stat(path)
            name = path.relative_to(self.root).as_posix()
            is_folder = stat.S_ISDIR(status.st_mode)
            tree[name] = None if is_folder else self._content.get(status.st_ino, b"")
        return tree


@contextmanager
def watch(root: Path) -> Iterator[PowerCuts]:
    """Follow a folder through a block. Everything that is there before counts as forced to disk."""
    cuts = PowerCuts(root)
    before = {name: getattr(os, name) for name in _WATCHED}
    try:
        for name, function in before.items():
            setattr(os, name, _noted(cuts, name, function))
        yield cuts
    finally:
        for name, function in before.items():
            setattr(os, name, function)
        cuts.close()


def _noted(cuts: PowerCuts, name: str, function: Callable[..., Any]) -> Callable[..., Any]:
    def noted(*arguments: Any, **options: Any) -> Any:
        result = function(*arguments, **options)
        cuts.note(name, arguments[0])
        return result

    return noted
