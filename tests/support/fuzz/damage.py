"""Damage to bytes: what disks, networks and killed programs do to files."""

from __future__ import annotations

import os
import random
import shutil
from collections.abc import Callable
from pathlib import Path

Damage = Callable[[bytearray, random.Random], object]

_BLOCKS = (1, 2, 4, 8, 16, 64, 256, 512, 4096)
_NUMBERS = (b"\x00", b"\xff", b"\x7f", b"\x80", b"\xff\xff\xff\xff", b"\x7f\xff\xff\xff")


def flip_bit(data: bytearray, chance: random.Random) -> None:
    """Flip one bit."""
    data[chance.randrange(len(data))] ^= 1 << chance.randrange(8)


def flip_bits(data: bytearray, chance: random.Random) -> None:
    """Flip a few dozen bits."""
    for _ in range(chance.randint(2, 64)):
        flip_bit(data, chance)


def flip_near_an_end(data: bytearray, chance: random.Random) -> None:
    """Flip bits in the first or last bytes, where most formats keep what they go by."""
    near = min(len(data), 1024)
    for _ in range(chance.randint(1, 4)):
        at = chance.randrange(near)
        data[at if chance.random() < 0.3 else len(data) - 1 - at] ^= 1 << chance.randrange(8)


def put_number(data: bytearray, chance: random.Random) -> None:
    """Put bytes somewhere that are a very large, negative or empty number."""
    number = chance.choice(_NUMBERS)
    at = chance.randrange(len(data))
    data[at : at + len(number)] = number


def put_noise(data: bytearray, chance: random.Random) -> None:
    """Put random bytes somewhere."""
    start, stop = _block(data, chance)
    data[start:stop] = chance.randbytes(stop - start)


def zero_block(data: bytearray, chance: random.Random) -> None:
    """Zero a block, as a disk does that lost one."""
    start, stop = _block(data, chance)
    data[start:stop] = bytes(stop - start)


def swap_blocks(data: bytearray, chance: random.Random) -> None:
    """Exchange two blocks."""
    start, stop = _block(data, chance)
    other = chance.randrange(len(data) - (stop - start) + 1)
    taken, there = data[start:stop], data[other : other + stop - start]
    data[start:stop] = there
    data[other : other + stop - start] = taken


def repeat_block(data: bytearray, chance: random.Random) -> None:
    """Write a block twice; what follows moves."""
    start, stop = _block(data, chance)
    data[stop:stop] = data[start:stop]


def drop_block(data: bytearray, chance: random.Random) -> None:
    """Leave a block out; what follows moves."""
    start, stop = _block(data, chance)
    del data[start:stop]


def cut_off(data: bytearray, chance: random.Random) -> None:
    """Keep only the beginning."""
    del data[chance.randrange(len(data)) :]


def cut_off_a_little(data: bytearray, chance: random.Random) -> None:
    """Lose the last few bytes."""
    del data[-chance.randint(1, 16) :]


def cut_off_the_beginning(data: bytearray, chance: random.Random) -> None:
    """Keep only the end."""
    del data[: chance.randrange(1, len(data) + 1)]


def append_noise(data: bytearray, chance: random.Random) -> None:
    """Add bytes that no writer wrote."""
    data += chance.randbytes(chance.choice(_BLOCKS))


def empty(data: bytearray, chance: random.Random) -> None:
    """Keep nothing."""
    data.clear()


DAMAGES: tuple[Damage, ...] = (
    flip_bit, flip_bit, flip_bit, flip_bits, flip_near_an_end, flip_near_an_end, put_number,
    put_number, put_noise, zero_block, swap_blocks, repeat_block, drop_block, cut_off,
    cut_off_a_little, cut_off_the_beginning, append_noise, empty,
)  # fmt: skip
"""What may happen to a file's bytes; what happens more often is here more than once."""


def damage_file(root: Path, chance: random.Random) -> str:
    """Damage one file of a dataset; return what was done to which.

    Every kind of file has the same chance, however many there are of it.

    Args:
        root: The dataset's folder.
        chance: Where chance comes from.
    """
    path = chance.choice(chance.choice(list(_kinds(root).values())))
    name = str(path.relative_to(root))
    if chance.random() < 0.03:
        path.unlink()
        return f"{name}: deleted"
    data = bytearray(path.read_bytes())
    done = []
    for _ in range(1 if chance.random() < 0.8 else 2):
        if data:
            damage = chance.choice(DAMAGES)
            damage(data, chance)
            done.append(getattr(damage, "__name__", "damage"))
    path.write_bytes(data)
    return f"{name}: {', '.join(done)}"


def replace_file(root: Path, chance: random.Random) -> str:
    """Put something in a file's place that is no file of data; return what and where."""
    path = chance.choice(chance.choice(list(_kinds(root).values())))
    what = chance.choice(("folder", "pipe", "zeros", "dead link", "link to itself", "link away"))
    path.unlink()
    if what == "folder":
        path.mkdir()
    elif what == "pipe":
        os.mkfifo(path)
    else:
        away = root.parent / "outside" / path.name
        ends = {"zeros": "/dev/zero", "dead link": "nothing", "link to itself": path.name}
        if what == "link away":
            away.parent.mkdir(exist_ok=True)
            away.write_bytes(b"{}")
        path.symlink_to(ends.get(what, away))
    return f"{path.relative_to(root)}: {what}"


def replace_folder(root: Path, chance: random.Random) -> str:
    """Put a folder elsewhere with a link to it, or a file or nothing in its place."""
    folders = [path for path in root.rglob("*") if path.is_dir()]
    path = chance.choice(sorted(folders))
    name = str(path.relative_to(root))
    what = chance.choice(("file", "nothing", "link to the dataset", "link away"))
    away = root.parent / "outside" / "moved"
    away.parent.mkdir(exist_ok=True)
    if what == "link away":
        shutil.move(path, away)
        path.symlink_to(away)
        return f"{name}: {what}"
    shutil.rmtree(path)
    if what == "file":
        path.write_bytes(b"no folder")
    elif what != "nothing":
        path.symlink_to(root)
    return f"{name}: {what}"


def _kinds(root: Path) -> dict[str, list[Path]]:
    kinds: dict[str, list[Path]] = {}
    for path in sorted(path for path in root.rglob("*") if path.is_file()):
        parts = path.relative_to(root).parts
        # Of a Lance table: its manifests, transactions, data. Of others: data/, meta/ and videos/.
        inner = [part for part in parts[:-1] if part in ("_versions", "_transactions", "data")]
        folder = inner[-1] if inner else parts[0]
        kind = path.name if path.suffix in (".json", ".jsonl") else f"{folder}/{path.suffix}"
        kinds.setdefault(kind, []).append(path)
    return kinds


def _block(data: bytearray, chance: random.Random) -> tuple[int, int]:
    size = min(chance.choice(_BLOCKS), len(data))
    start = chance.randrange(len(data) - size + 1)
    return start, start + size
