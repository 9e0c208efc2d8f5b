"""Metadata that mean harm: paths that climb out, numbers without end, names that are programs."""

from __future__ import annotations

import json
import math
import random
import zlib
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pyarrow as pa
import pyarrow.parquet as pq

from support.defects.tools import point_at

_PATHS = (
    "../outside/{0}", "/etc/passwd", "{0.__class__.__mro__}", "{episode_index:>999999999}",
    "{chunk_index:>999999999}/{file_index}", "{video_key.__class__}", "{}", "{0}", "{" * 500,
    "videos/../../outside/secret", "data/{chunk_index!r:{file_index}}", "a\0b", "a\nb", "", ".",
    "..", "~/x", "C:\\x", "//x", "data/" * 5000, "{episode_index[0]}", "{chunk_index:03d}",
    "meta/info.json", "/dev/zero", "\ud800",
)  # fmt: skip
_KEYS = (
    "observation.images.<script>alert(1)</script>", "observation\nimages", "../../outside/key", "",
    "/etc/passwd", "a" * 5000, "\0", "{episode_index}", "\u202egnp", "observation.images.\ud800",
    "index", "CON", "`rm -rf x`", "a/b", ".", "..",
)  # fmt: skip
_NUMBERS: tuple[Any, ...] = (
    -1, 0, 1, 2**31, 2**63 - 1, 2**63, 2**64, 10**400, -(2**63), 1e308, -1e308, 5e-324, math.nan,
    math.inf, -math.inf, 0.1, None, "12", [], {}, True, [1e300],
)  # fmt: skip
_SHAPES: tuple[Any, ...] = (
    [2**31], [2**40, 2**40], [1] * 1000, [0], [-1], [], [[1]], [2**62, 4], [10**6, 10**6, 3],
    [30000, 30000, 3], [64, 64, 2**20], "6", None, [6.0], [True], [5], [7], [1 << 30],
)  # fmt: skip
_DTYPES: tuple[Any, ...] = (
    "object", "O", "V8", "float128", "S1000000000", "U999999999", "datetime64[ns]", "complex64",
    "image", "video", "string", "language", "bool", "uint8", "float64", "int128", "", None, 5,
    "float32,int8", ">f4", "list<item: float>", "(1000000000,1000)f8",
)  # fmt: skip

Attack = Callable[[Path, random.Random], str]


def attack_metadata(root: Path, chance: random.Random) -> str:
    """Change a dataset's metadata in some way that could do harm; return how.

    Args:
        root: The dataset's folder.
        chance: Where chance comes from.
    """
    kind = chance.choice(ATTACKS)
    return f"{kind.__name__}: {kind(root, chance)}"[:300]


def path_template(root: Path, chance: random.Random) -> str:
    """Let a path template lead somewhere else."""
    name, text = chance.choice(("data_path", "video_path")), chance.choice(_PATHS)
    _edit_info(root, lambda info: info.update({name: text}))
    return f"{name} {text[:80]!r}"


def info_number(root: Path, chance: random.Random) -> str:
    """Put a number that cannot be into info.json."""
    names = (
        "fps", "total_episodes", "total_frames", "total_tasks", "total_videos", "total_chunks",
        "chunks_size", "data_files_size_in_mb", "video_files_size_in_mb", "codebase_version",
        "robot_type", "splits", "features",
    )  # fmt: skip
    name, value = chance.choice(names), chance.choice(_NUMBERS)
    _edit_info(root, lambda info: info.update({name: value}))
    return f"{name} {value!r}"


def feature_key(root: Path, chance: random.Random) -> str:
    """Give a feature a name that is more than a name."""
    new = chance.choice(_KEYS)

    def rename(info: dict[str, Any]) -> None:
        old = chance.choice(list(info["features"]))
        info["features"] = {new if k == old else k: v for k, v in info["features"].items()}

    _edit_info(root, rename)
    return repr(new[:80])


def feature_field(root: Path, chance: random.Random) -> str:
    """Give a feature a shape, dtype, names or details that cannot be."""
    field, values = chance.choice(
        (
            ("shape", _SHAPES),
            ("dtype", _DTYPES),
            ("names", _NUMBERS + _KEYS),
            ("info", _NUMBERS + _KEYS),
        )
    )
    value = chance.choice(values)
    said = []

    def change(info: dict[str, Any]) -> None:
        key = chance.choice(list(info["features"]))
        said.append(key)
        info["features"][key][field] = value

    _edit_info(root, change)
    return f"{said[0]} {field} {value!r}"


def video_detail(root: Path, chance: random.Random) -> str:
    """Give a camera's video a detail that cannot be."""
    said = []

    def change(info: dict[str, Any]) -> None:
        cameras = [f for f in info["features"].values() if f.get("info")]
        if not cameras:
            cameras = list(info["features"].values())
            for one in cameras:
                one["info"] = {"video.fps": 30}
        details = chance.choice(cameras)["info"]
        name = chance.choice([*details, "is_depth_map", "depth_min", "depth_max", "video.codec"])
        details[name] = chance.choice(_NUMBERS + _KEYS)
        if chance.random() < 0.5:
            details["is_depth_map"] = True
        said.append(f"{name} {details[name]!r}")

    _edit_info(root, change)
    return said[0]


def nested_json(root: Path, chance: random.Random) -> str:
    """Nest a JSON file deeper than parsers can follow."""
    path = chance.choice(sorted([*root.rglob("*.json"), *root.rglob("*.jsonl")]))
    depth = chance.choice((500, 5000, 200_000))
    opening, closing = chance.choice((("[", "]"), ('{"a":', "}")))
    text = opening * depth + ("1" + closing * depth if chance.random() < 0.5 else "")
    if chance.random() < 0.5:
        text = path.read_text().rstrip().rstrip("}") + f', "x": {text}}}'
    path.write_text(text)
    return f"{path.relative_to(root)} {opening * 3} {depth}"


def long_json(root: Path, chance: random.Random) -> str:
    """Put a number of a million digits, or a text of 20 MB, into a JSON file."""
    path = chance.choice(sorted([*root.rglob("*.json"), *root.rglob("*.jsonl")]))
    value = chance.choice(("9" * 1_000_000, '"' + "x" * 20_000_000 + '"', "1e999999999", "-0"))
    path.write_text(path.read_text().rstrip().rstrip("}") + f', "x": {value}}}\n')
    return f"{path.relative_to(root)} {value[:20]}"


def statistics(root: Path, chance: random.Random) -> str:
    """Put values that are no statistics into stats.json or episodes_stats.jsonl."""
    value = chance.choice((*_NUMBERS, *_SHAPES, *_KEYS))
    where = chance.choice(("feature", "moment", "whole"))
    path = next(iter(sorted((root / "meta").glob("*stats.json*"))), None)
    if path is None:
        return "none there"
    lines = path.read_text().splitlines() if path.suffix == ".jsonl" else [path.read_text()]
    at = chance.randrange(len(lines))
    entry = json.loads(lines[at])
    stats = entry.get("stats", entry)
    feature = chance.choice(list(stats))
    if where == "feature":
        stats[feature] = value
    elif where == "moment":
        stats[feature][chance.choice(list(stats[feature]))] = value
    else:
        entry = value
    lines[at] = json.dumps(entry)
    path.write_text("\n".join(lines) + "\n")
    return f"{where} {feature} {value!r}"


def episode_entry(root: Path, chance: random.Random) -> str:
    """Put values that cannot be into the list of episodes."""
    lines = root / "meta" / "episodes.jsonl"
    if lines.is_file():
        return _line_entry(lines, chance, ("episode_index", "length", "tasks"))
    path = chance.choice(sorted((root / "meta" / "episodes").rglob("*.parquet")))
    return _table_entry(path, chance)


def task_entry(root: Path, chance: random.Random) -> str:
    """Put values that cannot be into the list of tasks."""
    lines = root / "meta" / "tasks.jsonl"
    if lines.is_file():
        return _line_entry(lines, chance, ("task_index", "task"))
    return _table_entry(root / "meta" / "tasks.parquet", chance)


def row_entry(root: Path, chance: random.Random) -> str:
    """Put values that cannot be into the columns that say which row is which."""
    tables = sorted((root / "data").rglob("*.parquet"))
    if not tables:
        return "no tables"
    own = ("episode_index", "frame_index", "index", "timestamp", "task_index")
    return _table_entry(chance.choice(tables), chance, own)


def unfinished_commit(root: Path, chance: random.Random) -> str:
    """Leave the record of a commit that would change files outside."""
    outside = root.parent / "outside"
    outside.mkdir(exist_ok=True)
    (outside / "precious").write_text("keep me")
    (root / "away").symlink_to(outside)
    hidden = root / ".demoreel"
    staging = hidden / "staging-0123456789ab"
    staging.mkdir(parents=True)
    (staging / "0000.txt").write_bytes(b"evil")
    check = zlib.crc32(b"evil")
    final = chance.choice(
        ("away/precious", "../outside/precious", str(outside / "precious"), "away/new", "away")
    )
    staged = chance.choice((None, "0000.txt", "../../x", ""))
    odd: tuple[Any, ...] = ([[5]], [["meta"]], 5, [None], [["meta/info.json", None, 0, 0, 1]])
    steps = [[final, staged, 4, check, True]] if chance.random() < 0.7 else chance.choice(odd)
    content = json.dumps({"staging": staging.name, "steps": steps})
    record = {"format": 1, "check": zlib.crc32(content.encode()), "content": content}
    (hidden / "journal.json").write_text(json.dumps(record))
    return f"{steps}"


def sealed_recording(root: Path, chance: random.Random) -> str:
    """Leave an episode that waits for its encoders, made up by a stranger."""
    folder = root / ".demoreel" / "encoding" / "episode-000001"
    folder.mkdir(parents=True)
    rows = chance.choice(("../../../outside/precious", "rows.arrow", "", None, 5))
    note = {"episode": chance.choice(_NUMBERS), "rows": rows, "counts": {}}
    notes: tuple[Any, ...] = ({"note": note}, note, [], {"note": note, "videos": {"x": 5}})
    sealed = json.dumps(chance.choice(notes))
    (folder / "sealed.json").write_text(sealed)
    return sealed


def storage_of_lance(root: Path, chance: random.Random) -> str:
    """Let info.json name a Lance table that is none."""
    name = chance.choice((*_KEYS, "../outside/x.lance", "s3://bucket/x", "lance-video", "lance"))
    field = chance.choice(("storage_format", "table_name", "lance_table", "lance"))
    _edit_info(root, lambda info: info.update({field: name}))
    return f"{field} {name[:60]!r}"


def encoder_options(root: Path, chance: random.Random) -> str:
    """Note encoder options in info.json that would write a file."""
    outside = root.parent / "outside" / "precious"
    values: tuple[Any, ...] = (
        {"x264-params": f"dump-yuv={outside}"}, {"x265-params": f"csv={outside}"},
        {"svtav1-params": f"stats={outside}"}, {"stats": str(outside)}, f"dump-yuv={outside}",
    )  # fmt: skip
    value = chance.choice(values)

    def change(info: dict[str, Any]) -> None:
        for feature in info["features"].values():
            feature["info"] = {**(feature.get("info") or {}), "video.extra_options": value}

    _edit_info(root, change)
    return f"{value}"


def videos_elsewhere(root: Path, chance: random.Random) -> str:
    """Let the videos of a Lance dataset be files of the user, or what a token would open."""
    tables = [path for path in sorted(root.glob("*videos.lance")) if path.is_dir()]
    if not tables:
        return encoder_options(root, chance)
    outside = root.parent / "outside" / "precious"
    uris = (
        outside.as_uri(), f"file://localhost{outside}", f"file://{root}/../outside/precious",
        f"file://{root}/%2e%2e/outside/precious", "file:///etc/passwd",
    )  # fmt: skip
    uri = chance.choice(uris)
    point_at(tables[0], lambda _: uri)
    return uri


ATTACKS: tuple[Attack, ...] = (
    path_template, info_number, info_number, feature_key, feature_field, feature_field,
    video_detail, nested_json, long_json, statistics, episode_entry, episode_entry, episode_entry,
    task_entry, row_entry, row_entry, unfinished_commit, sealed_recording, storage_of_lance,
    encoder_options, videos_elsewhere,
)  # fmt: skip
"""What may be done to metadata."""


def _edit_info(root: Path, change: Callable[[dict[str, Any]], object]) -> None:
    path = root / "meta" / "info.json"
    info = json.loads(path.read_text())
    change(info)
    path.write_text(json.dumps(info))


def _line_entry(path: Path, chance: random.Random, names: tuple[str, ...]) -> str:
    lines = path.read_text().splitlines()
    at = chance.randrange(len(lines))
    entry = json.loads(lines[at])
    name, value = chance.choice(names), chance.choice((*_NUMBERS, *_KEYS, ["x", 5], "y" * 100_000))
    entry[name] = value
    how = chance.choice(("change", "twice", "drop", "no object", "all"))
    if how == "all":
        lines = [json.dumps({**json.loads(line), name: value}) for line in lines]
    else:
        kept = {"twice": [lines[at], lines[at]], "drop": [], "no object": [json.dumps(value)]}
        lines[at : at + 1] = kept.get(how, [json.dumps(entry)])
    path.write_text("\n".join(lines) + "\n")
    return f"{how} {at} {name} {value!r}"


def _table_entry(path: Path, chance: random.Random, names: tuple[str, ...] | None = None) -> str:
    """Put a value into one place of a table, or into all of a column, or change the column."""
    table = pq.read_table(path)
    name = chance.choice([n for n in (names or table.column_names) if n in table.column_names])
    place = table.column_names.index(name)
    how = chance.choice(("one", "one", "all", "other type", "drop", "twice", "no rows"))
    value = chance.choice((*_NUMBERS, *_KEYS))
    if how == "no rows":
        table = table.slice(0, 0)
    elif how == "drop":
        table = table.drop_columns([name])
    elif how == "twice":
        table = pa.concat_tables([table, table])
    else:
        column = table.column(name).to_pylist()
        column = [value] * len(column) if how != "one" else column
        column[chance.randrange(len(column))] = value
        array = _array(column, table.schema.field(name).type if how != "other type" else None)
        if array is None:
            return f"{name} {value!r} does not fit"
        table = table.set_column(place, name, array)
    try:
        pq.write_table(table, path)
    except pa.ArrowException as error:
        return f"{name} {value!r} does not fit: {error}"
    return f"{path.name} {how} {name} {value!r}"


def _array(values: list[Any], kind: pa.DataType | None) -> pa.Array | None:
    for wanted in (kind, pa.float64(), pa.string()):
        try:
            return pa.array(values, wanted)
        except (pa.ArrowException, OverflowError, ValueError, TypeError):
            continue
    return None
