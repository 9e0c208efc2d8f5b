"""Checks which files outside a dataset its Lance tables may refer to.

A Lance table can point at bytes elsewhere, by URI: a blob, or the base path of a data file. In a
stranger's table that is ``file:///home/you/.ssh/id_rsa``, or a private repository that would be
fetched with your token. So such a reference is followed only

* inside the folder or the store's prefix that the table itself is in,
* below a prefix that the user allows (``allow_external=``, ``--allow-external``), and
* below a folder that ``convert --link`` of this user has linked the table to. That is noted in the
  user's own state folder, never in the table.

What is allowed holds for one dataset, for this process and those that it starts.
"""

from __future__ import annotations

import hashlib
import json
import os
import re
from collections.abc import Iterable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from functools import cached_property
from pathlib import Path
from typing import Any
from urllib.parse import quote, unquote, urlsplit

from demoreel.errors import ArgumentError, UnsafePathError
from demoreel.storage.commit.files import write_file
from demoreel.storage.place import RemotePlace, Where

AllowExternal = str | os.PathLike[str] | Iterable[str | os.PathLike[str]]
"""One prefix, or several: folders, or URIs such as ``s3://bucket/videos``."""

_VARIABLE = "DEMOREEL_ALLOW_EXTERNAL"  # for processes that this one starts
_EVERY_DATASET = "*"
_SCHEME = re.compile(r"[A-Za-z][A-Za-z0-9+.-]*://")
_ODD = re.compile(r"[\x00-\x1f\x7f\\?#]")  # in no URI that a writer of tables makes of a path
_ENCODED = re.compile(r"%[0-9A-Fa-f]{2}")
_MOST_LINKS = 10_000
_MOST_PREFIXES = 5  # that an error or a report names


@dataclass(frozen=True, slots=True)
class _Target:
    """A URI taken apart: of a file, the path that it leads to when all links are followed."""

    scheme: str
    host: str
    path: str

    def is_below(self, prefix: _Target) -> bool:
        if (self.scheme, self.host) != (prefix.scheme, prefix.host):
            return False
        folder = prefix.path.rstrip("/")
        return self.path == folder or self.path.startswith(f"{folder}/")


def allow_external(dataset: object, prefixes: AllowExternal | None) -> None:
    """Let a dataset's tables name files below these prefixes, in this process and its children.

    Args:
        dataset: The dataset's folder or URI; None for all that this process opens.
        prefixes: Folders or URIs; None allows nothing.
    """
    wanted = listed_prefixes(prefixes)
    if wanted:
        known = _allowed()
        key = _EVERY_DATASET if dataset is None else _key(dataset)
        known[key] = list(dict.fromkeys([*known.get(key, ()), *wanted]))
        os.environ[_VARIABLE] = json.dumps(known)


def listed_prefixes(prefixes: AllowExternal | None) -> list[str]:
    """Return prefixes as URIs."""
    if prefixes is None:
        return []
    if isinstance(prefixes, (str, os.PathLike)):
        prefixes = [prefixes]
    if not isinstance(prefixes, Iterable):
        raise ArgumentError(f"allow_external takes folders and URIs, not {prefixes!r}.")
    return [_checked(prefix) for prefix in prefixes]


def allow_as(copy: object, original: object) -> None:
    """Let a copy of a dataset name the files that the original may."""
    own = [str(original)] if _target(str(original)) is not None else []
    allow_external(copy, [*own, *_allowed().get(_key(original), ())])


@contextmanager
def for_one_command() -> Iterator[None]:
    """Let what is allowed in this block hold no longer than the block."""
    before = os.environ.get(_VARIABLE)
    try:
        yield
    finally:
        if before is None:
            os.environ.pop(_VARIABLE, None)
        else:
            os.environ[_VARIABLE] = before


class External:
    """What a table may name outside itself; made where the table is, with what is allowed then."""

    def __init__(self, table: Where) -> None:
        known = _allowed()
        folder = table.parent if isinstance(table, RemotePlace) else os.path.dirname(_plain(table))
        self._table = table
        self._allowed = (*known.get(_EVERY_DATASET, ()), *known.get(_key(folder), ()))

    @cached_property
    def _prefixes(self) -> list[_Target]:
        return _targets([*_own(self._table), *self._allowed])

    @cached_property
    def _linked(self) -> list[_Target]:
        return _targets(linked_folders(self._table))

    def refuses(self, uri: str) -> bool:
        """Whether the table may not name this URI."""
        target = _target(uri)
        if target is None:
            return True
        if any(target.is_below(prefix) for prefix in self._prefixes):
            return False
        return not any(target.is_below(prefix) for prefix in self._linked)

    def require(self, uris: Iterable[str], **where: object) -> None:
        """Raise UnsafePathError for the first of these URIs that is refused."""
        for uri in uris:
            if self.refuses(uri):
                prefix = prefixes_of([uri])[0]
                raise UnsafePathError(
                    f"A Lance table names a file outside the dataset: {shown(uri)}.",
                    hint="if you trust the dataset, allow it: "
                    f'allow_external="{prefix}" (--allow-external {prefix})',
                    table=str(self._table),
                    **where,
                )


def prefixes_of(uris: Iterable[str]) -> list[str]:
    """Return the folders that URIs are in, without what must not be shown; the first few.

    Of a dataset's videos, the dataset's folder: each camera has folders of its own.
    """
    folders = (shown(uri).rsplit("/", 1)[0].split("/videos/")[0] for uri in uris)
    return [folder or "/" for folder in dict.fromkeys(folders)][:_MOST_PREFIXES]


def shown(uri: str) -> str:
    """Return a URI for people: no query, no user, no control characters, not too long."""
    text = re.sub(r"[?#].*", "", re.sub(r"[^\x20-\x7e]", "", uri))
    text = re.sub(r"(?<=//)[^/]*@", "", text)
    if text.lower().startswith("file:///"):
        text = unquote(text[7:])
    return text if len(text) <= 200 else f"{text[:200]}..."


def remember_links(table: Path, folders: Iterable[str], *, made_in: Path) -> None:
    """Note for this user that a table was linked to these folders, and may name files in them."""
    path, place = _links_file(), os.path.realpath(table)
    known = {name: note for name, note in _links().items() if os.path.isdir(name)}
    known.pop(place, None)
    note = {"table": _identity(str(made_in)), "folders": sorted(set(folders))}
    kept = dict([*known.items(), (place, note)][-_MOST_LINKS:])
    path.parent.mkdir(parents=True, exist_ok=True)
    write_file(path, json.dumps({"links": kept}, indent=1).encode())


def linked_folders(table: Where) -> list[str]:
    """Return the folders that this user has linked a table to."""
    if isinstance(table, RemotePlace):
        return []
    note = _links().get(os.path.realpath(table))
    if not isinstance(note, dict) or note.get("table") != _identity(table):
        return []
    folders = note.get("folders")
    return [name for name in folders if isinstance(name, str)] if isinstance(folders, list) else []


def _targets(prefixes: Iterable[str]) -> list[_Target]:
    return [found for found in map(_target, prefixes) if found is not None]


def _allowed() -> dict[str, list[str]]:
    text = os.environ.get(_VARIABLE)
    try:
        found = json.loads(text) if text else {}
    except ValueError:
        found = {}
    return found if isinstance(found, dict) else {}


def _checked(prefix: object) -> str:
    if not isinstance(prefix, (str, os.PathLike)) or not os.fspath(prefix):
        raise ArgumentError(f"allow_external takes folders and URIs, not {prefix!r}.")
    text = str(prefix)
    if not _SCHEME.match(text):
        text = "file://" + quote(os.path.abspath(os.path.expanduser(text)))
    if _target(text.rstrip("/") if not text.endswith("://") else text) is None:
        raise ArgumentError(
            f"allow_external takes folders and URIs, and {shown(text)!r} is neither.",
            hint="such as /data/videos, s3://bucket/videos or hf://datasets/owner/name",
        )
    return text


def _target(uri: str) -> _Target | None:
    """Take a URI apart; None for what could be read in more than one way."""
    if _ODD.search(uri):
        return None
    if not _SCHEME.match(uri):  # Lance takes a path as one, too
        return _file(uri) if os.path.isabs(uri) else None
    parts = urlsplit(uri)
    scheme = parts.scheme.lower()
    if scheme == "file":
        if parts.netloc not in ("", "localhost"):
            return None
        return _file(unquote(parts.path) or "/")
    path = parts.path.rstrip("/")
    segments = path.split("/")[1:]
    if not parts.netloc or "@" in parts.netloc or "%" in uri or {"", ".", ".."} & set(segments):
        return None
    return _Target(scheme, parts.netloc, path)


def _file(path: str) -> _Target | None:
    plain = path.rstrip("/") or "/"
    if plain != os.path.normpath(plain) or plain.startswith("//") or _ODD.search(plain):
        return None
    if _ENCODED.search(plain):  # Lance may decode once more than is done here
        return None
    return _Target("file", "", os.path.realpath(plain))


def _own(table: Where) -> list[str]:
    """Return the folder that a table is in; of a link to a table, that of the table, too."""
    if isinstance(table, RemotePlace):
        return [table.parent.uri]
    folders = (os.path.dirname(_plain(table)), os.path.dirname(os.path.realpath(table)))
    return [f"file://{quote(os.path.realpath(folder))}" for folder in folders]


def _plain(table: str) -> str:
    return os.path.abspath(table)


def _key(dataset: object) -> str:
    text = str(dataset).rstrip("/")
    return text if _SCHEME.match(text) else os.path.realpath(text or "/")


def state_folder() -> Path:
    """Return where a user's own notes about datasets are kept; it may not be there yet."""
    home = os.environ.get("XDG_STATE_HOME")
    return (Path(home) if home else Path.home() / ".local" / "state") / "demoreel"


def _links_file() -> Path:
    return state_folder() / "links.json"


def _links() -> dict[str, Any]:
    try:
        found = json.loads(_links_file().read_bytes())["links"]
    except (OSError, ValueError, KeyError, TypeError, RuntimeError):  # there is none, or no home
        return {}
    return found if isinstance(found, dict) else {}


def _identity(table: str) -> str | None:
    """Return what a table at this place has that another put there would not have.

    Its oldest manifest: Lance writes random names into it.
    """
    versions = Path(table) / "_versions"
    try:
        manifests = [entry for entry in os.scandir(versions) if entry.name.endswith(".manifest")]
        oldest = max if all(len(entry.name) > 20 for entry in manifests) else min
        first = oldest(manifests, key=lambda entry: (len(entry.name), entry.name))
        return hashlib.sha256(Path(first.path).read_bytes()).hexdigest()
    except (OSError, ValueError):
        return None
