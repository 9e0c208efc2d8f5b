"""Rendering plans to targets: tasks, metadata, verification, commit.

Sources and targets may be remote: packets and rows that clips are in are fetched first, and a
remote target is rendered here, and sent when it is whole. Of several cuts, all are planned, and
refused, before the first is written; what is finished is remembered until the last one is, so that
the same command goes on after a kill and does not take its own results for those of another.
"""

from __future__ import annotations

import glob
import json
import os
from collections.abc import Callable, Collection, Mapping, Sequence
from concurrent.futures import Future, ThreadPoolExecutor
from contextlib import AbstractContextManager, nullcontext
from dataclasses import asdict, dataclass, replace
from pathlib import Path
from typing import Any

from demoreel.edit.beside import follow_cut
from demoreel.edit.clips import CutList
from demoreel.edit.foreign import files_beside
from demoreel.edit.form import Form
from demoreel.edit.metadata import write_metadata
from demoreel.edit.plan import Plan, make_plan
from demoreel.edit.sources import open_source, open_unchanged, place_of
from demoreel.edit.tasks import fragments_of, lance_tables, parts_of, tasks_of
from demoreel.edit.verbatim import write_verbatim
from demoreel.edit.verify import Verify, verify_rows, verify_videos
from demoreel.errors import ArgumentError, count
from demoreel.layouts.base import episode_files
from demoreel.layouts.detect import open_reader
from demoreel.layouts.lance import write as lance_write
from demoreel.layouts.lance.calls import close_tables
from demoreel.layouts.lance.schemas import LanceSchema
from demoreel.run.anywhere import is_here, made_anywhere, refuse_remote, refuse_target
from demoreel.run.local import LocalEngine
from demoreel.run.task import Engine, Task, share
from demoreel.stats.recompute import recompute
from demoreel.stats.rows import LanceTableRows, ParquetTables, ResultRows
from demoreel.storage.amounts import ShareDone
from demoreel.storage.commit.files import refuse_overlap, sync_all, write_whole
from demoreel.storage.commit.staging import (
    ORDER,
    Staging,
    forget,
    refuse_small_disk,
    staging,
    staging_folder,
    was_made,
)
from demoreel.storage.folder import is_beside, score_files
from demoreel.storage.json_files import read_json
from demoreel.storage.local import let_go_of
from demoreel.storage.remote.fetch import part_of
from demoreel.storage.remote.folder import RemoteFolder

_KIND = "cut"

Report = Callable[[float], None]
"""Called with the share of the bytes that are written, from 0 to 1."""

_A_TRANSFER = 0.4  # of the work, about


@dataclass(frozen=True, slots=True)
class Rendered:
    """What was written.

    Attributes:
        path: Where, a URI if that is remote; not there yet after a shard.
        episodes: How many.
        frames: How many.
        bytes: Bytes of tables and videos that this call wrote.
        resumed: Files that an earlier attempt had written.
        committed: Whether the dataset is there.
        version: Of an edit in place, the version that it made.
        tasks: Into how many tasks the work was cut.
        dropped: What the sources hold or state, and the result does not, a sentence each.
    """

    path: Path | str
    episodes: int
    frames: int
    bytes: int
    resumed: int
    committed: bool
    version: int | None = None
    tasks: int = 0
    dropped: tuple[str, ...] = ()

    def called(self, names: Mapping[str, str]) -> Rendered:
        """Return the same with other names for folders: URIs, of copies."""
        return replace(self, path=names.get(str(self.path), self.path))


@dataclass(frozen=True, slots=True)
class Shard:
    """Part ``number`` (from 0) of ``of`` parts of the work."""

    number: int
    of: int

    def __post_init__(self) -> None:
        if not 0 <= self.number < self.of:
            raise ArgumentError(f"There is no shard {self.number} of {self.of}; they count from 0.")


@dataclass(frozen=True)
class Target:
    """The folder that a plan is rendered to, and what has to be true before it appears.

    Attributes:
        folder: The folder to make.
        verification: What is read back and compared with the sources.
        remembered: Whether the same call finds that all is done, until ``forget_made``.
        resumable: Whether the work continues after Ctrl-C or a full disk, as it does after a kill.
    """

    folder: Path
    verification: Verify = "ends"
    remembered: bool = False
    resumable: bool = True

    @property
    def work(self) -> str:
        """What was done to the result besides writing it; one with another is not taken for it."""
        return f"verified {self.verification}"

    def made_before(self, plan: Plan) -> bool:
        """Whether ``render`` would find that all is done."""
        return was_made(self.folder, kind=_KIND, fingerprint=plan.fingerprint, work=self.work)

    def forget_made(self, plan: Plan) -> None:
        """Forget what was remembered of this target."""
        forget(self.folder, kind=_KIND, fingerprint=plan.fingerprint, work=self.work)

    def look_at_rows(self, plan: Plan, dataset: Path, rows: ResultRows, engine: Engine) -> None:
        """Verify rows and metadata; videos may still be being copied."""
        if self.verification != "none":
            full = self.verification == "full"
            verify_rows(plan, open_reader(dataset), rows, full=full, engine=engine)

    def look_at_all(self, plan: Plan, dataset: Path, written: Collection[str]) -> None:
        """Verify the rest of a whole result, which is committed when this returns.

        Args:
            plan: The plan.
            dataset: The result; ``meta/`` may be added to.
            written: The names of the tasks that were not done by an earlier attempt.
        """
        if self.verification != "none" and plan.verbatim is None:
            verify_videos(plan, open_reader(dataset), full=self.verification == "full")


def render(
    plan: Plan,
    target: Target,
    *,
    engine: Engine | None = None,
    shard: Shard | None = None,
    report: Report | None = None,
) -> Rendered:
    """Write the dataset that a plan describes.

    Cost: one copy of the clips' bytes, one decode of the tables' columns; no image is decoded.
    The target is absent until it is whole. After a kill, Ctrl-C or a full disk, the same call
    continues from the finished files; if all are finished and the target exists, nothing is done.

    Args:
        plan: The plan.
        target: Where to, and what is compared before it appears.
        engine: What runs the tasks; None is this process.
        shard: Do only this part of the tasks, and leave the rest to others.
        report: Called with the share that is done.
    """
    place = target.folder
    for source in plan.cutlist.sources:
        refuse_overlap(source.path, place)
    if not staging_folder(place, kind=_KIND, fingerprint=plan.fingerprint).exists():
        refuse_small_disk(place, plan.size // (1 if shard is None else shard.of))
    with staging(
        place,
        kind=_KIND,
        fingerprint=plan.fingerprint,
        work=target.work,
        shared=shard is not None,
        remember=target.remembered,
        resumable=target.resumable,
    ) as stage:
        compare, threads = target.verification == "full", getattr(engine, "threads", None)
        tasks = tasks_of(plan, stage, compare=compare, threads=threads)
        undone, own = [], []
        dropped = list(plan.dropped)
        if not stage.committed:
            _note_order(stage, plan)
            undone = [task for task in tasks if stage.done(task.name) is None]
            own = undone if shard is None else _own(tasks, undone, shard)
            refuse_small_disk(place, sum(task.weight for task in own))
            engine = engine or LocalEngine()
            finisher = _Finisher(plan, stage, target, engine) if shard is None else None
            _run(own, engine, stage, report, finisher)
            if finisher is not None:
                finisher.commit(own)
                dropped += finisher.dropped
        return Rendered(
            path=place,
            episodes=len(plan.clips),
            frames=int(plan.start[-1]),
            bytes=sum(task.weight for task in own),
            resumed=len(tasks) - len(undone),
            committed=stage.committed,
            tasks=len(tasks),
            dropped=tuple(dropped),
        )


def commit(target: str | os.PathLike[str], *, verification: Verify = "ends") -> Rendered:
    """Finish what shards have written: metadata, a look at the result, one rename.

    Args:
        target: The folder that the shards were given; what they were to write is beside it.
        verification: What is read back and compared before the target appears.
    """
    place = Target(Path(target), verification)
    cutlist, form = _ordered(place.folder)
    plan = make_plan(cutlist, form=form)
    folder = staging_folder(place.folder, kind=_KIND, fingerprint=plan.fingerprint)
    stage = Staging(folder, place.folder, place.work)
    undone = [task.name for task in tasks_of(plan, stage) if stage.done(task.name) is None]
    if undone and not stage.committed:
        raise ArgumentError(
            f"{count(len(undone), 'task')} not done yet, {undone[0]} among them.",
            hint="wait for the other shards, or run the lost ones again",
            path=target,
        )
    return render(plan, place)


def _note_order(stage: Staging, plan: Plan) -> None:
    """Note what is being written, for ``commit`` to find."""
    order = stage.folder / ORDER
    if not order.exists():
        noted = {"cutlist": plan.cutlist.to_json(), "form": asdict(plan.form)}
        write_whole(order, lambda path: _write_json(path, noted))


def _write_json(path: Path, value: object) -> None:
    path.write_text(json.dumps(value))


def _ordered(target: Path) -> tuple[CutList, Form]:
    orders = target.parent.glob(f".{glob.escape(target.name)}.{_KIND}-*/{ORDER}")
    # Without its dataset, it had given that its place, which is another's now or no one's.
    found = sorted(o for o in orders if target.exists() or (o.parent / "dataset").is_dir())
    if len(found) != 1:
        raise ArgumentError(
            "No shard of a cut to this folder has written anything."
            if not found
            else "Shards of several cuts to this folder have been begun.",
            hint="run the shards first" if not found else "delete all but one of them",
            path=target,
            begun=", ".join(order.parent.name for order in found) or None,
        )
    raw = read_json(found[0])
    return CutList.from_json(raw["cutlist"], where=str(found[0])), Form(**raw["form"])


def _own(tasks: list[Task], undone: list[Task], shard: Shard) -> list[Task]:
    """Return what a shard still has to do; shares are those of all tasks, done or not."""
    mine = {task.name for task in share(tasks, shard.number, shard.of)}
    return [task for task in undone if task.name in mine]


def _run(
    tasks: list[Task],
    engine: Engine,
    stage: Staging,
    report: Report | None,
    finisher: _Finisher | None,
) -> None:
    total = sum(task.weight for task in tasks) or 1
    undone = [task for task in tasks if not task.copies]
    done = 0
    for task, result in engine.run(tasks):
        stage.note(task.name, result)
        done += task.weight
        if report is not None:
            report(ShareDone(done, total, "bytes"))
        undone = [other for other in undone if other is not task]
        if finisher is not None and not undone:
            finisher.write_metadata()  # meanwhile, videos are being copied


class _Finisher:
    """The end of the work: metadata as soon as all tables are there, then a look, then a rename."""

    def __init__(self, plan: Plan, stage: Staging, target: Target, engine: Engine) -> None:
        self._plan = plan
        self._stage = stage
        self._target = target
        self._engine = engine
        self._lance = lance_tables(plan, stage)
        self._written = False
        self.dropped: list[str] = []

    def write_metadata(self) -> None:
        if self._written:
            return
        plan, dataset = self._plan, self._stage.dataset
        self._written = True
        table = self._rows_table()
        if plan.verbatim is not None:  # whose rows nothing needs to be known of
            write_verbatim(plan.readers[0], plan.verbatim, plan.layout, dataset)
        else:
            paths = [dataset / one.path(plan.info) for one in plan.tables]
            rows = ParquetTables(paths) if table is None else LanceTableRows(table)
            self.dropped = write_metadata(plan, dataset, parts_of(plan, self._stage), rows)
            followed = follow_cut(plan, dataset, self.dropped)
            for reader in plan.readers:
                if reader.meta.parent == reader.root:  # else the dataset is elsewhere
                    self.dropped += files_beside(reader.root, followed)
            self._target.look_at_rows(plan, dataset, rows, self._engine)

    def _rows_table(self) -> Path | None:
        """Make the Lance table of rows; None where the result has parquet files."""
        plan, stage = self._plan, self._stage
        if self._lance is None:
            return None
        stage.settle()  # notes say which fragments there are
        fragments = fragments_of(plan, stage, "rows")
        return lance_write.make_rows_table(
            self._lance, stage.dataset, plan.info, fragments, codec=plan.form.images_as
        )

    def _make_tables(self, lance: LanceSchema) -> None:
        dataset = self._stage.dataset
        self._stage.settle()
        lance_write.make_videos_table(
            lance, dataset, fragments_of(self._plan, self._stage, "videos")
        )
        lance_write.make_copy(lance, dataset)

    def commit(self, tasks: Sequence[Task]) -> None:
        self.write_metadata()
        dataset = self._stage.dataset
        with ThreadPoolExecutor(1, "demoreel-tables") as thread:
            settling: Future[None] | None = None
            if self._lance is not None:
                self._make_tables(self._lance)
                settling = thread.submit(lance_write.finish_tables, self._lance, dataset)
            if self._plan.verbatim is not None:
                self._stage.settle()  # what is copied whole is on disk already
            self._target.look_at_all(self._plan, dataset, {task.name for task in tasks})
            let_go_of(dataset)
            close_tables(str(dataset))
            if settling is not None:
                settling.result()
        if self._plan.form.recompute_stats:
            recompute(dataset, numbers=False, pictures="missing")
        self._stage.settle()
        sync_all([*(dataset / "meta").rglob("*"), *(dataset / n for n in score_files(dataset))])
        self._stage.commit()


Progress = Callable[[str], AbstractContextManager[Report | None]]
"""Given a target, yields what is called with the share of it that is written."""


def render_cut(
    cutlist: CutList,
    target: str | os.PathLike[str],
    *,
    form: Form,
    verification: Verify = "ends",
    engine: Engine | None = None,
    shard: Shard | None = None,
    overwrite: bool = False,
    storage_options: Mapping[str, Any] | None = None,
    report: Report | None = None,
    plan: Plan | None = None,
) -> Rendered:
    """Write the dataset that a cut list describes, wherever it and its sources are.

    Cost: as ``render``. Of remote sources in LeRobot's own layouts, the tables and videos that
    clips are in are fetched; of Lance datasets all files.

    Args:
        cutlist: The cut list.
        target: The folder to make, or a URI.
        form: How the result is stored.
        verification: What is read back and compared before the target appears.
        engine: What runs the tasks; None is this process.
        shard: As for ``render``; only where all is on this machine.
        overwrite: Of a URI: replace the dataset that is there.
        storage_options: Of a URI: as for ``demoreel.open``.
        report: Called with the share that is done.
        plan: The plan, if it is made already; what is done is remembered then.
    """
    if shard is not None:
        places = [source.path for source in cutlist.sources]
        refuse_remote(places, "A shard needs the dataset on this machine.")
        refuse_remote([target], "Shards write to a disk that they share.", hint="give a folder")
    if is_here(target) and (overwrite or storage_options):
        raise ArgumentError(
            "overwrite= and storage_options= are for remote targets.",
            hint="leave them out; an existing folder is never overwritten",
            path=target,
        )
    sources = [place_of(source) for source in cutlist.sources]
    begin = 0.0 if is_here(*sources) else _A_TRANSFER / 2
    end = 1.0 if is_here(target) else 1 - _A_TRANSFER

    def make(folders: list[Path], folder: Path | None) -> Rendered:
        assert folder is not None
        at_hand = (
            source if is_here(place) else replace(source, path=str(copy))
            for source, place, copy in zip(cutlist.sources, sources, folders, strict=True)
        )
        own = plan or make_plan(replace(cutlist, sources=tuple(at_hand)), form=form)
        return render(
            own,
            Target(folder, verification, remembered=plan is not None),
            engine=engine,
            shard=shard,
            report=part_of(report, begin, end),
        )

    done, sent = made_anywhere(
        sources,
        target,
        make,
        work=("cut", cutlist.to_json(), asdict(form), verification),
        needed=lambda number: _needed(cutlist, number),
        note=asdict,
        noted=lambda noted: Rendered(**{**noted, "dropped": tuple(noted.get("dropped", ()))}),
        overwrite=overwrite,
        storage_options=storage_options,
        fetching=part_of(report, 0.0, begin),
        sending=part_of(report, end, 1.0),
    )
    if sent is None:
        return done
    resumed = done.resumed + sent.files - sent.sent_files
    return replace(done, bytes=sent.sent_bytes, resumed=resumed)


def _needed(cutlist: CutList, number: int) -> set[str] | None:
    """Return the tables and videos that clips of a source are in; None is all files."""
    source = cutlist.sources[number]
    reader = open_source(source)
    if reader.layout.startswith("lance"):
        return None
    episodes = {clip.episode for clip in cutlist.clips if clip.source == number}
    positions = [reader.episodes.position_of(episode) for episode in episodes]
    cameras = [key for key in reader.info.video_keys if key not in source.remove]
    found = set(episode_files(reader, positions, cameras=cameras))
    place = place_of(source)
    if isinstance(place, RemoteFolder):
        found |= {name for name, _ in place.every_file()[0] if is_beside(name)}
    return found


def plan_several(
    cuts: Mapping[str, CutList],
    *,
    form: Form,
    overwrite: bool = False,
    verification: Verify = "ends",
) -> dict[str, Plan]:
    """Plan all, and refuse targets at which there is something already. Nothing is written."""
    plans = {target: make_plan(cutlist, form=form) for target, cutlist in cuts.items()}
    for target, plan in plans.items():
        made = is_here(target) and Target(Path(target), verification).made_before(plan)
        sources = [source.path for source in cuts[target].sources]
        refuse_target(sources, target, overwrite=overwrite, made=made)
    return plans


def render_several(
    cuts: Mapping[str, CutList],
    *,
    form: Form,
    overwrite: bool = False,
    verification: Verify = "ends",
    progress: Progress | None = None,
    **options: Any,
) -> list[Rendered]:
    """Write several datasets, one after the other.

    After a kill, Ctrl-C or a full disk the same call continues where that was; what is remote,
    source or target, is not remembered.

    Args:
        cuts: By target, what is to be written there.
        form: How all of them are stored.
        overwrite: Of URIs: replace the datasets that are there.
        verification: What is read back and compared before a target appears.
        progress: Shows how far each of them is.
        **options: As for ``render_cut``.
    """
    done = []
    plans: dict[str, Plan] = {}
    if len(cuts) > 1:
        plans = plan_several(cuts, form=form, overwrite=overwrite, verification=verification)
    remembered = {
        target: plan
        for target, plan in plans.items()
        if is_here(target, *(source.path for source in cuts[target].sources))
    }
    for target, cutlist in cuts.items():
        if target in remembered:
            open_unchanged(cutlist.sources)
        with nullcontext() if progress is None else progress(target) as report:
            rendered = render_cut(
                cutlist,
                target,
                form=form,
                overwrite=overwrite,
                verification=verification,
                report=report,
                plan=remembered.get(target),
                **options,
            )
            done.append(rendered)
    for target, plan in remembered.items():
        Target(Path(target), verification).forget_made(plan)
    return done
