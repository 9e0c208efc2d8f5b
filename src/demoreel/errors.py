"""Everything demoreel raises on purpose, in one tree.

    DemoreelError
    ├── DatasetNotFoundError  (FileNotFoundError)  no dataset at that path
    ├── MetadataError         (ValueError)         meta/ is missing, unreadable or contradictory
    │   ├── UnsupportedVersionError                a codebase_version that demoreel does not read
    │   └── UnsafePathError                        a template or key that would leave the folder
    ├── TableError            (ValueError)         a parquet file is missing, cut off, lacks rows
    ├── VideoError            (ValueError)         a video is missing, cut off, does not decode
    │   └── FrameMismatchError                     metadata and video disagree about the frames
    ├── PictureError          (ValueError)         an encoded picture in a table does not decode
    ├── ArgumentError         (ValueError)         the caller asked for something impossible
    │   └── UnknownKeyError   (KeyError)           no such camera, feature or window key
    ├── OutOfRangeError       (IndexError)         no such frame or episode
    ├── TargetExistsError     (FileExistsError)    a write would overwrite something
    ├── DiskFullError         (OSError)            no room for a write; nothing was changed
    ├── DatasetBusyError      (RuntimeError)       another process is writing the dataset
    ├── EncoderBehindError    (RuntimeError)       neither encoders nor disk can take a picture now
    ├── ConversionError       (RuntimeError)       what was written is not what the source holds
    ├── RepairError           (RuntimeError)       nothing of a dataset can be saved
    ├── StoreError            (RuntimeError)       a store or the Hub does not give what it should
    │   ├── AccessError       (PermissionError)    it wants other credentials
    │   ├── ObjectChangedError                     an object is not the one that was opened
    │   └── NewerRemoteError                       a push would take away what others have added
    └── MissingExtraError     (ImportError)        an optional dependency is not installed

Each class also derives from the builtin in parentheses, so code that catches the
builtin keeps working. Every message says what happened, where (dataset, episode,
camera, file) and what to do next.
"""

from __future__ import annotations

import difflib
from collections.abc import Iterable
from pathlib import PurePath


class DemoreelError(Exception):
    """Base of every error that demoreel raises on purpose.

    Args:
        what: What happened, one sentence.
        hint: What the user can do next.
        **where: Where it happened: ``dataset=``, ``file=``, ``episode=``, ``camera=``, ...
    """

    def __init__(self, what: str, *, hint: str | None = None, **where: object) -> None:
        self.what = what
        self.hint = hint
        self.where = {name: _called(value) for name, value in where.items() if value is not None}
        super().__init__(self._message())

    def _message(self) -> str:
        lines = [self.what]
        lines += [f"  {name}: {value}" for name, value in self.where.items()]
        if self.hint:
            lines.append(f"  next: {self.hint}")
        return "\n".join(lines)

    def __str__(self) -> str:  # KeyError would show its repr, quotes and all
        return self._message()

    def __reduce__(self) -> tuple[object, ...]:
        # Exceptions cross process borders (DataLoader workers) with all their fields.
        return (_rebuild, (type(self), self.what, self.hint, self.where))


_names: dict[str, str] = {}


def call_place(folder: str, name: str) -> None:
    """Let errors call a folder, and what lies in it, by another name.

    Metadata of a dataset that lies far away are read from a copy on this machine; its users know
    nothing of that copy.
    """
    _names[folder.rstrip("/")] = name.rstrip("/")


def _called(value: object) -> object:
    text = str(value) if _names and isinstance(value, (str, PurePath)) else ""
    for folder, name in _names.items():
        if text == folder or text.startswith(folder + "/"):
            return name + text[len(folder) :]
    return value


def _rebuild(
    kind: type[DemoreelError], what: str, hint: str | None, where: dict[str, object]
) -> DemoreelError:
    return kind(what, hint=hint, **where)


class DatasetNotFoundError(DemoreelError, FileNotFoundError):
    """There is no dataset at that path."""


class MetadataError(DemoreelError, ValueError):
    """The files under ``meta/`` are missing, unreadable or contradict themselves."""


class UnsupportedVersionError(MetadataError):
    """The dataset's ``codebase_version`` is not one that demoreel reads."""


class UnsafePathError(MetadataError):
    """A path template or key would lead outside the dataset's folder."""


class TableError(DemoreelError, ValueError):
    """A parquet file is missing, cut off, or does not hold the rows it should."""


class VideoError(DemoreelError, ValueError):
    """A video is missing, cut off, or does not decode."""


class FrameMismatchError(VideoError):
    """Metadata and video disagree about which frames belong to an episode."""


class PictureError(DemoreelError, ValueError):
    """An encoded picture in a table does not decode."""


class ArgumentError(DemoreelError, ValueError):
    """The caller asked for something that cannot be."""


class UnknownKeyError(ArgumentError, KeyError):
    """No such camera, feature or window key."""


class OutOfRangeError(DemoreelError, IndexError):
    """No such frame or episode."""


class TargetExistsError(DemoreelError, FileExistsError):
    """A write would overwrite something that is there."""


class DiskFullError(DemoreelError, OSError):
    """There is no room on the disk for what was to be written; the dataset is as it was."""


class DatasetBusyError(DemoreelError, RuntimeError):
    """Another process is writing the dataset, and a dataset has one writer."""


class EncoderBehindError(DemoreelError, RuntimeError):
    """Neither the encoders nor the disk can take another picture now; none was lost."""


class ConversionError(DemoreelError, RuntimeError):
    """What a conversion has written is not what the source holds; it was not kept."""


class RepairError(DemoreelError, RuntimeError):
    """Nothing of a dataset can be saved."""


class StoreError(DemoreelError, RuntimeError):
    """An object store or the Hub does not answer, or not with what it should."""


class AccessError(StoreError, PermissionError):
    """An object store or the Hub wants other credentials than it was shown."""


class ObjectChangedError(StoreError):
    """An object in a store is not the one that it was when the dataset was opened."""


class NewerRemoteError(StoreError):
    """A push would take away episodes that others have put into the repository."""


class MissingExtraError(DemoreelError, ImportError):
    """An optional dependency is not installed."""


class DemoreelWarning(UserWarning):
    """Something is missing that demoreel can do without; said once per dataset."""


def nearest(wanted: str, known: Iterable[str]) -> str:
    """Return a hint that names the known keys nearest to ``wanted``, or all of them."""
    names = list(known)
    close = difflib.get_close_matches(wanted, names, n=3, cutoff=0.5)
    if close:
        return f"did you mean {' or '.join(repr(name) for name in close)}?"
    return f"there are: {', '.join(names)}" if names else "there are none"
