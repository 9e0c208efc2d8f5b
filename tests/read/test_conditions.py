"""Conditions of ``filter=``: the whole text is one, and means the same in every layout."""

from __future__ import annotations

from pathlib import Path

import duckdb
import lance
import numpy as np
import pyarrow as pa
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

import demoreel
from demoreel.errors import ArgumentError
from demoreel.layouts.detect import open_reader
from demoreel.model import Feature
from demoreel.read.conditions import ColumnNode, NotUnderstood, condition_sql
from demoreel.read.sql import episodes_where
from demoreel.testing import make_dataset

pytestmark = pytest.mark.filterwarnings("ignore:lance is not fork-safe")

LAYOUTS = ("v2.0", "v2.1", "v3.0", "lance-video", "lance-frames", "lance-native")
FEATURES = {
    "note": {"dtype": "string", "shape": [1]},
    "next.done": {"dtype": "bool", "shape": [1]},
    "grip": {"dtype": "int8", "shape": [1]},
    "level": {"dtype": "float64", "shape": [1]},
    "pose": {"dtype": "float32", "shape": [2, 3]},
}


@pytest.fixture(scope="module")
def six(tmp_path_factory) -> dict[str, Path]:
    """The same four episodes in every layout."""
    folder = tmp_path_factory.mktemp("conditions")
    made = {}
    for layout in LAYOUTS:
        made[layout] = folder / layout
        if layout.startswith("lance"):
            demoreel.convert(made["v3.0"], made[layout], to=layout)
        else:
            make_dataset(
                made[layout],
                layout=layout,
                episodes=[8, 12, 5, 7],
                cameras=1,
                features=FEATURES,
                tasks=("pick it", "放下"),
                data_files_size_in_mb=0.001,
            )
    return made


def chosen(path: Path, condition: str) -> list[int] | str:
    """Return the episodes, or of the error what does not name the dataset."""
    try:
        return demoreel.open(path, filter=condition).episodes.episode_index.tolist()
    except ArgumentError as error:
        return error.what


@pytest.fixture(scope="module")
def in_all(six):
    """A function that returns what each layout answers; opening six for each text takes long."""
    readers = {layout: open_reader(path) for layout, path in six.items()}

    def asked(reader, condition):
        every = np.arange(len(reader.episodes))
        try:
            return reader.episodes.episode_index[episodes_where(reader, every, condition)].tolist()
        except ArgumentError as error:
            return error.what

    def answers(condition, layouts=LAYOUTS):
        return {layout: asked(readers[layout], condition) for layout in layouts}

    return answers


# The whole text is one condition

NOT_ONE = [
    "episode_index < 5 AN timestamp > 99",
    "episode_index < 5 garbage",
    "episode_index < 5 5",
    "1=1) or (1=1",
    "(1=1) or (1=1",
    "episode_index = 0) --",
    "episode_index = 0; drop table frames",
    "true; select 1",
    "episode_index = 0;",
    "episode_index = 0 limit 1",
    "episode_index = 0 order by index",
    "episode_index = 0 as x",
    "episode_index = 0, true",
    "episode_index = 0 union select 1",
    "episode_index = 0 /* open",
    "episode_index = 0 /* a /* b */ */",
    "episode_index in (select 0)",
    "exists (select 1)",
    "(select count(*) from read_csv('/etc/passwd')) > 0",
    "episode_index = (select 0)",
    "read_text('/etc/passwd') is not null",
    "getenv('HOME') = ''",
    "COPY (select 1) TO '/tmp/x'",
    "ATTACH '/tmp/x' as y",
    "INSTALL httpfs",
    "index > 1_000",
    "index > 0x1",
    "note = $$a$$",
    "note = E'a'",
    "index = ?",
    "index = $1",
    "index = :x",
    "note = 'a",
    'note = "a"',
    "index",
    "null",
    "index = null",
    "index = '1'",
    "note = 1",
    "next.done > false",
    "1 < index < 3",
    "not",
    "()",
    "index in ()",
    "index in (index)",
    "index in (1, 'a')",
    "note like index",
    "note like 'a' escape 'ab'",
    "action = 1",
    "action[0] = 1",
    "action[99] = 1",
    "action[index] = 1",
    "action[1][1] = 1",
    "pose[1] = 1",
    "index[1] = 1",
    "observation.images.cam0 is null",
    "_rowid = 1",
    "random() < 2",
    "index > 1e999",
    "abs(note) = 1",
    "lower(1) = 'a'",
    "note = 'a\0b'",
    "(" * 200 + "true" + ")" * 200,
    "not " * 200 + "true",
    "index = " + "-" * 1 + "- " * 200 + "1",
    " or ".join(["true"] * 5000),
]


@pytest.mark.parametrize("condition", NOT_ONE, ids=lambda text: text[:30])
def test_what_is_not_one_condition_is_an_error_in_every_layout(in_all, condition):
    every = NOT_ONE.index(condition) < 6
    said = set(in_all(condition, LAYOUTS if every else ("v3.0", "lance-native")).values())
    assert len(said) == 1, said
    assert "is not understood" in str(said.pop())


@pytest.mark.parametrize("layout", LAYOUTS)
def test_opening_says_what_is_wrong_with_a_filter(six, layout):
    said = chosen(six[layout], NOT_ONE[0])
    assert "it ends with 'episode_index < 5', but 'AN' follows" in str(said)


# The same meaning

SAME = [
    "task_index = 1 and timestamp < 0.01",
    "not (episode_index = 1 or episode_index >= 3)",
    "episode_index in (0, 2, 99)",
    "episode_index not in (0, 2.0)",
    "EPISODE_INDEX = 1 -- or true",
    "frame_index / 2 = 5.5",
    "frame_index % 5 = 4 AND frame_index > 4",
    "frame_index > 10.5",
    "frame_index between 7.5 and 1e3",
    "frame_index + 1 > 11",
    "timestamp = 0.1",
    "1e-1 = timestamp",
    "action[1] > 0.5 or action[-1] < -18.5",
    "observation.state[1] > 18.5",
    '"observation.state"[1] > 7 - observation_state[2]',
    "`observation.state`[2] >= 2",
    "abs(action[2]) > 0.5",
    "pose[2][3] > 1.2",
    "pose[1][2] > 1.2 and pose[2][1] < 0",
    "next.done",
    "not next_done and frame_index = 7",
    "next.done = true and frame_index > 4",
    "next_done is not true",
    "grip > 90 or grip < -80",
    "grip = 300",
    "grip <> 300 and episode_index = 2",
    "level > 1.5",
    "level * 2 - action[1] > 20",
    "note is null",
    "note like '%1 _'",
    "note not like '%1_%' and note ilike '%FRAME 11%'",
    r"note like '%\_%'",
    "note like '%!_%' escape '!'",
    "contains(lower(note), 'frame 8') and length(note) > 3",
    "starts_with(upper(note), 'NOTE, EPISODE 3') or ends_with(note, '11 ✓')",
    "note > 'note, episode 2' and note <= 'zzz'",
    "index / 0 > 1",
    "index / 0 is null",
    "index > 99999999999999999999",
    "index > -9223372036854775808",
    "/* all */ true",
]


@pytest.mark.parametrize("condition", SAME)
def test_a_condition_means_the_same_in_every_layout(in_all, condition):
    every = SAME.index(condition) % 3 == 0
    found = in_all(condition, LAYOUTS if every else ("v3.0", "lance-frames", "lance-native"))
    assert len({str(each) for each in found.values()}) == 1, found
    text = str(found["v3.0"])
    assert text.startswith("[") or "No episode has a frame" in text


def test_what_conditions_mean(six):
    path = six["lance-native"]
    ds = demoreel.open(path)
    columns = {
        key: [ds.episode(number).column(key) for number in range(4)]
        for key in ("frame_index", "timestamp", "action", "pose")
    }
    expected = {
        "frame_index / 2 = 5.5": [(rows / 2 == 5.5) for rows in columns["frame_index"]],
        "frame_index > 10.5": [rows > 10.5 for rows in columns["frame_index"]],
        "timestamp = 0.2": [rows == np.float32(0.2) for rows in columns["timestamp"]],
        "action[3] < -18.5": [rows[:, 2] < -18.5 for rows in columns["action"]],
        "pose[2][1] > 1.5": [rows[:, 1, 0] > 1.5 for rows in columns["pose"]],
    }
    for condition, rows in expected.items():
        numbers = [number for number, each in enumerate(rows) if each.any()]
        assert numbers, condition
        assert chosen(path, condition) == numbers


# Engines, on values that they treat differently

_NEGATIVE_NAN = np.array([0xFFF8 << 48], np.uint64).view(np.float64)[0]
_DOUBLES = [0.0, -0.0, float("nan"), _NEGATIVE_NAN, 1.0, -1.5, float("inf"), -float("inf"), 0.1]
_TEXTS = ["a\nb", "A\\b", "a%b", "a_b", "É", "", None, "it's", "ß"]
_INTS = [0, 1, -1, 127, -128, None, 5, 7, 9]


@pytest.fixture(scope="module")
def engines(tmp_path_factory):
    """A function that returns the rows that Lance and DuckDB find."""
    doubles = np.array(_DOUBLES)
    floats = doubles.astype(np.float32)
    table = pa.table(
        {
            "n": pa.array(range(9), pa.int64()),
            "d": doubles,
            "f": floats,
            "l": pa.FixedSizeListArray.from_arrays(np.repeat(floats, 2), 2),
            "i": pa.array(_INTS, pa.int8()),
            "b": pa.array([True, False, None] * 3),
            "s": pa.array(_TEXTS, pa.string()),
        }
    )
    kinds = {"n": "int64", "d": "float64", "f": "float32", "i": "int8", "b": "bool"}
    features = {key: Feature(key, kind, (1,)) for key, kind in kinds.items()}
    features |= {"l": Feature("l", "float32", (2,)), "s": Feature("s", "string", (1,))}
    columns = {
        key: ColumnNode(key, features[key], table.schema.field(key).type) for key in features
    }
    place = str(tmp_path_factory.mktemp("engines") / "t.lance")
    stored = lance.write_dataset(table, place)
    database = duckdb.connect()
    database.register("t", table)

    def found(condition: str) -> tuple[list[int], list[int]]:
        here = condition_sql(condition, columns, "lance")
        there = condition_sql(condition, columns, "duckdb")
        rows = stored.scanner(columns=["n"], filter=here).to_table()
        others = database.sql(f"select n from t where {there}").to_arrow_table()
        return rows.column(0).to_pylist(), sorted(others.column(0).to_pylist())

    return found


_number = st.sampled_from(
    ["d", "f", "l[1]", "L[-1]", "i", "n", "0", "-0.0", "0.1", "1", "-1.5", "300", "1e300", "128"]
)
_sums = st.recursive(
    _number,
    lambda part: st.one_of(
        st.tuples(part, st.sampled_from("+-*/%"), part).map(lambda t: f"({' '.join(t)})"),
        part.map(lambda text: f"- {text}"),
        part.map(lambda text: f"abs({text})"),
    ),
    max_leaves=4,
)
_sign = st.sampled_from(["=", "==", "<>", "!=", "<", "<=", ">", ">="])
_literals = st.lists(st.sampled_from(["0", "0.1", "1", "-1", "300", "-1.5"]), min_size=1)
_like = st.sampled_from(["like", "not like", "ilike"])
_test = st.one_of(
    st.tuples(_sums, _sign, _sums).map(" ".join),
    st.tuples(_sums, _sums, _sums).map(lambda t: "{} between {} and {}".format(*t)),
    st.tuples(st.sampled_from(["d", "f", "l[2]", "i"]), _literals).map(
        lambda t: f"{t[0]} not in ({', '.join(t[1])})"
    ),
    st.tuples(
        st.sampled_from(["like", "not like", "ilike"]), st.text("aAB%_\\é'\n", max_size=4)
    ).map(lambda t: "s {} '{}'".format(t[0], t[1].replace("'", "''"))),
    st.tuples(_sign, st.text("aAbÉß'\\", max_size=3)).map(
        lambda t: "lower(s) {} '{}'".format(t[0], t[1].replace("'", "''"))
    ),
    st.sampled_from(["b", "b = true", "b is not false", "b is null", "isnan(f)", "s is null"]),
    _sums.map(lambda text: f"{text} is null"),
)
_conditions = st.recursive(
    _test,
    lambda part: st.one_of(
        st.tuples(part, st.sampled_from(["and", "or"]), part).map(lambda t: f"({' '.join(t)})"),
        part.map(lambda text: f"not {text}"),
    ),
    max_leaves=4,
)


@settings(max_examples=120)
@given(condition=_conditions)
def test_lance_and_duckdb_find_the_same_rows(engines, condition):
    here, there = engines(condition)
    assert here == there


@settings(max_examples=100)
@given(text=st.text("abdfilns '\"`()[]<>=-;,/*1.%_\\\n", max_size=12))
def test_any_text_is_a_condition_or_an_error(engines, text):
    try:
        here, there = engines(text)
    except NotUnderstood:
        return
    assert here == there


def test_the_deepest_condition_reaches_every_engine(engines):
    inner = "not (((n + 1) * 2) + abs(d - 1) > l[1] - f)"
    here, there = engines("(" * 7 + inner + ")" * 7)
    assert here == there
    many = " or ".join(f"(f > {n} and n < {n})" for n in range(150))
    assert engines(many)[0] == engines(many)[1]


# Names that untrusted sources chose


def test_names_that_differ_in_case_are_not_mixed_up(tmp_path):
    root = make_dataset(
        tmp_path / "ds",
        episodes=2,
        cameras=0,
        features={
            "Grip": {"dtype": "float32", "shape": [1]},
            "grip": {"dtype": "float32", "shape": [1]},
            'x"; drop table frames; --': {"dtype": "float32", "shape": [1]},
        },
    )
    ds = demoreel.open(root)
    numbers = {key: ds.episode(0).column(key) for key in ("Grip", "grip")}
    for key, other in (("Grip", "grip"), ("grip", "Grip")):
        only = next(
            value
            for value, beside in zip(numbers[key], numbers[other], strict=True)
            if value != beside
        )
        assert chosen(root, f"{key} = {float(only)!r} and episode_index = 0") == [0]
        assert "No episode" in str(chosen(root, f"{other} = {float(only)!r} and index = 0 + index"))
    assert "differ in case" in str(chosen(root, "GRIP > 0"))
    with pytest.raises(ArgumentError, match=r"(?i)grip"):
        ds.sql("select grip from frames")
    name = 'x"; drop table frames; --'
    quoted = '"' + name.replace('"', '""') + '"'
    held = ds.sql(f"select {quoted} as x from frames").column("x").to_numpy()
    np.testing.assert_array_equal(held[:20], ds.episode(0).column(name))
    assert chosen(root, f"{quoted} is not null") == [0, 1]


# Expressions of a cut


@pytest.mark.parametrize(
    "where",
    [
        "true) or (true",
        "true; drop table episodes",
        "length > 3 limit 1",
        "length > 3 AN x",
        "1, 2",
        "length > 3 from episodes",
        "x) --",
        "",
        "length in (select 1",
    ],
)
def test_a_cuts_condition_is_one_expression(six, where):
    for layout in ("v3.0", "lance-video"):
        with pytest.raises(ArgumentError, match="one SQL expression"):
            demoreel.cut(six[layout]).select(where)
    with pytest.raises(ArgumentError, match="one SQL expression"):
        demoreel.cut(six["v3.0"]).select("length > 3", order_by=where or "length, task")


def test_a_cut_reads_no_other_file(six):
    for where in ("(select count(*) from read_csv('/etc/passwd')) > 0", "read_text('/etc/x') = ''"):
        with pytest.raises(ArgumentError):
            demoreel.cut(six["v3.0"]).select(where)
    with pytest.raises(ArgumentError, match="one number or text"):
        demoreel.cut(six["v3.0"]).select(order_by="{'a': length}")
