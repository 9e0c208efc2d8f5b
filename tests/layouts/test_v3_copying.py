"""Copying into larger files, here and in a process of its own."""

from __future__ import annotations

import os
import select
import signal
import subprocess
import sys
import threading

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
import pytest

from demoreel.errors import DiskFullError, VideoError
from demoreel.layouts.appending import create_appender
from demoreel.layouts.v3.copying import (
    CopyingProcess,
    Moved,
    copy_here,
    join_metadata,
    join_tables,
    join_videos,
    rewrite_table,
)
from demoreel.storage.commit.files import says_no_room
from support.crash import check_whole, crash_info, make_draft


@pytest.fixture
def aside():
    process = CopyingProcess()
    yield process
    process.close()


@pytest.fixture
def tables(tmp_path):
    paths = []
    for number in range(3):
        paths.append(tmp_path / f"{number}.parquet")
        table = pa.table({"value": [number, number + 10], "file": [number, number]})
        pq.write_table(table, paths[-1])
    return paths


@pytest.fixture
def appender(tmp_path):
    scratch = tmp_path / "scratch"
    scratch.mkdir()
    with create_appender(tmp_path / "dataset", crash_info(cameras=1)) as made:

        def add(episodes):
            while made.episodes < episodes:
                made.append(make_draft(made, made.episodes, scratch))

        yield made, add


@pytest.mark.parametrize("where", ["here", "aside"])
def test_tables_are_joined_in_their_order(tables, tmp_path, aside, where):
    copy = aside if where == "aside" else copy_here
    copy(join_tables, tables, tmp_path / "rows")
    assert pq.read_table(tmp_path / "rows")["value"].to_pylist() == [0, 10, 1, 11, 2, 12]
    assert pq.read_metadata(tmp_path / "rows").num_row_groups == 3
    copy(join_metadata, tables, tmp_path / "episodes", {"file": 7, "not there": 1})
    assert pq.read_table(tmp_path / "episodes")["file"].to_pylist() == [7] * 6
    moved = [Moved(1, {"value": np.array([5, 6])}), Moved(4, {"file": np.array([9])})]
    copy(rewrite_table, tmp_path / "episodes", tmp_path / "moved", moved)
    found = pq.read_table(tmp_path / "moved").to_pydict()
    assert found == {"value": [0, 5, 6, 11, 2, 12], "file": [7, 7, 7, 7, 9, 7]}


def test_what_goes_wrong_is_told_by_the_process(tables, tmp_path, aside):
    with pytest.raises(VideoError, match="does not open"):
        aside(join_videos, [tmp_path / "none.mp4"], tmp_path / "joined.mp4", 30)
    with pytest.raises(OSError, match="No such file"):
        aside(join_tables, [tmp_path / "none.parquet"], tmp_path / "rows")
    aside(join_tables, tables, tmp_path / "rows")  # and it continues
    with pytest.raises(OSError, match="No space left") as caught:
        aside(join_tables, tables, "/dev/full")
    assert says_no_room(caught.value)


def test_another_process_is_started_after_one_has_ended(tables, tmp_path, aside):
    aside(join_tables, tables, tmp_path / "rows")
    os.kill(aside._process.pid, signal.SIGKILL)
    with pytest.raises(OSError, match="has ended"):
        aside(join_tables, tables, tmp_path / "again")
    aside(join_tables, tables, tmp_path / "again")
    assert pq.read_table(tmp_path / "again") == pq.read_table(tmp_path / "rows")


def test_the_process_ends_with_the_one_that_asks(tables, tmp_path):
    code = (
        "import sys, pathlib; from demoreel.layouts.v3.copying import *;"
        "copy = CopyingProcess(); copy(join_tables, [pathlib.Path(sys.argv[1])], sys.argv[2]);"
        "print(copy._process.pid, flush=True); input()"
    )
    asking = subprocess.Popen(
        [sys.executable, "-c", code, str(tables[0]), str(tmp_path / "rows")],
        stdout=subprocess.PIPE,
        stdin=subprocess.PIPE,
    )
    helper = os.pidfd_open(int(asking.stdout.readline()))
    asking.kill()
    asking.communicate()
    watch = select.poll()
    watch.register(helper, select.POLLIN)
    assert watch.poll(60_000)
    os.close(helper)


def test_merging_aside_gives_what_merging_here_gives(appender):
    appender, add = appender
    add(17)
    while appender.compact(aside=True):
        pass
    assert check_whole(appender.root) == 17
    assert len(list((appender.root / "data").rglob("*.parquet"))) == 3
    assert len(list((appender.root / "meta/episodes").rglob("*.parquet"))) == 1


def test_a_process_that_is_killed_while_it_copies_costs_nothing(appender):
    appender, add = appender
    add(9)
    before = {path: path.read_bytes() for path in appender.root.rglob("*.parquet")}
    appender._copying = Killed()
    with pytest.raises(OSError, match="has ended"):
        appender.compact(aside=True)
    assert {path: path.read_bytes() for path in appender.root.rglob("*.parquet")} == before
    assert not list((appender.root / ".demoreel").glob("staging-*"))
    while appender.compact(aside=True):
        pass
    assert check_whole(appender.root) == 9
    assert len(list((appender.root / "data").rglob("*.parquet"))) == 2


class Killed(CopyingProcess):
    """Its first process is killed."""

    killed = False

    def __call__(self, function, *arguments):
        if not self.killed:
            super().__call__(join_tables, [], "nowhere")
            os.kill(self._process.pid, signal.SIGKILL)
            self.killed = True
        return super().__call__(function, *arguments)


def test_a_full_disk_is_told_from_aside(appender):
    appender, add = appender
    add(9)
    appender._copying = OntoFullDisk()
    with pytest.raises(DiskFullError, match="free some space"):
        appender.compact(aside=True)
    assert check_whole(appender.root) == 9


class OntoFullDisk(CopyingProcess):
    """All that it writes goes to a full disk."""

    def __call__(self, function, sources, target, *rest):
        return super().__call__(function, sources, "/dev/full", *rest)


@pytest.mark.parametrize("function", ["join_metadata", "join_tables", "join_videos"])
def test_appends_do_not_wait_for_the_copying(appender, function):
    """A copy that lasts until two more episodes are there: it would last for ever."""
    appender, add = appender
    add(8)
    copying, come = threading.Event(), threading.Event()

    def copy(called, *arguments):
        if called.__name__ == function and not copying.is_set():
            copying.set()
            assert come.wait(60)
        return called(*arguments)

    failed = []

    def merge():
        try:
            while appender._merger.step(finish=False, copy=copy):
                pass
        except BaseException as error:
            failed.append(error)

    thread = threading.Thread(target=merge)
    thread.start()
    assert copying.wait(60)
    add(10)
    come.set()
    thread.join()
    assert not failed
    assert check_whole(appender.root) == 10
    assert len(list((appender.root / "data").rglob("*.parquet"))) == 3
