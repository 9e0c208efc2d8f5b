"""The tasks that rows name, against those that the metadata name for their episodes."""

from __future__ import annotations

import numpy as np
import pyarrow.compute as pc

from demoreel.check.look import Look, Usable
from demoreel.check.rows import Portion
from demoreel.layouts.meta import TaskList
from demoreel.storage.arrow import as_numpy, from_texts

_LONGEST = 60
_NAMED = 3
_TOLD = 100  # episodes that are told one by one


def named_tasks(portion: Portion) -> np.ndarray:
    """Return the pairs of ``episode_index`` and ``task_index`` that occur in a portion."""
    task = portion.columns.get("task_index")
    if task is None or task.ndim != 1 or len(task) == 0:
        return np.zeros((0, 2), np.int64)
    changes = np.flatnonzero(np.diff(portion.episode) | np.diff(task)) + 1
    rows = np.concatenate([[0], changes])
    pairs = np.stack([portion.episode[rows], task[rows]], axis=1).astype(np.int64)
    return np.unique(pairs, axis=0)


def check_named_tasks(look: Look, parts: list[np.ndarray]) -> None:
    """Report episodes whose rows name other tasks than their metadata, and tasks of none.

    Metadata may name tasks that no row has: some tools note remarks among them.
    """
    tasks, episodes = look.tasks, look.episodes
    if tasks is None or episodes is None or len(episodes) == 0 or not tasks.indices:
        return
    pairs = np.concatenate([np.zeros((0, 2), np.int64), *parts])
    listed, is_listed = _listed(episodes, tasks)
    numbers, places = np.unique(np.array(tasks.indices, np.int64), return_index=True)
    at = np.minimum(np.searchsorted(numbers, pairs[:, 1]), len(numbers) - 1)
    first = {text: place for place, text in reversed(list(enumerate(tasks.texts)))}
    same = np.array([first[text] for text in tasks.texts])  # texts may be there twice
    text = same[places[at]]
    position = episodes.positions_of(pairs[:, 0])
    known = (position >= 0) & (numbers[at] == pairs[:, 1])
    keys = position * len(same) + text
    differs = known & is_listed[position] & ~np.isin(keys, listed)
    wrong = np.unique(position[differs])
    for number, place in enumerate(wrong[:_TOLD].tolist(), 1):
        rows = [tasks.texts[t] for t in np.unique(text[known & (position == place)]).tolist()]
        assert episodes.tasks is not None
        said = episodes.tasks[place].as_py() or []
        look.found(
            "episode-task-differs",
            f"Its rows are of {_quoted(rows)}; the metadata say {_quoted(said)}.",
            count=len(wrong) - _TOLD + 1 if number == _TOLD else 1,
            episode=episodes.index[place],
        )
    if len(wrong) == 0 and episodes.is_whole and len(pairs):
        _report_unused(look, tasks, {*text[known].tolist(), *(listed % len(same)).tolist()}, same)


def _listed(episodes: Usable, tasks: TaskList) -> tuple[np.ndarray, np.ndarray]:
    """Return a number for each task of each episode, and which episodes name known tasks only."""
    nothing = np.zeros(0, np.int64), np.zeros(len(episodes), dtype=bool)
    if episodes.tasks is None or episodes.tasks.null_count:
        return nothing
    lists = episodes.tasks.combine_chunks()
    found = pc.index_in(lists.flatten(), from_texts(tasks.texts))
    offsets = as_numpy(lists.offsets)
    owner = np.repeat(np.arange(len(lists)), np.diff(offsets))
    task = as_numpy(found.fill_null(-1)).astype(np.int64)
    if len(owner) != len(task):
        return nothing
    is_listed = np.diff(offsets) > 0
    is_listed[owner[task < 0]] = False
    return owner[task >= 0] * len(tasks.texts) + task[task >= 0], is_listed


def _report_unused(look: Look, tasks: TaskList, used: set[int], same: np.ndarray) -> None:
    each = zip(tasks.texts, same.tolist(), strict=True)
    idle = [text for text, place in each if place not in used]
    if idle:
        look.found(
            "task-unused",
            f"No episode and no row names the task {idle[0][:_LONGEST]!r}.",
            count=len(idle),
            file=look.task_file,
        )


def _quoted(texts: list[str]) -> str:
    shown = ", ".join(repr(str(text)[:_LONGEST]) for text in texts[:_NAMED])
    return shown + (f" and {len(texts) - _NAMED} more" if len(texts) > _NAMED else "")
