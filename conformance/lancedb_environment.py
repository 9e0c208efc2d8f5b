"""Make the environment that lerobot-lancedb runs in, once, and print the path of its interpreter.

    python conformance/lancedb_environment.py

It is a small venv on top of the one that `environment.py` makes for lerobot, whose
packages it sees, and is beside it: `${DEMOREEL_CACHE:-~/.cache/demoreel}/lancedb-<hash>`. pip
installs what lerobot's environment lacks (lancedb and a few small packages), under its pins, so
torch, torchcodec and lerobot are the very same.

Only the interpreter's path goes to standard output. Exit status as in `environment.py`.
"""

from __future__ import annotations

import hashlib
import os
import shutil
import sys
from pathlib import Path

import environment as lerobot

PINS = ("lerobot-lancedb==0.3.1", "lancedb==0.40.0")
OLD_PIN = "lerobot-lancedb==0.2.2"  # of lance-video and lance-frames; in a folder of its own
SMOKE_TEST = "from lerobot_lancedb import LanceDBDataset"
LAUNCHER = """\
#!/bin/sh
lerobot={lerobot}
libraries=$lerobot/lib/python3.12/site-packages/av.libs
export LD_LIBRARY_PATH="$lerobot/ffmpeg:$libraries${{LD_LIBRARY_PATH:+:$LD_LIBRARY_PATH}}"
exec "$(cd "$(dirname "$0")" && pwd)/python" "$@"
"""


def main() -> int:
    if len(sys.argv) > 1:
        print(__doc__.strip())
        return 0 if sys.argv[1] in ("-h", "--help") else 2
    try:
        print(make_environment())
    except lerobot.CannotBeMadeError as error:
        lerobot.say(f"lerobot-lancedb's environment cannot be made: {error}")
        return 1 if os.environ.get("CI", "").lower() == "true" else lerobot.CANNOT_BE_MADE
    return 0


def make_environment() -> Path:
    """Return the interpreter of a working environment, building it where there is none."""
    base = lerobot.make_environment().parent.parent
    folder = environment_folder(base)
    with lerobot.only_one(folder.with_name(folder.name + ".lock")):
        if not lerobot.works(launcher(folder)):
            lerobot.remove_leftovers(folder)
            build(folder, base)
    return launcher(folder)


def environment_folder(base: Path) -> Path:
    contents = [base.name, *PINS, OLD_PIN, LAUNCHER]
    digest = hashlib.sha256("".join(contents).encode()).hexdigest()[:16]
    return base.with_name(f"lancedb-{digest}")


def build(folder: Path, base: Path) -> None:
    """Install into a folder of another name, try it, and give it its own name last."""
    building = folder.with_name(f"{folder.name}.building")
    lerobot.say(f"installing {PINS[0]} into {folder} (about 0.3 GB, once)")
    packages = Path("lib/python3.12/site-packages")
    try:
        lerobot.command([lerobot.find_python(), "-m", "venv", building], "venv failed")
        # A path file, not a second install: pip then sees what lerobot's environment has.
        (building / packages / "lerobot.pth").write_text(f"{base / packages}\n")
        lerobot.command(
            [
                *(lerobot.interpreter(building), "-m", "pip", "install"),
                *("-qq", "--no-input", "--disable-pip-version-check"),
                *(*PINS, "-c", lerobot.PINS[1]),
            ],
            "pip could not install lerobot-lancedb (is the package registry within reach?)",
        )
        lerobot.command(
            [
                *(lerobot.interpreter(building), "-m", "pip", "install"),
                *("-qq", "--no-input", "--disable-pip-version-check"),
                *("--no-deps", "--target", building / "lancedb-0.2", OLD_PIN),
            ],
            f"pip could not install {OLD_PIN}",
        )
        launcher(building).write_text(LAUNCHER.format(lerobot=base))
        launcher(building).chmod(0o755)
        lerobot.command([launcher(building), "-c", SMOKE_TEST], "lerobot-lancedb fails to load")
    except BaseException:
        shutil.rmtree(building, ignore_errors=True)
        raise
    building.rename(folder)


def launcher(folder: Path) -> Path:
    return folder / "bin" / "lancedb-python"


if __name__ == "__main__":
    sys.exit(main())
