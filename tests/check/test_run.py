"""``demoreel.check`` itself: arguments, families, and what a crash of a check becomes."""

from __future__ import annotations

import json
import subprocess
import sys

import pytest

import demoreel
from demoreel.check import run
from demoreel.errors import ArgumentError, DatasetNotFoundError


def test_the_room_can_be_called(base):
    report = demoreel.check(base("v3"))
    assert isinstance(report, demoreel.Report)
    facts = report.looked_at[str(base("v3"))]
    assert (facts["layout"], facts["episodes"], facts["rows"]) == ("v3.0", 3, 36)
    assert facts["videos"] == 2


def test_refuses_nonsense(base, tmp_path):
    with pytest.raises(ArgumentError):
        demoreel.check()
    with pytest.raises(ArgumentError, match="fps_slack"):
        demoreel.check(base("v3"), thresholds={"fps_slak": 1})
    with pytest.raises(ArgumentError):
        demoreel.check(base("v3"), thresholds={"fps_slack": -1})
    with pytest.raises(ArgumentError, match="metadata"):
        demoreel.check(base("v3"), only=["metadat"])
    with pytest.raises(ArgumentError):
        demoreel.check(base("v3"), leaks=True)
    with pytest.raises(DatasetNotFoundError):
        demoreel.check(tmp_path / "none")


def test_several_datasets_and_one_family(base, copy):
    damaged = copy("v3")
    (damaged / "meta" / "stats.json").unlink()
    (damaged / "data" / "chunk-000" / "file-000.parquet").write_bytes(b"")
    report = demoreel.check(base("v3"), damaged, only=["metadata"])
    assert set(report.counts) == {"stats-missing"}
    assert report.findings[0].where.dataset == str(damaged)
    assert len(report.looked_at) == 2


def test_reports_its_progress(base):
    shares = []
    demoreel.check(base("v3"), base("v2"), only=["metadata"], report=shares.append)
    assert shares == sorted(shares)
    assert 0 <= shares[0] < 0.5 < shares[-1] <= 1


def test_thresholds_decide(copy):
    root = copy("v3")
    path = root / "meta" / "info.json"
    info = json.loads(path.read_text())
    info["fps"] = 30.2
    path.write_text(json.dumps(info))
    strict = demoreel.check(root, only=["video"], thresholds={"fps_slack": 0.001})
    assert "video-fps" in strict.counts
    assert strict.thresholds["fps_slack"] == 0.001
    assert "video-fps" not in demoreel.check(root, only=["video"]).counts


def test_a_check_that_crashes_is_a_finding(base, monkeypatch):
    """Whatever data do to one family, the others run."""

    def crash(look):
        raise ZeroDivisionError("by the metadata")

    broken = (run.Family("metadata", crash), *run.FAMILIES[1:])
    monkeypatch.setattr(run, "FAMILIES", broken)
    report = demoreel.check(base("v3"))
    assert report.worst == "error"
    assert "by the metadata" in report.of("check-failed")[0].what
    assert report.looked_at[str(base("v3"))]["rows"] == 36


def test_a_row_check_that_crashes_leaves_the_others_alone(base, monkeypatch):
    monkeypatch.setattr(run, "ROW_CHECKS", {**run.ROW_CHECKS, "motion": Crashing})
    report = demoreel.check(base("v3"))
    assert "Crashing" in report.of("check-failed")[0].what
    assert "constant-dimension" in report.counts


class Crashing:
    def __init__(self, look):
        pass

    def take(self, portion):
        raise ZeroDivisionError("by a row")

    def finish(self, parts):
        raise AssertionError("it sees no more rows")


def test_empty_folders_and_other_things(tmp_path):
    report = demoreel.check(tmp_path)
    assert set(report.counts) == {"info-missing"}


HOSTILE = {
    "huge counts": {"total_episodes": 10**18, "total_frames": 10**30},
    "huge shapes": {"features": {"action": {"dtype": "float32", "shape": [2**40, 2**40]}}},
    "odd keys": {"features": {"../../x": {"dtype": "video", "shape": [4, 4, 3]}}},
    "numbers as text": {"fps": "1e999", "chunks_size": "many"},
    "nothing": {"features": None, "splits": 4, "video_path": 7},
}


_IN_LITTLE_MEMORY = """
import resource, sys
resource.setrlimit(resource.RLIMIT_DATA, (2 << 30, 2 << 30))
import demoreel
print(demoreel.check(sys.argv[1]).worst)
"""


@pytest.mark.parametrize("name", HOSTILE)
def test_hostile_info(name, copy):
    """Ends with findings, in a process that may have two gigabytes."""
    root = copy("v3")
    path = root / "meta" / "info.json"
    path.write_text(json.dumps({**json.loads(path.read_text()), **HOSTILE[name]}))
    done = subprocess.run(
        [sys.executable, "-c", _IN_LITTLE_MEMORY, str(root)],
        capture_output=True,
        text=True,
        timeout=60,
        check=False,
    )
    assert done.returncode == 0, done.stderr[-2000:]
    assert done.stdout.strip() in ("error", "warning")
