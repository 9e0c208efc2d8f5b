"""``finish`` decodes what was encoded before it commits: what is damaged stays, and is named."""

from __future__ import annotations

import io
import json
import struct

import numpy as np
import pyarrow as pa
import pytest

import demoreel
from demoreel.cli.app import run
from demoreel.errors import DemoreelWarning
from demoreel.layouts.persisted_files import WORKDIR
from demoreel.testing import make_dataset
from demoreel.testing.stamp import read_stamp
from support.persisted import leave_persisted

CAM, DEPTH = "observation.images.cam0", "observation.depth"


@pytest.fixture
def waiting(tmp_path):
    """A dataset of one episode, with three saved ones that wait; the folder of the second."""
    root = make_dataset(
        tmp_path / "dataset", episodes=[3], cameras=1, depth_cameras={DEPTH: (48, 64)}
    )
    folders = [leave_persisted(root, frames=4, episode=n, encoded=3, gop=2) for n in (1, 2, 3)]
    return root, folders[1]


def packets_in(path):
    """Where each packet of a file is: offset and size."""
    data = path.read_bytes()
    start = len(b"demoreel packets 1\n")
    at = start + 4 + struct.unpack_from("<I", data, start)[0]
    found = []
    while at < len(data):
        size = struct.unpack_from("<IqB", data, at)[0]
        found.append((at + 13, size))
        at += 13 + size
    return found


def forget_digest(folder):
    """Make the manifest one of an older recorder."""
    said = json.loads((folder / "sealed.json").read_text())
    del said["note"]["rows_digest"]
    (folder / "sealed.json").write_text(json.dumps(said))


def spoil(path, number, keep=0):
    """Overwrite a packet's bytes, but for the first few."""
    at, size = packets_in(path)[number]
    with open(path, "r+b") as file:
        file.seek(at + keep)
        file.write(np.random.default_rng(0).bytes(size - keep))


@pytest.mark.parametrize(
    ("camera", "key", "number"),
    [("camera-0", CAM, 0), ("camera-0", CAM, 2), ("camera-1", DEPTH, 1)],
)
def test_damaged_packets_are_kept_and_named(waiting, camera, key, number, capsys):
    root, folder = waiting
    spoil(folder / f"{camera}.packets", number)
    before = (folder / f"{camera}.packets").read_bytes()
    planned = demoreel.finish(root, dry_run=True)
    assert [episode.episode_index for episode in planned.episodes] == [1, 2]
    assert run(["finish", str(root), "--json"]) == 1
    done = json.loads(capsys.readouterr().out)
    assert [episode["episode_index"] for episode in done["episodes"]] == [1, 2]
    (kept,) = done["kept"]
    assert kept["folder"] == str(folder)
    assert planned.kept[0].why == kept["why"]
    for said in (f"camera {key}", f"frame {number}", f"{camera}.packets", "decode"):
        assert said in kept["why"]
    assert (folder / f"{camera}.packets").read_bytes() == before
    dataset = demoreel.open(root, episodes=[1, 2])
    stamps = [tuple(read_stamp(sample[CAM])) for sample in dataset]
    assert stamps == [(e, f) for e in (1, 3) for f in range(4)]


def test_a_recorder_keeps_it_as_well(waiting):
    root, folder = waiting
    spoil(folder / "camera-0.packets", 0)
    with pytest.warns(DemoreelWarning, match="does not decode"):
        recorder = demoreel.resume(root)
    assert recorder.num_episodes == 3
    recorder.finalize()
    assert (root / WORKDIR / folder.name / "sealed.json").exists()


def test_damaged_images_are_kept_and_named(tmp_path):
    root = make_dataset(
        tmp_path / "dataset", episodes=[2], cameras=1, image_cameras={"image": (32, 48)}
    )
    folder = leave_persisted(root, frames=3, episode=1)
    leave_persisted(root, frames=3, episode=2)
    path = folder / "rows.arrow"
    table = pa.ipc.open_file(pa.BufferReader(path.read_bytes())).read_all()
    images = table.column("image").to_pylist()
    images[1]["bytes"] = images[1]["bytes"][:60]
    place = table.column_names.index("image")
    table = table.set_column(place, "image", pa.array(images, table.schema.field("image").type))
    sink = io.BytesIO()
    with pa.ipc.new_file(sink, table.schema) as writer:
        writer.write_table(table)
    path.write_bytes(sink.getvalue())
    forget_digest(folder)
    done = demoreel.finish(root)
    assert [episode.episode_index for episode in done.episodes] == [1]
    assert "camera image, frame 1" in done.kept[0].why


@pytest.mark.parametrize("older", [False, True])
@pytest.mark.parametrize("keep", ["begin", "end", "both", "short"])
def test_rows_with_holes_are_no_zeros(tmp_path, keep, older):
    root = make_dataset(tmp_path / "dataset", episodes=[2], cameras=1)
    folder = leave_persisted(root, frames=600, episode=7)
    leave_persisted(root, frames=2, episode=8)
    if older:
        forget_digest(folder)
    path = folder / "rows.arrow"
    assert len(demoreel.open(root)) == 604
    data, size = path.read_bytes(), path.stat().st_size
    assert size > 3 * 8192
    path.unlink()
    with open(path, "wb") as file:
        file.write(data[: 0 if keep == "end" else 8192])
        if keep in ("end", "both"):
            file.seek(size - size % 4096 - 4096)
            file.write(data[file.tell() :])
        elif keep == "begin":
            file.truncate(size)
    with pytest.warns(DemoreelWarning, match="rows of a saved episode cannot be read"):
        dataset = demoreel.open(root)
    assert [int(sample["episode_index"]) for sample in dataset] == [0, 0, 1, 1]
    assert len(demoreel.finish(root).kept) == 1
