"""Whether a push would delete something that others have put on the Hub.

What this machine remembers decides first (``records``): if the dataset's files there are what this
folder was pushed to or pulled from, all that differs was done here. Else, and where nothing is
remembered, episodes decide: each of those on the Hub must be here, wherever it stands
(``same_episodes``). So a folder that was copied and grew, or was converted, may be pushed; one that
lacks what another machine has recorded may not.
"""

from __future__ import annotations

import warnings
from collections.abc import Iterable, Iterator, Sequence
from contextlib import ExitStack, contextmanager
from pathlib import Path
from typing import Any

from demoreel.errors import (
    DemoreelError,
    MetadataError,
    NewerRemoteError,
    StoreError,
    count,
    refuse_shortage,
)
from demoreel.hub.plan import is_content, is_of_a_dataset
from demoreel.hub.records import KnownCommit
from demoreel.hub.repository import Repository, RepositoryState
from demoreel.hub.same_episodes import described, missing_episodes
from demoreel.layouts.base import Reader, episode_files
from demoreel.layouts.detect import open_reader
from demoreel.storage.json_files import read_json
from demoreel.storage.scratch import scratch_folder

_SHOWN = 8
_MOST_BYTES = 512 << 20  # of tables that are fetched to compare rows
_MOST_METADATA = 8 << 30  # a million episodes have less
_FORCE = (
    "demoreel pull it beside this one and join them; or push with force, and what it has is lost"
)


def refuse_loss(
    root: Path,
    reader: Reader,
    repository: Repository,
    state: RepositoryState,
    same: Iterable[str],
    known: KnownCommit | None,
) -> None:
    """Refuse to push where something would be lost that is not known here.

    Cost: none where what is remembered tells. Else the metadata on the Hub are fetched.

    Args:
        root: The dataset's folder.
        reader: The dataset.
        repository: Where it is to go.
        state: What is there.
        same: Files that are there with the same bytes.
        known: What is remembered of the repository.
    """
    there = {name for name in state.files if is_of_a_dataset(name)}
    alike = set(same)
    if there <= alike:
        return
    changed = None if known is None else _changed_since(known, state)
    if changed is not None and not changed - alike and any(map(is_content, alike)):
        return
    with ExitStack() as open_there:
        try:
            theirs, folder = open_there.enter_context(_dataset_there(repository, state))
            if theirs is None:
                return
            described_there = described(theirs)
        except DemoreelError as error:
            refuse_shortage(error)
            if isinstance(error, StoreError):
                raise  # of the Hub, which does not answer now
            if changed is not None and not changed - alike:
                return
            raise NewerRemoteError(
                "The Hub holds a dataset whose episodes cannot be read, so it is not known what "
                "would be lost.",
                hint=_FORCE,
                **_where(root, repository, state, changed or there),
            ) from None
        lost = missing_episodes(
            described_there,
            described(reader),
            lambda positions: _fetch_rows(repository, state, theirs, folder, positions),
        )
        found = theirs.episodes
        numbers = [int(found.episode_index[position]) for position in lost]
    if changed is not None and not changed - alike and len(lost) < len(found):
        return  # what is gone was taken out here
    if not lost:
        return
    ours = reader.episodes
    raise NewerRemoteError(
        _what(len(lost), len(found), known),
        hint=_FORCE,
        lost=_listed([f"episode {number}" for number in numbers]),
        on_the_hub=f"{count(len(found), 'episode')}, {count(found.total_frames, 'frame')}",
        here=f"{count(len(ours), 'episode')}, {count(ours.total_frames, 'frame')}",
        **_where(root, repository, state, changed),
    )


def _what(lost: int, there: int, known: KnownCommit | None) -> str:
    several = f"{lost} episodes are" if lost > 1 else "An episode is"
    if lost == there:
        return "The repository holds another dataset: none of its episodes is in this folder."
    since = ", and came there after this folder was last pushed or pulled" if known else ""
    return f"{several} on the Hub and not in this folder{since}."


def _where(
    root: Path, repository: Repository, state: RepositoryState, files: Iterable[str] | None
) -> dict[str, object]:
    return {
        "repository": f"{repository.repo_id} ({repository.branch}, {(state.head or '')[:7]})",
        "changed_there": _listed(sorted(files)) if files else None,
        "dataset": root,
    }


def _changed_since(known: KnownCommit, state: RepositoryState) -> set[str]:
    """Return the dataset's files that are not what they were at the remembered commit."""
    before = {name: value for name, value in known.files.items() if is_of_a_dataset(name)}
    now = {name: file.digest for name, file in state.files.items() if is_of_a_dataset(name)}
    return {name for name in before.keys() | now.keys() if before.get(name) != now.get(name)}


@contextmanager
def _dataset_there(
    repository: Repository, state: RepositoryState
) -> Iterator[tuple[Reader | None, Path]]:
    """Yield the dataset on the Hub, of which only the metadata are here, and its folder.

    There is no reader where it has no episodes.

    Raises:
        DemoreelError: Its metadata cannot be read.
    """
    names = [
        name
        for name in state.files
        if name.startswith("meta/") and not name.startswith("meta/demoreel/")
    ]
    if "meta/info.json" not in names or state.head is None:
        raise MetadataError("There is no meta/info.json.")
    if sum(state.files[name].size for name in names) > _MOST_METADATA:
        raise MetadataError("There is more in meta/ than metadata.")
    with scratch_folder() as folder:
        repository.fetch(state, names, folder)
        info = read_json(folder / "meta" / "info.json")
        if isinstance(info, dict) and not info.get("total_episodes"):
            if any(map(is_content, state.files)):
                raise MetadataError("meta/info.json counts no episodes, and there are some.")
            yield None, folder
        else:
            with warnings.catch_warnings():
                warnings.simplefilter("ignore")
                yield open_reader(_as_plain(folder, info)), folder


def _fetch_rows(
    repository: Repository,
    state: RepositoryState,
    reader: Reader,
    folder: Path,
    positions: Sequence[int],
) -> bool:
    """Fetch the tables of episodes, unless they are many bytes or in Lance; say whether they are.

    Lance's tables hold videos and images, too.
    """
    if any(name.split("/")[0].endswith(".lance") for name in state.files):
        return False
    names = episode_files(reader, positions, cameras=())
    if any(name not in state.files for name in names):
        return False
    if sum(state.files[name].size for name in names) > _MOST_BYTES:
        return False
    repository.fetch(state, names, folder)
    return True


def _as_plain(folder: Path, info: Any) -> Path:
    """Let metadata of a Lance dataset be read without its tables: they are those of v3.0."""
    if isinstance(info, dict) and "storage_format" in info:
        import json

        plain = {key: value for key, value in info.items() if key != "storage_format"}
        (folder / "meta" / "info.json").write_text(json.dumps(plain))
    return folder


def _listed(names: list[str]) -> str:
    rest = len(names) - _SHOWN
    return ", ".join(names[:_SHOWN]) + (f" and {rest} more" if rest > 0 else "")
