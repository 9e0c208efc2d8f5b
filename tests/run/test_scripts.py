"""A script without ``if __name__ == "__main__"`` runs once, whatever processes are started."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

import pytest

from demoreel.testing import make_dataset

# What people's scripts do outside of functions: note that they run, and clear what they make.
BEGIN = """
import pathlib, shutil
import numpy as np
with open("runs", "a") as runs:
    runs.write("once\\n")
shutil.rmtree("made", ignore_errors=True)
pathlib.Path("made").mkdir()
"""

ENTRIES = {
    "render": """
import demoreel
done = demoreel.cut("videos").keep([2, 0, 1]).render("made/cut", jobs=2, fps=5, vcodec="h264")
assert len(demoreel.open("made/cut").episodes) == 3
""",
    "convert": """
import demoreel
for to in ("lance-video", "v2.1"):
    demoreel.convert("videos", f"made/{to}", to=to, jobs=2)
    assert len(demoreel.open(f"made/{to}").episodes) == 3
""",
    "convert_image_to_video_dataset": """
from demoreel.torch import LeRobotDataset, convert_image_to_video_dataset
images = LeRobotDataset("me/images", root="images")
made = convert_image_to_video_dataset(images, "made/video", "me/video", num_workers=2)
assert made.num_episodes == 3
""",
    "reencode_dataset": """
from demoreel.torch import LeRobotDataset, reencode_dataset
videos = LeRobotDataset("me/videos", root="videos")
options = {"output_dir": "made/again", "repo_id": "me/again", "num_workers": 2}
made = reencode_dataset(videos, "h264", **options)
assert made.num_episodes == 3
""",
    "check": """
import demoreel
demoreel.check("videos", deep=True)
demoreel.repair("videos", "made/repaired")
""",
    "stats": """
from demoreel.torch import LeRobotDataset, delete_episodes, modify_tasks, recompute_stats
kept = delete_episodes(LeRobotDataset("me/videos", root="videos"), [0], "made/kept", "me/kept")
modify_tasks(recompute_stats(kept, skip_image_video=False, num_workers=2), new_task="sit")
assert kept.num_episodes == 2
""",
    "record": """
import demoreel
features = {"observation.images.front": {"dtype": "video", "shape": (64, 64, 3), "names": None}}
recorder = demoreel.create("made/recorded", fps=10, features=features)
for _ in range(5):
    image = np.zeros((64, 64, 3), np.uint8)
    recorder.add_frame({"observation.images.front": image, "task": "stand"})
recorder.save_episode()
recorder.finalize()
assert len(demoreel.open("made/recorded")) == 5
""",
}


@pytest.fixture(scope="module")
def sources(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("sources")
    make_dataset(folder / "videos", episodes=3, length=6, fps=10, cameras=2)
    images = {"observation.images.front": (64, 64)}
    make_dataset(folder / "images", episodes=3, length=6, cameras=0, image_cameras=images)
    return folder


def _started(how: str, folder: Path, text: str) -> tuple[list[str], str | None]:
    script = folder / "script.py"
    script.write_text(text)
    if how == "script":
        return [str(script)], None
    if how == "module":
        return ["-m", "script"], None
    if how == "stdin":
        return ["-"], text
    if how == "-c":
        return ["-c", text], None
    notebook = (
        "import sys, types; main = types.ModuleType('__main__'); sys.modules['__main__'] = main; "
        "exec(compile(open('script.py').read(), '<cell>', 'exec'), main.__dict__)"
    )
    return ["-c", notebook], None


@pytest.mark.parametrize(
    ("how", "entry"),
    [
        *(("script", entry) for entry in ("render", "record")),
        *(
            pytest.param("script", entry, marks=pytest.mark.soak)
            for entry in ENTRIES
            if entry not in ("render", "record")
        ),
        ("stdin", "render"),
        *(
            pytest.param(how, "render", marks=pytest.mark.soak)
            for how in ("module", "-c", "notebook")
        ),
        *(pytest.param(how, "record", marks=pytest.mark.soak) for how in ("stdin", "notebook")),
    ],
)
def test_a_script_runs_once(how, entry, sources, tmp_path):
    for name in ("videos", "images"):
        (tmp_path / name).symlink_to(sources / name)
    arguments, given = _started(how, tmp_path, BEGIN + ENTRIES[entry])
    done = subprocess.run(
        [sys.executable, *arguments],
        cwd=tmp_path,
        input=given,
        capture_output=True,
        text=True,
    )
    assert (done.returncode, done.stderr) == (0, "")
    assert (tmp_path / "runs").read_text() == "once\n"
