"""Checks file names from a store's listing or a repository."""

from __future__ import annotations

import os
import re
import unicodedata
import uuid
from collections.abc import Iterable
from itertools import combinations, pairwise
from pathlib import Path

from demoreel.errors import DemoreelError, StoreError, UnfinishedError, UnsafePathError

WAITING = ".demoreel/encoding/"
"""Where saved episodes wait for their encoders, in a dataset's folder."""

_MANIFEST = re.compile(rf"{re.escape(WAITING)}[^/]+/sealed\.json")

OLD_METADATA = ".versions"
"""The folder of the metadata of older versions: hidden, and a dataset's all the same."""


_LONGEST_PART = 255  # bytes that file systems take
_MANY_ALIKE = 8  # names that differ in case or accents only


def leads_elsewhere(name: str) -> bool:
    """Whether a file of this name could be outside the folder that it is put into, or not in it.

    Control characters are no part of a name either: a line of a listing may be another's then.
    """
    parts = name.split("/")
    odd = any(part in ("", ".", "..") for part in parts) or "\\" in name
    long = any(len(part.encode("utf-8", "surrogatepass")) > _LONGEST_PART for part in parts)
    control = any(ord(c) < 32 or 0x7F <= ord(c) < 0xA0 or 0xD800 <= ord(c) < 0xE000 for c in name)
    return odd or long or control or parts[0][1:2] == ":"  # on some systems, a drive


def both_file_and_folder(names: Iterable[str]) -> str | None:
    """Return a name that is another one's folder, too: stores have such, and disks do not."""
    every = set(names)
    for name in every:
        folder = name.rpartition("/")[0]
        while folder:
            if folder in every:
                return folder
            folder = folder.rpartition("/")[0]
    return None


def refuse_folded(names: Iterable[str], folder: Path) -> None:
    """Refuse names that are one and the same file on the disk of a folder.

    Some disks do not tell ``A`` from ``a``, or one way of writing an accent from another.

    Cost: nothing but a look at the names where all differ; else, two small files.
    """
    same: dict[str, list[str]] = {}
    for name in names:
        same.setdefault(unicodedata.normalize("NFC", name).casefold(), []).append(name)
    for group in same.values():
        pairs = combinations(group, 2) if len(group) < _MANY_ALIKE else pairwise(group)
        for one, other in pairs:
            if _are_one_file(one, other, folder):
                raise UnsafePathError(
                    f"{one!r} and {other!r} are one file on this disk, and two where they are.",
                    hint="put the dataset on a disk that tells such names apart, or rename one",
                    path=folder,
                )


def _are_one_file(one: str, other: str, folder: Path) -> bool:
    """Try it, in names that hold what the two differ in."""
    unlike = ((a, b) for a, b in zip(one.split("/"), other.split("/"), strict=True) if a != b)
    return all(_folds(folder, *parts) for parts in unlike)


def _folds(folder: Path, one: str, other: str) -> bool:
    """Whether two names are one in a folder."""
    for length in range(1, 1 + max(len(one), len(other))):
        if one[:length] != other[:length]:
            break
    start = max(0, length - 1)
    trial = f".demoreel-{uuid.uuid4().hex[:8]}-"
    first, second = (folder / (trial + name[start : start + 40]) for name in (one, other))
    first.touch(exist_ok=False)
    try:
        return os.path.lexists(second)
    finally:
        first.unlink()


class EndlessListing(Exception):
    """A listing that repeats itself, or has more names than ``LISTED_FILES``.

    Attributes:
        is_many: Whether it is the limit.
    """

    def __init__(self, what: str, *, is_many: bool = False) -> None:
        super().__init__(what)
        self.is_many = is_many

    def told(self, **where: object) -> DemoreelError:
        """Return the error for users."""
        if self.is_many:
            from demoreel.model.limits import exceeded

            return exceeded("LISTED_FILES", f"A listing does not end: {self}", StoreError, **where)
        return StoreError(
            f"A listing does not end: {self}.",
            hint="the server does not work as it should",
            **where,
        )


class Listing:
    """The names that a server has listed: each once, and not without end.

    A server that answers with the same page for ever would keep its reader for ever.
    """

    def __init__(self) -> None:
        self._names: set[int] = set()
        from demoreel.model.limits import limit  # with numpy, which `demoreel --help` does without

        self._most = limit("LISTED_FILES")

    def add(self, name: str) -> None:
        """Take note of a name."""
        known = len(self._names)
        self._names.add(hash(name))
        if len(self._names) == known:
            raise EndlessListing(f"it lists {name[:80]!r} twice")
        if known >= self._most:
            raise EndlessListing(f"it lists more than {self._most:,} files", is_many=True)


def is_hidden(name: str) -> bool:
    """Whether a file is no dataset's: git's, or what a program has left while it worked.

    A journal that an untrusted source wrote must not be taken for our own.
    """
    first, *rest = name.split("/")
    return (first.startswith(".") and first != OLD_METADATA) or any(
        part.startswith(".") for part in rest
    )


def refuse_waiting_copy(names: Iterable[str], uri: str) -> None:
    """Refuse a copy of a dataset in a store or repository that saved episodes wait in.

    They are read from the folder that they were recorded to, and nowhere else.
    """
    waiting = sum(_MANIFEST.fullmatch(name) is not None for name in names)
    if waiting:
        raise UnfinishedError(
            f"{waiting} saved episodes of this copy wait to be encoded; from here they cannot be "
            "read.",
            hint="demoreel finish PATH where it was recorded, then copy it again; or delete "
            f"{WAITING} here, to go without them",
            uri=uri,
        )
