"""A machine that gives no more files, threads or memory is said to, and no file is blamed."""

from __future__ import annotations

import errno
import os
import pickle
import subprocess
import sys
import threading

import pytest

import demoreel
from demoreel.cli.app import run
from demoreel.errors import (
    DatasetBusyError,
    MetadataError,
    ShortageError,
    TableError,
    VideoError,
    refuse_shortage,
    shortage,
)
from demoreel.testing import make_dataset

_READ = """
import os, resource, sys, warnings
import demoreel
from demoreel.errors import ShortageError
from demoreel.storage import local

warnings.simplefilter("ignore")
CALLS = {
    "open": lambda root: demoreel.open(root).episodes[1].tasks,
    "batch": lambda root: demoreel.open(root).batch(range(12)),
    "sql": lambda root: demoreel.open(root).sql("select count(*) from frames"),
    "check": lambda root: sorted(finding.code for finding in demoreel.check(root).findings),
}
roots = sys.argv[1:]
clean = {(root, name): call(root) for root in roots for name, call in CALLS.items()}
resource.setrlimit(resource.RLIMIT_NOFILE, (128, resource.getrlimit(resource.RLIMIT_NOFILE)[1]))
held = []


def take_all():
    try:
        while True:
            held.append(os.open(os.devnull, os.O_RDONLY))
    except OSError:
        pass


short = set()
for root in roots:
    for name, call in CALLS.items():
        for free in (0, 1, 2, 3, 5):
            local._pool.forget()
            take_all()
            for handle in held[:free]:
                os.close(handle)
            del held[:free]
            try:
                found = call(root)
                assert name != "check" or found == clean[root, name], (root, free, found)
            except ShortageError as error:
                short.add(name)
                text = str(error)
                assert "Too many open files" in text and "ulimit -n" in text, text
                assert "restore" not in text and "damaged" not in text, text
print(sorted(short))
"""


@pytest.mark.skipif(sys.platform != "linux", reason="counts open files")
def test_too_many_open_files_is_said_by_every_reader(tmp_path):
    """With so few files to be had, every call gives what it should, or says why it cannot."""
    roots = [
        make_dataset(
            tmp_path / layout,
            layout=layout,
            length=4,
            image_cameras={"observation.images.still": (16, 16)},
            data_files_size_in_mb=0.001,
        )
        for layout in ("v3.0", "v2.1")
    ]
    demoreel.convert(roots[0], tmp_path / "lance", to="lance-video")
    done = subprocess.run(
        [sys.executable, "-c", _READ, *map(str, roots), str(tmp_path / "lance")],
        capture_output=True,
        text=True,
    )
    assert done.returncode == 0, done.stderr
    assert done.stdout.strip() == "['batch', 'check', 'open', 'sql']"


def test_no_more_threads(tmp_path, monkeypatch):
    root = make_dataset(tmp_path / "data", length=4)
    dataset = demoreel.open(root, decode_threads=4)

    def refuse(self):
        raise RuntimeError("can't start new thread")

    monkeypatch.setattr(threading.Thread, "start", refuse)
    assert len(dataset.batch(range(12))["index"]) == 12  # the calling thread does it all
    with pytest.raises(ShortageError, match="starts no more threads"):
        demoreel.open(root)


def blame(kind, cause):
    try:
        raise cause
    except OSError as error:
        raise kind("It is damaged.", hint="restore the file") from error


@pytest.mark.parametrize("kind", [TableError, VideoError, MetadataError])
def test_errors_about_files_do_not_blame_them(kind):
    for number, says in ((errno.EMFILE, "ulimit -n"), (errno.ENOMEM, "no memory left")):
        with pytest.raises(ShortageError, match=says) as caught:
            blame(kind, OSError(number, os.strerror(number), "x.parquet"))
        assert caught.value.where == {"file": "x.parquet"}
        assert "restore" not in str(pickle.loads(pickle.dumps(caught.value)))


def test_what_is_no_shortage():
    assert shortage(None) is None
    assert shortage(OSError(errno.EIO, "Input/output error")) is None
    assert shortage(MemoryError("malloc of size 99999999999 failed")) is None  # damaged, perhaps
    busy = DatasetBusyError("Another process is writing.")
    busy.__cause__ = BlockingIOError(errno.EAGAIN, "Resource temporarily unavailable")
    assert shortage(busy) is None  # a lock that is held
    refuse_shortage(busy)


def test_the_command_says_it(monkeypatch, capsys, tmp_path):
    def refuse(*_, **__):
        raise OSError(errno.EMFILE, "Too many open files")

    monkeypatch.setattr("demoreel.layouts.detect.consistent_read", refuse)
    assert run(["info", str(tmp_path)]) == 1
    assert "ulimit -n" in capsys.readouterr().err
