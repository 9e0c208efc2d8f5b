"""Make the environment that lerobot runs in, once, and print the path of its interpreter.

    python conformance/environment.py

The environment is a Python 3.12 venv with the packages that `requirements.txt` and
`constraints.txt` pin (about 6 GB, three minutes): lerobot with what its training needs, and what
demoreel needs to run beside it. It is in

    ${DEMOREEL_CACHE:-~/.cache/demoreel}/conformance-<hash of the pins>

so it outlives the clone, and changed pins get a new one. It is built under another name and
renamed when it works, so a killed build is never taken for a good one; a second builder waits for
the first. Because of the rename, call its tools as `python -m pip`: the scripts in `bin/` name the
old folder.

lerobot decodes with torchcodec, which looks for FFmpeg on the system; where there is none, lerobot
turns to PyAV, which is slower. PyAV's wheel carries all of FFmpeg, so the path printed is that of a
small script, `bin/lerobot-python`, which shows it to torchcodec and becomes the interpreter.

Only the interpreter's path goes to standard output. Exit status: 0 done; 1 it cannot be made and
`CI=true`; 75 it cannot be made here, which `make conformance` reports as a skip.

Set `DEMOREEL_PYTHON312` to choose the interpreter that the venv is made with.
"""

from __future__ import annotations

import fcntl
import hashlib
import os
import re
import shutil
import subprocess
import sys
import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

HERE = Path(__file__).resolve().parent
PINS = (HERE / "requirements.txt", HERE / "constraints.txt")
CANNOT_BE_MADE = 75  # EX_TEMPFAIL of sysexits.h
PROBE = "import sys, ensurepip, venv; print('%d.%d' % sys.version_info[:2])"
SMOKE_TEST = "import lance, simplejpeg, lerobot.scripts.lerobot_train"
LAUNCHER = """\
#!/bin/sh
environment=$(cd "$(dirname "$0")/.." && pwd)
libraries=$environment/lib/python3.12/site-packages/av.libs
export LD_LIBRARY_PATH="$environment/ffmpeg:$libraries${LD_LIBRARY_PATH:+:$LD_LIBRARY_PATH}"
exec "$environment/bin/python" "$@"
"""


class CannotBeMadeError(Exception):
    """Something outside this checkout is missing: Python 3.12, the package registry, disk space."""


def main() -> int:
    if len(sys.argv) > 1:
        print(__doc__.strip())
        return 0 if sys.argv[1] in ("-h", "--help") else 2
    try:
        print(make_environment())
    except CannotBeMadeError as error:
        say(f"the environment cannot be made: {error}")
        return 1 if os.environ.get("CI", "").lower() == "true" else CANNOT_BE_MADE
    return 0


def make_environment() -> Path:
    """Return the interpreter of a working environment, building it where there is none."""
    folder = environment_folder()
    try:
        folder.parent.mkdir(parents=True, exist_ok=True)
        with only_one(folder.with_name(folder.name + ".lock")):
            if not works(launcher(folder)):
                remove_leftovers(folder)
                build(folder)
    except OSError as error:
        raise CannotBeMadeError(str(error)) from error
    return launcher(folder)


def environment_folder() -> Path:
    cache = Path(os.environ.get("DEMOREEL_CACHE") or "~/.cache/demoreel").expanduser().absolute()
    contents = [*(path.read_bytes() for path in PINS), LAUNCHER.encode()]
    return cache / f"conformance-{hashlib.sha256(b''.join(contents)).hexdigest()[:16]}"


def build(folder: Path) -> None:
    """Install into a folder of another name, try it, and give it its own name last."""
    python = find_python()
    building = folder.with_name(f"{folder.name}.building")
    say(f"installing lerobot for {python} into {folder} (about 3 minutes and 6 GB, once)")
    started = time.monotonic()
    try:
        command([python, "-m", "venv", building], "venv failed")
        command(
            [
                *(interpreter(building), "-m", "pip", "install"),
                *("-qq", "--no-input", "--disable-pip-version-check"),
                *("-r", PINS[0], "-c", PINS[1]),
            ],
            "pip could not install the pinned packages (is the package registry within reach?)",
        )
        show_ffmpeg(building)
        command([launcher(building), "-c", SMOKE_TEST], "lerobot was installed but fails to load")
    except BaseException:
        shutil.rmtree(building, ignore_errors=True)
        raise
    building.rename(folder)
    say(f"done in {time.monotonic() - started:.0f} s")


def show_ffmpeg(folder: Path) -> None:
    """Write the launcher, and links from the names torchcodec looks for to PyAV's libraries.

    The wheel holds `libavutil-a63ffd27.so.59.39.100`; torchcodec looks for `libavutil.so.59`.
    """
    links = folder / "ffmpeg"
    links.mkdir()
    for library in (folder / "lib").glob("python3.12/site-packages/av.libs/lib*.so.*"):
        match = re.fullmatch(r"(lib(?:av|sw)[a-z]+)-[0-9a-f]+(\.so\.\d+)\..*", library.name)
        if match:
            (links / "".join(match.groups())).symlink_to(os.path.relpath(library, links))
    launcher(folder).write_text(LAUNCHER)
    launcher(folder).chmod(0o755)


def remove_leftovers(folder: Path) -> None:
    """Remove what killed builds left, and an environment whose base interpreter is gone.

    The lock is held here, so nobody is at work in them.
    """
    for leftover in folder.parent.glob(f"{folder.name}*"):
        if leftover.suffix != ".lock":
            shutil.rmtree(leftover)


@contextmanager
def only_one(lock: Path) -> Iterator[None]:
    """Hold a lock that the kernel releases when this process and its children have ended.

    The children inherit it: a pip that outlives a killed parent still keeps others out.
    """
    with lock.open("w") as file:
        os.set_inheritable(file.fileno(), True)
        try:
            fcntl.flock(file, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError:
            say(f"waiting for another process to finish {lock.stem}")
            fcntl.flock(file, fcntl.LOCK_EX)
        yield


def find_python() -> str:
    """Find a Python 3.12 that runs and can make a venv."""
    for candidate in candidates():
        if version(candidate) == "3.12":
            return candidate
    chosen = os.environ.get("DEMOREEL_PYTHON312")
    if chosen:
        raise CannotBeMadeError(f"DEMOREEL_PYTHON312={chosen} is not a Python 3.12 that runs")
    raise CannotBeMadeError(
        "no Python 3.12 found on PATH, in pyenv or in uv. "
        "Install one, or set DEMOREEL_PYTHON312 to its path"
    )


def candidates() -> Iterator[str]:
    chosen = os.environ.get("DEMOREEL_PYTHON312")
    if chosen:
        yield chosen
        return
    if sys.version_info[:2] == (3, 12):
        # A venv must not be the base of another: it may be gone tomorrow.
        yield getattr(sys, "_base_executable", sys.executable)
    for name in ("python3.12", "python3", "python"):
        found = shutil.which(name)
        if found:
            yield found
    # A pyenv shim on PATH fails unless its version is active: look behind it.
    roots = {os.environ.get("PYENV_ROOT"), answer("pyenv", "root"), "~/.pyenv"} - {None, ""}
    for root in sorted(filter(None, roots)):
        for python in sorted(Path(root).expanduser().glob("versions/3.12*/bin/python")):
            yield str(python)
    found = answer("uv", "python", "find", "3.12")
    if found:
        yield found
    for folder in ("/usr/bin", "/usr/local/bin", "/opt/homebrew/bin"):
        yield f"{folder}/python3.12"


def version(python: str) -> str:
    return answer(python, "-c", PROBE)


def works(python: Path) -> bool:
    return python.exists() and version(str(python)) == "3.12"


def interpreter(folder: Path) -> Path:
    return folder / "bin" / "python"


def launcher(folder: Path) -> Path:
    return folder / "bin" / "lerobot-python"


def answer(*arguments: str) -> str:
    """Return what a command prints, or nothing where it is absent or fails."""
    try:
        done = subprocess.run(arguments, capture_output=True, text=True, timeout=60, check=False)
    except (OSError, subprocess.TimeoutExpired):
        return ""
    return done.stdout.strip() if done.returncode == 0 else ""


def command(arguments: list[str | Path], failure: str) -> None:
    """Run a command with its output on standard error, where it cannot be taken for the answer."""
    done = subprocess.run(arguments, stdout=sys.stderr, check=False, close_fds=False)
    if done.returncode != 0:
        raise CannotBeMadeError(f"{failure}, exit status {done.returncode}")


def say(text: str) -> None:
    print(f"conformance: {text}", file=sys.stderr)


if __name__ == "__main__":
    sys.exit(main())
