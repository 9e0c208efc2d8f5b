"""Objects that code written for lerobot takes for its own. With lerobot itself: conformance/."""

from __future__ import annotations

import subprocess
import sys
from importlib.util import find_spec

import pytest

from demoreel.errors import MissingExtraError

pytestmark = pytest.mark.soak

# lerobot cannot be installed here; a class of that name in that place is all that counts.
THEIR_CLASS = """
import torch
class LeRobotDataset(torch.utils.data.Dataset):
    def __init__(self): raise AssertionError("lerobot's own constructor was called")
    def __getitem__(self, index): raise AssertionError("lerobot's own reader was called")
    def __len__(self): return -1
    def push_to_hub(self): return "theirs"
"""
THEIR_FACTORY = """
from lerobot.datasets.lerobot_dataset import LeRobotDataset
class LeRobotDatasetMetadata: pass
def make_dataset(*args, **kwargs): return LeRobotDataset(*args, **kwargs)
def make_metadata(*args, **kwargs): return LeRobotDatasetMetadata(*args, **kwargs)
"""


@pytest.fixture
def beside_lerobot(tmp_path):
    """A function that runs a program where a package named lerobot can be imported."""
    folder = tmp_path / "packages" / "lerobot" / "datasets"
    folder.mkdir(parents=True)
    for empty in (folder.parent, folder):
        (empty / "__init__.py").touch()
    (folder / "lerobot_dataset.py").write_text(THEIR_CLASS)
    (folder / "factory.py").write_text(THEIR_FACTORY)

    def run(code):
        program = tmp_path / "program.py"
        program.write_text(f"import sys; sys.path.insert(0, {str(folder.parents[1])!r})\n{code}")
        done = subprocess.run(
            [sys.executable, program], capture_output=True, text=True, check=False
        )
        assert done.returncode == 0, done.stderr

    return run


def test_isinstance_whoever_imports_lerobot_and_when(fixtures, beside_lerobot):
    beside_lerobot(f"""
import copy, pickle
from demoreel.torch import LeRobotDataset, LeRobotLanceDataset, LeRobotLanceVideoDataset

def open_all():
    return [
        LeRobotDataset("me/g1", root="{fixtures}/g1_v30"),
        LeRobotLanceVideoDataset(root="{fixtures}/g1_lance_video"),
        LeRobotLanceDataset(root="{fixtures}/kitchen_lance_frames", decode_device="cpu"),
    ]

before = open_all()
assert all(ds.__class__ is type(ds) for ds in before)
assert "lerobot" not in sys.modules
from lerobot.datasets.lerobot_dataset import LeRobotDataset as Theirs
for ds in [*before, *open_all()]:
    for kin in (ds, copy.copy(ds), copy.deepcopy(ds), pickle.loads(pickle.dumps(ds))):
        assert isinstance(kin, Theirs) and isinstance(kin, LeRobotDataset)
        assert issubclass(kin.__class__, Theirs) and kin.__class__.__name__ == type(ds).__name__
        assert type(kin) is type(ds) and not issubclass(type(ds), Theirs)
        assert len(kin) > 0 and kin[0]["index"].item() == 0

class Mine(LeRobotLanceVideoDataset):
    def __getitem__(self, index):
        return super().__getitem__(index)

assert isinstance(Mine(root="{fixtures}/g1_lance_native"), Theirs)
assert Mine(root="{fixtures}/g1_lance_native")[3]["index"].item() == 3
""")


@pytest.mark.parametrize("method", ["fork", "spawn"])
def test_workers_get_kin_whether_or_not_they_import_lerobot(fixtures, beside_lerobot, method):
    beside_lerobot(f"""
from torch.utils.data import DataLoader
from demoreel.torch import LeRobotLanceVideoDataset

def main():
    import lerobot.datasets.lerobot_dataset
    ds = LeRobotLanceVideoDataset(root="{fixtures}/g1_lance_native", return_uint8=True)
    loader = DataLoader(ds, batch_size=4, num_workers=1, multiprocessing_context={method!r})
    assert next(iter(loader))["index"].tolist() == [0, 1, 2, 3]

if __name__ == "__main__":
    main()
""")


def test_plugging_in_and_out(fixtures, beside_lerobot):
    beside_lerobot(f"""
import os
import lerobot.datasets.factory as factory
theirs = dict(vars(factory))
import demoreel.torch.lerobot as plug
from demoreel import torch as ours
from demoreel.errors import DatasetNotFoundError

kinds = {{
    "g1_v21": ours.LeRobotDataset,
    "g1_v30": ours.LeRobotDataset,
    "g1_lance_video": ours.LeRobotLanceVideoDataset,
    "g1_lance_native": ours.LeRobotLanceVideoDataset,
    "kitchen_lance_frames": ours.LeRobotLanceDataset,
}}
for name, kind in kinds.items():
    ds = factory.make_dataset("me/x", root="{fixtures}/" + name, return_uint8=True)
    assert type(ds) is kind and isinstance(ds, theirs["LeRobotDataset"])
    meta = factory.make_metadata("me/x", root="{fixtures}/" + name, repo_type="dataset")
    assert meta.total_frames == len(ds)
os.environ["HF_HUB_OFFLINE"] = "1"
try:
    factory.make_dataset("me/nowhere")
    raise SystemExit("it was found")
except DatasetNotFoundError:
    pass
for call in (plug.unplug, plug.unplug):
    call()
    assert vars(factory)["LeRobotDataset"] is theirs["LeRobotDataset"]
    assert vars(factory)["LeRobotDatasetMetadata"] is theirs["LeRobotDatasetMetadata"]
plug.plug_in()
assert factory.make_metadata("me/x", "{fixtures}/g1_v30").total_episodes == 4
""")


@pytest.mark.skipif(find_spec("lerobot") is not None, reason="lerobot is installed")
def test_plugging_in_without_lerobot():
    with pytest.raises(MissingExtraError, match=r"lerobot\[dataset\]"):
        __import__("demoreel.torch.lerobot")
