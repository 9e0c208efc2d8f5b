"""Changing the features of a source: by the names that they have now, whatever changed before."""

from __future__ import annotations

import os
import tempfile
from collections.abc import Mapping
from dataclasses import replace
from functools import lru_cache
from pathlib import Path
from types import SimpleNamespace
from typing import IO, cast

import numpy as np

from demoreel.edit.clips import Source
from demoreel.errors import ArgumentError
from demoreel.storage.scratch import no_room_for_scratch, process_folder


def without(source: Source, features: tuple[str, ...]) -> Source:
    """Leave features out by their names now: renamed and added ones too."""
    old = {new: key for key, new in source.rename.items()}
    add = {key: added for key, added in source.add.items() if key not in features}
    gone = [old.get(key, key) for key in features if key not in source.add]
    rename = {key: new for key, new in source.rename.items() if key not in gone}
    return replace(source, remove=(*source.remove, *gone), rename=rename, add=add)


def renamed(source: Source, features: Mapping[str, str]) -> Source:
    """Give features other names: those of the source, those it has by now, and added ones."""
    old = {new: key for key, new in source.rename.items()}
    add = {features.get(key, key): added for key, added in source.add.items()}
    own = {old.get(key, key): new for key, new in features.items() if key not in source.add}
    return replace(source, rename={**source.rename, **own}, add=add)


@lru_cache(maxsize=1)
def _keeping() -> Path:
    """Return the folder for arrays that were given in memory; it goes with the process."""
    return process_folder()


def kept(values: object) -> str:
    """Write an array that was given in memory to a file, and return its path."""
    array = np.asarray(values)
    if array.dtype.kind not in "biuf" or array.ndim == 0:
        raise ArgumentError(f"A feature is added as an array of numbers, not {array.dtype}.")
    with no_room_for_scratch():
        handle, name = tempfile.mkstemp(suffix=".npy", dir=_keeping())
        try:
            with os.fdopen(handle, "wb") as file:
                # Of a file that it knows, NumPy says only how much of the array was written.
                np.save(cast("IO[bytes]", SimpleNamespace(write=file.write)), array)
        except BaseException:
            os.unlink(name)
            raise
    return name


def is_kept(path: str) -> bool:
    """Whether a file is one that ``kept`` has written, and will be gone with this process."""
    return _keeping.cache_info().currsize > 0 and Path(path).parent == _keeping()
