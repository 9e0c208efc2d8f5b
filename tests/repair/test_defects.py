"""Every defect that ``check`` says repair fixes, alone and in pairs: afterwards it finds nothing.

What was repaired is a fixpoint: ``check`` passes it, and a second repair has nothing to do.
"""

from __future__ import annotations

import itertools
import random
import shutil

import pytest

import demoreel
from demoreel.check.catalogue import CODES
from demoreel.check.codes import REPAIR
from demoreel.errors import DemoreelError, RepairError
from support.defects import DEFECTS, make_base

MENDABLE = [
    name
    for name, defect in DEFECTS.items()
    if not defect.leaks and any(CODES[code].command == REPAIR for code in defect.codes)
]
HOPELESS = {
    "data_file_missing",  # of the only fragment
    "rows_of_videos_renumbered",  # which of them is whose is not certain any more
}
FRONT, WRIST = "observation.images.front", "observation.images.wrist"
WITHOUT_A_CAMERA = {
    "bytes_of_videos_missing": (FRONT, WRIST),
    "data_file_cut_off": (FRONT, WRIST),
    "video_missing": (FRONT,),
    "video_of_no_bytes": (FRONT,),
    "video_of_noise": (FRONT,),
    "video_without_its_end": (FRONT,),
}
"""Defects that leave nothing of cameras: those are left out only if that is asked for."""

PAIRS = (
    ("videos_under_another_name", "codec_declared_wrong"),
    ("videos_under_another_name", "recorded_at_another_rate"),
    ("videos_under_another_name", "size_declared_wrong"),
    ("no_tasks", "episodes_cut_off"),
    ("info_cut_off", "tasks_cut_off"),
    ("frame_index_jumps", "episodes_swapped_in_their_table"),
    ("index_jumps", "timestamps_late"),
    ("rows_twice", "too_many_frames_counted"),
    ("episodes_share_a_frame", "no_stats"),
    ("column_not_declared", "column_missing"),
    ("tables_in_another_folder", "video_of_another_rate"),
    ("episode_line_broken", "too_many_videos_counted"),
    ("value_missing", "rows_of_an_unknown_task"),
)


@pytest.fixture(scope="module")
def base(tmp_path_factory):
    folder = tmp_path_factory.mktemp("bases")

    def made(name):
        if not (folder / name).exists():
            make_base(name, folder / name)
        return folder / name

    return made


def damaged(base, folder, names):
    """Return a copy of the defects' base with all of them, and how to look at it."""
    defects = [DEFECTS[name] for name in names]
    shutil.copytree(base(defects[0].on), folder / "ds")
    for defect in defects:
        defect.damage(folder / "ds")
    return folder / "ds", {"deep": any(defect.deep for defect in defects), "drop_episodes": True}


def require_fixpoint(root, folder, **options):
    """Require that a repair's result passes the check, and that a second one does nothing."""
    done = demoreel.repair(root, folder / "out", **options)
    left = [(f.code, f.what) for f in done.after.findings if f.severity != "hint"]
    assert done.is_clean, left
    assert done.episodes >= 1
    said = done.changes or done.lost or done.dropped or done.cameras_lost or done.frames_lost
    assert said  # a word about it
    assert len(demoreel.open(folder / "out")) == done.frames
    again = demoreel.repair(folder / "out", folder / "again", deep=options["deep"])
    assert (again.changes, again.dropped, again.is_whole) == ((), (), True)


@pytest.mark.soak
@pytest.mark.parametrize("name", MENDABLE)
def test_what_was_repaired_is_sound(base, tmp_path, name):
    root, options = damaged(base, tmp_path, [name])
    if name in HOPELESS:
        with pytest.raises(RepairError):
            demoreel.repair(root, tmp_path / "out", **options)
        return
    if name in WITHOUT_A_CAMERA:
        with pytest.raises(RepairError, match="no frames of"):
            demoreel.repair(root, tmp_path / "out", **options)
        options["drop_cameras"] = WITHOUT_A_CAMERA[name]
    require_fixpoint(root, tmp_path, **options)


@pytest.mark.soak
@pytest.mark.parametrize("pair", PAIRS, ids="+".join)
def test_two_defects_at_once(base, tmp_path, pair):
    root, options = damaged(base, tmp_path, pair)
    require_fixpoint(root, tmp_path, **options)


def other_pairs(number):
    """Return pairs of defects of metadata, tables and videos, drawn by chance."""
    usual = ("v2", "v2.0", "v3", "v3-files", "v3-images")
    alone = HOPELESS | set(WITHOUT_A_CAMERA)
    names = [n for n in MENDABLE if DEFECTS[n].on in usual and n not in alone]
    every = [p for p in itertools.permutations(names, 2) if len({DEFECTS[n].on for n in p}) == 1]
    return random.Random(16).sample(every, number)


@pytest.mark.soak
@pytest.mark.parametrize("pair", other_pairs(40), ids="+".join)
def test_any_two_defects_at_once(base, tmp_path, pair):
    try:
        root, options = damaged(base, tmp_path, pair)
    except (AttributeError, KeyError, TypeError, OSError, ValueError):
        return  # the first has left nothing for the second to damage
    try:
        require_fixpoint(root, tmp_path, **options)
    except RepairError as error:
        if not error.what.startswith(("No episode can be saved", "Nothing says")):
            raise


def test_an_error_of_opening_says_what_to_do(base, tmp_path):
    silent = []
    for name in MENDABLE:
        root, _ = damaged(base, tmp_path / name, [name])
        try:
            demoreel.open(root)
        except DemoreelError as error:
            silent += [] if error.hint else [(name, error.what)]
        shutil.rmtree(tmp_path / name)
    assert silent == []
