"""``meta/lerobot_annotations.json``: language annotations that other tools store in a dataset.

::

    {"version": 2,
     "schema": {"persistent_styles": ["subtask"], "event_styles": ["interjection"]},
     "episodes": {"0": {"atoms": [{"role": "assistant", "content": "reach", "style": "subtask",
                                   "timestamp": 0.0, "camera": null, "tool_calls": null}]}}}

Times are those of frames, bit for bit. The same rows stand in a dataset's language columns; an
annotation tool writes this file first.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from pathlib import Path
from typing import Any

import numpy as np

from demoreel.edit.clips import Labels, LanguageRow
from demoreel.edit.labels import language_row
from demoreel.edit.plan import Plan
from demoreel.edit.resample import events_of, frame_at, moved
from demoreel.edit.tables import timestamps
from demoreel.errors import ArgumentError, DemoreelError
from demoreel.layouts.base import Reader
from demoreel.layouts.writing import write_json
from demoreel.storage.json_files import read_json

ANNOTATIONS = "lerobot_annotations.json"
_VERSION = 2
_HOLDING = ("subtask", "plan", "memory", "motion", "task_aug")
_EVENTS = ("interjection", "vqa", "trace")


def times_of(reader: Reader, position: int) -> np.ndarray:
    """Return the time of each frame of an episode, as stored."""
    start = reader.episodes.start
    rows = np.arange(int(start[position]), int(start[position + 1]))
    if "timestamp" not in reader.info.features:
        return (np.arange(len(rows)) / reader.info.fps).astype(np.float32)
    return np.asarray(reader.rows(rows, ["timestamp"])["timestamp"], np.float32).reshape(-1)


def read_annotations(raw: object, reader: Reader, *, where: object) -> dict[int, Labels]:
    """Return what annotations say of a dataset's episodes, by their numbers."""
    episodes = raw.get("episodes") if isinstance(raw, Mapping) else None
    if not isinstance(raw, Mapping) or raw.get("version") != _VERSION:
        raise ArgumentError("Annotations cannot be read: they are not of version 2.", file=where)
    if not isinstance(episodes, Mapping):
        raise ArgumentError("Annotations list no episodes.", file=where)
    schema = raw.get("schema")
    named = schema.get("persistent_styles") if isinstance(schema, Mapping) else None
    holding = {*_HOLDING, *(str(style) for style in (named if isinstance(named, list) else ()))}
    found = {}
    for name, said in episodes.items():
        atoms = said.get("atoms") if isinstance(said, Mapping) else None
        if not str(name).isdecimal() or len(str(name)) > 15 or not isinstance(atoms, list):
            what = f"Annotations of episode {str(name)[:20]!r} list no atoms."
            raise ArgumentError(what, file=where)
        position = reader.episodes.position_of(int(name))
        found[int(name)] = _labels(atoms, times_of(reader, position), holding, name, where)
    return found


def _labels(
    atoms: list[Any], times: np.ndarray, holding: set[str], name: str, where: object
) -> Labels:
    rows: dict[bool, list[LanguageRow]] = {True: [], False: []}
    for atom in atoms:
        at = atom.get("timestamp") if isinstance(atom, Mapping) else None
        if not isinstance(at, int | float) or isinstance(at, bool) or not np.isfinite(at):
            raise ArgumentError(f"An annotation of episode {name} has no time.", file=where)
        raw = {key: atom.get(key) for key in ("style", "content", "camera", "tool_calls")}
        raw |= {"frame": frame_at(times, float(at))[0], "role": atom.get("role", "assistant")}
        try:
            row = LanguageRow.from_json(raw)
        except (KeyError, TypeError, ValueError) as error:
            raise ArgumentError(
                f"An annotation of episode {name} makes no sense ({error}).", file=where
            ) from error
        rows[row.style in holding].append(row)
    return Labels(persistent=tuple(rows[True]), events=tuple(rows[False]))


def annotations_of(said: Iterable[tuple[int, Labels, np.ndarray]]) -> dict[str, Any]:
    """Return annotations of episodes.

    Args:
        said: Of each episode its number, its labels, and the times of its frames.
    """
    episodes = {}
    for number, labels, times in said:
        rows = [*(labels.persistent or ()), *(labels.events or ())]
        if rows:
            rows.sort(key=lambda row: row.frame)
            atoms = [_atom(language_row(row), float(times[row.frame])) for row in rows]
            episodes[str(number)] = {"atoms": atoms}
    return _file(episodes)


def _atom(row: Mapping[str, Any], at: float) -> dict[str, Any]:
    names = ("role", "content", "style", "timestamp", "camera", "tool_calls")
    whole = {**row, "timestamp": at}
    return {name: whole.get(name) for name in names}


def _file(episodes: Mapping[str, Any]) -> dict[str, Any]:
    schema = {"persistent_styles": list(_HOLDING), "event_styles": list(_EVENTS)}
    return {"version": _VERSION, "schema": schema, "episodes": dict(episodes)}


def follow_annotations(plan: Plan, dataset: Path, dropped: list[str]) -> None:
    """Write the annotations of a result's clips, where a source has such a file.

    Cost: reads these files, and the times of the episodes that they refer to.
    """
    said: dict[tuple[int, int], Labels] = {}
    there = False
    for number, reader in enumerate(plan.readers):
        path = reader.meta / ANNOTATIONS
        if not path.is_file():
            continue
        try:
            own = read_annotations(read_json(path), reader, where=path)
        except DemoreelError as error:
            dropped.append(f"meta/{ANNOTATIONS}: {error.what}")
            continue
        there = True
        said |= {(number, episode): labels for episode, labels in own.items()}
    if not there:
        return
    episodes = {}
    for number, clip in enumerate(plan.clips):
        labels = said.get((clip.source, clip.episode))
        if clip.labels is not None:
            labels = clip.labels.over(labels)
        atoms = [] if labels is None else _atoms(plan, number, labels)
        if atoms:
            episodes[str(number)] = {"atoms": atoms}
    write_json(dataset / "meta" / ANNOTATIONS, _file(episodes))


def _atoms(plan: Plan, number: int, labels: Labels) -> list[dict[str, Any]]:
    clip, frames = plan.clips[number], plan.frames[number]
    reader = plan.readers[clip.source]
    old = times_of(reader, int(plan.positions[number]))
    rate, chosen = reader.info.fps, np.asarray(frames)
    new = timestamps(old[chosen], clip, rate, plan.info.fps, len(chosen))
    held = [_atom(language_row(row), float(old[row.frame])) for row in labels.persistent or ()]
    events: list[list[LanguageRow]] = [[] for _ in old]
    for row in labels.events or ():
        events[row.frame].append(row)
    atoms = moved(held, old, clip, frames, new)
    for at, rows in enumerate(events_of(events, clip, frames)):
        atoms += [_atom(language_row(row), float(new[at])) for row in rows]
    return sorted(atoms, key=lambda atom: float(atom["timestamp"]))
