"""Datasets of a few kilobytes that ask for gigabytes, for ever, or for what cannot be.

Each bomb changes a copy of a base in one way. Whatever is done with it, the end is an error of the
tree or right data, within a bound of time and memory.
"""

from __future__ import annotations

import contextlib
import json
import os
import random
import shutil
import struct
import tempfile
import warnings
import zlib
from collections.abc import Callable, Iterator, Mapping
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq

from demoreel.layouts.lance.calls import import_lance
from demoreel.storage.thrift import Reading, to_bytes
from support.fuzz.entries import ENTRIES, WRITERS
from support.fuzz.store import FolderS3
from support.fuzz.trial import Case, Verdict, guarded
from support.fuzz.witness import changed
from support.hub_server import HubServer

Bomb = Callable[[Path], bool]
"""Changes a dataset; returns whether it has what is to be changed."""

SECONDS = 30.0
"""How long a bomb may keep an entry; it is a second, mostly."""

MEMORY = 2 << 30
"""Bytes that a process may have in memory meanwhile."""


def _info(change: Callable[[dict[str, Any]], object], root: Path) -> bool:
    path = root / "meta" / "info.json"
    info = json.loads(path.read_text())
    change(info)
    path.write_text(json.dumps(info))
    return True


def _field(name: str, value: Any) -> Bomb:
    return partial(_info, lambda info: info.update({name: value}))


def _feature(name: str, value: Any, *, camera: bool = False) -> Bomb:
    def change(info: dict[str, Any]) -> None:
        features = info["features"]
        cameras = [key for key in features if features[key]["dtype"] in ("video", "image")]
        features[cameras[0] if camera else "observation.state"][name] = value

    return partial(_info, change)


def _renamed(name: str) -> Bomb:
    def change(info: dict[str, Any]) -> None:
        info["features"][name] = info["features"].pop("next.done")

    return partial(_info, change)


def _many_features(info: dict[str, Any]) -> None:
    entry = {"dtype": "float32", "shape": [1], "names": None}
    info["features"] |= {f"x{number}": entry for number in range(50_000)}


def _json(name: str, text: str | bytes) -> Bomb:
    def put(root: Path) -> bool:
        path = root / "meta" / name
        if not path.is_file():
            return False
        data = text.encode(errors="surrogatepass") if isinstance(text, str) else text
        path.write_bytes(data)
        return True

    return put


def _line(name: str, line: str) -> Bomb:
    def add(root: Path) -> bool:
        path = root / "meta" / name
        if not path.is_file():
            return False
        with path.open("a") as file:
            file.write(line + "\n")
        return True

    return add


def _tables(root: Path, where: str) -> list[Path]:
    found = root / "data" if where == "data" else root / "meta"
    return sorted(path for path in found.rglob("*.parquet") if "histograms" not in path.parts)


def _long_text(where: str, column: str) -> Bomb:
    """A dictionary of one text of 100 MB, which every row names: some kilobytes."""

    def put(root: Path) -> bool:
        done = False
        for path in _tables(root, where):
            table = pq.read_table(path)
            if column not in table.column_names:
                continue
            place, rows = table.column_names.index(column), max(14, len(table))
            text = pa.array(["x" * 100_000_000])
            long = pa.DictionaryArray.from_arrays(pa.array([0] * len(table), pa.int32()), text)
            kind = table.schema.field(column).type
            if pa.types.is_list(kind):
                ends = pa.array(range(len(table) + 1), pa.int32())
                long = pa.ListArray.from_arrays(ends, long)
            table = table.set_column(place, column, long)
            if rows > len(table):  # as many rows as make it more than any limit
                table = pa.concat_tables([table] * (rows // max(1, len(table)) + 1))
            pq.write_table(table, path, compression="zstd", store_schema=False)
            done = True
        return done

    return put


def _long_page(root: Path) -> bool:
    """A page that decompresses ten thousandfold."""
    for path in _tables(root, "data"):
        table = pq.read_table(path)
        texts = pa.array(["x" * 150_000_000, *[""] * (len(table) - 1)])
        table = table.set_column(table.column_names.index("note"), "note", texts)
        pq.write_table(table, path, compression="zstd", use_dictionary=False)
        return True
    return False


def _rows_claimed(where: str) -> Bomb:
    """A footer that claims a billion rows."""

    def patch(root: Path) -> bool:
        for path in _tables(root, where):
            data = path.read_bytes()
            length = struct.unpack("<I", data[-8:-4])[0]
            footer = Reading(data[-8 - length : -8]).struct()
            footer[3] = (footer[3][0], 10**9)
            for group in footer[4][1][1]:
                group[3] = (group[3][0], 10**9)
                for column in group[1][1][1]:
                    column[3][1][5] = (column[3][1][5][0], 10**9)
            made = to_bytes(footer)
            end = len(made).to_bytes(4, "little") + b"PAR1"
            path.write_bytes(data[: -8 - length] + made + end)
            return True
        return False

    return patch


def _png(width: int, height: int) -> bytes:
    def chunk(kind: bytes, content: bytes) -> bytes:
        check = struct.pack(">I", zlib.crc32(kind + content))
        return struct.pack(">I", len(content)) + kind + content + check

    head = struct.pack(">IIBBBBB", width, height, 8, 2, 0, 0, 0)
    body = zlib.compress(bytes(1000))
    start = b"\x89PNG\r\n\x1a\n"
    return start + chunk(b"IHDR", head) + chunk(b"IDAT", body) + chunk(b"IEND", b"")


def _jpeg(width: int, height: int) -> bytes:
    import simplejpeg
    from numpy import zeros

    data = bytearray(simplejpeg.encode_jpeg(zeros((16, 16, 3), "uint8")))
    at = data.index(b"\xff\xc0") + 5
    data[at : at + 4] = struct.pack(">HH", height, width)
    return bytes(data)


def _image(data: bytes) -> Bomb:
    def put(root: Path) -> bool:
        for path in _tables(root, "data"):
            table = pq.read_table(path)
            for place, field in enumerate(table.schema):
                if pa.types.is_struct(field.type) and "bytes" in [f.name for f in field.type]:
                    rows = [{"bytes": data, "path": "x.png"}] * len(table)
                    table = table.set_column(place, field, pa.array(rows, field.type))
                    pq.write_table(table, path)
                    return True
        return False

    return put


def _patched(box: bytes, offset: int, value: bytes) -> Bomb:
    """Bytes of a box of every video, wherever it lies: in a file of its own or in Lance's."""

    def patch(root: Path) -> bool:
        done = False
        for path in sorted(root.rglob("*")):
            if path.suffix not in (".mp4", ".blob", ".lance") or not path.is_file():
                continue
            data = bytearray(path.read_bytes())
            at = data.find(box)
            while at >= 0:
                data[at + offset : at + offset + len(value)] = value
                done = True
                at = data.find(box, at + offset + len(value))
            path.write_bytes(data)
        return done

    return patch


def _lance_tables(root: Path, films: bool) -> list[Path]:
    return [
        path
        for path in sorted(root.glob("*.lance"))
        if path.stem.endswith("videos") == films and path.stem != "meta"
    ]


def _lance_column(name: str, column: Callable[[int], pa.Array], *, films: bool = False) -> Bomb:
    """Another column of that name in a Lance table."""

    def put(root: Path) -> bool:
        for path in _lance_tables(root, films):
            lance = import_lance()
            table = lance.dataset(str(path))
            if name not in table.schema.names:
                continue
            values = column(table.count_rows())
            table.drop_columns([name])
            schema = pa.schema([pa.field(name, values.type)])
            batch = pa.record_batch([values], schema=schema)
            lance.dataset(str(path)).add_columns(
                pa.RecordBatchReader.from_batches(schema, [batch]), batch_size=len(values)
            )
            return True
        return False

    return put


def _long_values(kind: pa.DataType, size: int) -> Callable[[int], pa.Array]:
    """A dictionary of one long value that every row names; Lance packs it."""

    def make(rows: int) -> pa.Array:
        text = pa.array([b"x" * size], pa.binary()).cast(kind)
        return pa.DictionaryArray.from_arrays(pa.array([0] * rows, pa.int32()), text)

    return make


def _wide_values(rows: int) -> pa.Array:
    return pa.FixedSizeListArray.from_arrays(pa.nulls(rows * 4_000_000, pa.float32()), 4_000_000)


def _lance_rows(root: Path) -> bool:
    """Two hundred million rows behind those that the metadata know: some kilobytes."""
    for path in _lance_tables(root, films=False):
        lance = import_lance()
        schema = lance.dataset(str(path)).schema
        numbers = [field for field in schema if pa.types.is_primitive(field.type)]
        zeros = [pa.array(np.zeros(1 << 22, "i1")).cast(field.type) for field in numbers]
        batch = pa.record_batch(zeros, schema=pa.schema(numbers))
        rows = pa.RecordBatchReader.from_batches(batch.schema, [batch] * 48)
        lance.write_dataset(rows, str(path), mode="append", max_rows_per_file=1 << 30)
        return True
    return False


def _manifest(root: Path) -> bool:
    """A manifest of 6 GB, of which the disk holds none."""
    for path in _lance_tables(root, films=False):
        newest = sorted((path / "_versions").glob("*.manifest"))[0]
        end = newest.read_bytes()[-8:]
        with newest.open("wb") as file:
            file.write(struct.pack("<I", 0xFFFFFFF0))
            file.truncate(6 << 30)
            file.seek(0, 2)
            file.write(struct.pack("<Q", 0) + end)
        return True
    return False


def _many_versions(root: Path) -> bool:
    for path in _lance_tables(root, films=False):
        newest = sorted((path / "_versions").glob("*.manifest"))[0]
        for number in range(5_000):  # one file by many names
            os.link(newest, newest.with_name(f"{2**64 - 2**20 + number:020d}.manifest"))
        return True
    return False


def _tag(root: Path) -> bool:
    for path in _lance_tables(root, films=False):
        place = path / "_refs" / "tags" / "huge.json"
        place.parent.mkdir(parents=True, exist_ok=True)
        with place.open("wb") as file:
            file.truncate(6 << 30)
        return True
    return False


def _card(head: str) -> Bomb:
    def put(root: Path) -> bool:
        (root / "README.md").write_text(f"---\n{head}\n---\n# x\n")
        return True

    return put


_HUGE = b"\x7f\xff\xff\xff"
_LAUGHS = "\n".join(
    ["a0: &a0 [x, x]", *(f"a{n}: &a{n} [*a{n - 1}, *a{n - 1}, *a{n - 1}]" for n in range(1, 40))]
)

BOMBS: Mapping[str, Bomb] = {
    "shape-1e9": _feature("shape", [10**9]),
    "shape-negative": _feature("shape", [-1]),
    "shape-nested": _feature("shape", [[3]]),
    "shape-of-thousands": _feature("shape", [1] * 10_000),
    "shape-of-true": _feature("shape", [True]),
    "image-65535": _feature("shape", [65535, 65535, 3], camera=True),
    "channels-2e20": _feature("shape", [48, 64, 2**20], camera=True),
    "dtype-long": _feature("dtype", "(" * 100_000),
    "dtype-void": _feature("dtype", "(1000000000,1000)f8"),
    "names-deep": _feature("names", {"a": [[[[["x"]]]]]}),
    "fps-tiny": _field("fps", 1e-300),
    "fps-huge": _field("fps", 1e300),
    "fps-nan": _field("fps", float("nan")),
    "fps-text": _field("fps", "30"),
    "fps-negative": _field("fps", -30),
    "robot-dict": _field("robot_type", {"a": {"b": 1}}),
    "robot-half": _field("robot_type", "\ud800"),
    "key-half": _renamed("x\udfff"),
    "key-control": _renamed("x\x1b[2J"),
    "features-50000": partial(_info, _many_features),
    "total-huge": _field("total_frames", 10**300),
    "total-negative": _field("total_episodes", -5),
    "chunks-zero": _field("chunks_size", 0),
    "splits-garbage": _field("splits", {"train": {"a": [1]}, "x": None}),
    "version-list": _field("codebase_version", ["v3.0"]),
    "json-deep": _json("info.json", "[" * 1_000_000),
    "json-digits": _json("info.json", '{"fps": ' + "9" * 1_000_000 + "}"),
    "json-wide": _json("info.json", '{"x": [' + "[]," * 10_000_000 + "[]]}"),
    "json-twice": _json("info.json", "{" + '"a": 1, ' * 600_000 + '"fps": 30}'),
    "json-more": _field("more", list(range(2_000_000))),
    "json-mark": _json("info.json", b"\xef\xbb\xbf{}"),
    "stats-wide": _json("stats.json", '{"action": [' + "[]," * 10_000_000 + "[]]}"),
    "stats-features": _json(
        "stats.json", "{" + ", ".join(f'"x{n}": {{"mean": [0]}}' for n in range(100_000)) + "}"
    ),
    "stats-deep": _json("stats.json", '{"action": {"mean": ' + "[" * 900 + "]" * 900 + "}}"),
    "stats-sizes": _json(
        "stats.json", '{"action": {"mean": [1], "std": [], "min": [[1, 2], [3]]}}'
    ),
    "task-half": _line("tasks.jsonl", '{"task_index": 7, "task": "\\ud800"}'),
    "task-deep": _line("tasks.jsonl", "[" * 1_000_000),
    "task-wide": _line("tasks.jsonl", '{"task_index": 7, "task": [' + "[]," * 10_000_000 + "1]}"),
    "episode-digits": _line("episodes.jsonl", '{"episode_index": ' + "9" * 1_000_000 + "}"),
    "text-100mb": _long_text("data", "note"),
    "number-100mb": _long_text("data", "next.done"),
    "tasks-100mb": _long_text("meta", "task"),
    "episode-tasks-100mb": _long_text("meta", "tasks"),
    "page-150mb": _long_page,
    "rows-1e9": _rows_claimed("data"),
    "meta-rows-1e9": _rows_claimed("meta"),
    "png-65535": _image(_png(65535, 65535)),
    "jpeg-65535": _image(_jpeg(65500, 65500)),
    "elst-negative": _patched(b"elst", 16, b"\x80\x00\x00\x00"),
    "elst-many": _patched(b"elst", 8, _HUGE),
    "stsz-many": _patched(b"stsz", 12, _HUGE),
    "stts-many": _patched(b"stts", 8, _HUGE),
    "video-65535": _patched(b"avc1", 28, b"\xff\xff\xff\xff"),
    "timescale-zero": _patched(b"mdhd", 16, bytes(4)),
    "lance-text-100mb": _lance_column("note", _long_values(pa.string(), 100_000_000)),
    "lance-image-100mb": _lance_column(
        "observation_images_front", _long_values(pa.binary(), 100_000_000)
    ),
    "lance-packets-100mb": _lance_column(
        "demoreel_packets", _long_values(pa.binary(), 100_000_000), films=True
    ),
    "lance-key-100mb": _lance_column(
        "video_key", _long_values(pa.string(), 100_000_000), films=True
    ),
    "lance-state-wide": _lance_column("observation_state", _wide_values),
    "lance-rows-2e8": _lance_rows,
    "lance-manifest-6gb": _manifest,
    "lance-versions": _many_versions,
    "lance-tag-6gb": _tag,
    "card-laughs": _card(_LAUGHS),
    "card-deep": _card("a: " + "[" * 20_000),
}
"""Every bomb by its name."""


STORES = ("", "s3", "hub")
"""Where a dataset lies: in a folder, behind an object store's API, or on the Hub."""


def run_bomb(case: Case, bases: dict[str, Path], work: Path) -> Verdict:
    """Try a bomb with a way in; the case's base is ``BASE/BOMB/ENTRY``, or with ``/STORE``."""
    base, bomb, entry, *store = case.base.split("/")
    verdict = Verdict(case, damage=bomb)
    folder = Path(tempfile.mkdtemp(prefix="bomb-", dir=work))
    try:
        root = Path(shutil.copytree(bases[base], folder / "bucket" / base))
        (folder / "out").mkdir()
        if not BOMBS[bomb](root):
            verdict.outcome[entry] = "not in this layout"
            return verdict
        before = _states(folder / "bucket")
        pa.default_memory_pool().release_unused()
        with contextlib.suppress(OSError):  # what making it took does not count
            Path("/proc/self/clear_refs").write_text("5")
        with warnings.catch_warnings(), _served(folder, base, *store) as place:
            warnings.simplefilter("ignore")
            guarded(verdict, entry, lambda: ENTRIES[entry].use(place, folder / "out"))
        if entry not in WRITERS and (wrong := changed(before, _states(folder / "bucket"))):
            verdict.faults.append(("write", f"{entry}: {wrong[:3]}"))
        left = sorted({path.name for path in folder.iterdir()} - {"bucket", "out", "kept"})
        if left:
            verdict.faults.append(("leftover", f"{entry}: {left}"))
    finally:
        shutil.rmtree(folder, ignore_errors=True)
    return verdict


def _states(folder: Path) -> dict[str, str]:
    """Return when each file was changed; some have gigabytes, of which a disk holds none."""
    found = ((path, path.lstat()) for path in folder.rglob("*"))
    return {str(path): f"{state.st_size} {state.st_mtime_ns}" for path, state in found}


@contextlib.contextmanager
def _served(folder: Path, name: str, store: str = "") -> Iterator[Path | str]:
    """Yield where a folder's dataset is found; caches are beside it."""
    kept = folder / "kept"
    names = {"DEMOREEL_CACHE": kept / "cache", "DEMOREEL_STAGING": kept / "staging"}
    variables = {key: str(path) for key, path in names.items()}
    with contextlib.ExitStack() as open_servers:
        place: Path | str = folder / "bucket" / name
        if store == "s3":
            server = open_servers.enter_context(FolderS3(folder / "bucket"))
            variables |= server.environment
            place = server.uri(name)
        elif store == "hub":
            hub = open_servers.enter_context(HubServer(kept / "hub"))
            hub.seed(f"me/{name}", place, tag="v3.0")
            variables |= {**hub.environment, "HF_HOME": str(kept / "home")}
            place = f"hf://datasets/me/{name}"
        before = {key: os.environ.get(key) for key in variables}
        os.environ.update(variables)
        try:
            yield place
        finally:
            for key, text in before.items():
                os.environ.pop(key, None)
                if text is not None:
                    os.environ[key] = text


def bomb_cases(
    bases: list[str], *, share: float = 1.0, seed: int = 0, store: str = ""
) -> list[Case]:
    """Return every bomb with every entry and base, or a share of them that has each at least once.

    Args:
        bases: Names of the bases.
        share: Which share of all.
        seed: Which ones those are.
        store: Where the datasets lie; see ``STORES``.
    """
    entries = [name for name in ENTRIES if not (store and ENTRIES[name].local)]
    every = [(base, bomb, entry) for bomb in BOMBS for entry in entries for base in bases]
    chance = random.Random(seed)
    chance.shuffle(every)
    seen: set[tuple[str, str]] = set()
    chosen = []
    for place, (base, bomb, entry) in enumerate(every):
        news = {("bomb", bomb), ("entry", entry), ("base", base)} - seen
        if place < share * len(every) or news:
            seen |= {("bomb", bomb), ("entry", entry), ("base", base)}
            chosen.append(Case("/".join((base, bomb, entry, *([store] if store else []))), 0))
    return chosen
