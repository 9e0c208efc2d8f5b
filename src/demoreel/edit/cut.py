"""``demoreel.cut``: the cut list as a user builds it, step by step."""

from __future__ import annotations

import json
import os
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import replace
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Any, Literal, Protocol, TypeGuard, Unpack

import numpy as np

from demoreel.edit import choose
from demoreel.edit.clips import (
    TOGETHER,
    Added,
    Clip,
    CutList,
    Flag,
    Labels,
    LanguageRow,
    Source,
    Together,
)
from demoreel.edit.features import is_kept, kept, renamed, view_of, without
from demoreel.edit.form import Form, FormOptions
from demoreel.edit.plan import Plan, make_plan
from demoreel.edit.sources import identity_of, open_source, remember_remote, remote_dataset_in
from demoreel.edit.verify import Verify
from demoreel.errors import ArgumentError, count, nearest
from demoreel.layouts.base import Reader
from demoreel.layouts.detect import open_reader
from demoreel.layouts.pending import refuse_waiting
from demoreel.read.dataset import Dataset
from demoreel.run.anywhere import is_here, refuse_remote
from demoreel.run.local import LocalEngine
from demoreel.run.task import Engine
from demoreel.storage.commit.files import write_file
from demoreel.storage.external import AllowExternal
from demoreel.storage.external import allow_external as allow
from demoreel.storage.folder import DatasetFolder
from demoreel.storage.json_files import read_json

if TYPE_CHECKING:
    from demoreel.edit.render import Rendered

PathLike = str | os.PathLike[str]
EpisodeName = int | tuple[int, int]
"""An ``episode_index``; where there are several sources, (source, ``episode_index``)."""


class Rooted(Protocol):
    """Something that has a dataset's folder; torch's ``LeRobotDataset`` is one."""

    @property
    def root(self) -> Path:
        """The folder."""
        ...


def cut(
    dataset: PathLike | Dataset | Rooted,
    *,
    storage_options: Mapping[str, Any] | None = None,
    allow_external: AllowExternal | None = None,
) -> Cut:
    """Begin a cut with all episodes of a dataset; see ``demoreel.cut``."""
    allow(_folder_of(dataset), allow_external)
    if storage_options or not is_here(dataset):
        dataset = Dataset(_folder_of(dataset), storage_options=storage_options)
    dataset = remote_dataset_in(dataset) or dataset
    if isinstance(dataset, Dataset):
        reader, chosen = dataset.reader, dataset.episodes
        version = _pinned_version(dataset)
        folder = dataset.folder
    else:
        folder = DatasetFolder(Path(_folder_of(dataset)))
        reader = open_reader(folder)
        chosen, version = reader.episodes, None
    if folder.grows and version is None:
        refuse_waiting(reader.root, "cut")
    path = os.path.abspath(reader.root) if folder.grows else remember_remote(folder)
    source = Source(path, identity_of(reader), version=version)
    pairs = zip(chosen.episode_index.tolist(), chosen.length.tolist(), strict=True)
    return Cut(CutList((source,), tuple(Clip(0, number, 0, length) for number, length in pairs)))


def _folder_of(dataset: PathLike | Dataset | Rooted) -> PathLike:
    return dataset if isinstance(dataset, (str, os.PathLike)) else dataset.root


def _pinned_version(dataset: Dataset) -> int | None:
    """Return the version that a Lance dataset was opened at; None if it was the newest."""
    arguments = dataset.__getstate__()
    if arguments.get("tables") is not None:
        raise ArgumentError(
            "A dataset whose tables are elsewhere cannot be cut.",
            hint="bring tables and meta/ into one folder",
            dataset=dataset.root,
        )
    if arguments.get("version") is None and arguments.get("tag") is None:
        return None
    from demoreel.layouts.lance.reader import LanceReader

    assert isinstance(dataset.reader, LanceReader)  # no other layout has versions
    return dataset.reader.tables["frames"].version


def load(path: PathLike) -> Cut:
    """Read a cut list from a JSON file."""
    return Cut(CutList.from_json(read_json(Path(path)), where=os.fspath(path)))


class Cut:
    """A cut that is being made: immutable, every method returns another one.

    Episodes are named by their ``episode_index`` in the source, whatever was cut before. Nothing is
    read but metadata, and nothing is written before ``render``.

    Args:
        cutlist: The cut list so far.
    """

    def __init__(self, cutlist: CutList) -> None:
        self.cutlist = cutlist

    @property
    def clips(self) -> tuple[Clip, ...]:
        """The clips, each of which becomes an episode."""
        return self.cutlist.clips

    def __len__(self) -> int:
        return len(self.cutlist.clips)

    def __repr__(self) -> str:
        frames = sum(clip.length for clip in self.clips)
        said = (len(self), "episode"), (frames, "frame"), (len(self.cutlist.sources), "source")
        return f"<Cut: {', '.join(count(number, what) for number, what in said)}>"

    def delete(self, episodes: EpisodeName | Iterable[EpisodeName]) -> Cut:
        """Leave episodes out.

        Args:
            episodes: One or several, by their number in the source, or (source, number).

        Raises:
            ArgumentError: One of them is not in the cut, or none would be left.
        """
        gone = self._named(episodes)
        left = tuple(clip for clip in self.clips if (clip.source, clip.episode) not in gone)
        if not left:
            raise ArgumentError("No episode would be left.", hint="a dataset needs one at least")
        return self._with_clips(left)

    def keep(self, episodes: EpisodeName | Iterable[EpisodeName]) -> Cut:
        """Take only these episodes, in this order; an episode named twice comes twice.

        Args:
            episodes: One or several, by their number in the source, or (source, number).

        Raises:
            ArgumentError: One of them is not in the cut.
        """
        wanted = self._names(episodes)
        self._refuse_unknown(wanted)
        of: dict[tuple[int, int], list[Clip]] = {}
        for clip in self.clips:
            of.setdefault((clip.source, clip.episode), []).append(clip)
        return self._with_clips(tuple(clip for name in wanted for clip in of[name]))

    def select(self, where: str | None = None, *, order_by: str | None = None) -> Cut:
        """Take the episodes that meet a condition, perhaps in another order.

        Cost: reads no table but the episodes' metadata. Needs the extra ``sql``.

        Args:
            where: One SQL condition over ``episode_index``, ``length`` (frames), ``seconds``,
                ``task`` (all of an episode's, separated by "; ") and the columns of
                ``meta/episodes``, as the source has them.
            order_by: One SQL expression over the same, perhaps with ``desc`` behind it.

        Raises:
            ArgumentError: It is not understood, or no episode meets it.
            MissingExtraError: DuckDB is not installed.
        """
        if where is None and order_by is None:
            raise ArgumentError(
                "select needs a condition or an order.",
                hint="such as where='length > 100' (--where 'length > 100')",
            )
        return self._with_clips(choose.matching(self.cutlist, where, order_by))

    def trim(
        self,
        episode: EpisodeName,
        start: int | float | None = None,
        stop: int | float | None = None,
    ) -> Cut:
        """Keep only a range of an episode.

        Args:
            episode: The episode.
            start: Where it begins, counted in the source's episode: frames if it is an integer,
                seconds if it is a float; None leaves it.
            stop: Where it ends (that frame is not in it any more).

        Raises:
            ArgumentError: The episode is not in the cut, or nothing would be left of it.
        """
        (name,) = self._named([episode])
        return self._with_clips(
            tuple(
                self._trimmed(clip, start, stop) if (clip.source, clip.episode) == name else clip
                for clip in self.clips
            )
        )

    def _trimmed(self, clip: Clip, start: int | float | None, stop: int | float | None) -> Clip:
        reader = open_source(self.cutlist.sources[clip.source])
        begin = clip.start if start is None else _frame(start, reader.info.fps, "start")
        end = clip.stop if stop is None else _frame(stop, reader.info.fps, "stop")
        if begin < clip.start or end > clip.stop or begin >= end:
            raise ArgumentError(
                f"Frames {begin} to {end - 1} are not left of episode {clip.episode}."
                if begin < end
                else f"Nothing would be left of episode {clip.episode}: {begin} to {end}.",
                hint=f"it has frames {clip.start} to {clip.stop - 1}",
                dataset=reader.root,
            )
        return replace(clip, start=begin, stop=end)

    def trim_idle(
        self,
        key: str | None = None,
        *,
        threshold: float = 0.02,
        margin: float = 0.5,
    ) -> Cut:
        """Trim both ends of every episode in which nothing moves.

        What ``demoreel.check`` calls ``idle-head`` and ``idle-tail`` is trimmed.

        Cost: reads one or two columns of every episode.

        Args:
            key: The feature that moves: a vector of numbers; None is ``observation.state`` and
                ``action``, as far as there are such: nothing moves where neither does.
            threshold: How far a dimension may be from where the episode begins, or ends, and rest:
                as a share of the range that it has in the episode.
            margin: Seconds that are kept on both sides of the movement.

        Raises:
            ArgumentError: The feature is not a column of numbers.
        """
        readers = [open_source(source) for source in self.cutlist.sources]
        moving = partial(choose.moving_part, key=key, threshold=threshold, margin=margin)
        return self._with_clips(tuple(moving(clip, readers[clip.source]) for clip in self.clips))

    def retask(self, tasks: str | Mapping[str, str] | Mapping[int, str]) -> Cut:
        """Give tasks other texts.

        Args:
            tasks: One text for everything; or new texts by the old ones; or texts by episode.

        Raises:
            ArgumentError: There is no such task or episode, or a text is empty.
        """
        texts = [tasks] if isinstance(tasks, str) else list(tasks.values())
        if not texts or not all(isinstance(text, str) and text.strip() for text in texts):
            raise ArgumentError("A task needs a text.")
        if isinstance(tasks, str):
            return self._with_clips(tuple(replace(clip, task=tasks) for clip in self.clips))
        if all(isinstance(key, str) for key in tasks):
            return self._with_texts({str(old): new for old, new in tasks.items()})
        own = {self._one_name(key): text for key, text in tasks.items() if not isinstance(key, str)}
        if len(own) != len(tasks):
            raise ArgumentError("Tasks are named by text or by episode, not some of each.")
        self._refuse_unknown(list(own))
        clips = (replace(c, task=own.get((c.source, c.episode), c.task)) for c in self.clips)
        return self._with_clips(tuple(clips))

    def label(
        self,
        episodes: EpisodeName | Iterable[EpisodeName],
        *,
        success: bool | None = None,
        score: int | None = None,
        flag: Flag | None = None,
        persistent: Sequence[LanguageRow] | None = None,
        events: Sequence[LanguageRow] | None = None,
    ) -> Cut:
        """Say something of episodes; what is None stays as it is.

        Success becomes the column ``next.success``, true at the last frame (of an episode that is
        split, that of its last part); language the columns ``language_persistent`` and
        ``language_events``; scores and flags the score file ``scores/labels.parquet``.

        Args:
            episodes: Which ones.
            success: Whether the task was done.
            score: 1 to 5.
            flag: Good or bad.
            persistent: All rows of language that hold from their frame on, in place of those that
                are there. Frames are those of the source's episode.
            events: All that is said at one frame, in place of what is there.

        Raises:
            ArgumentError: An episode is not in the cut, or a value is none of these.
        """
        named = self._named(episodes)
        rows = {
            name: None if given is None else tuple(given)
            for name, given in (("persistent", persistent), ("events", events))
        }
        said = Labels(success, score, flag, **rows)
        try:
            Labels.from_json(said.to_json())
        except (TypeError, ValueError) as error:
            raise ArgumentError(f"The labels make no sense ({error}).") from error
        last = {(clip.source, clip.episode): number for number, clip in enumerate(self.clips)}
        clips = []
        for number, clip in enumerate(self.clips):
            name = clip.source, clip.episode
            if name in named:
                done = said.success if last[name] == number or not said.success else None
                clip = replace(clip, labels=replace(said, success=done).over(clip.labels))
            clips.append(clip)
        return self._with_clips(tuple(clips))

    def annotate(self, path: PathLike | None = None) -> Cut:
        """Take language from an annotation tool's file into the columns of language.

        Cost: reads the file, and the times of the episodes that it refers to.

        Args:
            path: The file; None is the dataset's own ``meta/lerobot_annotations.json``.

        Raises:
            ArgumentError: The cut has several sources, the file is of another form, or it refers to
                episodes that the dataset does not have.
            DatasetNotFoundError: There is no such file.
        """
        from demoreel.edit.annotations import ANNOTATIONS, read_annotations

        if len(self.cutlist.sources) > 1:
            raise ArgumentError("Annotations are of one dataset.", hint="annotate before merging")
        reader = open_source(self.cutlist.sources[0])
        file = reader.meta / ANNOTATIONS if path is None else Path(path)
        said = read_annotations(read_json(file), reader, where=file)
        made, there = self, {clip.episode for clip in self.clips}
        for episode, labels in said.items():
            if episode in there:
                made = made.label(episode, persistent=labels.persistent, events=labels.events)
        return made

    def _with_texts(self, changes: Mapping[str, str]) -> Cut:
        known = set()
        for source in self.cutlist.sources:
            known |= {source.tasks.get(t, t) for t in open_source(source).tasks.values()}
        known |= {clip.task for clip in self.clips if clip.task is not None}
        for old in changes:
            if old not in known:
                raise ArgumentError(f"There is no task {old!r}.", hint=nearest(old, known))

        def changed(source: Source) -> Source:
            now = {t: source.tasks.get(t, t) for t in open_source(source).tasks.values()}
            new = {old: changes.get(text, text) for old, text in now.items()}
            return replace(source, tasks={old: text for old, text in new.items() if text != old})

        clips = (
            clip if clip.task is None else replace(clip, task=changes.get(clip.task, clip.task))
            for clip in self.clips
        )
        return Cut(replace(self._with_sources(changed).cutlist, clips=tuple(clips)))

    def remove(self, *features: str) -> Cut:
        """Leave features out: columns or cameras.

        Args:
            *features: Their names in the sources.

        Raises:
            UnknownKeyError: There is no such feature.
            ArgumentError: Every dataset has it (``timestamp``, ``index`` and the like).
        """
        return self._with_sources(lambda source: without(source, features))

    def rename(self, features: Mapping[str, str]) -> Cut:
        """Give features other names.

        Args:
            features: The new names by the old ones.

        Raises:
            UnknownKeyError: There is no such feature.
            ArgumentError: Two features would have one name.
        """
        return self._with_sources(lambda source: renamed(source, features))

    def add(
        self,
        feature: str,
        values: np.ndarray | PathLike,
        *,
        names: Any = None,
    ) -> Cut:
        """Add a column of numbers.

        Args:
            feature: Its name.
            values: One row for each frame of the source (not of the cut), as an array or a
                ``.npy`` file; only a file can be part of a cut list that is saved.
            names: Names of its dimensions.

        Raises:
            ArgumentError: There are more or fewer rows, the name is taken, or the cut has several
                sources; add before merging.
        """
        if len(self.cutlist.sources) > 1:
            raise ArgumentError("A feature is added to one dataset.", hint="add before merging")
        path = os.path.abspath(values) if isinstance(values, (str, os.PathLike)) else kept(values)
        from demoreel.edit.sources import added_values

        array = added_values(path)
        added = Added(path, array.dtype.name, array.shape[1:] or (1,), names)
        return self._with_sources(
            lambda source: replace(source, add={**source.add, feature: added})
        )

    def merge(self, *others: Cut | PathLike | Dataset, features: Together | None = None) -> Cut:
        """Put other datasets' episodes behind these.

        Args:
            *others: Datasets, or cuts of them.
            features: What to do with features that only some have: ``strict`` refuses, ``common``
                leaves them out, ``union`` fills them and adds a ``KEY_is_missing`` mask.

        Raises:
            ArgumentError: ``features`` is none of these. Whether datasets fit shows when planning.
        """
        if features is not None and features not in TOGETHER:
            raise ArgumentError(f"features must be one of {', '.join(TOGETHER)}, not {features!r}.")
        joined = self.cutlist
        for other in others:
            joined = joined.followed_by((other if isinstance(other, Cut) else cut(other)).cutlist)
        return Cut(replace(joined, features=features or joined.features))

    def split(
        self,
        parts: Mapping[str, choose.Part] | None = None,
        *,
        by: Literal["task"] | None = None,
        seed: int | None = None,
    ) -> dict[str, Cut]:
        """Split into parts, by name.

        Args:
            parts: A share of the episodes each (0.8, 0.2), or which of this cut's episodes,
                counted from 0 (``range(0, 80)``).
            by: ``task`` makes one part of each task.
            seed: Shuffles before shares are taken.

        Raises:
            ArgumentError: Parts overlap, or one is empty.
        """
        if (parts is None) == (by is None):
            raise ArgumentError("split needs parts, or by='task'.")
        if by is not None:
            if by != "task":
                raise ArgumentError(f"by must be 'task', not {by!r}.")
            chosen = choose.by_task(self.cutlist)
        else:
            chosen = choose.parted(self.clips, parts or {}, seed=seed)
        return {name: self._with_clips(clips) for name, clips in chosen.items()}

    def plan(self, **form: Unpack[FormOptions]) -> Plan:
        """Return what would be written, file by file; see ``edit.plan.make_plan``.

        Args:
            **form: As for ``render``: ``layout``, sizes of files, ``exact``, ``fps``, ``vcodec``
                and the like.
        """
        return make_plan(self.cutlist, form=Form(**form))

    def render(
        self,
        target: PathLike,
        *,
        jobs: int = 1,
        engine: Engine | None = None,
        shard: tuple[int, int] | None = None,
        verify: Verify | bool = True,
        overwrite: bool = False,
        storage_options: Mapping[str, Any] | None = None,
        report: Callable[[float], None] | None = None,
        **form: Unpack[FormOptions],
    ) -> Rendered:
        """Write the dataset.

        Cost: one copy of the clips' bytes; no image is decoded, none is encoded, unless ``exact``
        or a codec asks for it. The sources stay as they are, and the target is absent until it is
        whole. After a kill, Ctrl-C or a full disk, the same call continues from the files that were
        finished.

        Remote sources are fetched first: the files that clips are in, into a folder
        beside the user's cache (``DEMOREEL_STAGING``), which is removed again. A remote target is
        made there, too, and then sent, ``meta/info.json`` last: there is no dataset before.

        Args:
            target: The folder to make; or ``s3://bucket/path``, ``gs://`` or ``az://``.
            jobs: Processes to use.
            engine: Another engine to run the tasks on, instead of ``jobs`` processes.
            shard: ``(number, of)``: do only this part, counted from 0; the others may run at the
                same time on machines that see the same disk. ``commit`` comes after the last.
            verify: Compare the first and last frame of every clip (True, ``ends``), every frame
                (``full``) or nothing (False, ``none``) with the sources before the target appears.
            overwrite: Of a remote target: replace the dataset that is there.
            storage_options: Of such a target: as for ``demoreel.open``.
            report: Called with the share of bytes that are written.
            **form: Options of the result. ``layout`` (a video of v2.1 contains only the frames of
                one episode, so clips that begin or end inside a GOP are an error there unless
                ``exact`` is set);
                ``data_files_size_in_mb``, ``video_files_size_in_mb`` (sizes at which a new file is
                begun; the source's by default) and ``chunks_size`` (files in a chunk folder);
                ``exact`` (clips carry no packets but their own: the frames before a clip's first
                keyframe are encoded); ``fps`` (another frame rate); ``vcodec`` with ``crf``,
                ``gop``, ``preset``, ``pix_fmt``, ``b_frames`` and ``encoder_options`` (encode all
                ``cameras``, or those named);
                ``images="video"`` (make videos of images in tables); ``recompute_stats``
                (decode images whose statistics would be approximate); ``drop_audio`` (leave the
                audio of videos out, which is copied otherwise). See ``edit.form.Form``.

        Returns:
            What was written; its ``dropped`` says what the sources hold and the result does not.

        Raises:
            ArgumentError: Something makes no sense, a link leads out of a source, or audio cannot
                be copied and is not to be dropped; nothing was written.
            TargetExistsError: There is something at the target.
            DiskFullError: There is no room.
            VideoError: A source's video is missing or broken.
            ConversionError: The result is not what the sources hold; it was not kept.
            StoreError: A store does not answer; the same call continues from there.
        """
        from demoreel.edit.render import Shard, render_cut

        return render_cut(
            self.cutlist,
            target,
            form=Form(**form),
            engine=engine or LocalEngine(jobs),
            shard=None if shard is None else Shard(*shard),
            verification=_verification(verify),
            overwrite=overwrite,
            storage_options=storage_options,
            report=report,
        )

    def render_in_place(self, *, verify: Verify | bool = True) -> Rendered:
        """Make this cut a new version of the Lance dataset that it is a cut of.

        Cost: writes rows and metadata; no video byte is written. Killed at any instant, the dataset
        is what it was, or what it is to be. ``demoreel.versions`` lists what it was before,
        ``demoreel.checkout`` goes back.

        Args:
            verify: As for ``render``.

        Raises:
            ArgumentError: The cut has several sources, is not of a Lance dataset, or needs videos
                or images to be written; nothing changed.
            DatasetBusyError: Another process records to the dataset, or edits it.
            DiskFullError: There is no room; nothing changed.
            ConversionError: The result is not what the dataset held; nothing changed.
        """
        from demoreel.edit.in_place.run import render_in_place

        places = [source.path for source in self.cutlist.sources]
        refuse_remote(places, "An edit in place needs the dataset on this machine.")
        return render_in_place(self.cutlist, verification=_verification(verify))

    def save(self, path: PathLike) -> None:
        """Write the cut list as JSON, for ``load`` and ``demoreel cut apply``.

        Args:
            path: The file; one that exists is replaced.

        Raises:
            ArgumentError: It has features that were added from memory.
        """
        added = [a.values for source in self.cutlist.sources for a in source.add.values()]
        if any(is_kept(values) for values in added):
            raise ArgumentError(
                "A feature was added from memory, which a file cannot hold.",
                hint="save its values with numpy.save and add that file",
            )
        write_file(path, _readable(self.cutlist).encode())

    def _with_clips(self, clips: tuple[Clip, ...]) -> Cut:
        return Cut(replace(self.cutlist, clips=clips))

    def _with_sources(self, change: Callable[[Source], Source]) -> Cut:
        """Change every source, and see at once whether that makes sense."""
        sources = tuple(change(source) for source in self.cutlist.sources)
        for source in sources:
            view_of(_reader(source), source)
        return Cut(replace(self.cutlist, sources=sources))

    def _named(self, episodes: EpisodeName | Iterable[EpisodeName]) -> set[tuple[int, int]]:
        names = self._names(episodes)
        self._refuse_unknown(names)
        return set(names)

    def _names(self, episodes: EpisodeName | Iterable[EpisodeName]) -> list[tuple[int, int]]:
        if isinstance(episodes, int) or _is_pair(episodes):
            episodes = [episodes]
        names = [self._one_name(episode) for episode in episodes]
        if not names:
            raise ArgumentError("No episode is named.")
        return names

    def _one_name(self, episode: object) -> tuple[int, int]:
        if _is_pair(episode):
            return int(episode[0]), int(episode[1])
        if not isinstance(episode, (int, np.integer)) or isinstance(episode, bool):
            raise ArgumentError(f"An episode is a number, not {episode!r}.")
        if len(self.cutlist.sources) > 1:
            raise ArgumentError(
                f"Which source's episode {episode}?", hint=f"say (source, episode): (0, {episode})"
            )
        return 0, int(episode)

    def _refuse_unknown(self, names: Iterable[tuple[int, int]]) -> None:
        known = {(clip.source, clip.episode) for clip in self.clips}
        for source, episode in names:
            if (source, episode) not in known:
                of = "" if len(self.cutlist.sources) == 1 else f" of source {source}"
                numbers = [clip.episode for clip in self.clips if clip.source == source]
                span = f"episodes run from {min(numbers)} to {max(numbers)}" if numbers else None
                raise ArgumentError(f"There is no episode {episode}{of} in the cut.", hint=span)


def _readable(cutlist: CutList) -> str:
    """Return a cut list as JSON, a clip a line."""
    raw = cutlist.to_json()
    clips = ",\n  ".join(json.dumps(clip, ensure_ascii=False) for clip in raw.pop("clips"))
    head = json.dumps(raw, indent=1, ensure_ascii=False).removesuffix("\n}")
    return f'{head},\n "clips": [\n  {clips}\n ]\n}}\n'


def _reader(source: Source) -> Reader:
    return open_source(source)


def _is_pair(episode: object) -> TypeGuard[tuple[int, int]]:
    return isinstance(episode, tuple) and len(episode) == 2


def _frame(value: int | float, fps: float, what: str) -> int:
    """Return a frame number: integers are frames, floats are seconds."""
    if isinstance(value, bool) or not isinstance(value, (int, float, np.integer, np.floating)):
        raise ArgumentError(f"{what} is frames or seconds, not {value!r}.")
    if not np.isfinite(value) or value < 0:
        raise ArgumentError(f"{what} must not be negative: {value}.")
    return int(value) if isinstance(value, (int, np.integer)) else round(float(value) * fps)


def _verification(verify: Verify | bool) -> Verify:
    if isinstance(verify, bool):
        return "ends" if verify else "none"
    if verify not in ("ends", "full", "none"):
        raise ArgumentError(f"verify must be 'ends', 'full' or 'none', not {verify!r}.")
    return verify
