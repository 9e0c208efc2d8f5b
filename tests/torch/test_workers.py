"""Workers: handles of their own, memory that stays flat, right items after fork and spawn."""

from __future__ import annotations

import json
import os
import shutil
import subprocess
import sys
import textwrap

import psutil
import pyarrow as pa
import pyarrow.parquet as pq
import pytest
import torch
from torch.utils.data import DataLoader

from demoreel.testing import make_dataset, read_stamp
from demoreel.torch import LeRobotDataset

CAMERA = "observation.images.cam0"


@pytest.fixture(scope="module")
def root(tmp_path_factory):
    return make_dataset(
        tmp_path_factory.mktemp("workers") / "made",
        episodes=[40] * 6,
        cameras=2,
        gop=5,
        video_files_size_in_mb=0.05,
        data_files_size_in_mb=0.01,
    )


@pytest.mark.soak
@pytest.mark.parametrize("method", ["fork", "spawn"])
def test_eight_workers_after_use_in_the_parent(root, method):
    ds = LeRobotDataset(
        "me/made", root=root, return_uint8=True, delta_timestamps={CAMERA: [-1 / 30, 0.0]}
    )
    ds.__getitems__(list(range(0, 240, 7)))  # opens files, codecs and threads in this process
    torch.manual_seed(0)
    loader = DataLoader(
        ds,
        batch_size=16,
        shuffle=True,
        num_workers=8,
        multiprocessing_context=method,
        persistent_workers=True,
    )
    for _ in range(2):
        seen = []
        for batch in loader:
            for place in range(len(batch["index"])):
                episode = batch["episode_index"][place].item()
                frame = batch["frame_index"][place].item()
                before, now = (read_stamp(p.numpy()) for p in batch[CAMERA][place])
                assert (before.episode, before.frame) == (episode, max(0, frame - 1))
                assert (now.episode, now.frame) == (episode, frame)
                other = read_stamp(batch["observation.images.cam1"][place].numpy())
                assert (other.episode, other.frame) == (episode, frame)
            seen += batch["index"].tolist()
        assert sorted(seen) == list(range(240))
    assert ds[100]["index"].item() == 100  # and the parent reads on


def test_an_error_in_a_worker_keeps_its_words(root, tmp_path):
    broken = shutil.copytree(root, tmp_path / "broken")
    for video in (broken / "videos" / CAMERA).rglob("*.mp4"):
        video.write_bytes(video.read_bytes()[:100])
    ds = LeRobotDataset("me/made", root=broken)
    with pytest.raises(Exception, match="cut off") as caught:
        next(iter(DataLoader(ds, batch_size=4, num_workers=1)))
    assert CAMERA in str(caught.value)


@pytest.mark.soak
def test_workers_share_large_tables(root, tmp_path, monkeypatch):
    """Two workers that read everything leave one decoded copy on disk, and none afterwards."""
    scratch = tmp_path / "scratch"
    code = textwrap.dedent("""
        import sys
        from pathlib import Path
        from torch.utils.data import DataLoader
        from demoreel.torch import LeRobotDataset

        root, scratch, method = sys.argv[1:]
        if __name__ == "__main__":
            ds = LeRobotDataset("me/made", root=root, cameras=[])
            ds[0]
            loader = DataLoader(ds, batch_size=8, num_workers=2, multiprocessing_context=method)
            rows = [int(i) for batch in loader for i in batch["index"]]
            assert rows == list(range(240))
            print(len(list(Path(scratch).glob("*/*/filled"))))
    """)
    script = tmp_path / "share.py"
    script.write_text(code)
    environment = {**os.environ, "DEMOREEL_SCRATCH": str(scratch), "DEMOREEL_TABLE_MEMORY": "0"}
    for method in ("fork", "spawn"):
        command = [sys.executable, str(script), str(root), str(scratch), method]
        done = subprocess.run(command, env=environment, capture_output=True, text=True)
        assert done.returncode == 0, done.stderr
        assert done.stdout.strip() == "1"
        assert list(scratch.glob("*/*")) == []


def make_many_files(folder, count):
    """A v2.1 dataset of many small videos, made by linking one episode's files."""
    seed = make_dataset(folder / "seed", episodes=[8], layout="v2.1", with_stats=False)
    root = folder / "many"
    shutil.copytree(seed / "meta", root / "meta")
    video = next((seed / "videos").rglob("*.mp4"))
    table = pq.read_table(next((seed / "data").rglob("*.parquet")))
    for name in ("episode_index", "index"):
        table = table.drop_columns([name])
    lines = []
    for episode in range(count):
        chunk = f"chunk-{episode // 1000:03d}"
        place = root / "videos" / chunk / CAMERA
        data = root / "data" / chunk
        place.mkdir(parents=True, exist_ok=True)
        data.mkdir(parents=True, exist_ok=True)
        os.link(video, place / f"episode_{episode:06d}.mp4")
        numbered = table.append_column("episode_index", pa.array([episode] * 8, pa.int64()))
        numbered = numbered.append_column("index", pa.array(range(episode * 8, episode * 8 + 8)))
        pq.write_table(numbered, data / f"episode_{episode:06d}.parquet")
        lines.append(json.dumps({"episode_index": episode, "tasks": ["do it"], "length": 8}))
    (root / "meta/episodes.jsonl").write_text("\n".join(lines))
    info = json.loads((root / "meta/info.json").read_text())
    info.update(total_episodes=count, total_frames=8 * count)
    (root / "meta/info.json").write_text(json.dumps(info))
    return root


class Watched(LeRobotDataset):
    """Adds the worker's resident memory and open files to every batch."""

    def __getitems__(self, indices):
        items = super().__getitems__(indices)
        process = psutil.Process()
        for item in items:
            item["resident"] = torch.tensor(process.memory_info().rss)
            item["files"] = torch.tensor(process.num_fds())
        return items


@pytest.mark.alone
@pytest.mark.parametrize("many", [2000, pytest.param(10_000, marks=pytest.mark.soak)])
def test_memory_and_open_files_stay_flat_over_many_files(tmp_path, many):
    root = make_many_files(tmp_path, many)
    ds = Watched("me/many", root=root, return_uint8=True)
    torch.manual_seed(0)
    # One frame of every file, twice, in no order: a decoder or a table kept per file would show.
    numbers = [n for _ in range(2) for n in (torch.randperm(many) * 8 + 3).tolist()]
    resident, files = [], []
    for batch in DataLoader(ds, batch_size=50, sampler=numbers, num_workers=1):
        resident.append(batch["resident"][0].item())
        files.append(batch["files"][0].item())
    after_warm_up = resident[len(resident) // 10]
    assert max(resident) < after_warm_up * 1.05 + (64 << 20), (after_warm_up, max(resident))
    late, early = resident[-1], resident[len(resident) // 2]
    assert late < early * 1.05
    assert max(files) < 350  # 256 stay open at most, of 2,000 and more
