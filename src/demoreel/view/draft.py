"""The draft of a cut: what was changed on the page, kept on disk until it is rendered.

A draft names episodes by their number, and says for each only what is changed::

    {"demoreel.draft": 1, "dataset": "/data/pick", "revision": 12,
     "made_for": {"episodes": 50, "digest": "5f0c..."},
     "episodes": {"3": {"deleted": true},
                  "7": {"start": 12, "stop": 240, "splits": [100], "task": "put it down",
                        "success": true, "score": 4, "flag": "good", "redo": true,
                        "persistent": [{"frame": 12, "style": "subtask", "content": "reach"}]}}}

Labels are those of a cut list (``edit/clips.py``); ``redo`` asks for the episode to be recorded
again, and changes nothing.

It lies in the user's state folder and never in the dataset. A page that saves says which revision
it had: another one that was saved meanwhile is not lost, but told.

Numbers mean other episodes where a dataset was edited or replaced. A draft notes the episodes that
it was made for, and where those that were there are others now, it counts as empty: the file is put
aside by the next one.
"""

from __future__ import annotations

import hashlib
import itertools
import json
import os
import re
import threading
from collections.abc import Callable, Iterator, Mapping
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np

from demoreel.edit.clips import Clip, CutList, Labels
from demoreel.errors import ArgumentError, DatasetBusyError, DemoreelError
from demoreel.model import Episodes
from demoreel.storage.commit.files import write_file
from demoreel.storage.external import state_folder
from demoreel.storage.json_files import read_json
from demoreel.view.datasets import ShownDataset

if TYPE_CHECKING:
    from demoreel.edit.cut import Cut

FORMAT, VERSION = "demoreel.draft", 1
_LABELS = ("success", "score", "flag", "persistent", "events")
_FIELDS = {"deleted", "start", "stop", "splits", "task", "redo", *_LABELS}
_LONGEST_TEXT = 10_000
_MOST_ROWS = 10_000  # of language, in an episode
_NUMBER = re.compile("[0-9]{1,15}")


class Drafts:
    """The drafts of all datasets of a viewer.

    Args:
        folder: Where they lie; None is the user's state folder.
    """

    def __init__(self, folder: Path | None = None) -> None:
        self._folder = folder or state_folder() / "drafts"
        self._lock = threading.Lock()

    def read(self, shown: ShownDataset) -> dict[str, Any]:
        """Return a dataset's draft; an empty one where there is none."""
        draft = self._stored(shown)
        if draft["episodes"] and not _is_for(draft, shown.open().reader.episodes):
            # Another revision: a page that shows the old changes must not save them again.
            return self._empty(shown, draft["revision"] + 1)
        return draft

    def _stored(self, shown: ShownDataset) -> dict[str, Any]:
        path = self._path(shown)
        if not path.exists():
            return self._empty(shown, 0)
        draft = read_json(path)
        if not isinstance(draft, dict) or draft.get(FORMAT) != VERSION:
            raise ArgumentError("The draft is of another version.", hint="delete it", file=path)
        if not isinstance(draft.get("episodes"), dict) or type(draft.get("revision")) is not int:
            raise ArgumentError("The draft is damaged.", hint="delete it", file=path)
        return draft

    @staticmethod
    def _empty(shown: ShownDataset, revision: int) -> dict[str, Any]:
        return {FORMAT: VERSION, "dataset": shown.place, "revision": revision, "episodes": {}}

    def write(self, shown: ShownDataset, revision: object, episodes: object) -> dict[str, Any]:
        """Replace a dataset's draft, and return it."""
        known = shown.open().reader.episodes
        with self._lock:
            before = self.read(shown)
            if before["revision"] != revision:
                raise DatasetBusyError(
                    "The draft was changed in another window meanwhile.",
                    hint="reload this page to see it; what was changed here since is not saved",
                    dataset=shown.place,
                )
            fresh = checked(episodes, known)
            return self._replace(shown, before["revision"] + 1, fresh, known)

    def end(self, shown: ShownDataset, revision: int) -> None:
        """Begin an empty draft after the dataset was edited in place: its numbers are other ones.

        Args:
            shown: The dataset.
            revision: That of the draft by which it was edited; one that was saved since is put
                aside.
        """
        known = shown.open().reader.episodes
        with self._lock:
            before = self._stored(shown)
            self._replace(
                shown, before["revision"] + 1, {}, known, aside=before["revision"] != revision
            )

    def _replace(
        self,
        shown: ShownDataset,
        revision: int,
        changes: dict[str, dict[str, Any]],
        known: Episodes,
        *,
        aside: bool = False,
    ) -> dict[str, Any]:
        path = self._path(shown)
        path.parent.mkdir(parents=True, exist_ok=True, mode=0o700)
        before = self._stored(shown)
        if before["episodes"] and (aside or not _is_for(before, known)):
            path.replace(path.with_name(f"{shown.id}-{before['revision']}.json"))
        made_for = {"episodes": len(known), "digest": _digest(known, len(known))}
        draft = {**self._empty(shown, revision), "made_for": made_for, "episodes": changes}
        write_file(path, json.dumps(draft, indent=1).encode())
        return draft

    def _path(self, shown: ShownDataset) -> Path:
        return self._folder / f"{shown.id}.json"


def to_record_again(place: str, episodes: Callable[[], Episodes]) -> list[int]:
    """Return the episodes that the viewer's draft of a dataset asks to be recorded again, sorted.

    Cost: one small file; nothing where there is no draft. A draft that is damaged, or of other
    episodes, asks for nothing.

    Args:
        place: The dataset's folder, absolute, or its URI.
        episodes: Returns its episodes; called where there is a draft.
    """
    path = state_folder() / "drafts" / f"{ShownDataset('', place, {}).id}.json"
    if not path.is_file():
        return []
    try:
        draft, known = read_json(path), episodes()
        if not isinstance(draft, dict) or not _is_for(draft, known):
            return []
        changes = checked(draft.get("episodes"), known)
    except DemoreelError:
        return []
    return sorted(int(name) for name, change in changes.items() if change.get("redo"))


def _is_for(draft: Mapping[str, Any], known: Episodes) -> bool:
    """Whether the episodes that a draft was made for are there; more may have been recorded."""
    made_for = draft.get("made_for")
    if not isinstance(made_for, dict) or type(made_for.get("episodes")) is not int:
        return False
    count = made_for["episodes"]
    return 0 <= count <= len(known) and made_for.get("digest") == _digest(known, count)


def _digest(episodes: Episodes, count: int) -> str:
    digest = hashlib.sha256()
    for column in (episodes.episode_index, episodes.length):
        digest.update(np.asarray(column[:count], "<i8").tobytes())
    return digest.hexdigest()


def cut_of(shown: ShownDataset, draft: Mapping[str, Any]) -> Cut:
    """Return a draft as a cut: trims, splits and tasks applied, deleted episodes left out."""
    from demoreel.edit.cut import Cut, cut  # heavy, and needed when a draft is rendered

    dataset = shown.open()
    whole = cut(dataset)
    changes = checked(draft["episodes"], dataset.reader.episodes)
    clips = tuple(
        clip
        for each in whole.cutlist.clips
        for clip in _clips(each, changes.get(str(each.episode)))
    )
    if not clips:
        raise ArgumentError("All episodes are deleted.", hint="restore at least one")
    return Cut(CutList(whole.cutlist.sources, clips, whole.cutlist.features))


def _clips(clip: Clip, change: Mapping[str, Any] | None) -> Iterator[Clip]:
    if change is None:
        yield clip
        return
    if change.get("deleted"):
        return
    start, stop = change.get("start", clip.start), change.get("stop", clip.stop)
    inside = [frame for frame in change.get("splits", ()) if start < frame < stop]
    said = {name: change[name] for name in _LABELS if name in change}
    for begin, end in itertools.pairwise([start, *inside, stop]):
        if end < stop and said.get("success"):  # which the last part shows
            labels = Labels.from_json({**said, "success": None})
        else:
            labels = Labels.from_json(said)
        task = change.get("task", clip.task)
        yield Clip(clip.source, clip.episode, begin, end, task, labels if said else None)


def checked(raw: object, episodes: Episodes) -> dict[str, dict[str, Any]]:
    """Return changes that make sense for these episodes; those that change nothing are left out."""
    if not isinstance(raw, dict):
        raise ArgumentError("A draft lists changes by episode.")
    found = {}
    for name, change in raw.items():
        if not isinstance(change, dict) or set(change) - _FIELDS or not _NUMBER.fullmatch(name):
            raise ArgumentError(f"The change of episode {str(name)[:20]!r} is not understood.")
        position = episodes.position_of(int(name))
        length = int(episodes.length[position])
        kept = {key: value for key, value in change.items() if value is not None}
        for key in ("deleted", "redo", "splits"):
            if not kept.get(key, True):
                del kept[key]
        _refuse_odd_labels(name, kept, length)
        start, stop = kept.get("start", 0), kept.get("stop", length)
        splits = kept.get("splits", [])
        task = kept.get("task", "as it is")
        whole = (start, stop, *splits) if isinstance(splits, list) else (None,)
        if not all(isinstance(n, int) and not isinstance(n, bool) for n in whole):
            raise ArgumentError(f"Frames of episode {name} must be whole numbers.")
        if not 0 <= start < stop <= length or not all(0 < n < length for n in splits):
            raise ArgumentError(f"Episode {name} has {length} frames; the change is outside them.")
        if not isinstance(task, str) or not task.strip():
            raise ArgumentError(f"The task of episode {name} must be a text.")
        _refuse_odd_text(name, task)
        if splits:
            kept["splits"] = sorted(set(splits))
        if start == 0:
            kept.pop("start", None)
        if stop == length:
            kept.pop("stop", None)
        if kept:
            found[str(int(name))] = kept
    return found


def _refuse_odd_labels(name: str, change: Mapping[str, Any], length: int) -> None:
    try:
        labels = Labels.from_json({key: change[key] for key in _LABELS if key in change})
    except (KeyError, TypeError, ValueError) as error:
        raise ArgumentError(f"The labels of episode {name} make no sense ({error}).") from error
    rows = (*(labels.persistent or ()), *(labels.events or ()))
    if len(rows) > _MOST_ROWS or any(row.frame >= length for row in rows):
        raise ArgumentError(f"Labels of episode {name} are outside its {length} frames.")
    for row in rows:
        for text in (row.style, row.content, row.role, row.camera, *(row.tool_calls or ())):
            _refuse_odd_text(name, text or "")
    for flag in ("deleted", "redo"):
        if not isinstance(change.get(flag, True), bool):
            raise ArgumentError(f"{flag!r} of episode {name} is true or false.")


def _refuse_odd_text(name: str, text: str) -> None:
    if len(text) > _LONGEST_TEXT:
        raise ArgumentError(f"A text of episode {name} is too long.")
    if any("\ud800" <= letter <= "\udfff" for letter in text):  # no file holds half a letter
        raise ArgumentError(f"A text of episode {name} is not Unicode.")


def idle_ends(shown: ShownDataset, episode: int) -> dict[str, int]:
    """Return where an episode begins and ends to move: a proposal for its trim.

    Cost: reads a column of the episode.
    """
    from demoreel.edit.cut import cut  # heavy

    dataset = shown.open()
    length = int(dataset.reader.episodes.length[dataset.reader.episodes.position_of(episode)])
    try:
        (whole,) = cut(dataset).keep([episode]).trim_idle().clips
    except ArgumentError:  # nothing that moves is recorded
        return {"start": 0, "stop": length}
    return {"start": whole.start, "stop": whole.stop}


def default_target(shown: ShownDataset) -> str:
    """Return a path where nothing is: beside the dataset, or here where that is remote."""
    base = Path(shown.beside, os.path.basename(shown.place.rstrip("/")))
    for number in itertools.count(1):
        path = base.with_name(f"{base.name}-cut" + (f"-{number}" if number > 1 else ""))
        if not os.path.lexists(path):
            break
    return str(path)
