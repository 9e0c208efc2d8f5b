"""The cut list: the clips of the sources that a new dataset consists of. No I/O here.

As JSON it can be read, changed and applied again::

    {"demoreel.cutlist": 1,
     "features": "strict",
     "sources": [{"path": "/data/pick", "identity": "5f…", "tasks": {"pick": "pick the cube"},
                  "remove": ["reward"], "rename": {"actions": "action"},
                  "add": {"done": {"values": "/data/done.npy", "dtype": "bool", "shape": [1]}}}],
     "clips": [[0, 0, 0, 221], [0, 2, 36, 270, "put it down"],
               [0, 5, 0, 90, null, {"success": true, "score": 4,
                "persistent": [{"frame": 0, "style": "subtask", "content": "reach"}]}]]}

A clip is source, episode, first frame, one past the last frame and, if it has a task of its own,
that (else null), and if it has labels, those. Frames in labels are those of the source's episode.
"""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import Any, Literal, cast

from demoreel.errors import ArgumentError
from demoreel.media.settings import exact_rate

FORMAT = "demoreel.cutlist"
VERSION = 1

Together = Literal["strict", "common", "union"]
"""What to do with features that only some sources have."""

TOGETHER: tuple[Together, ...] = ("strict", "common", "union")


Flag = Literal["good", "bad"]
"""What a person says of an episode."""


@dataclass(frozen=True, slots=True)
class LanguageRow:
    """One row of a language column, at a frame of the source's episode.

    Attributes:
        frame: Where it begins to be true, or is said.
        style: ``subtask``, ``plan``, ``memory``, ``motion``, ``task_aug``; of events
            ``interjection``, ``vqa``, ``trace``.
        content: The text.
        role: Who says it.
        camera: The camera that it refers to, if any.
        tool_calls: Calls, each as JSON text.
    """

    frame: int
    style: str | None
    content: str | None
    role: str = "assistant"
    camera: str | None = None
    tool_calls: tuple[str, ...] | None = None

    def to_json(self) -> dict[str, Any]:
        """Return it as ``from_json`` reads it."""
        raw: dict[str, Any] = {"frame": self.frame, "style": self.style, "content": self.content}
        if self.role != "assistant":
            raw["role"] = self.role
        if self.camera is not None:
            raw["camera"] = self.camera
        if self.tool_calls is not None:
            raw["tool_calls"] = [json.loads(call) for call in self.tool_calls]
        return raw

    @classmethod
    def from_json(cls, raw: object) -> LanguageRow:
        """Check and read a row."""
        known = {"frame", "style", "content", "role", "camera", "tool_calls"}
        if not isinstance(raw, Mapping) or set(raw) - known:
            raise ValueError(f"a row of language is {str(raw)[:100]}")
        calls = raw.get("tool_calls")
        if not isinstance(calls, list | None):
            raise TypeError("tool_calls is no list")
        texts = (raw.get(name) for name in ("style", "content", "camera"))
        style, content, camera = (None if text is None else _text(text) for text in texts)
        role = _text(raw.get("role", "assistant"))
        tools = None if calls is None else tuple(map(_json_text, calls))
        return cls(_count(raw["frame"]), style, content, role, camera, tools)


def _json_text(value: object) -> str:
    return json.dumps(value, ensure_ascii=False, allow_nan=False)  # NaN is not JSON


@dataclass(frozen=True, slots=True)
class Labels:
    """What a person says of a clip; None leaves what the source says.

    Attributes:
        success: Whether the task was done (``next.success``).
        score: 1 to 5.
        flag: Good or bad.
        persistent: The rows of ``language_persistent``, of the whole episode of the source.
        events: Those of ``language_events``.
    """

    success: bool | None = None
    score: int | None = None
    flag: Flag | None = None
    persistent: tuple[LanguageRow, ...] | None = None
    events: tuple[LanguageRow, ...] | None = None

    def over(self, before: Labels | None) -> Labels:
        """Return these, and what was said before of what these do not refer to."""
        if before is None:
            return self
        found = {
            name: getattr(self if getattr(self, name) is not None else before, name)
            for name in self.__slots__
        }
        return Labels(**found)

    def to_json(self) -> dict[str, Any]:
        """Return what is said, as ``from_json`` reads it."""
        raw = {"success": self.success, "score": self.score, "flag": self.flag}
        found: dict[str, Any] = {name: value for name, value in raw.items() if value is not None}
        for name, rows in (("persistent", self.persistent), ("events", self.events)):
            if rows is not None:
                found[name] = [row.to_json() for row in rows]
        return found

    @classmethod
    def from_json(cls, raw: object) -> Labels:
        """Check and read labels."""
        if not isinstance(raw, Mapping) or set(raw) - set(cls.__slots__):
            raise ValueError(f"labels are {str(raw)[:100]}")
        success, score, flag = (raw.get(name) for name in ("success", "score", "flag"))
        if not isinstance(success, bool | None):
            raise TypeError(f"success is {success!r}")
        if score is not None and _count(score) not in range(1, 6):
            raise ValueError(f"a score is 1 to 5, not {score!r}")
        if flag not in (None, "good", "bad"):
            raise ValueError(f"a flag is 'good' or 'bad', not {str(flag)[:40]!r}")
        return cls(success, score, flag, _rows(raw.get("persistent")), _rows(raw.get("events")))


def _rows(raw: object) -> tuple[LanguageRow, ...] | None:
    if not isinstance(raw, list | None):
        raise TypeError("rows of language are no list")
    return None if raw is None else tuple(LanguageRow.from_json(row) for row in raw)


@dataclass(frozen=True, slots=True)
class Clip:
    """A span of one episode.

    Attributes:
        source: Which of the cut list's sources.
        episode: The episode's ``episode_index`` there.
        start: Its first frame in the episode.
        stop: One past its last.
        task: The task of all its frames; None leaves the source's.
        labels: What is said of it; None leaves what the source says.
    """

    source: int
    episode: int
    start: int
    stop: int
    task: str | None = None
    labels: Labels | None = None

    @property
    def length(self) -> int:
        """Frames in it."""
        return self.stop - self.start


@dataclass(frozen=True, slots=True)
class Added:
    """A feature that a source gets on top of its own.

    Attributes:
        values: The ``.npy`` file that holds them, one row for each of the source's frames.
        dtype: The feature's dtype.
        shape: Its shape.
        names: Names of its dimensions, if they have any.
    """

    values: str
    dtype: str
    shape: tuple[int, ...]
    names: Any = None


@dataclass(frozen=True, slots=True)
class Source:
    """A dataset to take clips from, and what is changed in all of them.

    Attributes:
        path: Its folder.
        identity: Tells whether it still is what it was; see ``sources.identity_of``.
        tasks: New texts of tasks, by the old ones.
        remove: Features to leave out.
        rename: New names of features, by the old ones.
        add: Features to add, by name.
        version: Of a Lance dataset, the version to read; None is the newest.
    """

    path: str
    identity: str
    tasks: Mapping[str, str] = field(default_factory=dict)
    remove: tuple[str, ...] = ()
    rename: Mapping[str, str] = field(default_factory=dict)
    add: Mapping[str, Added] = field(default_factory=dict)
    version: int | None = None


@dataclass(frozen=True, slots=True)
class CutList:
    """Clips, in the order in which they become episodes.

    Attributes:
        sources: The datasets that they come from.
        clips: The clips.
        features: What to do with features that only some sources have: refuse, leave them out,
            or fill them and add a mask.
    """

    sources: tuple[Source, ...]
    clips: tuple[Clip, ...]
    features: Together = "strict"

    def followed_by(self, other: CutList) -> CutList:
        """Return this list with the other's clips behind its own."""
        moved = (replace(c, source=c.source + len(self.sources)) for c in other.clips)
        joined = replace(self, sources=(*self.sources, *other.sources), clips=(*self.clips, *moved))
        return joined.tidied()

    def tidied(self) -> CutList:
        """Return the same list with every source once, and none that no clip needs."""
        numbers: dict[int, int] = {}
        kept: list[Source] = []
        for clip in self.clips:
            if clip.source not in numbers:
                source = self.sources[clip.source]
                if source not in kept:
                    kept.append(source)
                numbers[clip.source] = kept.index(source)
        clips = tuple(replace(c, source=numbers[c.source]) for c in self.clips)
        return replace(self, sources=tuple(kept), clips=clips)

    def to_json(self) -> dict[str, Any]:
        """Return the list as ``from_json`` reads it."""
        return {
            FORMAT: VERSION,
            "features": self.features,
            "sources": [_source_to_json(source) for source in self.sources],
            "clips": [_clip_to_json(clip) for clip in self.clips],
        }

    @classmethod
    def from_json(cls, raw: object, *, where: str = "") -> CutList:
        """Check and read a parsed cut list."""
        if not isinstance(raw, Mapping) or FORMAT not in raw:
            raise ArgumentError("This is not a cut list.", hint=f"it has no {FORMAT!r}", file=where)
        if raw[FORMAT] != VERSION:
            raise ArgumentError(
                f"This cut list is of version {raw[FORMAT]!r}; this demoreel reads {VERSION}.",
                file=where,
            )
        try:
            sources = tuple(_source_from_json(source) for source in raw["sources"])
            clips = tuple(_clip_from_json(clip, len(sources)) for clip in raw["clips"])
            features = raw.get("features", "strict")
            if features not in TOGETHER:
                raise ValueError(f"features is {features!r}")
        except (KeyError, TypeError, ValueError) as error:
            raise ArgumentError(
                f"The cut list makes no sense ({type(error).__name__}: {error}).", file=where
            ) from error
        return cls(sources, clips, cast(Together, features))


def _source_to_json(source: Source) -> dict[str, Any]:
    raw: dict[str, Any] = {"path": source.path, "identity": source.identity}
    if source.tasks:
        raw["tasks"] = dict(source.tasks)
    if source.remove:
        raw["remove"] = list(source.remove)
    if source.rename:
        raw["rename"] = dict(source.rename)
    if source.add:
        raw["add"] = {
            key: {
                "values": added.values,
                "dtype": added.dtype,
                "shape": list(added.shape),
                **({"names": added.names} if added.names is not None else {}),
            }
            for key, added in source.add.items()
        }
    if source.version is not None:
        raw["version"] = source.version
    return raw


def _source_from_json(raw: Mapping[str, Any]) -> Source:
    known = {"path", "identity", "tasks", "remove", "rename", "add", "version"}
    if set(raw) - known:
        raise ValueError(f"a source has {sorted(set(raw) - known)}")
    return Source(
        path=_text(raw["path"]),
        identity=_text(raw.get("identity", "")),
        tasks={_text(old): _text(new) for old, new in raw.get("tasks", {}).items()},
        remove=tuple(_text(key) for key in raw.get("remove", ())),
        rename={_text(old): _text(new) for old, new in raw.get("rename", {}).items()},
        add={_text(key): _added_from_json(added) for key, added in raw.get("add", {}).items()},
        version=None if raw.get("version") is None else _count(raw["version"]),
    )


def _added_from_json(raw: Mapping[str, Any]) -> Added:
    shape = tuple(_count(size) for size in raw["shape"])
    return Added(_text(raw["values"]), _text(raw["dtype"]), shape, raw.get("names"))


def _clip_to_json(clip: Clip) -> list[Any]:
    numbers: list[Any] = [clip.source, clip.episode, clip.start, clip.stop]
    if clip.labels is not None:
        return [*numbers, clip.task, clip.labels.to_json()]
    return numbers if clip.task is None else [*numbers, clip.task]


def _clip_from_json(raw: Sequence[Any], sources: int) -> Clip:
    if not isinstance(raw, list) or len(raw) not in (4, 5, 6):
        raise ValueError(f"a clip is {str(raw)[:100]}")
    source, episode, start, stop = (_count(number) for number in raw[:4])
    if source >= sources:
        raise ValueError(f"a clip is of source {source}, and there are {sources}")
    task, labels = [*raw[4:], None, None][:2]
    if task is not None or len(raw) == 5:
        task = _text(task)
    if len(raw) == 6:
        labels = Labels.from_json(labels)
    return Clip(source, episode, start, stop, task, labels)


def _text(value: object) -> str:
    if not isinstance(value, str):
        raise TypeError(f"{value!r} is no text")
    return value


def _count(value: object) -> int:
    if not isinstance(value, int) or isinstance(value, bool) or value < 0:
        raise ValueError(f"{value!r} is no count")
    return value


Frames = range | tuple[int, ...]
"""Frame numbers, ascending: a range where they are regular."""


def frames_of(clip: Clip, *, rate: float, fps: float) -> Frames:
    """Return the frames of the episode that become a clip's: at each tick, the nearest in time.

    Frame ``k`` of the result shows second ``k / fps`` of the clip; no tick is behind its last
    frame. A range where one rate is a multiple of the other.
    """
    ratio = exact_rate(rate) / exact_rate(fps)
    if ratio.denominator == 1:
        return range(clip.start, clip.stop, ratio.numerator)
    over, under = ratio.numerator, ratio.denominator
    count = (clip.length - 1) * under // over + 1
    # Halves are rounded up; in whole numbers, so that every machine agrees.
    return tuple(clip.start + (2 * tick * over + under) // (2 * under) for tick in range(count))
