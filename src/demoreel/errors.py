"""Everything demoreel raises on purpose, in one tree.

    DemoreelError
    ├── DatasetNotFoundError  (FileNotFoundError)  no dataset at that path
    ├── MetadataError         (ValueError)         meta/ is missing, unreadable or contradictory
    │   ├── UnsupportedVersionError                a codebase_version that demoreel does not read
    │   └── UnsafePathError                        a template, key or table that leaves the folder
    ├── TableError            (ValueError)         a parquet file is missing, cut off, lacks rows
    ├── VideoError            (ValueError)         a video is missing, cut off, does not decode
    │   └── FrameMismatchError                     metadata and video disagree about the frames
    ├── PictureError          (ValueError)         an encoded image in a table does not decode
    ├── ArgumentError         (ValueError)         the caller asked for something impossible
    │   ├── UnknownKeyError   (KeyError)           no such camera, feature or window key
    │   ├── ReadOnlyError     (RuntimeError)       a dataset that is read was to be recorded to
    │   └── FrameValueError                        a frame has other values than were declared
    ├── OutOfRangeError       (IndexError)         no such frame or episode
    ├── TargetExistsError     (FileExistsError)    a write would overwrite something
    ├── DiskError             (OSError)            a disk fails; the message says what is saved
    │   └── DiskFullError                          no room for a write
    ├── DatasetBusyError      (RuntimeError)       another process is writing the dataset
    ├── DatasetChangedError   (RuntimeError)       it is not the dataset that was opened any more
    ├── UnfinishedError       (RuntimeError)       what was saved must be finished before this
    ├── EncoderBehindError    (RuntimeError)       neither encoders nor disk can take an image now
    ├── ShortageError         (RuntimeError)       this process may have no more files, threads
    ├── ConversionError       (RuntimeError)       what was written is not what the source holds
    ├── RepairError           (RuntimeError)       a repair would lose something, or all of it
    ├── StoreError            (RuntimeError)       a store or the Hub does not give what it should
    │   ├── AccessError       (PermissionError)    it requires other credentials
    │   ├── ObjectChangedError                     an object is not the one that was opened
    │   └── NewerRemoteError                       a push would take away what others have added
    └── MissingExtraError     (ImportError)        an optional dependency is not installed

Each class also derives from the builtin in parentheses, so code that catches the
builtin keeps working. Every message says what happened, where (dataset, episode,
camera, file) and what to do next. Messages hold no credentials of a URI (``redacted``),
and no character that a terminal would obey (``printable``).
"""

from __future__ import annotations

import difflib
import errno
import json
import os
import re
import sys
from collections.abc import Iterable
from pathlib import PurePath
from typing import Any, TypeVar, cast

_URI = re.compile(r"\b([A-Za-z][A-Za-z0-9+.-]+:/{1,2})([^\s'\"<>`]+)")  # a Path has one slash
_NAMED_SECRET = re.compile(
    r"(?i)\b(\w*(?:signature|secret|token|password|credential|accountkey)\w*|sig)=[^\s&;,()'\"]{6,}"
)
_OPTION = re.compile(r" \(--[a-z][^)]*\)")
_HUB_TOKEN = re.compile(r"\bhf_[A-Za-z0-9]{16,}")
_IN_WORKER = re.compile(r"Caught \w+ in DataLoader worker process \d+\.\n")


class DemoreelError(Exception):
    """Base of every error that demoreel raises on purpose.

    Args:
        what: What happened, one sentence.
        hint: What the user can do next.
        **where: Where it happened: ``dataset=``, ``file=``, ``episode=``, ``camera=``, ... Besides,
            ``code=`` is the code of the finding that ``demoreel.check`` makes of it.
    """

    def __init__(self, what: str, *, hint: str | None = None, **where: object) -> None:
        self.what = redacted(what)
        self.hint = None if hint is None else redacted(hint)
        code = where.pop("code", None)
        self.code = None if code is None else str(code)
        self.where = {name: called(value) for name, value in where.items() if value is not None}
        super().__init__(self._message())

    def _message(self) -> str:
        # A DataLoader raises a worker's error anew, with its traceback as the only argument.
        lines = self.what.split("\n") if _IN_WORKER.match(self.what) else [self.what]
        lines += [f"  {name}: {value}" for name, value in self.where.items()]
        if self.hint:
            # "overwrite=True (--overwrite)": the command shows the option, and not the argument.
            lines.append(f"  next: {_OPTION.sub('', self.hint)}")
        return "\n".join(map(printable, lines))

    def __str__(self) -> str:  # KeyError would show its repr, quotes and all
        return self._message()

    def __reduce__(self) -> tuple[object, ...]:
        # Exceptions cross process borders (DataLoader workers) with all their fields.
        return (_rebuild, (type(self), self.what, self.hint, {**self.where, "code": self.code}))


_names: dict[str, str] = {}


def call_place(folder: str, name: str) -> None:
    """Let errors call a folder, and what lies in it, by another name.

    Metadata of a remote dataset are read from a copy on this machine; its users know
    nothing of that copy.
    """
    _names[folder.rstrip("/")] = name.rstrip("/")


def called(value: object) -> object:
    """Return a path as errors show it: by the name that ``call_place`` gave its folder."""
    if not isinstance(value, (str, PurePath)):
        return value
    text = str(value)
    for folder, name in _names.items():
        if text == folder or text.startswith(folder + "/"):
            return name + text[len(folder) :]
    shown = redacted(text)
    return value if shown == text else shown


def _rebuild(
    kind: type[DemoreelError], what: str, hint: str | None, where: dict[str, object]
) -> DemoreelError:
    return kind(what, hint=hint, **where)


Kind = TypeVar("Kind", bound=DemoreelError)


def first_line(error: BaseException) -> str:
    """Return what an error says, in one line without a full stop."""
    text = str(error).strip()
    return text.splitlines()[0].rstrip(".") if text else type(error).__name__


def count(number: int, thing: str) -> str:
    """Return ``1 frame``, ``12,345 frames``."""
    return f"{number:,} {thing}{'' if number == 1 else 's'}"


class ShortageError(DemoreelError, RuntimeError):
    """This machine gives the process no more open files, memory or threads.

    Says nothing about the dataset: the same call works where there is enough of them.
    """


_TOO_MANY_FILES = "raise the limit (ulimit -n 65536), or use fewer workers and datasets at once"
_SHORT_OF = {
    errno.EMFILE: ("This process may open no more files", _TOO_MANY_FILES),
    errno.ENFILE: ("This machine may open no more files", "close other programs"),
    errno.ENOMEM: ("This machine has no memory left", "use fewer workers, or smaller batches"),
    errno.EAGAIN: (
        "This machine starts no more threads or processes",
        "raise the limit (ulimit -u), or use fewer workers and decode_threads=",
    ),
}
# Rust and Arrow put what the system said into their texts.
_SAYS = re.compile(r"\(os error (\d+)\)|Detail: \[errno (\d+)\]|(can't start new thread)")


def shortage(error: BaseException | None) -> ShortageError | None:
    """Return what this machine is short of, if that caused an error; None if something else did.

    A ``MemoryError`` is none: files that are damaged ask for more memory than there is.
    """
    first = error
    while error is not None:
        if isinstance(error, ShortageError):
            return error
        # What demoreel says may repeat what a file says; only what it was made of counts. A lock
        # that is held says EAGAIN, too: what was made of that is no shortage.
        counts = not isinstance(error, DemoreelError) and (
            error is first or not isinstance(error, BlockingIOError)
        )
        short = _errno_of(error) if counts else None
        if short is not None:
            what, hint = _SHORT_OF[short]
            where = getattr(error, "filename", None)
            file = where if isinstance(where, str) else None
            return ShortageError(f"{what} ({os.strerror(short)}).", hint=hint, file=file)
        error = error.__cause__ or error.__context__
    return None


def refuse_shortage(error: BaseException) -> None:
    """Raise a ``ShortageError`` if this machine's limits caused an error; else do nothing.

    For every place that draws a conclusion about a file from what a library raised.

    Raises:
        ShortageError: They did.
    """
    found = shortage(error)
    if found is not None:
        raise found from error


def _errno_of(error: BaseException) -> int | None:
    number = getattr(error, "errno", None)
    is_codec = hasattr(error, "log")  # FFmpeg is out of memory where data ask for too much of it
    if number in _SHORT_OF and not (is_codec and number in (errno.ENOMEM, errno.EAGAIN)):
        return cast(int, number)
    found = _SAYS.search(str(error)) if isinstance(error, Exception) else None
    if found is None:
        return None
    said = errno.EAGAIN if found[3] else int(found[1] or found[2])
    return said if said in _SHORT_OF else None


def _blames_files(kind: type[Kind]) -> type[Kind]:
    """Let errors of a class be a ``ShortageError`` where this machine is to blame, and no file.

    They are made where something else was caught: a missing file, or what a library raises about
    damaged bytes. No file is blamed for what a process may not open.
    """

    def make(kind: type[Any], *_: object, **__: object) -> Any:
        return shortage(sys.exc_info()[1]) or ValueError.__new__(kind)

    kind.__new__ = make  # type: ignore[method-assign]
    return kind


class DatasetNotFoundError(DemoreelError, FileNotFoundError):
    """There is no dataset at that path."""


@_blames_files
class MetadataError(DemoreelError, ValueError):
    """The files under ``meta/`` are missing, unreadable or contradict themselves."""


class UnsupportedVersionError(MetadataError):
    """The dataset's ``codebase_version`` is not one that demoreel reads."""


class UnsafePathError(MetadataError):
    """A path template, a key or a table's reference would lead outside the dataset."""


@_blames_files
class TableError(DemoreelError, ValueError):
    """A parquet file is missing, cut off, or does not hold the rows it should."""


@_blames_files
class VideoError(DemoreelError, ValueError):
    """A video is missing, cut off, or does not decode."""


class FrameMismatchError(VideoError):
    """Metadata and video disagree about which frames belong to an episode."""


@_blames_files
class PictureError(DemoreelError, ValueError):
    """An encoded image in a table does not decode."""


class ArgumentError(DemoreelError, ValueError):
    """The caller asked for something that cannot be."""


class UnknownKeyError(ArgumentError, KeyError):
    """No such camera, feature or window key."""


class ReadOnlyError(ArgumentError, RuntimeError):
    """A method that records was called on a dataset that is read, or is finalized."""


class FrameValueError(ArgumentError):
    """A frame lacks values, or has other ones than were declared; ``what`` has a line for each."""

    def _message(self) -> str:
        # Scripts look for whole lines. What stands in them is the caller's own, no dataset's.
        _, line_end, rest = super()._message().partition("\n")
        lines = [printable(line) for line in self.what.rstrip("\n").split("\n")]
        return "\n".join(lines) + line_end + rest


class OutOfRangeError(DemoreelError, IndexError):
    """No such frame or episode."""


class TargetExistsError(DemoreelError, FileExistsError):
    """A write would overwrite something that is there."""


class DiskError(DemoreelError, OSError):
    """A disk does not do what it is asked; the message says what is saved and what is not.

    What failed may be tried again when the cause is gone: a recorder keeps its episode.
    """


class DiskFullError(DiskError):
    """There is no room on the disk for what was to be written."""


class DatasetBusyError(DemoreelError, RuntimeError):
    """Another process is writing the dataset, and a dataset has one writer."""


class DatasetChangedError(DemoreelError, RuntimeError):
    """Another process has changed the episodes of an open dataset, other than by adding some."""


class UnfinishedError(DemoreelError, RuntimeError):
    """A dead writer left something that must be put in place first: ``demoreel finish`` does."""


class EncoderBehindError(DemoreelError, RuntimeError):
    """Neither the encoders nor the disk can take another image now; none was lost."""


class ConversionError(DemoreelError, RuntimeError):
    """What a conversion has written is not what the source holds; it was not kept."""


class RepairError(DemoreelError, RuntimeError):
    """A repair would lose something of a dataset, or nothing of it can be saved."""


class StoreError(DemoreelError, RuntimeError):
    """An object store or the Hub does not answer, or not with what it should."""


class AccessError(StoreError, PermissionError):
    """An object store or the Hub requires other credentials."""


class ObjectChangedError(StoreError):
    """An object in a store is not the one that it was when the dataset was opened."""


class NewerRemoteError(StoreError):
    """A push would take away episodes that others have put into the repository."""


class MissingExtraError(DemoreelError, ImportError):
    """An optional dependency is not installed."""


class DemoreelWarning(UserWarning):
    """Something is missing that demoreel can do without; said once per dataset."""


def printable(text: str) -> str:
    """Return the text with control characters as escapes.

    Texts of a dataset are a stranger's: escape sequences, line ends and marks that turn the
    direction of writing would let them pass for another output.
    """
    if text.isprintable():
        return text
    return "".join(c if c.isprintable() else c.encode("unicode_escape").decode() for c in text)


def json_text(value: Any, *, indent: int | None = None) -> str:
    """Return a value as JSON; characters that a terminal would obey are escaped, as JSON has it."""
    text = json.dumps(value, ensure_ascii=False, indent=indent)
    if text.replace("\n", "").isprintable():
        return text
    # Outside of strings there is only ASCII, so an escape is always inside of one.
    return "".join(c if c.isprintable() or c == "\n" else _json_escape(c) for c in text)


def _json_escape(character: str) -> str:
    data = character.encode("utf-16-be", "surrogatepass").hex()
    return "".join(f"\\u{data[at : at + 4]}" for at in range(0, len(data), 4))


def redacted(text: str) -> str:
    """Return the text without what may be credentials: of URIs, of links, Hub tokens."""
    if "=" in text or ":/" in text:
        text = _NAMED_SECRET.sub(r"\1=***", _URI.sub(_without_credentials, text))
    return _HUB_TOKEN.sub("hf_***", text) if "hf_" in text else text


def _without_credentials(uri: re.Match[str]) -> str:
    scheme, rest = uri.groups()
    rest, asks, query = rest.partition("?")
    host, slash, path = rest.partition("/")
    user, at, host = host.rpartition("@")
    shown = f"{scheme}{'***' if user else ''}{at}{host}{slash}{path}"
    return shown + asks + ("***" if query else "")


def nearest(wanted: str, known: Iterable[str]) -> str:
    """Return a hint that names the known keys nearest to ``wanted``, or all of them."""
    names = list(known)
    close = difflib.get_close_matches(wanted, names, n=3, cutoff=0.5)
    if close:
        return f"did you mean {' or '.join(repr(name) for name in close)}?"
    return f"there are: {', '.join(names)}" if names else "there are none"
