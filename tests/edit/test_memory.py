"""Row groups and pages of hundreds of megabytes are read, cut, converted and compared in pieces."""

from __future__ import annotations

import subprocess
import sys

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
import pytest

from demoreel.testing import make_dataset

FRAMES, SIZE = 600, 1_000_000
MOST_MB = 1024

STEPS = {
    8: ["convert"],
    240: ["cut", "repair", "convert", "diff", "read"],
}
CODES = {
    "cut": "demoreel.cut(root).delete([0]).render(out)",
    "repair": "assert demoreel.repair(root, out).episodes == 3",
    "convert": "demoreel.convert(root, out, to='v2.1')",
    "diff": "assert demoreel.diff(root, root).is_equal",
    "read": """
assert demoreel.check(root, deep=True).is_sound
dataset = demoreel.open(root)
assert dataset[300]["observation.images.front"].shape == (3, 48, 64)
assert dataset.sql("select count(*) from frames").column(0).to_pylist() == [600]
from demoreel.torch import LeRobotDataset
LeRobotDataset("a/b", root=root)[500]
""",
}
CODE = """
import sys, demoreel
root, out = sys.argv[1:]
{step}
peak = next(line for line in open("/proc/self/status") if line.startswith("VmHWM"))
print(int(peak.split()[1]) >> 10)
"""


@pytest.mark.soak
@pytest.mark.alone
@pytest.mark.skipif(sys.platform != "linux", reason="reads /proc")
@pytest.mark.parametrize("rows_per_page", STEPS)
def test_large_row_groups(tmp_path, rows_per_page):
    camera = "observation.images.front"
    root = make_dataset(
        tmp_path / "ds", episodes=(FRAMES // 3,) * 3, cameras=0, image_cameras={camera: (48, 64)}
    )
    path = next((root / "data").rglob("*.parquet"))
    table = pq.read_table(path)
    place, kind = table.schema.get_field_index(camera), table.schema.field(camera).type
    rest = np.random.default_rng(0).bytes(SIZE)  # after a PNG's end: no decoder reads it
    images = [{**row, "bytes": row["bytes"] + rest} for row in table.column(camera).to_pylist()]
    table = table.set_column(place, camera, pa.array(images, kind))
    pq.write_table(table, path, row_group_size=FRAMES, write_batch_size=rows_per_page)
    assert pq.read_metadata(path).row_group(0).total_byte_size > FRAMES * SIZE
    peaks = {}
    for name in STEPS[rows_per_page]:
        code = CODE.format(step=CODES[name])
        done = subprocess.run(
            [sys.executable, "-c", code, str(root), str(tmp_path / name)],
            capture_output=True,
            text=True,
        )
        assert done.returncode == 0, done.stderr[-2000:]
        peaks[name] = int(done.stdout.split()[-1])
    assert max(peaks.values()) < MOST_MB, peaks
