"""Columns in memory and in a shared file are the same columns; a full disk is an error."""

from __future__ import annotations

import os
import random
import signal
import subprocess
import sys
import textwrap
import time

import numpy as np
import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from demoreel.layouts.rows import MemoryColumn, SharedColumn

DTYPES = ["float32", "float64", "int64", "uint8", "bool", "float16", "int16"]
SHAPES = [(), (3,), (2, 4), (1,)]


@settings(
    max_examples=60, deadline=None, suppress_health_check=[HealthCheck.function_scoped_fixture]
)
@given(
    rows=st.integers(1, 3000),
    dtype=st.sampled_from(DTYPES),
    shape=st.sampled_from(SHAPES),
    reserve=st.booleans(),
    seed=st.integers(0, 1000),
)
def test_memory_and_shared_agree_after_any_writes(tmp_path, rows, dtype, shape, reserve, seed):
    path = tmp_path / "column"
    path.unlink(missing_ok=True)
    memory = MemoryColumn(rows, np.dtype(dtype), shape)
    shared = SharedColumn(path, rows, np.dtype(dtype), shape, reserve=reserve)
    again = SharedColumn(path, rows, np.dtype(dtype), shape)
    rng = random.Random(seed)
    numbers = np.random.default_rng(seed)
    for _ in range(8):
        row = rng.randrange(rows)
        count = rng.randrange(rows - row + 1)
        values = numbers.integers(0, 200, (count, *shape)).astype(dtype)
        if rng.random() < 0.3:  # not contiguous, as a column of a table may be
            values = np.repeat(values, 2, axis=0)[::2]
        if rng.random() < 0.3:  # of another type, as a table may store them
            values = values.astype("float64")
        memory.write(row, values)
        shared.write(row, values)
    for column in (shared, again):
        assert column.values.dtype == memory.values.dtype
        assert column.values.shape == memory.values.shape == (rows, *shape)
        assert np.array_equal(column.values, memory.values)


def test_unwritten_rows_are_zero_and_cost_nothing(tmp_path):
    column = SharedColumn(tmp_path / "column", 10_000_000, np.dtype("float64"), (4,))
    column.write(9_999_999, np.ones((1, 4)))
    assert column.values[9_999_999].tolist() == [1, 1, 1, 1]
    assert not column.values[:5].any()
    assert (tmp_path / "column").stat().st_blocks * 512 < 1 << 20


def test_a_shared_column_is_written_through_its_method_only(tmp_path):
    column = SharedColumn(tmp_path / "column", 4, np.dtype("int64"), ())
    with pytest.raises(ValueError, match="read-only"):
        column.values[0] = 1


@pytest.mark.parametrize("kind", [MemoryColumn, SharedColumn])
def test_no_rows(tmp_path, kind):
    args = (tmp_path / "column",) if kind is SharedColumn else ()
    column = kind(*args, 0, np.dtype("float64"), (2,))
    column.write(0, np.zeros((0, 2)))
    assert column.values.shape == (0, 2)


def test_values_outlive_the_column(tmp_path):
    column = SharedColumn(tmp_path / "column", 3, np.dtype("int64"), ())
    column.write(0, np.array([1, 2, 3]))
    values = column.values
    del column
    (tmp_path / "column").unlink()
    assert values.tolist() == [1, 2, 3]


def test_handles_close_with_their_column(tmp_path):
    before = len(os.listdir("/proc/self/fd"))
    for number in range(50):
        SharedColumn(tmp_path / str(number), 10, np.dtype("int64"), ())
    assert len(os.listdir("/proc/self/fd")) == before


def test_a_folder_that_is_gone(tmp_path):
    with pytest.raises(FileNotFoundError):
        SharedColumn(tmp_path / "none" / "column", 3, np.dtype("int64"), ())


# Several processes


WRITER = """
    import sys
    import numpy as np
    from demoreel.layouts.rows import SharedColumn

    column = SharedColumn(sys.argv[1], 5000, np.dtype("int64"), (2,))
    part = int(sys.argv[2])
    rows = np.arange(10_000).reshape(5000, 2)
    for begin in range(0, 5000, 50):
        if begin // 50 % 3 in (part, 2):  # every third span is written by both
            column.write(begin, rows[begin : begin + 50])
"""


def run(script, *args, **options):
    command = [sys.executable, "-c", textwrap.dedent(script), *map(str, args)]
    return subprocess.Popen(command, stdout=subprocess.PIPE, text=True, **options)


def test_two_processes_write_and_a_third_reads(tmp_path):
    path = tmp_path / "column"
    mine = SharedColumn(path, 5000, np.dtype("int64"), (2,))
    expected = np.arange(10_000).reshape(5000, 2)
    writers = [run(WRITER, path, part) for part in (0, 1)]
    while any(writer.poll() is None for writer in writers):
        seen = np.array(mine.values)
        assert ((seen == expected) | (seen == 0)).all()  # never a torn number
        time.sleep(0.002)  # leave the writers a core
    assert [writer.wait() for writer in writers] == [0, 0]
    assert np.array_equal(mine.values, expected)


# A full disk


@pytest.fixture
def small_disk(mounted):
    """A disk of 256 kB that lives in memory, where even looking at a hole takes space."""
    return mounted("256k")


FILL = """
    import errno, sys
    import numpy as np
    from pathlib import Path
    from demoreel.layouts.rows import SharedColumn

    folder = Path(sys.argv[1])
    flags = SharedColumn(folder / "flags", 50_000, np.dtype("uint8"), (), reserve=True)
    column = SharedColumn(folder / "column", 1_000_000, np.dtype("float64"), ())
    rows = 0
    try:
        while True:
            column.write(rows, np.full(1000, 7.0))
            rows += 1000
    except OSError as error:
        print(errno.errorcode[error.errno], rows)
    print(int((column.values[:rows] == 7.0).sum()))  # what was written is there
    flags.write(49_999, np.ones(1, np.uint8))  # space that was taken before stays ours
    print(int(flags.values.sum()))
    try:
        SharedColumn(folder / "more", 50_000, np.dtype("uint8"), (), reserve=True)
    except OSError as error:
        print(errno.errorcode[error.errno])
"""


def test_a_full_disk_is_an_error_and_no_crash(small_disk):
    process = run(FILL, small_disk)
    output, _ = process.communicate(timeout=60)
    assert process.returncode != -signal.SIGBUS
    assert process.returncode == 0
    first, seen, flags, more = output.splitlines()
    reason, rows = first.split()
    assert (reason, more) == ("ENOSPC", "ENOSPC")
    assert int(rows) >= 10_000
    assert seen == rows
    assert flags == "1"


def test_a_limit_on_file_sizes_is_an_error_too(tmp_path):
    script = """
        import errno, resource, sys
        import numpy as np
        from demoreel.layouts.rows import SharedColumn

        column = SharedColumn(sys.argv[1], 100_000, np.dtype("float64"), ())
        resource.setrlimit(resource.RLIMIT_FSIZE, (4096, 4096))
        column.write(0, np.ones(512))
        for work in (
            lambda: column.write(512, np.ones(1)),
            lambda: column.write(500, np.ones(100)),
            lambda: SharedColumn(sys.argv[1] + "2", 100_000, np.dtype("float64"), ()),
        ):
            try:
                work()
                print("no error")
            except OSError as error:
                print(errno.errorcode[error.errno])
    """
    process = run(script, tmp_path / "column")
    output, _ = process.communicate(timeout=60)
    assert process.returncode == 0
    assert output.split() == ["EFBIG"] * 3
