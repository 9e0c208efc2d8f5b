"""The cut list: which clips of which sources a dataset is to be made of. No I/O here.

As JSON it can be read, changed and applied again::

    {"demoreel.cutlist": 1,
     "features": "strict",
     "sources": [{"path": "/data/pick", "identity": "5f…", "tasks": {"pick": "pick the cube"},
                  "remove": ["reward"], "rename": {"actions": "action"},
                  "add": {"done": {"values": "/data/done.npy", "dtype": "bool", "shape": [1]}}}],
     "clips": [[0, 0, 0, 221], [0, 2, 36, 270, "put it down"]]}

A clip is source, episode, first frame, one past the last frame and, if it has a task of its own,
that.
"""

from __future__ import annotations

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


@dataclass(frozen=True, slots=True)
class Clip:
    """A span of one episode.

    Attributes:
        source: Which of the cut list's sources.
        episode: The episode's ``episode_index`` there.
        start: Its first frame in the episode.
        stop: One past its last.
        task: The task of all its frames; None leaves the source's.
    """

    source: int
    episode: int
    start: int
    stop: int
    task: str | None = None

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
    return numbers if clip.task is None else [*numbers, clip.task]


def _clip_from_json(raw: Sequence[Any], sources: int) -> Clip:
    if not isinstance(raw, list) or len(raw) not in (4, 5):
        raise ValueError(f"a clip is {raw!r}")
    source, episode, start, stop = (_count(number) for number in raw[:4])
    if source >= sources:
        raise ValueError(f"a clip is of source {source}, and there are {sources}")
    return Clip(source, episode, start, stop, _text(raw[4]) if len(raw) == 5 else None)


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

    Frame ``k`` of the result shows second ``k / fps`` of the clip; no tick lies behind its last
    frame. A range where one rate is a multiple of the other.

    Args:
        clip: The clip.
        rate: Its source's frames per second.
        fps: The result's.
    """
    ratio = exact_rate(rate) / exact_rate(fps)
    if ratio.denominator == 1:
        return range(clip.start, clip.stop, ratio.numerator)
    over, under = ratio.numerator, ratio.denominator
    count = (clip.length - 1) * under // over + 1
    # Halves are rounded up; in whole numbers, so that every machine agrees.
    return tuple(clip.start + (2 * tick * over + under) // (2 * under) for tick in range(count))
