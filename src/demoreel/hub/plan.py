"""What a push would send and delete: the folder on one side, the repository on the other."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass
from fnmatch import fnmatch

from demoreel.hub.files import CARD, LocalFile, is_of_a_dataset
from demoreel.hub.memory import CheckSums
from demoreel.hub.pictures import PICTURE
from demoreel.storage.hub_calls import HubFile


@dataclass(frozen=True, slots=True)
class Plan:
    """What a push does to a repository.

    Attributes:
        send: Files to send: new ones, and those with other bytes.
        delete: Files of the dataset that it no longer has.
        same: Files that are there already, with the same bytes.
    """

    send: tuple[LocalFile, ...]
    delete: tuple[str, ...]
    same: frozenset[str]

    @property
    def bytes(self) -> int:
        """How many bytes are to be sent."""
        return sum(file.size for file in self.send)

    @property
    def is_empty(self) -> bool:
        """Whether the repository holds all this already."""
        return not self.send and not self.delete


def make_plan(
    local: Iterable[LocalFile],
    remote: Mapping[str, HubFile],
    sums: CheckSums,
    *,
    chosen: Callable[[str], bool] = lambda name: True,
) -> Plan:
    """Compare a dataset's files with a repository's.

    Cost: files of the same size are read, unless their check sums are remembered.

    Args:
        local: The dataset's files.
        remote: The repository's.
        sums: Check sums of the local files.
        chosen: Which files the push is about: others are neither sent nor deleted.
    """
    here = {file.name: file for file in local if chosen(file.name)}
    alike = [name for name, file in here.items() if _may_be_same(file, remote.get(name))]
    found = sums.of(
        (name, here[name].content, "sha256" if remote[name].sha256 else "git") for name in alike
    )
    same = {name for name, value in found.items() if value == remote[name].digest}
    send = [file for name, file in sorted(here.items()) if name not in same]
    if all(file.name == PICTURE for file in send) and PICTURE in remote:
        # The same pictures may become other bytes on another machine; that is no change.
        same |= {file.name for file in send}
        send = []
    gone = [n for n in remote if is_of_a_dataset(n) and n not in here and chosen(n)]
    return Plan(tuple(send), tuple(sorted(gone)), frozenset(same))


def chooser(*, videos: bool, patterns: Iterable[str] | None = None) -> Callable[[str], bool]:
    """Return which files a push is about.

    Args:
        videos: Whether ``videos/`` is.
        patterns: Only files that match one of these, as in ``fnmatch``; the card always does.
    """
    listed = [patterns] if isinstance(patterns, str) else patterns
    wanted = None if listed is None else [f"{p}*" if p.endswith("/") else p for p in listed]

    def chosen(name: str) -> bool:
        if not videos and name.startswith("videos/"):
            return False
        return wanted is None or name == CARD or any(fnmatch(name, glob) for glob in wanted)

    return chosen


def _may_be_same(file: LocalFile, there: HubFile | None) -> bool:
    return there is not None and there.size == file.size
