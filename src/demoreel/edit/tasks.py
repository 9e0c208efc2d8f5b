"""From a plan to tasks: one for each file or, where files are small and many, for some of them."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Literal, TypeVar

from demoreel.edit.footage import VideoOut
from demoreel.edit.lance_result import Tables, tables_for, write_lance_rows, write_lance_videos
from demoreel.edit.plan import Plan, TableOut
from demoreel.edit.table_work import TableJob, write_tables
from demoreel.edit.video_work import VideoJob, write_videos
from demoreel.run.staging import Staging
from demoreel.run.task import Task

_BYTES = 64 << 20  # of the small files that one task writes
_FILES = 256

File = TypeVar("File", TableOut, VideoOut)


def tasks_of(plan: Plan, stage: Staging) -> list[Task]:
    """Return the tasks of a plan; every machine gets the same ones, by the same names."""
    return [*_table_tasks(plan, stage), *_video_tasks(plan, stage)]


def lance_tables(plan: Plan, stage: Staging) -> Tables | None:
    """Return the Lance tables of a result; None if it has none."""
    return tables_for(plan.layout, stage.target.name, plan.info)


def parts_of(plan: Plan, stage: Staging) -> list[Path]:
    """Return where the tasks that write tables put what they found out, in order."""
    return [stage.parts / f"{name}.parquet" for name in _table_task_names(plan)]


def fragments_of(plan: Plan, stage: Staging, kind: Literal["rows", "videos"]) -> list[str]:
    """Return what tasks that have all ended noted of the fragments that they wrote, in order."""
    names = _table_task_names(plan) if kind == "rows" else _video_task_names(plan)
    found = [stage.done(name) for name in names]
    assert all(note is not None for note in found)
    return [text for note in found if note is not None for text in note["fragments"]]


def _table_task_names(plan: Plan) -> list[str]:
    return [_table_task(number) for number, _ in enumerate(_groups(plan, plan.tables))]


def _video_task_names(plan: Plan) -> list[str]:
    return [
        _video_task(place, number)
        for place, footage in enumerate(plan.footage.values())
        for number, _ in enumerate(_groups(plan, footage.videos))
    ]


def _table_task(number: int) -> str:
    return f"tables-{number:05d}"


def _video_task(camera: int, number: int) -> str:
    return f"videos-{camera:03d}-{number:05d}"


def _groups(plan: Plan, files: Sequence[File]) -> Iterator[list[File]]:
    """Yield the files of one task after the other: v3.0's are large, others' need not be."""
    group: list[File] = []
    size = 0
    one_each = plan.layout == "v3.0"
    for file in files:
        if group and (one_each or size + file.size > _BYTES or len(group) == _FILES):
            yield group
            group, size = [], 0
        group.append(file)
        size += file.size
    yield group


def _table_tasks(plan: Plan, stage: Staging) -> Iterator[Task]:
    lance = lance_tables(plan, stage)
    numbers = {text: number for number, text in enumerate(plan.tasks)}
    for number, tables in enumerate(_groups(plan, plan.tables)):
        first, stop = tables[0].first, tables[-1].stop
        job = TableJob(
            folder=str(stage.folder),
            name=_table_task(number),
            tables=[(table.path(plan.info), table.stop - table.first) for table in tables],
            sources=plan.cutlist.sources,
            views=plan.views,
            missing=plan.missing,
            features=plan.info.features,
            clips=plan.clips[first:stop],
            positions=plan.positions[first:stop].tolist(),
            episode=first,
            start=int(plan.start[first]),
            tasks=numbers,
            fps=plan.info.fps,
        )
        size = sum(table.size for table in tables)
        if lance is None:
            yield Task(job.name, write_tables, (job,), size)
        else:
            yield Task(job.name, write_lance_rows, (job, lance, plan.info), size)


def _video_tasks(plan: Plan, stage: Staging) -> Iterator[Task]:
    lance = lance_tables(plan, stage)
    for place, (camera, footage) in enumerate(plan.footage.items()):
        keys = [view.origin.get(camera) for view in plan.views]
        for number, videos in enumerate(_groups(plan, footage.videos)):
            job = VideoJob(
                folder=str(stage.folder),
                sources=plan.cutlist.sources,
                keys=keys,
                videos=[(video.path(plan.info), video) for video in videos],
            )
            size = sum(video.size for video in videos)
            name = _video_task(place, number)
            copies = all(video.is_copied for video in videos)
            kind = {"copies": copies, "long": not copies}
            if lance is None:
                yield Task(name, write_videos, (job,), size, **kind)
            else:
                yield Task(name, write_lance_videos, (job, lance), size, **kind)
