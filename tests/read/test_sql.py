"""Questions in SQL, and conditions that choose episodes, on every layout."""

from __future__ import annotations

import multiprocessing
import pickle
import shutil
import subprocess
import sys
from pathlib import Path

import lance
import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
import pytest

import demoreel
from demoreel.errors import ArgumentError, TableError
from demoreel.testing import make_dataset

# Importing lance here, as a user of lance does, brings its warning back.
pytestmark = pytest.mark.filterwarnings("ignore:lance is not fork-safe")

G1 = ["g1_lance_video", "g1_lance_native", "g1_v30", "g1_v21"]
COUNT = "select count(*) as n, sum(action[1]) as total from frames"
LENGTHS = [8, 12, 5, 7]
WITHOUT_DUCKDB = """
import sys
class NoDuckDB:
    def find_spec(self, name, path=None, target=None):
        if name.partition(".")[0] == "duckdb":
            raise ModuleNotFoundError(name, name=name)
sys.meta_path.insert(0, NoDuckDB())
import demoreel
"""


@pytest.fixture(scope="module", params=["v3.0", "v2.1"])
def made(request, tmp_path_factory) -> Path:
    """Four episodes, two tasks that change half-way; in v3.0 each has a table of its own."""
    return make_dataset(
        tmp_path_factory.mktemp("sql") / "made",
        episodes=LENGTHS,
        cameras=1,
        image_cameras={"observation.images.still": (64, 64)},
        features={
            "note": {"dtype": "string", "shape": [1]},
            "next.done": {"dtype": "bool", "shape": [1]},
        },
        tasks=("pick it", "放下"),
        task_changes=True,
        language=request.param == "v3.0",
        layout=request.param,
        data_files_size_in_mb=0.001,
    )


def column(table: pa.Table, number: int = 0) -> list:
    return table.column(number).to_pylist()


# Queries


@pytest.mark.parametrize("name", G1)
def test_an_average_by_episode_is_that_of_the_samples(fixtures, name):
    ds = demoreel.open(fixtures / name)
    answer = ds.sql(
        "select episode_index, avg(action[1]) as mean, count(*) as n "
        "from frames group by 1 order by 1"
    )
    assert isinstance(answer, pa.Table)
    assert answer.column_names == ["episode_index", "mean", "n"]
    assert column(answer) == [0, 1, 2, 3]
    assert column(answer, 2) == ds.episodes.length.tolist()
    for number, mean in enumerate(column(answer, 1)):
        expected = ds.episode(number).column("action")[:, 0].mean(dtype=np.float64)
        assert mean == pytest.approx(expected, rel=1e-6)


@pytest.mark.parametrize("name", [*G1, "kitchen_v30", "kitchen_images_v30", "kitchen_lance_frames"])
def test_every_layout_has_the_same_four_tables(fixtures, name):
    ds = demoreel.open(fixtures / name)
    frames = ds.sql("describe frames")
    stored = [key for key, f in ds.features.items() if not f.is_camera]
    known = {key.replace(".", "_") for key in stored}
    assert set(column(frames)) <= known
    assert {"observation_state", "episode_index", "timestamp"} <= set(column(frames))
    assert len(ds.sql("select * from frames")) == len(ds)
    assert column(ds.sql("select length from episodes")) == ds.episodes.length.tolist()
    assert column(ds.sql("select tasks from episodes")) == [list(e.tasks) for e in ds.episodes]
    assert ds.sql("from tasks order by task_index").to_pylist() == [
        {"task_index": number, "task": text} for number, text in sorted(ds.tasks.items())
    ]
    filmed = {key for key in ds.info.video_keys if not ds.reader.in_tables(key)}
    videos = ds.sql("select * from videos")
    assert set(videos.column("video_key").to_pylist()) == filmed
    assert "video_bytes" not in videos.column_names


def test_an_older_tools_numbers_have_their_declared_types(fixtures):
    ds = demoreel.open(fixtures / "kitchen_lance_frames")
    done = ds.sql("select next_done, phase from frames order by index")
    assert done.schema.types == [pa.bool_(), pa.int64()]
    assert column(done) == ds.batch(range(len(ds)))["next.done"].tolist()


def test_joins_windows_and_texts(made):
    ds = demoreel.open(made)
    by_task = ds.sql(
        "select task, count(*) as n from frames join tasks using (task_index) group by 1"
    )
    expected = [ds[number]["task"] for number in range(len(ds))]
    assert dict(zip(column(by_task), column(by_task, 1), strict=True)) == {
        task: expected.count(task) for task in set(expected)
    }
    steps = ds.sql(
        "select frame_index - lag(frame_index) over (partition by episode_index order by "
        "frame_index) as step from frames"
    )
    assert sorted(filter(None, column(steps))) == [1] * (len(ds) - len(LENGTHS))
    notes = ds.sql('select note, "next.done" from frames order by index')
    assert column(notes) == ds.batch(range(len(ds)))["note"]
    assert column(notes, 1) == ds.batch(range(len(ds)))["next.done"].tolist()


@pytest.mark.parametrize("name", ["g1_lance_native", "g1_v30"])
def test_features_go_by_both_names(fixtures, name):
    ds = demoreel.open(fixtures / name)
    both = ds.sql('select "observation.state"[2], observation_state[2] from frames limit 5')
    assert column(both, 0) == column(both, 1)
    assert column(both) == pytest.approx(ds.batch(range(5))["observation.state"][:, 1].tolist())
    named = ds.sql('select * from frames where "observation.state"[1] is not null')
    assert "observation.state" in named.column_names
    assert "observation_state" not in named.column_names
    assert "observation_state" in ds.sql("select * from frames limit 1").column_names


@pytest.mark.parametrize("name", ["g1_lance_video", "g1_v30", "g1_v21"])
def test_a_subset_is_all_that_a_query_sees(fixtures, name):
    for chosen in ([2], [1, 2], [0, 3]):
        ds = demoreel.open(fixtures / name, episodes=chosen)
        for table in ("frames", "episodes"):
            seen = ds.sql(f"select distinct episode_index from {table} order by 1")
            assert column(seen) == chosen
        assert column(ds.sql("select count(*) from frames")) == [len(ds)]


def test_a_version_or_tag_is_what_a_query_sees(copy_of):
    root = copy_of("g1_lance_native")
    table = lance.dataset(root / "frames.lance")
    before = table.version
    table.tags.create("whole", before)
    table.delete("frame_index >= 100")
    count = "select count(*) from frames"
    assert column(demoreel.open(root).sql(count)) == [400]
    assert column(demoreel.open(root, version=before).sql(count)) == [1013]
    assert column(demoreel.open(root, tag="whole").sql(count)) == [1013]


def test_orphan_rows_are_not_seen(tmp_path):
    root = make_dataset(tmp_path / "ds", episodes=3, cameras=0, data_files_size_in_mb=0.001)
    files = sorted(root.glob("data/*/*.parquet"))
    assert len(files) == 3
    shutil.copy(files[0], files[0].with_name("file-077.parquet"))
    first, second = (pq.ParquetFile(path).read() for path in files[:2])
    pq.write_table(pa.concat_tables([first, second]), files[0])  # rows that belong elsewhere
    ds = demoreel.open(root)
    assert column(ds.sql("select count(*) from frames")) == [len(ds)] == [60]
    assert column(ds.sql("select count(distinct index) from frames")) == [60]


REFUSED = [
    "copy (select 1) to '{target}'",
    "copy frames to '{target}' (format parquet)",
    "attach '{target}' as other",
    "export database '{target}'",
    "create table t as select 1",
    "insert into tasks values (9, 'x')",
    "drop view frames",
    "set enable_external_access = true",
    "install httpfs",
    "pragma database_list",
    "select 1; select 2",
    "",
    "selec 1",
    "select nope from frames",
    "select * from nope",
    "select * from ds",
    "select * from reader",
    "select * from '{readable}'",
    "select * from read_csv('{readable}')",
    "select * from read_parquet('{parquet}')",
    "select * from glob('/etc/*')",
    "select content from read_text('{readable}')",
    "select cast('x' as integer)",
]


@pytest.mark.parametrize("query", REFUSED)
def test_other_queries_are_refused_and_touch_nothing(made, tmp_path, query, monkeypatch):
    monkeypatch.chdir(tmp_path)
    readable = tmp_path / "secret.csv"
    readable.write_text("a,b\n1,2\n")
    ds = demoreel.open(made)
    names = {"target": tmp_path / "out", "readable": readable}
    names["parquet"] = made / ds.episodes[0].data_file
    with pytest.raises(ArgumentError) as error:
        ds.sql(query.format(**names))
    assert error.value.hint
    assert [path.name for path in tmp_path.iterdir()] == ["secret.csv"]


def test_a_missing_and_a_damaged_table(tmp_path):
    root = make_dataset(tmp_path / "ds", episodes=3, cameras=0, data_files_size_in_mb=0.001)
    second = sorted(root.glob("data/*/*.parquet"))[1]
    data = second.read_bytes()
    second.write_bytes(data[:-100])
    with pytest.raises(TableError):
        demoreel.open(root).sql("select avg(action[1]) from frames")
    second.unlink()
    with pytest.raises(TableError, match="missing"):
        demoreel.open(root).sql("select count(*) from frames")
    with pytest.raises(TableError, match="missing"):
        demoreel.open(root, filter="index > 0")
    assert column(demoreel.open(root, episodes=[0, 2]).sql("select count(*) from frames")) == [40]


def test_a_missing_lance_table(copy_of):
    root = copy_of("g1_lance_native")
    shutil.rmtree(root / "frames.lance")
    (root / "frames.lance").mkdir()
    with pytest.raises(TableError):
        demoreel.open(root).sql("select count(*) from frames")


def _answer(ds, queue):
    queue.put(ds.sql(COUNT).to_pydict())


@pytest.mark.parametrize(
    ("name", "method"),
    [("g1_lance_native", "fork"), ("g1_lance_native", "spawn"), ("g1_v30", "fork")],
)
def test_other_processes_get_the_same_answer(fixtures, name, method):
    ds = demoreel.open(fixtures / name, filter="episode_index in (1, 2)")
    ds.batch([0, 1])  # this process has used Lance now
    expected = ds.sql(COUNT).to_pydict()
    context = multiprocessing.get_context(method)
    queue = context.Queue()
    child = context.Process(target=_answer, args=(ds, queue))
    child.start()
    found = queue.get(timeout=60)
    child.join(60)
    assert child.exitcode == 0
    assert found["n"] == expected["n"]
    assert found["total"] == pytest.approx(expected["total"])


def test_without_duckdb_the_error_names_the_extra(made):
    done = subprocess.run(
        [
            *(sys.executable, "-c"),
            WITHOUT_DUCKDB + "import sys\n"
            "ds = demoreel.open(sys.argv[1])\n"
            "for ask in (lambda: ds.sql('select 1'), "
            "lambda: demoreel.open(sys.argv[1], filter='index = 1')):\n"
            "    try: ask()\n"
            "    except demoreel.errors.MissingExtraError as error: print(error.hint)\n",
            str(made),
        ],
        capture_output=True,
        text=True,
        check=True,
    )
    assert done.stdout.splitlines() == ["pip install 'demoreel[sql]'"] * 2


def test_a_lance_filter_needs_no_duckdb(fixtures):
    done = subprocess.run(
        [
            *(sys.executable, "-c"),
            WITHOUT_DUCKDB + "import sys\n"
            "ds = demoreel.open(sys.argv[1], filter='episode_index = 2')\n"
            "print(ds.episodes.episode_index.tolist())",
            str(fixtures / "g1_lance_native"),
        ],
        capture_output=True,
        text=True,
        check=True,
    )
    assert done.stdout.strip() == "[2]"


# Conditions


@pytest.mark.parametrize("name", G1)
def test_a_filter_keeps_episodes_with_a_frame_that_meets_it(fixtures, name):
    every = demoreel.open(fixtures / name)
    states = [every.episode(number).column("observation.state")[:, 0] for number in range(4)]
    limit = float(np.mean(sorted(state.max() for state in states)[1:3]))
    expected = [number for number, state in enumerate(states) if (state > limit).any()]
    assert len(expected) == 2
    for key in ("observation_state", "observation.state", '"observation.state"'):
        ds = demoreel.open(fixtures / name, filter=f"{key}[1] > {limit:.6f}")
        assert ds.episodes.episode_index.tolist() == expected
    assert len(ds) == sum(len(states[number]) for number in expected)  # whole episodes
    other = demoreel.open(fixtures / name, episodes=expected)
    np.testing.assert_array_equal(ds[len(ds) - 1]["action"], other[len(other) - 1]["action"])


@pytest.mark.parametrize("name", ["g1_lance_video", "g1_v30"])
def test_filters_meet_episodes_and_survive_pickling(fixtures, name):
    ds = demoreel.open(fixtures / name, episodes=[0, 2, 3], filter="frame_index = 230")
    assert ds.episodes.episode_index.tolist() == [2, 3]
    twin = pickle.loads(pickle.dumps(ds))
    assert twin.episodes.episode_index.tolist() == [2, 3]
    assert column(twin.sql("select count(*) from frames")) == [len(ds)]


def test_texts_and_names_in_a_condition_are_told_apart(made):
    every = demoreel.open(made)
    note = every[0]["note"].replace("'", "''")
    ds = demoreel.open(made, filter=f"note = '{note}' -- \"observation.state\"")
    assert 0 in ds.episodes.episode_index
    ds = demoreel.open(made, filter="task_index = 1 and timestamp < 0.01")
    assert ds.episodes.episode_index.tolist() == [1, 3]
    with pytest.raises(ArgumentError, match="No episode"):
        demoreel.open(made, filter="note = 'observation.state'")


@pytest.mark.parametrize("name", ["g1_lance_native", "g1_v30"])
@pytest.mark.parametrize(
    ("condition", "reason"),
    [
        ("task_index = 77", "No episode"),
        ("nope = 1", "nope"),
        ('"nope" = 1', "nope"),
        ("task_index =", "not understood"),
        ("(task_index = 0", "not understood"),
        (" ", "empty"),
    ],
)
def test_conditions_that_choose_nothing(fixtures, name, condition, reason):
    with pytest.raises(ArgumentError, match=reason) as error:
        demoreel.open(fixtures / name, filter=condition)
    assert error.value.hint


def test_an_index_gives_the_same_episodes(copy_of):
    root = copy_of("g1_lance_video")
    expected = demoreel.open(root, filter="episode_index between 1 and 2 and task_index = 0")
    table = lance.dataset(root / "g1.lance")
    table.create_scalar_index("episode_index", "BTREE")
    table = lance.dataset(root / "g1.lance")
    table.create_scalar_index("task_index", "BITMAP")
    ds = demoreel.open(root, filter="episode_index between 1 and 2 and task_index = 0")
    assert ds.episodes.episode_index.tolist() == expected.episodes.episode_index.tolist() == [1, 2]
    assert column(ds.sql("select count(*) from frames where episode_index = 1")) == [260]


def test_a_damaged_lance_table_is_not_the_conditions_fault(copy_of):
    root = copy_of("g1_lance_video")
    for path in (root / "g1.lance" / "data").glob("*.lance"):
        path.write_bytes(path.read_bytes()[:50])
    with pytest.raises(TableError):
        demoreel.open(root, filter="task_index = 0")


@pytest.mark.parametrize("key", ["note", "observation.state", "next.done"])
def test_texts_that_unfold_over_several_files(made, tmp_path, monkeypatch, key):
    """Whatever the metadata call the column: a scanner decodes what is in the files."""
    root = Path(shutil.copytree(made, tmp_path / "set"))
    for path in sorted(root.glob("data/**/*.parquet")):
        table = pq.read_table(path)
        same = pa.array([0] * len(table), pa.int32())
        text = pa.DictionaryArray.from_arrays(same, pa.array(["x" * 100_000]))
        table = table.set_column(table.column_names.index(key), key, text)
        pq.write_table(table, path, compression="zstd", store_schema=False)
    dataset = demoreel.open(root)
    monkeypatch.setenv("DEMOREEL_LIMIT_TABLE_BYTES", "6MiB")  # no single file has as much
    with pytest.raises(TableError, match="TABLE_BYTES"):
        dataset.sql("select count(*) from frames")
    monkeypatch.setenv("DEMOREEL_LIMIT_TABLE_BYTES", "40MiB")
    assert column(dataset.sql("select count(*) from frames")) == [sum(LENGTHS)]
