"""The rooms of the code: calls go downhill only, heavy things load late, modules stay small."""

from __future__ import annotations

import ast
import importlib
import re
import subprocess
import sys
import tomllib
from pathlib import Path

import pytest

import demoreel

SOURCE = Path(demoreel.__file__).parent
MODULES = sorted(SOURCE.rglob("*.py"))

# A room may import from rooms of a lower level, and from itself.
LEVELS = [
    {"errors", "packages"},
    {"model"},
    {"storage"},
    {"media"},
    {"layouts"},
    {"read", "run"},
    {"stats"},  # of whole datasets: read, decoded and put in place
    {"edit"},
    {"convert", "check", "record"},  # conversions and repairs are cuts, too
    {"repair", "hub"},  # what is published was recorded, perhaps by a process that was killed
    {"torch"},  # its classes record, cut and push, too
    {"view"},
    {"cli"},
]
LEVEL = {room: number for number, rooms in enumerate(LEVELS) for room in rooms}
FREE = {
    "testing",
    "lance",
    "__init__",
    "__main__",
}  # testing may use everything; nothing may use it


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


@pytest.mark.parametrize("room", sorted({room_of(path) for path in MODULES} - FREE))
def test_calls_go_downhill_only(room):
    for path in (path for path in MODULES if room_of(path) == room):
        for other in imported_rooms(path) - {room}:
            if room == "cli" and other == "testing":
                continue
            assert other in LEVEL, f"{path} imports demoreel.{other}, which has no level"
            assert LEVEL[other] < LEVEL[room], f"{path}: {room} must not call {other}"


def test_modules_stay_small():
    assert [path for path in MODULES if len(path.read_text().splitlines()) > 700] == []


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
    assert not {n for n in loaded if n.startswith(("demoreel.check", "demoreel.layouts.lance"))}


@pytest.mark.parametrize("room", ["media", "read"])
def test_the_way_of_a_batch_names_no_lance(room):
    for path in (SOURCE / room).glob("*.py"):
        assert "layouts.lance" not in path.read_text(), path


# What may be loaded by opening and reading a v3.0 dataset on a disk.
LOCAL = {
    "layouts": "base columns detect file_reader meta pending persisted persisted_files rows spans "
    "v3 v3.reader",
    "media": "colour decode mp4 mp4_boxes images video",
    "read": "batch cameras dataset episode follow",
    "storage": "arrow cache columns commit commit.consistent commit.files commit.hidden_folder "
    "commit.journal commit.replace commit.writer_lock external folder json_files local names "
    "parquet parquet_pages place scratch secrets store threads thrift",
}


def test_what_reading_a_local_dataset_loads(fixtures):
    """No client of a server, no store but the disk, no Lance, no encoder."""
    read = f"ds = demoreel.open({str(fixtures / 'g1_v30')!r}); ds[0]; ds.batch([1, 2])"
    loaded = loaded_after(f"import demoreel; {read}")
    clients = {"urllib3", "http.client", "httpx", "httpx2", "requests", "obstore"}
    assert loaded & (clients | {"huggingface_hub", "lance"}) == set()
    ours = {name.removeprefix("demoreel.") for name in loaded if name.startswith("demoreel.")}
    modules = {name for name in ours if name.split(".")[0] not in ("errors", "model", "packages")}
    known = {f"{room}.{name}" for room, names in LOCAL.items() for name in names.split()}
    assert modules - known - set(LOCAL) == set()


@pytest.mark.parametrize("verb", ["info", "episodes", "stats"])
def test_what_a_command_that_shows_metadata_loads(fixtures, verb):
    """No codec, no images, no functions of Arrow: each takes longer to import than the rest."""
    run = f"from demoreel.cli import main; main([{verb!r}, {str(fixtures / 'g1_v30')!r}, '--json'])"
    assert loaded_after(run) & {"av", "PIL.Image", "simplejpeg", "pyarrow.compute"} == set()


def test_what_a_plan_loads(fixtures, tmp_path):
    cut = ["cut", "delete", str(fixtures / "g1_v30"), str(tmp_path / "out"), "-e", "0", "--dry-run"]
    loaded = loaded_after(f"from demoreel.cli import main; main({cut!r})")
    assert loaded & {"av", "PIL.Image", "simplejpeg", "asyncio"} == set()


# What may be loaded by importing the classes that train, besides what reading loads.
TRAINING = {
    "torch": "collate dataset episodes info metadata place reader recording ring sampler",
    "read": LOCAL["read"] + " order",
}


def test_what_importing_torch_classes_loads():
    """No Hub, no other store, no cut, no Lance class, no stream, no recorder."""
    loaded = loaded_after("import demoreel.torch")
    assert loaded & {"huggingface_hub", "obstore", "urllib3", "lance", "duckdb"} == set()
    ours = {name.removeprefix("demoreel.") for name in loaded if name.startswith("demoreel.")}
    modules = {name for name in ours if name.split(".")[0] not in ("errors", "model", "packages")}
    rooms = LOCAL | TRAINING
    known = {f"{room}.{name}" for room, names in rooms.items() for name in names.split()}
    assert modules - known - set(rooms) == set()


def test_modules_of_torch_that_load_later_are_attributes():
    used = "demoreel.torch.lance, demoreel.torch.streaming, demoreel.torch.dataset_tools"
    assert "demoreel.torch.streaming" in loaded_after(f"import demoreel.torch; {used}")


# Verbs whose arguments may be URIs, and that treat these otherwise: refuse, fetch or send them.
ASKING = (
    "check/run cli/convert cli/cut cli/options cli/stats hub/pull record/start run/anywhere "
    "run/clean torch/place view/datasets view/server"
)


def test_only_checks_of_arguments_ask_whether_a_dataset_is_remote():
    """Readers take a folder, which is the same wherever its files lie."""
    asking = [
        path.relative_to(SOURCE).with_suffix("").as_posix()
        for path in SOURCE.rglob("*.py")
        if re.search(r"\bis_uri\b", path.read_text())
    ]
    assert sorted(n for n in asking if not n.startswith("storage/")) == ASKING.split()


# Prints the files of demoreel that one batch enters, in any thread, after another batch.
WALK = """
import random, sys, threading
files, counting = set(), False
def enter(frame, event, argument):
    if counting and event == "call":
        files.add(frame.f_code.co_filename)
threading.setprofile(enter)
sys.setprofile(enter)
import demoreel
dataset = demoreel.open(sys.argv[1], decode_threads=1)  # each thread opens its own decoders
rows = random.Random(0).sample(range(len(dataset)), len(dataset))
known = rows[:64] if sys.argv[2] == "known" else rows[:32]
for _ in range(3):
    dataset.batch(known)
counting = True
dataset.batch(rows[32:64])
counting = False
source = demoreel.__file__.removesuffix("__init__.py")
print(*(name.removeprefix(source) for name in files if name.startswith(source)))
"""


def files_of_a_batch(place: object, frames: str) -> list[str]:
    command = [sys.executable, "-c", WALK, str(place), frames]
    done = subprocess.run(command, capture_output=True, text=True, check=True)
    return sorted(done.stdout.split())


def test_the_path_of_a_local_batch_is_short(fixtures):
    """A newcomer draws it after reading a few files: more of them need a reason."""
    files = files_of_a_batch(fixtures / "g1_v30", "known")
    assert {"read/dataset.py", "read/batch.py", "media/decode.py"} <= set(files)
    assert len(files) <= 13, files


def test_the_path_of_a_remote_batch_is_short(fixtures, s3, proxy):
    files = files_of_a_batch(s3.upload(fixtures / "g1_v30", "path"), "new")
    assert {"read/dataset.py", "media/decode.py", "storage/remote/files.py"} <= set(files)
    assert len(files) <= 23, files  # 21, and two where an answer is late


def test_public_names_exist():
    for name in demoreel.__all__:
        assert getattr(demoreel, name) is not None
    assert dir(demoreel) == sorted(demoreel.__all__)
    with pytest.raises(AttributeError):
        _ = demoreel.nothing_of_the_kind  # type: ignore[attr-defined]


def test_public_names_of_torch_exist():
    faces = importlib.import_module("demoreel.torch")
    operations = {  # of lerobot-edit-dataset, and the functions that do them
        "convert_image_to_video": "convert_image_to_video_dataset",
        "reencode_videos": "reencode_dataset",
    }
    for name in faces.__all__:
        assert getattr(faces, name).__name__ == operations.get(name, name)
    assert dir(faces) == sorted(faces.__all__)
    with pytest.raises(AttributeError):
        _ = faces.nothing_of_the_kind


def defined_names(path: Path) -> set[str]:
    names = set()
    for node in ast.walk(ast.parse(path.read_text())):
        if isinstance(node, ast.ClassDef):
            names |= {f"{node.name}.{item.name}" for item in node.body if hasattr(item, "name")}
        if isinstance(node, (ast.ClassDef, ast.FunctionDef)):
            names.add(node.name)
    return names


def test_the_map_is_true():
    """Files and names in docs/architecture.md exist; a walk has ten steps at most."""
    page = (SOURCE.parents[1] / "docs" / "architecture.md").read_text()
    files = re.findall(r"`([\w/]+\.py)`", page)
    assert len(files) > 40
    places = (SOURCE, SOURCE.parents[1])
    assert [name for name in files if not any((p / name).is_file() for p in places)] == []
    steps = re.findall(r"^(\d+)\. `([\w/]+\.py)` `([\w.]+)`", page, re.MULTILINE)
    assert len(steps) > 35
    for number, name, wanted in steps:
        assert int(number) <= 10
        assert wanted in defined_names(SOURCE / name), f"{wanted} is not in {name}"
    drawn = page.split("```text")[1].split("```")[0]
    rooms = set(LEVEL) - {"packages"}
    assert rooms <= set(re.findall(r"\w+", drawn))


def test_a_class_name_stands_once():
    found: dict[str, list[str]] = {}
    for path in MODULES:
        for node in ast.walk(ast.parse(path.read_text())):
            if isinstance(node, ast.ClassDef):
                found.setdefault(node.name, []).append(str(path.relative_to(SOURCE)))
    assert {name: places for name, places in found.items() if len(places) > 1} == {}


MODULES_OF = {
    "pylance": "lance",
    "pillow": "PIL",
    "pyyaml": "yaml",
    "rerun-sdk": "rerun",
    "huggingface-hub": "huggingface_hub",
    "pynvvideocodec": "PyNvVideoCodec",
}


def test_what_is_installed_is_imported():
    """The package and its extras ask for no other package that the code does not use."""
    project = tomllib.loads((SOURCE.parents[1] / "pyproject.toml").read_text())["project"]
    extras = project["optional-dependencies"].values()
    names = {
        re.match(r"[\w-]+", asked)[0].lower()
        for asked in [*project["dependencies"], *(one for extra in extras for one in extra)]
    } - {"demoreel"}
    text = "\n".join(path.read_text() for path in MODULES)
    imports = r"(?:import|from|import_module\(\"|load_late\(\")\s*{}\b"
    unused = {
        name for name in names if not re.search(imports.format(MODULES_OF.get(name, name)), text)
    }
    assert unused == set()
