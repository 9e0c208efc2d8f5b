"""One dataset on its way from evidence to a repaired one."""

from __future__ import annotations

import re
import shutil
from collections import Counter
from collections.abc import Callable, Collection, Mapping
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np

from demoreel.check.look import Look
from demoreel.check.report import Report
from demoreel.check.run import check
from demoreel.check.thresholds import chosen
from demoreel.edit.cut import cut
from demoreel.edit.form import LAYOUTS, Layout
from demoreel.errors import ArgumentError, PictureError, RepairError, VideoError
from demoreel.layouts.beside import NOTE, noted, write_note
from demoreel.layouts.detect import open_reader
from demoreel.layouts.persisted_files import persisted_folders
from demoreel.layouts.v3.reader import UNUSED_FRAMES, V3Reader
from demoreel.layouts.writing import write_json
from demoreel.media.video import open_video
from demoreel.model import Feature, Info
from demoreel.model.info import DATA_PATHS, VIDEO_PATHS
from demoreel.model.stats import MERGED, QUANTILES
from demoreel.repair.decide import Decision, decide
from demoreel.repair.features import settled_features
from demoreel.repair.lance import extract
from demoreel.repair.refuse import (
    absent_files,
    refuse_absent_cameras,
    refuse_losses,
    refuse_nothing,
    refuse_pointers,
)
from demoreel.repair.report import Changes, Lost, Repaired, note_differences
from demoreel.repair.tables import (
    FoundTable,
    are_regular,
    find_tables,
    is_table,
    number_by_name,
    rate_of_rows,
    rounded,
)
from demoreel.repair.values import find_texts, said_of_episodes
from demoreel.repair.videos import (
    Place,
    RepairVideos,
    find_videos,
    has_audio,
    named_videos,
)
from demoreel.repair.writing import RepairedFiles, RepairSource, write_repaired
from demoreel.stats.inherited import readable_extra, readable_frame_stats
from demoreel.stats.recompute import recompute
from demoreel.storage.commit.files import put_in_place, sync_tree
from demoreel.storage.folder import OWN_FOLDERS, copy_inside
from demoreel.storage.local import let_go_of
from demoreel.storage.remote.fetch import part_of

_TABLES, _STATS, _RENDERED = 0.3, 0.6, 0.8  # of writing: what is done then
_SAME_RATE = 0.01
_NOT_DECODED = ("picture-undecodable", "video-decodes-short", "picture-size")
_SETTINGS = ("chunks_size", "data_files_size_in_mb", "video_files_size_in_mb")
_NOT_INHERITED = ("total_videos", "total_chunks", "storage_format")


class Work:
    """The repair of one dataset: everything is looked at, and decided, when it is made.

    Args:
        root: The dataset's folder.
        scratch: An empty folder for what does not last.
        before: What ``check`` says of the dataset.
        drop_audio: Whether the audio of videos is left out.
        drop_cameras: Cameras that are left out.
        drop_episodes: Whether episodes that cannot be kept may be left out.
    """

    def __init__(
        self,
        root: Path,
        scratch: Path,
        before: Report,
        *,
        drop_audio: bool,
        drop_cameras: Collection[str],
        drop_episodes: bool,
    ) -> None:
        self._root = root
        self._scratch = scratch
        self._before = before
        self._drop_audio = drop_audio
        self._drop_cameras = drop_cameras
        self._drop_episodes = drop_episodes
        self._changes = Changes()
        self._dropped: list[str] = []
        self._unreadable: list[tuple[str, str]] = []
        self._look = Look(root, chosen(None))
        refuse_pointers(root, self._look.files)
        for name in ("tables", "videos", "lance"):
            (scratch / name).mkdir()
        self._find()
        self.decision = self._decide()

    def _find(self) -> None:
        info = self._look.info
        declared: Mapping[str, Feature] = {} if info is None else info.features
        self._at, files = self._root, self._look.files
        if self._look.is_lance:
            found = extract(self._look, self._scratch / "lance")
            self._at, files, declared = found.root, found.files, found.features
            self._unreadable += found.lost
        self._is_v2 = self._has_files_of_v2(files)
        cameras = {key for key, feature in declared.items() if feature.is_camera}
        named = named_videos(files, cameras, is_v2=self._is_v2)
        cameras |= {camera for camera, _ in named.values()}
        undeclared = sorted(cameras - declared.keys())
        if undeclared and info is not None and not self._look.is_lance:
            self._look = Look(self._root, chosen(None), also=undeclared)
        self._refuse_unknown(cameras)
        cameras -= set(self._drop_cameras)
        self._tables = find_tables(
            self._at,
            files,
            declared,
            self._scratch / "tables",
            self._changes,
            is_v2=self._is_v2,
        )
        if self._is_v2:
            self._tables.tables = self._by_name()
        self._videos, self._fps = find_videos(
            self._at,
            files,
            cameras,
            self._scratch / "videos",
            self._changes,
            is_v2=self._is_v2,
            fps=self._rate,
        )
        self._absent = absent_files(self._look, self._drop_cameras, is_v2=self._is_v2)
        settled = settled_features(
            declared,
            self._tables.tables,
            self._videos,
            self._changes,
            fps=self._fps,
            left_out=self._drop_cameras,
            is_v2=self._is_v2,
        )
        self._features, self._lacking = settled.features, settled.absent
        if info is None:  # what else the metadata say is read by what the tables and videos hold
            version = "v2.1" if self._is_v2 else "v3.0"
            assumed = Info.new(version=version, fps=self._fps, features=self._features)
            self._look = Look(self._root, chosen(None), assumed=assumed)
        self._columns_lost = tuple(settled.dropped)
        self._dropped += [f"the column {key}: {why}" for key, why in settled.dropped.items()]
        self._undeclared = {c for c in self._videos.of if declared and c not in declared}
        self._videos.of = {c: v for c, v in self._videos.of.items() if c in self._features}

    def _has_files_of_v2(self, files: Mapping[str, int]) -> bool:
        """Whether tables are episodes: as ``info.json`` says, unless all tables say otherwise."""
        if self._look.is_lance:
            return False
        of_v2, of_v3 = (
            any(is_table(name, is_v2=is_v2) for name in files) for is_v2 in (True, False)
        )
        said = self._look.is_v2 if self._look.info is not None else of_v2
        return of_v2 if of_v2 != of_v3 else said

    def _refuse_unknown(self, cameras: Collection[str]) -> None:
        for name in self._drop_cameras:
            if name not in cameras:
                raise ArgumentError(
                    f"There is no camera {name!r} to leave out.",
                    hint=f"its cameras are {', '.join(sorted(cameras)) or 'none'}",
                    dataset=self._root,
                )

    def _by_name(self) -> list[FoundTable]:
        listed, info = self._look.episodes, self._look.info
        numbers = () if listed is None else listed.index.tolist()
        size = 1000 if info is None else info.chunks_size
        return number_by_name(self._tables.tables, numbers, size)

    def _rate(self, videos: RepairVideos) -> float:
        """Return the frame rate: what ``info.json`` says, unless rows or videos contradict it.

        Times of rows that were measured vary around the rate; only times that count frames, or
        that the videos share, are another one.
        """
        said = self._said_rate()
        rate = rate_of_rows(self._tables.tables)
        every = [v.rate for found in videos.of.values() for v in found.values() if v.rate]
        film = float(np.median(every)) if every else None
        is_even = rate is not None and are_regular(self._tables.tables, rate)
        if said is not None and (
            rate is None
            or _is_near(rate, said)
            or (film is not None and _is_near(film, said))
            or not (is_even or (film is not None and _is_near(film, rate)))
        ):
            return said
        if film is not None and (rate is None or not (is_even or _is_near(film, rate))):
            rate = rounded(film)
            self._changes.add(f"info.json: fps is {rate:g}, by the videos' clocks")
            return rate
        if rate is None:
            raise RepairError(
                "Nothing says how many frames there are in a second.",
                hint="write the right fps into meta/info.json, and try again",
                dataset=self._root,
            )
        self._changes.add(f"info.json: fps is {rate:g}, by the rows' time")
        return rate

    def _said_rate(self) -> float | None:
        info, raw = self._look.info, self._look.raw
        is_said = info is not None and raw is not None and raw.get("fps") == info.fps
        return info.fps if info is not None and is_said else None

    def _decide(self) -> Decision:
        decision = self._decided()
        odd = {
            c
            for c in self._undeclared & set(self._videos.of)
            for one in decision.lost
            if c in one.why
        }
        if odd:  # no camera of the dataset: it is no reason to lose an episode
            self._dropped += [
                f"the videos of {c}, which info.json does not declare" for c in sorted(odd)
            ]
            self._videos.of = {c: v for c, v in self._videos.of.items() if c not in odd}
            self._features = {k: f for k, f in self._features.items() if k not in odd}
            decision = self._decided()
        for camera in sorted(self._undeclared & set(self._videos.of)):
            self._changes.add("declared in info.json now", camera)
        self._changes.extend(decision.changes)
        decision.changes = self._changes
        self._note_moved()
        return decision

    def _decided(self) -> Decision:
        return decide(
            self._tables.tables,
            self._tables.runs(self._fps, self._lengths()),
            self._look.episodes,
            self._videos,
            Changes(),
            fps=self._fps,
            is_v2=self._is_v2,
            undecodable=self._undecodable(),
            knows_all=self._knows_all(),
        )

    def _lengths(self) -> dict[int, set[int]]:
        """Return how many rows episodes may have: as listed, or, of v2, as its videos have."""
        listed = self._look.episodes
        found: dict[int, set[int]] = {}
        if listed is not None:
            found = {
                n: {k} for n, k in zip(listed.index.tolist(), listed.length.tolist(), strict=True)
            }
        if not self._is_v2:
            return found
        for table in self._tables.tables:
            if not table.rows:
                continue
            number, place = int(table.numbers["episode_index"][0]), (table.chunk, table.number)
            places = {c: self._videos.episode_place(c, place) for c in self._videos.of}
            frames = {self._videos.of[c][p].frames for c, p in places.items() if p is not None}
            if len(frames) == 1:
                found.setdefault(number, set()).update(frames)
        return found

    def _knows_all(self) -> bool:
        """Whether the metadata list all episodes: they are whole, and count no more than that."""
        listed, raw = self._look.episodes, self._look.raw or {}
        if self._is_v2 or self._tables.rescued:  # files of v2 may have been added
            return False
        if listed is None or not len(listed) or not listed.is_whole:
            return False
        return bool(raw.get("total_episodes") == len(listed))

    def _undecodable(self) -> dict[int, str]:
        """Return the episodes of which a look at every image has found some that are none."""
        found: dict[int, str] = {}
        for finding in self._before.findings:
            if finding.code in _NOT_DECODED and finding.where.episode is not None:
                found.setdefault(finding.where.episode, finding.what)
        return found

    def _note_moved(self) -> None:
        """Note the files that are not where the metadata say."""
        if self._look.is_lance:
            return
        info, family = self._look.info, "v2" if self._is_v2 else "v3"
        at = DATA_PATHS[family], VIDEO_PATHS[family]
        if info is not None and info.version[:2] == family:
            at = info.data_path.text, info.video_path.text if info.video_path else at[1]
        patterns = [re.sub(r"\\\{.*?\}", "[^/]+", re.escape(template)) for template in at]
        names = [table.name for table in self._tables.tables]
        films = [v.name for found in self._videos.of.values() for v in found.values()]
        for pattern, own in zip(patterns, (names, films), strict=True):
            for name in own:
                if not re.fullmatch(pattern, name):
                    self._changes.add("moved to where info.json says it is", name)

    @property
    def _layout(self) -> Layout:
        """The layout of the result: the source's, if cuts are written in it."""
        if self._is_v2:
            return "v2.1"
        return next((one for one in LAYOUTS if one == self._look.layout), "v3.0")

    def look_only(self) -> Repaired:
        """Say what would be done."""
        written = self._written(self._known(), None, link=True)
        return self._report(None, written)

    def write(
        self, target: Path, *, picture_stats: bool, report: Callable[[float], None] | None
    ) -> Repaired:
        """Write the repaired dataset to its target, and check it.

        Args:
            target: The folder to make.
            picture_stats: Whether to decode the images of cameras whose statistics are lost.
            report: Called with the share that is done.
        """
        if not self.decision.kept:
            refuse_nothing(self._root, self.decision.lost, self._absent)
        refuse_absent_cameras(self._root, self._lacking, self._absent, self._videos.lost)
        self._refuse(self.decision.lost, len(self.decision.kept))
        folder, layout = self._scratch / "repaired", self._layout
        uneven = self._off_the_clock()
        for name in uneven:
            self._changes.add(f"retimed: one frame every 1/{self._fps:g} s, packets copied", name)
        as_is = layout == "v3.0" and not self._drop_audio and not uneven
        as_is = as_is and not self.decision.lost and self._uses_all_frames()
        new = self._known()
        written = self._written(new, folder, link=not as_is, report=part_of(report, 0.0, _TABLES))
        as_is = as_is and not self.decision.lost
        _state_unused_frames(folder)
        own = () if as_is else written.episodes
        if picture_stats and not new.knows_images(own, written.frames):
            self._take_image_stats(folder, part_of(report, _TABLES, _STATS))
        made = folder
        if not as_is:
            # Not to the target itself: a killed repair does not go on, and is to leave one folder.
            made = self._scratch / "rendered"
            chunks: Any = {"chunks_size": new.info.chunks_size} if self._is_v2 else {}
            done = cut(folder).render(
                made,
                layout=layout,
                verify="full",
                drop_audio=self._drop_audio,
                report=part_of(report, _STATS, _RENDERED),
                **chunks,
            )
            self._dropped += done.dropped
            written.copied = 0
            let_go_of(folder)
            let_go_of(made)
        self._carry_beside(made)
        sync_tree(made)
        target.parent.mkdir(parents=True, exist_ok=True)
        put_in_place(made, target)
        return self._report(target, written, part_of(report, _RENDERED, 1.0))

    def _written(
        self,
        new: RepairSource,
        folder: Path | None,
        *,
        link: bool,
        report: Callable[[float], None] | None = None,
    ) -> RepairedFiles:
        """Write the episodes that can be kept; those whose values cannot be are known only then."""
        while True:
            if folder is not None:
                folder.mkdir()
            trial = replace(self.decision, changes=Changes())
            written = write_repaired(new, trial, folder, link=link, report=report)
            if not written.lost:
                self._changes.extend(trial.changes)
                return written
            gone = {one.episode for one in written.lost}
            self.decision.lost += written.lost
            self.decision.kept = [k for k in self.decision.kept if k.episode not in gone]
            if folder is not None:
                self._refuse(self.decision.lost, len(self.decision.kept))
                shutil.rmtree(folder)

    def _refuse(self, lost: list[Lost], kept: int) -> None:
        """Refuse to lose episodes, unless the user leaves them out."""
        if not kept:
            refuse_nothing(self._root, lost, self._absent)
        asked = self._undecodable()  # who asks to decode every image leaves those out
        unasked = [one for one in lost if one.episode not in asked]
        if unasked and not self._drop_episodes:
            refuse_losses(self._root, unasked, kept + len(lost), self._absent)

    def _uses_all_frames(self) -> bool:
        """Whether every frame of every video that is needed belongs to an episode."""
        used: Counter[tuple[str, Place]] = Counter()
        for kept in self.decision.kept:
            if kept.length < kept.run.length:
                return False
            for camera, spot in kept.spots.items():
                used[camera, spot.place] += kept.length * spot.step
        return all(
            self._videos.of[camera][place].frames == frames
            for (camera, place), frames in used.items()
        )

    def _carry_beside(self, made: Path) -> None:
        """Copy what lies beside the dataset's own folders, such as its card."""
        used = {table.name for table in self._tables.tables}
        used |= {v.name for found in self._videos.of.values() for v in found.values()}
        for name, size in self._look.files.items():
            is_beside = name.split("/")[0] not in OWN_FOLDERS and not name.startswith(".")
            if is_beside and size >= 0 and name not in used:
                (made / name).parent.mkdir(parents=True, exist_ok=True)
                copy_inside(self._root, self._root / name, made / name)

    def _off_the_clock(self) -> list[str]:
        """Return the videos that are needed and do not run at the dataset's rate, or unevenly."""
        used = {
            (camera, spot.place): spot.step
            for kept in self.decision.kept
            for camera, spot in kept.spots.items()
        }
        found = []
        for (camera, place), step in used.items():
            video = self._videos.of[camera][place]
            if video.runs_at(self._fps * step):
                continue
            if self._is_v2 or not has_audio(video.path):  # audio stays where its frames are
                found.append(video.name)
        return found

    def _take_image_stats(self, folder: Path, report: Callable[[float], None] | None) -> None:
        meta = folder / "meta"
        if noted(meta) is None:  # those of numbers are exact, which else would not be known
            stats = meta / "stats.json"
            cameras = (key for key, feature in self._features.items() if feature.is_camera)
            kinds = (*MERGED, *QUANTILES)
            write_note(meta / NOTE, dict.fromkeys(cameras, kinds), stats=stats)
        try:
            recompute(folder, numbers=False, pictures="missing", report=report)
            self._changes.add("stats.json: the statistics of images were recomputed")
        except (VideoError, PictureError) as error:
            self._changes.add(f"the statistics of images are missing: {error.what}")

    def _known(self) -> RepairSource:
        info = self._look.info
        extra = (
            {} if info is None else {k: v for k, v in info.extra.items() if k not in _NOT_INHERITED}
        )
        new = Info.new(
            version="v3.0",
            fps=self._fps,
            features=self._features,
            robot_type=None if info is None else info.robot_type,
            splits={} if info is None else info.splits,
            extra=extra,
            **({} if info is None else {name: getattr(info, name) for name in _SETTINGS}),
        )
        meta = self._root / "meta"
        texts = {**self._texts_of_episodes(), **find_texts(meta, self._look.tasks)}
        is_v2 = self._look.is_v2 if info is not None else self._is_v2
        return RepairSource(
            root=self._at,
            info=new,
            tables=self._tables.tables,
            videos=self._videos,
            tasks=texts,
            picture_stats=readable_frame_stats(meta, new.cameras, is_v2=is_v2),
            stats=self._look.stats,
            meta=meta,
            others=readable_extra(meta, is_v2=is_v2),
            is_v2=self._is_v2,
            said=self._said_tasks(),
            counted=(self._look.raw or {}).get("total_episodes"),
        )

    def _said_tasks(self) -> Mapping[int, list[str]]:
        listed = self._look.episodes
        return {} if listed is None else said_of_episodes(listed.tasks, listed.index)

    def _texts_of_episodes(self) -> dict[int, str]:
        """Return the texts of tasks that episodes of one task tell."""
        texts: dict[int, str] = {}
        said = self._said_tasks()
        for kept in self.decision.kept:
            numbers = self._tables.tables[kept.run.table].numbers.get("task_index")
            own = said.get(kept.episode) or []
            if numbers is None or len(own) != 1:
                continue
            used = set(numbers[kept.run.first : kept.run.first + kept.run.length].tolist())
            if len(used) == 1:
                texts.setdefault(used.pop(), own[0])
        return texts

    def _report(
        self,
        target: Path | None,
        written: RepairedFiles,
        report: Callable[[float], None] | None = None,
    ) -> Repaired:
        """Say what was done, and look at the result."""
        after = None if target is None else check(target, deep=self._before.deep, report=report)
        if target is not None and after is not None:
            is_less = bool(self.decision.lost or self._drop_cameras)
            note_differences(
                self._look, target, self._before, after, self._changes, is_less=is_less
            )
        lost = sorted(self.decision.lost, key=lambda one: one.episode)
        waiting = [(str(f), "a saved episode waits there") for f in persisted_folders(self._root)]
        unreadable = Changes()
        for name, why in (*self._unreadable, *self._tables.lost, *self._videos.lost, *waiting):
            unreadable.add(why, name)
        return Repaired(
            source=self._root,
            target=target,
            episodes=len(written.episodes),
            frames=written.frames,
            changes=self._changes.sentences(),
            lost=tuple(lost),
            unreadable=unreadable.sentences(),
            copied=written.copied,
            before=self._before,
            after=after,
            dropped=tuple(dict.fromkeys([*self._dropped, *written.dropped])),
            absent=tuple(self._absent) if lost or self._lacking else (),
            cameras_lost=(*self._drop_cameras, *self._lacking),
            columns_lost=self._columns_lost,
            frames_lost=self.decision.cut.sentences(),
        )


def _is_near(rate: float, other: float) -> bool:
    return abs(rate / other - 1) < _SAME_RATE


def _state_unused_frames(folder: Path) -> None:
    """Say which frames of videos no episode has that is kept: they are cut away later."""
    reader = open_reader(folder)
    assert isinstance(reader, V3Reader)
    videos: dict[str, tuple[int, str]] = {}
    for camera in reader.info.video_keys:
        for position in range(len(reader.episodes)):
            videos.setdefault(reader.video_file(position, camera), (position, camera))
    unused = {
        name: reader.unused_frames(*place, open_video(folder / name))
        for name, place in videos.items()
    }
    if any(unused.values()):
        write_json(folder / "meta" / UNUSED_FRAMES, unused)
