"""A check beside a recording finds what is wrong with the dataset, not what changes meanwhile."""

from __future__ import annotations

import numpy as np
import pytest

import demoreel
from demoreel.check import look, run
from demoreel.layouts.appending import create_appender
from demoreel.layouts.v3 import compact
from support.crash import crash_info, make_draft


class Beside:
    """A recording that goes on whenever a check has just looked at something."""

    def __init__(self, root, layout, scratch):
        self.appender = create_appender(root, crash_info(cameras=1), layout=layout)
        self.root, self.scratch = root, scratch
        self.steps, self.reads, self.busy = 0, 0, False
        for _ in range(4):
            self.append()

    def append(self, noise=None):
        draft = make_draft(self.appender, self.appender.episodes, self.scratch)
        if noise is not None:
            draft.columns["noise"][:] = noise
        self.appender.append(draft)

    def step(self, reading):
        """Append and merge; while metadata are read, not for ever."""
        if self.steps > 0 and not self.busy and not (reading and self.reads > 6):
            self.steps, self.busy = self.steps - 1, True
            self.reads += reading
            self.append()
            self.appender.compact(finish=self.steps % 2 == 0)
            self.busy = False


@pytest.fixture
def beside(tmp_path, monkeypatch):
    """A function that makes such a recording."""
    monkeypatch.setattr(compact, "_STALE_S", 0.0)  # what was merged goes at the next step
    scratch = tmp_path / "scratch"
    scratch.mkdir()
    made = []

    def make(layout):
        made.append(Beside(tmp_path / layout, layout, scratch))
        return made[-1]

    def stepping(module, name, before=False):
        original = getattr(module, name)

        def wrapped(*arguments, **options):
            for recording in made if before else ():
                recording.step(reading=not before)
            found = original(*arguments, **options)
            for recording in made:
                recording.step(reading=not before)
            return found

        monkeypatch.setattr(module, name, wrapped)

    stepping(run, "_run_family", before=True)
    stepping(look, "read_raw_info")
    stepping(look, "parse_tasks")
    yield make
    for recording in made:
        recording.appender.close()


SOAK = pytest.mark.soak


@pytest.mark.parametrize(
    ("layout", "steps"),
    [
        ("v3.0", 4),
        pytest.param("v3.0", 60, marks=SOAK),
        ("lance-video", 4),
        pytest.param("lance-video", 60, marks=SOAK),
        pytest.param("lance-native", 4, marks=SOAK),
        pytest.param("lance-native", 60, marks=SOAK),
    ],
)
def test_nothing_is_found_that_is_not_there_before_or_after(beside, layout, steps):
    recording = beside(layout)
    before = demoreel.check(recording.root)
    recording.steps = steps
    report = demoreel.check(recording.root)
    recording.steps = 0
    after = demoreel.check(recording.root)
    assert recording.appender.episodes > 4
    true = {*before.counts, *after.counts}
    assert [f for f in report.findings if f.code not in true] == []
    facts = report.looked_at[str(recording.root)]
    assert 4 <= facts["episodes"] <= recording.appender.episodes


@pytest.mark.parametrize("layout", ["v3.0", pytest.param("lance-video", marks=SOAK)])
def test_what_is_wrong_is_found_all_the_same(beside, layout):
    recording = beside(layout)
    recording.append(noise=np.nan)
    recording.steps = 60
    report = demoreel.check(recording.root)
    recording.steps = 0
    assert {f.where.episode for f in report.of("not-a-number")} == {4}
    assert report.looked_at[str(recording.root)]["changing"]
