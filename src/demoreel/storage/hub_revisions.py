"""Which revision of a repository is read.

LeRobot marks versions of its format by tags, ``v2.1`` and ``v3.0``, or by branches of these names.
A repository may carry several; the newest that demoreel reads is taken, ``v3.0`` first, as
lerobot 0.6 does. One without such a name is read from ``main``, if that is a dataset that can be.
"""

from __future__ import annotations

import re
import warnings
from collections.abc import Iterable
from dataclasses import dataclass
from pathlib import Path

from demoreel.errors import (
    DatasetNotFoundError,
    DemoreelWarning,
    UnsupportedVersionError,
    nearest,
)
from demoreel.model.info import READABLE_VERSIONS
from demoreel.storage.hub_calls import Hub, Refs
from demoreel.storage.json_files import read_json

MAIN = "main"

_COMMIT = re.compile(r"[0-9a-f]{40}")
_VERSION = re.compile(r"v?(\d+)\.(\d+)((?:\.\d+)*)", re.IGNORECASE)
_SHOWN = 12


@dataclass(frozen=True, slots=True)
class Revision:
    """A revision of a repository.

    Attributes:
        name: The tag or branch, or the commit itself.
        commit: The commit's full name.
        is_marked: Whether its name says of which version of the format it is, or a user named it;
            if not, it is ``main`` for want of a better one.
        refs: What the repository has, as far as it was asked.
    """

    name: str
    commit: str
    is_marked: bool = True
    refs: Refs | None = None


def is_commit(revision: str) -> bool:
    """Whether this is the full name of a commit, which never changes what it means."""
    return _COMMIT.fullmatch(revision) is not None


def readable_name(refs: Refs) -> str | None:
    """Return the tag or branch with the newest version that demoreel reads; None if there is none.

    Tags go before branches. Of several names for one version, ``v3.0`` goes before ``v3.0.1``, and
    that before ``3.0``.
    """
    for version in sorted(READABLE_VERSIONS, reverse=True):
        for names in (refs.tags, refs.branches):
            of_it = [name for name in names if _version_of(name) == version]
            if of_it:
                return version if version in of_it else max(of_it, key=_fineness)
    return None


def commit_named(refs: Refs, name: str) -> str | None:
    """Return the commit that a tag, or else a branch, names."""
    return refs.tags.get(name) or refs.branches.get(name)


def resolve_revision(hub: Hub, repo_id: str, revision: str | None) -> Revision:
    """Return the revision to read. One request; none for a commit, two for a rare kind of name.

    Args:
        hub: The Hub.
        repo_id: The repository.
        revision: A tag, a branch or a commit; None is the newest version that demoreel reads.
    """
    if revision is not None and is_commit(revision):
        return Revision(revision, revision)
    refs = hub.refs(repo_id)
    name = revision if revision is not None else readable_name(refs)
    if name is not None:
        commit = commit_named(refs, name) or _otherwise_named(hub, repo_id, name, refs)
        return Revision(name, commit, refs=refs)
    commit = refs.branches.get(MAIN, "")
    if not commit:
        raise no_version_fits(repo_id, refs)
    return Revision(MAIN, commit, is_marked=False, refs=refs)


def no_version_fits(
    repo_id: str, refs: Refs | None, of_main: str | None = None
) -> UnsupportedVersionError:
    """Return the error that says which versions there are, and which would do."""
    has = "it has no tags and no branches" if refs is None else _what_there_is(refs)
    if of_main is not None:
        has += f"; {MAIN} is {of_main}"
    return UnsupportedVersionError(
        f"The dataset {repo_id!r} has no version that demoreel reads "
        f"({', '.join(READABLE_VERSIONS)}): {has}.",
        hint="name one of these with revision= if you know better; a version before v2.0 is "
        "converted with the lerobot that wrote it",
    )


def accept_unmarked(info: Path, repo_id: str, found: Revision) -> None:
    """Accept a revision whose name says nothing if its ``info.json`` does, with a warning."""
    said = read_json(info)
    version = str(said.get("codebase_version")) if isinstance(said, dict) else "no dataset"
    if version not in READABLE_VERSIONS:
        raise no_version_fits(repo_id, found.refs, of_main=version)
    warnings.warn(
        f"The dataset {repo_id!r} has no tag that names a version demoreel reads; its branch "
        f"{found.name} is read, which is {version}.",
        DemoreelWarning,
        stacklevel=2,
    )


def _otherwise_named(hub: Hub, repo_id: str, name: str, refs: Refs) -> str:
    """Return the commit of a short hash, a pull request and the like."""
    try:
        return hub.commit_of(repo_id, name)
    except DatasetNotFoundError:
        known = [*refs.tags, *refs.branches]
        raise DatasetNotFoundError(
            f"The dataset {repo_id!r} has no revision {name!r} on the Hub: {_what_there_is(refs)}.",
            hint=nearest(name, known[:_SHOWN]),
        ) from None


def _what_there_is(refs: Refs) -> str:
    tags = f"its tags are {_listed(refs.tags)}" if refs.tags else "it has no tags"
    branches = f"its branches {_listed(refs.branches)}" if refs.branches else "no branches"
    return f"{tags}, {branches}"


def _listed(names: Iterable[str]) -> str:
    every = sorted(names)
    rest = f" and {len(every) - _SHOWN} more" if len(every) > _SHOWN else ""
    return ", ".join(every[:_SHOWN]) + rest


def _version_of(name: str) -> str | None:
    """Return ``v3.0`` for ``v3.0``, ``3.0`` and ``v3.0.1``."""
    match = _VERSION.fullmatch(name)
    return f"v{int(match[1])}.{int(match[2])}" if match else None


def _fineness(name: str) -> tuple[list[int], bool]:
    """Return what to order names of one version by: the numbers behind it, then the ``v``."""
    match = _VERSION.fullmatch(name)
    assert match is not None
    return [int(part) for part in match[3].split(".")[1:]], name[0] in "vV"
