"""Git LFS pointers: a few lines of text in the place of a file that was not fetched.

A clone without Git LFS, or with ``GIT_LFS_SKIP_SMUDGE=1``, has nothing but those of large files.
"""

from __future__ import annotations

import os
from collections.abc import Iterator
from contextlib import contextmanager
from typing import TypeVar

from demoreel.errors import DemoreelError, refuse_shortage

NOT_FETCHED = "file-not-fetched"
"""The code of what ``check`` finds."""

FETCH = "fetch it: demoreel pull OWNER/NAME FOLDER; or restore it from a copy"
"""What to do about a file that is not there."""

_BEGINS = b"version https://git-lfs.github.com/spec/v1\n"
_LONGEST = 1024  # bytes of a pointer, by its specification

Kind = TypeVar("Kind", bound=DemoreelError)


def is_pointer(begin: bytes) -> bool:
    """Whether a file that begins like this is a pointer."""
    return begin.startswith(_BEGINS)


def is_pointer_file(path: str | os.PathLike[str], size: int | None = None) -> bool:
    """Whether a file of this machine is a pointer.

    Cost: a stat, unless the size is given; a small read, if the file is as short as a pointer.

    Args:
        path: The file.
        size: Its size, if that is known.
    """
    try:
        length = os.stat(path).st_size if size is None else size
        if not len(_BEGINS) <= length < _LONGEST:
            return False
        with open(path, "rb") as file:
            return is_pointer(file.read(len(_BEGINS)))
    except OSError as error:
        refuse_shortage(error)
        return False


@contextmanager
def naming_pointers(kind: type[DemoreelError], file: str) -> Iterator[None]:
    """Say of a file that cannot be read that it is a pointer, if it is one."""
    try:
        yield
    except Exception as error:
        if is_pointer_file(file):
            raise not_fetched(kind, file) from error
        raise


def not_fetched(kind: type[Kind], file: object) -> Kind:
    """Return the error that a pointer lies in the place of a file."""
    return kind(
        "This file was not fetched: it is a Git LFS pointer, which stands for its content.",
        hint="run git lfs pull in the dataset's folder",
        code=NOT_FETCHED,
        file=file,
    )
