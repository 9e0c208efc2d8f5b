"""``demoreel.repair``: look, decide, write, check."""

from __future__ import annotations

import os
from collections import Counter
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from dataclasses import replace
from pathlib import Path
from typing import Any

from demoreel.check.look import Look
from demoreel.check.report import Report
from demoreel.check.run import check
from demoreel.check.thresholds import chosen
from demoreel.edit.cut import cut
from demoreel.edit.stated import files_beside
from demoreel.edit.target_info import LAYOUTS, Layout
from demoreel.errors import (
    ArgumentError,
    DatasetNotFoundError,
    DemoreelError,
    DiskFullError,
    PictureError,
    RepairError,
    VideoError,
)
from demoreel.layouts.detect import open_reader
from demoreel.layouts.pending import refuse_waiting
from demoreel.layouts.persisted_files import persisted_folders
from demoreel.layouts.v3.reader import UNUSED_FRAMES, V3Reader
from demoreel.layouts.v3.resume import read_book
from demoreel.layouts.writing import write_json
from demoreel.media.video import open_video
from demoreel.model import Feature, Info
from demoreel.repair.decide import Decision, Lost, decide
from demoreel.repair.features import settled_features
from demoreel.repair.lance import extract
from demoreel.repair.report import Repaired
from demoreel.repair.tables import find_tables, rate_of_rows
from demoreel.repair.videos import Place, cameras_on_disk, find_videos
from demoreel.repair.writing import RepairedFiles, RepairSource, write_repaired
from demoreel.run.anywhere import made_anywhere, refuse_remote
from demoreel.stats.inherited import readable_extra, readable_frame_stats
from demoreel.stats.recompute import recompute
from demoreel.storage.commit.files import put_in_place, refuse_existing, refuse_overlap, sync_tree
from demoreel.storage.commit.hidden_folder import passing_folder
from demoreel.storage.commit.replace import place_of_old, replacing_dataset
from demoreel.storage.external import AllowExternal
from demoreel.storage.external import allow_external as allow
from demoreel.storage.links import refuse_links_out
from demoreel.storage.local import let_go_of
from demoreel.storage.no_room import says_no_room
from demoreel.storage.scratch import scratch_folder

_SAME_RATE = 0.01
_OTHERWISE = (
    "video-codec",
    "video-pix-fmt",
    "video-size",
    "camera-declared-twice",
    "audio-missing",
    "audio-undeclared",
)
_NOT_DECODED = ("picture-undecodable", "video-decodes-short", "picture-size")
_NOT_INHERITED = ("total_videos", "total_chunks", "storage_format")


def repair(
    source: str | os.PathLike[str],
    target: str | os.PathLike[str] | None = None,
    *,
    deep: bool = False,
    picture_stats: bool = True,
    drop_audio: bool = False,
    in_place: bool = False,
    dry_run: bool = False,
    storage_options: Mapping[str, Any] | None = None,
    allow_external: AllowExternal | None = None,
) -> Repaired:
    """Repair a dataset into another folder. The source is only read, unless it is to be replaced.

    Metadata are rebuilt from tables and packets where those tell the truth; finished episodes are
    recovered from tables that never got their footer; files that lie under another name than
    ``info.json`` says are found; rows and statistics are numbered and counted anew. Episodes that
    cannot be saved are left out, and named. Files in which nothing is wrong are copied as they
    are; where episodes are left out, packets are. A v2.0 dataset becomes v2.1.

    Cost: reads all tables twice and copies the videos once. Images are decoded if ``deep``, and
    where nothing says what their statistics are. A remote source is fetched first, a
    remote target is made here and then sent, ``meta/info.json`` last.

    Args:
        source: The dataset's folder, or its URI.
        target: The folder to make, or a URI; not needed for a dry run.
        deep: Decode every image first, and leave out episodes that have undecodable ones.
        picture_stats: Decode the images of cameras whose statistics are lost, to take them anew.
        drop_audio: Leave the audio of videos out; it is copied otherwise.
        in_place: Instead of ``target``: put the repaired dataset in the source's place, which is
            called ``NAME_old`` then.
        dry_run: Only say what would be done.
        storage_options: Of what is remote: as for ``demoreel.open``.
        allow_external: Folders or URIs outside the dataset that its Lance tables may point into; as
            for ``demoreel.open``.

    Returns:
        What was done, and what ``check`` says of the result.

    Raises:
        DatasetNotFoundError: There is no such folder.
        ArgumentError: There is no target, or it is the source, or lies in it; a link leads out of
            the source; or audio cannot be copied, and is not to be dropped.
        TargetExistsError: There is something at the target, or at ``NAME_old``.
        DatasetBusyError: In place, and another process records to the dataset.
        UnfinishedError: Saved episodes of the source wait to be encoded, and ``demoreel.finish``
            can do that; else they are named in the report.
        RepairError: No episode can be saved.
        DiskFullError: There is no room.
        StoreError: A store does not answer.
    """
    allow(source, allow_external)
    if in_place:
        refuse_remote(
            [source, target],
            "A remote dataset cannot be repaired in place.",
            hint="give a target, which may be a URI, too",
        )
        if target is not None:
            raise ArgumentError("A repair in place has no target.", hint="leave the target out")

    def make(folders: list[Path], place: Path | None) -> Repaired:
        (root,) = folders
        if not root.is_dir():
            raise DatasetNotFoundError(
                "There is no folder to repair.", hint="give a dataset's folder", path=root
            )
        _refuse_waiting(root)
        if in_place and not dry_run:
            return _in_place(Path(os.path.abspath(root)), deep, picture_stats, drop_audio)
        place = _checked_target(root, place, dry_run)
        return _repair(root, place, deep, picture_stats, drop_audio)

    return made_anywhere(
        [source],
        target,
        make,
        work=("repair",),
        dry_run=dry_run,
        storage_options=storage_options,
    )[0]


def _refuse_waiting(root: Path) -> None:
    """Refuse to leave saved episodes out that could be committed first.

    Where the dataset is too broken for that, they are named among what could not be read.
    """
    if not persisted_folders(root):
        return
    try:
        read_book(root)
    except (DemoreelError, OSError):
        return
    refuse_waiting(root, "repaired")


def _repair(
    root: Path, place: Path | None, deep: bool, picture_stats: bool, drop_audio: bool
) -> Repaired:
    refuse_links_out(root)
    before = check(root, deep=deep)
    with _no_room_is_said(place), _working_folder(place) as folder:
        work = _Repair(root, folder, before, drop_audio=drop_audio)
        if place is None:
            return work.report(None, work.decision.lost, (), None)
        written, lost = work.write(place, picture_stats=picture_stats)
        return work.report(place, lost, written.mended, written)


def _in_place(root: Path, deep: bool, picture_stats: bool, drop_audio: bool) -> Repaired:
    old = place_of_old(root)
    with replacing_dataset(root, old) as new:
        done = _repair(root, new, deep, picture_stats, drop_audio)
    return replace(done, source=old, target=root)


@contextmanager
def _no_room_is_said(place: Path | None) -> Iterator[None]:
    """Say what a full disk means: nothing was written."""
    try:
        yield
    except OSError as error:
        if isinstance(error, DiskFullError) or not says_no_room(error):
            raise
        raise DiskFullError(
            "There is no room for the repaired dataset.",
            hint="nothing was kept; make room, or choose a folder on another disk",
            path=place,
        ) from error


def _checked_target(
    root: Path, target: str | os.PathLike[str] | None, dry_run: bool
) -> Path | None:
    if target is None:
        if dry_run:
            return None
        raise ArgumentError("Where is the repaired dataset to go?", hint="give a target folder")
    place = Path(os.path.abspath(target))
    refuse_overlap(root, place)
    refuse_existing(place)
    return None if dry_run else place


@contextmanager
def _working_folder(place: Path | None) -> Iterator[Path]:
    """Yield a folder for what does not last: on the target's disk, where links may work.

    A killed repair leaves it; the next write beside it removes it.
    """
    if place is None:
        with scratch_folder() as folder:
            yield folder
        return
    parent = next(parent for parent in place.parents if parent.is_dir())
    with passing_folder(parent / place.name, "repair") as folder:
        yield folder


class _Repair:
    """One dataset on its way from evidence to a repaired one."""

    def __init__(self, root: Path, scratch: Path, before: Report, *, drop_audio: bool) -> None:
        self._root = root
        self._drop_audio = drop_audio
        self._dropped: list[str] = []
        self._scratch = scratch
        self._before = before
        self._look = Look(root, chosen(None))
        self._repaired: list[str] = []
        self._unreadable: list[str] = []
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
        cameras = {key for key, feature in declared.items() if feature.is_video}
        cameras |= cameras_on_disk(files)
        self._tables = find_tables(self._at, files, declared, self._scratch / "tables")
        self._fps = self._rate()
        self._videos = find_videos(self._at, files, cameras, self._fps, self._scratch / "videos")
        self._features = settled_features(
            declared,
            self._tables.tables,
            self._videos,
            self._repaired,
            doubtful={f.where.camera or "" for f in self._before.findings if f.code in _OTHERWISE},
        )
        self._videos.of = {c: v for c, v in self._videos.of.items() if c in self._features}

    def _rate(self) -> float:
        """Return the frame rate: what ``info.json`` says, unless all rows say something else."""
        info, raw = self._look.info, self._look.raw
        said = (
            info.fps
            if info is not None and raw is not None and raw.get("fps") == info.fps
            else None
        )
        rate = rate_of_rows(self._tables.tables)
        if said is not None and (rate is None or abs(rate / said - 1) < _SAME_RATE):
            return said
        if rate is None:
            raise RepairError(
                "Nothing says how many frames there are in a second.",
                hint="write the right fps into meta/info.json, and try again",
                dataset=self._root,
            )
        self._repaired.append(f"info.json: fps is {rate:g}, by the rows' time")
        return rate

    def _decide(self) -> Decision:
        return decide(
            self._tables.tables,
            self._tables.runs(self._fps),
            self._look.episodes,
            self._videos,
            fps=self._fps,
            is_v2=self._is_v2,
            undecodable=self._undecodable(),
            knows_all=self._knows_all(),
        )

    def _knows_all(self) -> bool:
        """Whether the metadata list all episodes: they are whole, and count no more than that."""
        listed, raw = self._look.episodes, self._look.raw or {}
        if listed is None or not len(listed) or not listed.is_whole or self._tables.mended:
            return False
        return bool(raw.get("total_episodes") == len(listed))

    @property
    def _is_v2(self) -> bool:
        if self._look.info is not None:
            return self._look.is_v2
        return any("/episode_" in table.name for table in self._tables.tables)

    @property
    def _layout(self) -> Layout:
        """The layout of the result: the source's, if cuts are written in it."""
        if self._is_v2:
            return "v2.1"
        return next((one for one in LAYOUTS if one == self._look.layout), "v3.0")

    def _undecodable(self) -> dict[int, str]:
        """Return the episodes of which a look at every image has found some that are none."""
        found: dict[int, str] = {}
        for finding in self._before.findings:
            if finding.code in _NOT_DECODED and finding.where.episode is not None:
                found.setdefault(finding.where.episode, finding.what)
        return found

    def write(self, target: Path, *, picture_stats: bool) -> tuple[RepairedFiles, list[Lost]]:
        """Write the repaired dataset to its target."""
        if not self.decision.kept:
            raise RepairError(
                "No episode can be saved.",
                hint="demoreel check says what is wrong with each",
                dataset=self._root,
                first=self.decision.lost[0].why if self.decision.lost else None,
            )
        folder = self._scratch / "repaired"
        folder.mkdir()
        layout = self._layout
        as_is = not self.decision.lost and layout == "v3.0" and self._uses_all_frames()
        as_is = as_is and not self._drop_audio
        new = self._known()
        written = write_repaired(new, self.decision, folder, link=not as_is)
        self._dropped += [*written.dropped, *files_beside(self._root)]
        lost = sorted([*self.decision.lost, *written.lost], key=lambda one: one.episode)
        if not written.episodes:
            raise RepairError("No episode can be saved.", dataset=self._root, first=lost[0].why)
        _state_unused_frames(folder)
        if picture_stats and not new.knows_images(() if as_is else written.episodes):
            self._take_image_stats(folder, written)
        made = folder
        if as_is and not written.lost:
            sync_tree(made)
        else:
            # Not to the target itself: a killed repair does not go on, and is to leave one folder.
            made = self._scratch / "rendered"
            done = cut(folder).render(
                made, layout=layout, verify="full", drop_audio=self._drop_audio
            )
            self._dropped += done.dropped
            let_go_of(folder)
            let_go_of(made)
        target.parent.mkdir(parents=True, exist_ok=True)
        put_in_place(made, target)
        return written, lost

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

    def _take_image_stats(self, folder: Path, written: RepairedFiles) -> None:
        try:
            recompute(folder, numbers=False, pictures="missing")
            written.mended.append("stats.json: the statistics of images were taken anew")
        except (VideoError, PictureError) as error:
            written.mended.append(f"the statistics of images are missing: {error.what}")

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
            extra={name: value for name, value in extra.items() if name not in _NOT_INHERITED},
        )
        tasks = self._look.tasks
        texts = {} if tasks is None else dict(zip(tasks.indices, tasks.texts, strict=True))
        return RepairSource(
            root=self._at,
            info=new,
            tables=self._tables.tables,
            videos=self._videos,
            tasks=texts or self._texts_of_episodes(),
            picture_stats=readable_frame_stats(self._root / "meta", new.cameras, is_v2=self._is_v2),
            stats=self._look.stats,
            meta=self._root / "meta",
            others=readable_extra(self._root / "meta", is_v2=self._is_v2),
        )

    def _texts_of_episodes(self) -> dict[int, str]:
        """Return the texts of tasks that episodes of one task tell."""
        listed = self._look.episodes
        if listed is None or listed.tasks is None:
            return {}
        texts: dict[int, str] = {}
        said = dict(zip(listed.index.tolist(), listed.tasks.to_pylist(), strict=True))
        for kept in self.decision.kept:
            numbers = self._tables.tables[kept.run.table].numbers.get("task_index")
            own = said.get(kept.episode) or []
            if numbers is None or len(own) != 1:
                continue
            used = set(numbers[kept.run.first : kept.run.first + kept.run.length].tolist())
            if len(used) == 1:
                texts[used.pop()] = own[0]
        return texts

    def report(
        self,
        target: Path | None,
        lost: list[Lost],
        mended: list[str] | tuple[str, ...],
        written: RepairedFiles | None,
    ) -> Repaired:
        """Say what was done, and look at the result."""
        found = self._tables
        sentences = [*self._repaired, *found.mended, *self._videos.mended, *self.decision.mended]
        return Repaired(
            source=self._root,
            target=target,
            episodes=len(self.decision.kept) if written is None else len(written.episodes),
            frames=sum(k.length for k in self.decision.kept) if written is None else written.frames,
            mended=(*sentences, *mended),
            lost=tuple(lost),
            unreadable=(
                *self._unreadable,
                *found.lost,
                *self._videos.lost,
                *(f"a saved episode that waits in {f}" for f in persisted_folders(self._root)),
            ),
            copied=0 if written is None else written.copied,
            dropped=tuple(self._dropped),
            before=self._before,
            after=None if target is None else check(target, deep=self._before.deep),
        )


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
