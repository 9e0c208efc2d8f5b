"""What was converted, cut or put in another order is the same dataset: pushing it loses nothing."""

from __future__ import annotations

import json
import shutil

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
import pytest

import demoreel
from demoreel.errors import NewerRemoteError
from demoreel.testing import make_dataset

REPO = "me/my_task"


@pytest.fixture(scope="module")
def made(tmp_path_factory):
    folder = tmp_path_factory.mktemp("made")
    common = {"episodes": [5, 5, 5, 4], "cameras": 1, "tasks": ("take it", "put it")}
    for layout in ("v2.1", "v3.0"):
        make_dataset(folder / layout, layout=layout, **common)
    longer = make_dataset(folder / "longer", **{**common, "episodes": [9, 9, 9, 8]})
    cut = demoreel.cut(longer)
    for episode in range(4):
        cut = cut.trim(episode, start=4)
    cut.render(folder / "another")
    return folder


@pytest.fixture
def there(hub, made):
    """A function that puts a dataset on the Hub, of which this machine remembers nothing."""

    def put(name_or_root):
        root = made / name_or_root
        hub.seed(
            REPO, root, tag=json.loads((root / "meta/info.json").read_text())["codebase_version"]
        )
        return root

    return put


def blur_statistics(root, *, far=False):
    """Write statistics as another program would: float32 means, summed in another order."""
    rng = np.random.default_rng(0)
    path = root / "meta" / "episodes_stats.jsonl"
    lines = [json.loads(line) for line in path.read_text().splitlines()]
    for line in lines:
        for key in ("action", "observation.state"):
            for kind in ("mean", "std", "min", "max"):
                values = np.float32(line["stats"][key][kind])
                step = 1.0 if far else 3e-6 if kind in ("mean", "std") else 0
                line["stats"][key][kind] = (
                    values + step * rng.uniform(-1, 1, values.shape)
                ).tolist()
    path.write_text("".join(json.dumps(line) + "\n" for line in lines))


@pytest.mark.parametrize("far", [False, True], ids=["rounded", "stale"])
def test_statistics_that_another_program_wrote(there, made, tmp_path, far):
    root = shutil.copytree(made / "v2.1", tmp_path / "theirs")
    demoreel.convert(root, tmp_path / "new", to="v3.0")
    blur_statistics(root, far=far)
    there(root)
    assert demoreel.push(tmp_path / "new", REPO).episodes == 4


@pytest.mark.parametrize(
    ("source", "to"),
    [
        ("v2.1", "v3.0"),
        ("v3.0", "v2.1"),
        ("v2.1", "lance-video"),
        ("v3.0", "lance-native"),
        ("v3.0", "lance-frames"),
    ],
)
def test_a_conversion(there, tmp_path, source, to):
    demoreel.convert(there(source), tmp_path / "new", to=to)
    assert demoreel.push(tmp_path / "new", REPO).episodes == 4


CUTS = {
    "recoded": lambda cut, other: (cut, {"vcodec": "h264", "crf": 40}),
    "reordered": lambda cut, other: (cut.keep([3, 1, 0, 2]), {}),
    "merged": lambda cut, other: (demoreel.cut(other).merge(cut), {}),
    "without a feature": lambda cut, other: (cut.remove("observation.state"), {}),
    "with another name": lambda cut, other: (cut.rename({"observation.state": "state"}), {}),
}


@pytest.mark.parametrize("what", CUTS)
def test_a_cut(there, made, tmp_path, what):
    cut, options = CUTS[what](demoreel.cut(there("v3.0")), made / "another")
    cut.render(tmp_path / "new", **options)
    demoreel.push(tmp_path / "new", REPO)


@pytest.mark.parametrize("to", ["v3.0", "v2.1", "lance-video"])
def test_what_is_lost_is_refused(hub, there, made, tmp_path, to):
    demoreel.cut(there("v2.1")).delete([1]).render(tmp_path / "new", layout=to)
    with pytest.raises(NewerRemoteError, match="An episode is on the Hub") as caught:
        demoreel.push(tmp_path / "new", REPO)
    assert caught.value.where["lost"] == "episode 1"
    assert json.loads(hub.read(REPO, "meta/info.json"))["total_episodes"] == 4


def test_another_dataset_of_the_same_lengths_and_tasks_is_refused(there, made):
    there("v3.0")
    with pytest.raises(NewerRemoteError, match="another dataset"):
        demoreel.push(made / "another", REPO)


@pytest.mark.parametrize("name", ["new", "another"])
def test_without_statistics_rows_decide(there, made, tmp_path, name):
    """v2.0 has none of single episodes."""
    root = shutil.copytree(made / "v2.1", tmp_path / "theirs")
    (root / "meta" / "episodes_stats.jsonl").unlink()
    info = json.loads((root / "meta" / "info.json").read_text())
    (root / "meta" / "info.json").write_text(json.dumps({**info, "codebase_version": "v2.0"}))
    there(root)
    if name == "new":
        demoreel.convert(made / "v2.1", tmp_path / "new", to="v3.0")
        demoreel.push(tmp_path / "new", REPO)
    else:
        with pytest.raises(NewerRemoteError, match="another dataset"):
            demoreel.push(made / "another", REPO)


def test_one_changed_frame_is_noticed_by_its_extremes(there, made, tmp_path):
    root = shutil.copytree(made / "v3.0", tmp_path / "changed")
    (path,) = (root / "meta" / "episodes").glob("*/*.parquet")
    table = pq.read_table(path)
    column = table.schema.names.index("stats/action/max")
    values = table["stats/action/max"].to_pylist()
    values[2] = [value * 1.01 + 0.01 for value in values[2]]
    changed = table.set_column(
        column, table.schema.field(column), pa.array(values, table.schema.types[column])
    )
    pq.write_table(changed, path)
    data = next((root / "data").rglob("*.parquet"))
    rows = pq.read_table(data)
    place = rows.schema.names.index("action")
    actions = rows["action"].to_pylist()
    actions[11] = [value * 1.01 + 0.01 for value in actions[11]]
    pq.write_table(
        rows.set_column(
            place, rows.schema.field(place), pa.array(actions, rows.schema.types[place])
        ),
        data,
    )
    there(root)
    with pytest.raises(NewerRemoteError) as caught:
        demoreel.push(made / "v3.0", REPO)
    assert caught.value.where["lost"] == "episode 2"


def test_a_real_dataset(there, fixtures, tmp_path):
    demoreel.convert(there(fixtures / "g1_v21"), tmp_path / "new", to="v3.0")
    demoreel.push(tmp_path / "new", REPO)


def reshaped(root, *, name="action"):
    """Give a dataset numbers of another robot: one more in each action; states are left out."""
    for path in (root / "data").rglob("*.parquet"):
        rows = pq.read_table(path).drop_columns("observation.state")
        place = rows.schema.names.index("action")
        values = [[*row, 0.5] for row in rows["action"].to_pylist()]
        pq.write_table(rows.set_column(place, name, pa.array(values)), path)
    for path in (root / "meta" / "episodes").rglob("*.parquet"):
        table = pq.read_table(path)
        told = [n for n in table.schema.names if n.startswith("stats/")]
        pq.write_table(table.drop_columns(told), path)
    info = json.loads((root / "meta" / "info.json").read_text())
    del info["features"]["observation.state"]
    action = info["features"].pop("action")
    info["features"][name] = {**action, "shape": [action["shape"][0] + 1], "names": None}
    (root / "meta" / "info.json").write_text(json.dumps(info))


@pytest.mark.parametrize("name", ["action", "action.joints"])
def test_another_robots_dataset_of_the_same_lengths_and_tasks_is_refused(
    there, made, tmp_path, name
):
    root = shutil.copytree(made / "v3.0", tmp_path / "theirs")
    reshaped(root, name=name)
    there(root)
    with pytest.raises(NewerRemoteError, match="another dataset"):
        demoreel.push(made / "v3.0", REPO)


def test_statistics_that_no_number_holds_are_none(there, made, tmp_path):
    root = shutil.copytree(made / "v2.1", tmp_path / "theirs")
    path = root / "meta" / "episodes_stats.jsonl"
    lines = [json.loads(line) for line in path.read_text().splitlines()]
    lines[1]["stats"]["action"]["mean"][0] = 10**400
    path.write_text("".join(json.dumps(line) + "\n" for line in lines))
    there(root)
    demoreel.push(made / "v2.1", REPO)  # rows decide


@pytest.mark.parametrize("what", ["no count", "more than metadata"])
def test_what_cannot_be_told_is_refused(there, made, tmp_path, monkeypatch, what):
    root = shutil.copytree(made / "another", tmp_path / "theirs")
    if what == "no count":
        (root / "a.lance").write_text("a file with the name of a folder")
        info = json.loads((root / "meta" / "info.json").read_text())
        (root / "meta" / "info.json").write_text(json.dumps({**info, "total_episodes": 0}))
    else:
        monkeypatch.setattr("demoreel.hub.loss._MOST_METADATA", 100)
    there(root)
    with pytest.raises(NewerRemoteError, match="cannot be read"):
        demoreel.push(made / "v3.0", REPO)
