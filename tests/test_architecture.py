"""The rooms of the code: calls go downhill only, heavy things load late, modules stay small."""

from __future__ import annotations

import ast
import subprocess
import sys
from pathlib import Path

import pytest

import demoreel

SOURCE = Path(demoreel.__file__).parent
MODULES = sorted(SOURCE.rglob("*.py"))

# A room may import from rooms of a lower level, and from itself.
LEVELS = [
    {"errors"},
    {"model"},
    {"storage"},
    {"media"},
    {"layouts"},
    {"read", "stats", "run"},
    {"edit"},
    {"convert", "check", "record"},  # conversions and repairs are cuts, too
    {"repair", "hub"},  # what is published was recorded, perhaps by a process that was killed
    {"torch"},  # its classes record, cut and push, too
    {"cli", "view"},
]
LEVEL = {room: number for number, rooms in enumerate(LEVELS) for room in rooms}
FREE = {"testing", "__init__", "__main__"}  # testing may use everything; nothing may use it


def room_of(path: Path) -> str:
    return path.relative_to(SOURCE).parts[0].removesuffix(".py")


def imported_rooms(path: Path) -> set[str]:
    rooms = set()
    for node in ast.walk(ast.parse(path.read_text())):
        names = []
        if isinstance(node, ast.Import):
            names = [alias.name for alias in node.names]
        elif isinstance(node, ast.ImportFrom):
            assert node.level == 0, f"{path}: imports are absolute"
            names = [node.module or ""]
            if node.module == "demoreel":
                names = [f"demoreel.{alias.name}" for alias in node.names]
        rooms |= {name.split(".")[1] for name in names if name.startswith("demoreel.")}
    return rooms


@pytest.mark.parametrize("path", MODULES, ids=lambda path: str(path.relative_to(SOURCE)))
def test_calls_go_downhill_only(path):
    room = room_of(path)
    if room in FREE:
        return
    for other in imported_rooms(path) - {room}:
        if room == "cli" and other == "testing":
            continue
        assert other in LEVEL, f"{path} imports demoreel.{other}, which has no level"
        assert LEVEL[other] < LEVEL[room], f"{path}: {room} must not call {other}"


@pytest.mark.parametrize("path", MODULES, ids=lambda path: str(path.relative_to(SOURCE)))
def test_modules_stay_small(path):
    assert len(path.read_text().splitlines()) <= 600


def loaded_after(statement: str) -> set[str]:
    code = f"{statement}\nimport sys; print(*sys.modules, sep='\\n')"
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    return set(done.stdout.split())


def test_import_loads_nothing_heavy():
    loaded = loaded_after("import demoreel")
    heavy = {"torch", "lance", "av", "numpy", "pyarrow", "PIL", "pandas", "rich", "typer"}
    assert loaded & heavy == set()


def test_reading_loads_no_torch(fixtures):
    loaded = loaded_after(f"import demoreel; demoreel.open({str(fixtures / 'g1_v30')!r})[0]")
    assert loaded & {"torch", "lance", "pandas", "lerobot", "datasets"} == set()


def test_public_names_exist():
    for name in demoreel.__all__:
        assert getattr(demoreel, name) is not None
    assert dir(demoreel) == sorted(demoreel.__all__)
    with pytest.raises(AttributeError):
        _ = demoreel.nothing_of_the_kind  # type: ignore[attr-defined]
