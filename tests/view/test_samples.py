"""What the loader sees, and predictions over what was recorded: values are the library's."""

from __future__ import annotations

import io
import json
import urllib.request
import zipfile
from urllib.parse import urlencode

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from PIL import Image

import demoreel
from demoreel.testing import make_dataset, read_stamp

CAMERA = "observation.images.cam0"


@pytest.fixture(scope="module")
def root(tmp_path_factory):
    return make_dataset(tmp_path_factory.mktemp("samples") / "ds", episodes=(12, 20), fps=10)


def ask_sample(client, episode: int, **query) -> tuple[int, dict]:
    status, data, _ = client.ask(f"{client.first}/e/{episode}/sample?{urlencode(query)}")
    return status, json.loads(data)


def test_a_sample_is_the_one_that_training_gets(ask, root):
    client = ask(root)
    windows = {"action": [-0.1, 0, 0.1, 0.2], CAMERA: [-0.1, 0.0]}
    query = {"i": 18, "windows": json.dumps(windows), "size": "24x32"}
    status, answer = ask_sample(client, 1, **query)
    assert status == 200
    expected = demoreel.open(root, windows=windows, image_size=(24, 32))[12 + 18]
    fields = {field["key"]: field for field in answer["fields"]}
    assert not {key for key in expected if not key.endswith("_is_pad")} - fields.keys()
    action = fields["action"]
    assert action["pads"] == expected["action_is_pad"].tolist() == [False, False, False, True]
    assert action["offsets"] == [-1, 0, 1, 2]
    values = np.array(action["values"]).reshape(expected["action"].shape)
    np.testing.assert_array_equal(values.astype(np.float32), expected["action"])
    assert fields[CAMERA]["shape"] == [2, 3, 24, 32]
    assert fields["task"]["values"] == expected["task"]


def test_the_images_of_a_sample_are_its_own(ask, root):
    client = ask(root)
    windows = json.dumps({CAMERA: [-0.5, 0, 0.1]})
    for frame, expected in ((3, [0, 3, 4]), (10, [5, 10, 11])):  # the first is padded
        for place, number in enumerate(expected):
            query = urlencode({"i": frame, "windows": windows, "camera": CAMERA, "k": place})
            status, data, _ = client.ask(f"{client.first}/e/0/sample/image?{query}")
            assert status == 200
            mark = read_stamp(np.asarray(Image.open(io.BytesIO(data))))
            assert (mark.episode, mark.frame) == (0, number)


@pytest.mark.soak
@pytest.mark.parametrize(
    "query",
    [
        {"windows": "{"},
        {"windows": "[]"},
        {"windows": '{"action": 5}'},
        {"windows": '{"action": [true]}'},
        {"windows": '{"action": [1e400]}'},
        {"windows": '{"action": []}'},
        {"windows": '{"action": [0.05]}'},
        {"windows": json.dumps({"action": [0] * 600})},
        {"windows": json.dumps({CAMERA: [0] * 100})},
        {"windows": "[" * 10000},
        {"size": "0x5"},
        {"size": "5"},
        {"size": "100000x100000"},
        {"i": 99},
        {"i": -1},
    ],
)
def test_what_no_loader_gives_is_said(ask, root, query):
    status, answer = ask_sample(ask(root), 0, **query)
    assert status == 400
    assert answer["message"]


def test_a_feature_that_is_not_there_is_named(ask, root):
    status, answer = ask_sample(ask(root), 0, windows='{"actoin": [0]}')
    assert status == 404
    assert "action" in answer["hint"]


# Predictions


def predicted(root) -> dict[str, np.ndarray]:
    dataset = demoreel.open(root)
    parts = [np.asarray(dataset.episode(n).column("action")) + 0.5 for n in (0, 1)]
    return {
        "episode_index": np.repeat([0, 1], [12, 20]),
        "frame_index": np.concatenate([np.arange(12), np.arange(20)]),
        "action": np.concatenate(parts),
    }


def write(path, columns: dict[str, np.ndarray]):
    if path.suffix == ".npz":
        np.savez_compressed(path, **columns)
    else:
        lists = {key: value.tolist() for key, value in columns.items()}
        pq.write_table(pa.table(lists), path)
    return path


def columns_of(data: bytes) -> dict[str, np.ndarray]:
    size = int.from_bytes(data[:8], "little")
    head, at, found = json.loads(data[8 : 8 + size]), 8 + size, {}
    for column in head["columns"]:
        values = np.frombuffer(data, column["type"], head["length"] * column["dims"], at)
        found[column["key"]] = values.reshape(head["length"], -1)
        at += -(-values.nbytes // 8) * 8
    return found


@pytest.mark.parametrize("name", ["p.npz", "p.parquet"])
def test_predictions_lie_on_their_frames(ask, root, tmp_path, name):
    columns = predicted(root)
    keep = columns["frame_index"] != 3
    path = write(tmp_path / name, {key: value[keep][::-1] for key, value in columns.items()})
    client = ask(root, predictions=[str(path)])
    assert client.json("/api/predictions")["files"] == [{"number": 0, "name": name}]
    _, data, _ = client.ask(f"{client.first}/e/1/predictions/0")
    found = columns_of(data)["action"]
    expected = columns["action"][12:].astype(np.float64)
    assert np.isnan(found[3]).all()
    rest = np.arange(20) != 3
    np.testing.assert_allclose(found[rest], expected[rest])


def test_predictions_without_indices_are_of_the_episode_of_their_length(ask, root, tmp_path):
    path = write(tmp_path / "p.npz", {"action": np.zeros((20, 4, 6))})  # chunks of actions
    client = ask(root, predictions=[str(path)])
    _, data, _ = client.ask(f"{client.first}/e/1/predictions/0")
    assert columns_of(data)["action"].shape == (20, 6)
    status, data, _ = client.ask(f"{client.first}/e/0/predictions/0")
    assert status == 400
    assert "20 rows" in json.loads(data)["message"]


def send(client, name: str, content: bytes, **headers) -> tuple[int, dict]:
    request = urllib.request.Request(
        f"{client.root}/api/predictions?name={name}",
        content,
        {"Origin": client.root, **headers},
        method="POST",
    )
    try:
        with client.opener.open(request) as answer:
            return answer.status, json.loads(answer.read())
    except urllib.error.HTTPError as error:
        data = error.read()
        return error.code, json.loads(data) if data.startswith(b"{") else {}


def bomb() -> bytes:
    """An array whose header tells a terabyte."""
    buffer = io.BytesIO()
    with zipfile.ZipFile(buffer, "w") as packed:
        head = b"{'descr': '<f8', 'fortran_order': False, 'shape': (137438953472, 1)}\n"
        packed.writestr("action.npy", b"\x93NUMPY\x01\x00" + len(head).to_bytes(2, "little") + head)
    return buffer.getvalue()


def objects() -> bytes:
    buffer = io.BytesIO()
    np.savez(buffer, action=np.array([{"run": print}], object))
    return buffer.getvalue()


@pytest.mark.parametrize(
    "content", [b"", b"text", b"PAR1", b"PK\x03\x04", bomb(), objects()], ids=range(6)
)
def test_files_that_are_no_predictions_are_refused(ask, root, content):
    client = ask(root)
    status, answer = send(client, "x", content)
    assert status == 400
    assert answer["message"]
    assert client.json("/api/predictions")["files"] == []


def test_a_page_sends_predictions_and_others_do_not(ask, root, tmp_path):
    client = ask(root)
    content = write(tmp_path / "p.npz", predicted(root)).read_bytes()
    assert send(client, "p.npz", content, Origin="http://evil.example")[0] == 403
    status, answer = send(client, "p.npz", content)
    assert (status, answer) == (200, {"number": 0})
    status, data, _ = client.ask(f"{client.first}/e/0/predictions/0")
    assert columns_of(data)["action"].shape == (12, 6)
    assert client.ask(f"{client.first}/e/0/predictions/1")[0] == 404
    for _ in range(7):
        assert send(client, "p.npz", content)[0] == 200
    assert send(client, "p.npz", content)[0] == 400


def test_points_of_an_episode_name_their_frames(ask, root):
    client = ask(root)
    _, data, _ = client.ask(f"{client.first}/e/1/columns?keys=action&points=5")
    size = int.from_bytes(data[:8], "little")
    head = json.loads(data[8 : 8 + size])
    assert (head["of"], head["frames"][0], head["frames"][-1]) == (20, 0, 19)
    expected = np.asarray(demoreel.open(root).episode(1).column("action"))[head["frames"]]
    np.testing.assert_array_equal(columns_of(data)["action"], expected)


# In the browser


def test_the_page_marks_pads(page, serve, root):
    viewer = serve(root)
    page.goto(viewer.address)
    page.wait_for_selector("[data-episode='1']")
    page.keyboard.press("ArrowDown")
    page.keyboard.press("l")
    page.wait_for_selector("main[data-sample='1:0']")
    page.fill("textarea", json.dumps({"action": [-0.1, 0], CAMERA: [-0.2, -0.1, 0]}))
    page.wait_for_selector(f"[data-field='{CAMERA}'] figure.pad")
    assert page.locator(f"[data-field='{CAMERA}'] figure.pad").count() == 2
    assert page.locator("[data-field='action'] th.pad").count() == 1
    page.keyboard.press("Escape")
    page.keyboard.press("ArrowRight")
    page.keyboard.press("ArrowRight")
    page.wait_for_selector("main[data-sample='1:2']")
    page.wait_for_selector(f"[data-field='{CAMERA}'] figure:not(.pad)")
    assert page.locator("figure.pad").count() == 0
    page.fill("textarea", '{"action": [0.05]}')
    page.wait_for_selector(".sample .error")


def test_two_episodes_play_in_step(page, serve, root):
    viewer = serve(root)
    page.goto(viewer.address)
    page.wait_for_selector("[data-episode='1']")
    page.keyboard.press("m")
    page.keyboard.press("ArrowDown")
    page.keyboard.press("m")
    page.keyboard.press("v")
    page.wait_for_selector("main[data-compared='2']")
    frames = "() => [...document.querySelectorAll('.side-of')].map((e) => e.dataset.frame).join()"
    page.wait_for_function(f"() => ({frames})() === '0,0'")
    page.evaluate("document.getElementById('main').demoreel.go(1)")
    page.wait_for_function(f"() => ({frames})() === '11,19'")  # the first has ended
    assert page.locator(".side-of.over").count() == 1
    page.keyboard.press("a")
    page.keyboard.press("Home")
    page.evaluate("document.getElementById('main').demoreel.go(0.5)")
    page.wait_for_function(f"() => ({frames})() === '6,10'")
    assert page.locator(".side-of.over").count() == 0
    assert page.locator(".curve canvas").count() == 6


def wait_for_difference(page, expected: float) -> None:
    page.wait_for_function(
        "(e) => Math.abs(document.querySelector('[data-error]')?.dataset.error - e) < 1e-5",
        arg=expected,
    )


def test_predictions_are_drawn_over_recorded_values(page, serve, root, tmp_path):
    columns = predicted(root)
    viewer = serve(root, predictions=[str(write(tmp_path / "first.npz", columns))])
    page.goto(viewer.address)
    page.wait_for_selector("[data-episode='1']")
    id = page.evaluate("location.hash").split("/")[2]
    page.goto(f"http://127.0.0.1:{viewer.port}/#/compare?e={id}:0&e={id}:1&key=action&file=0")
    wait_for_difference(page, 0.5)
    columns["action"] = columns["action"] + 0.25
    path = write(tmp_path / "second.parquet", columns)
    page.set_input_files("input[type=file]", str(path))
    wait_for_difference(page, 0.75)
    page.set_input_files("input[type=file]", files={"name": "x", "mimeType": "x/y", "buffer": b"?"})
    page.wait_for_selector(".problem:has-text('neither')")
