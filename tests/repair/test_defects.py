"""Every defect that ``check`` says repair mends: afterwards it finds nothing, or none is saved."""

from __future__ import annotations

import shutil

import pytest

import demoreel
from demoreel.check.catalogue import CODES
from demoreel.check.codes import REPAIR
from demoreel.errors import RepairError
from support.defects import DEFECTS, make_base

pytestmark = pytest.mark.soak

MENDABLE = [
    name
    for name, defect in DEFECTS.items()
    if not defect.leaks and any(CODES[code].mend == REPAIR for code in defect.codes)
]
HOPELESS = {
    "data_file_missing",  # of the only fragment
    "rows_of_videos_renumbered",  # which of them is whose is not certain any more
}


@pytest.fixture(scope="module")
def base(tmp_path_factory):
    folder = tmp_path_factory.mktemp("bases")

    def made(name):
        if not (folder / name).exists():
            make_base(name, folder / name)
        return folder / name

    return made


@pytest.mark.parametrize("name", MENDABLE)
def test_what_was_mended_is_sound(base, tmp_path, name):
    defect = DEFECTS[name]
    shutil.copytree(base(defect.on), tmp_path / "ds")
    defect.damage(tmp_path / "ds")
    if name in HOPELESS:
        with pytest.raises(RepairError):
            demoreel.repair(tmp_path / "ds", tmp_path / "out")
        return
    done = demoreel.repair(tmp_path / "ds", tmp_path / "out", deep=defect.deep)
    left = [(f.code, f.what) for f in done.after.findings if f.severity != "hint"]
    assert done.is_clean, left
    assert done.episodes >= 1
    assert len(demoreel.open(tmp_path / "out")) == done.frames
