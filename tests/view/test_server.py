"""What the viewer's server answers, and to whom."""

from __future__ import annotations

import http.client
import io
import json
import shutil
import struct
import threading
import urllib.request

import av
import numpy as np
import pytest
from PIL import Image

import demoreel
from demoreel.cli.app import run
from demoreel.errors import ArgumentError, DatasetNotFoundError
from demoreel.testing import make_dataset, read_stamp
from demoreel.view.packets import HEADER, codec_string
from demoreel.view.server import RunningViewer


@pytest.fixture(scope="module")
def root(tmp_path_factory):
    return make_dataset(
        tmp_path_factory.mktemp("view") / "ds",
        episodes=(12, 30, 21),
        cameras=2,
        depth_cameras={"observation.images.depth": (48, 64)},
        image_cameras={"observation.images.still": (48, 64)},
        tasks=("pick the cube", "place <b>it</b>"),
    )


# To whom


def plain(address: str, **headers: str) -> tuple[int, bytes]:
    request = urllib.request.Request(address, headers=headers)
    try:
        with urllib.request.urlopen(request) as answer:
            return answer.status, answer.read()
    except urllib.error.HTTPError as error:
        return error.code, error.read()


def test_another_host_demands_the_token_and_says_what_it_means(
    ask, serve, root, monkeypatch, capsys
):
    viewer = serve(root, host="0.0.0.0")
    address = f"http://127.0.0.1:{viewer.port}"
    assert plain(f"{address}/api/datasets")[0] == 401
    assert plain(f"{address}/api/datasets", Host=f"robot-pc:{viewer.port}")[0] == 401
    assert plain(f"{address}/?token={viewer.token[:-1]}x")[0] == 401
    client = ask(root, host="0.0.0.0")
    assert client.json("/api/datasets")["datasets"]
    monkeypatch.setattr(RunningViewer, "serve", lambda viewer: None)
    assert run(["view", str(root), "--host", "0.0.0.0", "--no-browser"]) == 0
    told = capsys.readouterr()
    assert "token=" in told.out
    assert "0.0.0.0 is not this machine alone" in told.err
    assert "not encrypted" in told.err
    assert "this machine's name for 0.0.0.0" in told.err
    assert run(["view", str(root), "--no-browser"]) == 0
    assert "encrypted" not in capsys.readouterr().err


def test_answers_that_a_browser_keeps_are_of_one_server(ask, tmp_path):
    root = make_dataset(tmp_path / "ds", episodes=(9,), codec="h264")
    facts = [ask(root), ask(root)]
    first, second = (client.json(f"{client.first}/e/0") for client in facts)
    assert first["revision"] != second["revision"]  # the port may be the same the next time
    assert {way["revision"] for way in first["cameras"].values()} == {first["revision"]}


@pytest.mark.parametrize("path", ["/", "/api/datasets", "/static/app.js", "/?token=wrong"])
def test_without_the_token_nothing_is_answered(serve, root, path):
    viewer = serve(root)
    status, data = plain(f"http://127.0.0.1:{viewer.port}{path}")
    assert status == 401
    assert b"token" in data
    assert viewer.token.encode() not in data


def test_the_token_moves_into_a_cookie_and_out_of_the_address(ask, root):
    client = ask(root)
    status, data, headers = client.ask("/")
    assert status == 200
    assert b"<script type=" in data
    assert "token" not in data.decode()
    policy = headers["Content-Security-Policy"]
    assert "default-src 'none'" in policy
    assert "unsafe" not in policy


@pytest.mark.parametrize(
    "headers",
    [
        {"Host": "evil.example"},
        {"Host": "evil.example:80"},
        {"Origin": "http://evil.example"},
        {"Origin": "null"},
        {"Sec-Fetch-Site": "cross-site", "Sec-Fetch-Mode": "cors"},
        {"Sec-Fetch-Site": "same-site", "Sec-Fetch-Mode": "no-cors"},
    ],
)
def test_other_sites_are_refused_even_with_the_cookie(ask, root, headers):
    client = ask(root)
    assert client.ask("/api/datasets", **headers)[0] == 403
    assert client.ask("/api/datasets")[0] == 200


def test_the_token_leads_to_no_other_host(serve, root):
    viewer = serve(root)
    asked = http.client.HTTPConnection("127.0.0.1", viewer.port)
    asked.request("GET", f"//evil.example/?token={viewer.token}")
    answer = asked.getresponse()
    assert (answer.status, answer.headers["location"]) == (303, "/evil.example/")
    asked.close()


@pytest.mark.parametrize("name", ["[::1", "localhost:99999", "localhost:x"])
def test_a_host_that_is_no_name_is_refused(ask, root, name):
    assert ask(root).ask("/", Host=name)[0] == 400


def test_a_forwarded_port_is_this_machine_all_the_same(ask, root):
    client = ask(root)
    # The cookie's name has the port that the browser sees: the first request there sets it anew.
    status, data, _ = client.ask("/api/datasets", Host="localhost:4321")
    assert status == 401
    assert b"token" in data


@pytest.mark.parametrize(
    "path",
    ["/static/../server.py", "/static/%2e%2e/server.py", "/static/..%2fserver.py", "/static/x.js"],
)
def test_no_other_file_is_served(ask, root, path):
    status, data, _ = ask(root).ask(path)
    assert status == 404
    assert b"import" not in data


def test_no_other_dataset_is_served(ask, root, tmp_path):
    make_dataset(tmp_path / "secret", episodes=1, length=3, cameras=0)
    client = ask(root)
    for id in ("..", "secret", "%2e%2e%2fsecret", "0" * 12):
        assert client.ask(f"/api/d/{id}")[0] == 404


def test_a_port_that_is_taken_is_said(serve, root):
    viewer = serve(root)
    with pytest.raises(ArgumentError, match="cannot listen") as caught:
        RunningViewer([str(root)], port=viewer.port)
    assert "--port" in caught.value.hint


def test_a_folder_without_datasets_is_refused(tmp_path):
    with pytest.raises(DatasetNotFoundError, match="no dataset here"):
        RunningViewer([str(tmp_path)])


# Datasets and episodes


def test_a_folder_of_datasets_is_listed_with_what_is_broken(ask, root, tmp_path):
    shutil.copytree(root, tmp_path / "me" / "one")
    shutil.copytree(root, tmp_path / "two")
    (tmp_path / "two" / "meta" / "info.json").write_text("{")
    (tmp_path / ".hidden" / "meta").mkdir(parents=True)
    (tmp_path / ".hidden" / "meta" / "info.json").write_text("{}")
    found = {each["name"]: each for each in ask(tmp_path).json("/api/datasets")["datasets"]}
    assert found.keys() == {"me/one", "two"}
    assert found["me/one"]["episodes"] == 3
    assert found["me/one"]["cameras"] == ["cam0", "cam1", "still", "depth"]
    assert "not readable JSON" in found["two"]["error"]


def test_what_is_said_of_a_dataset(ask, root):
    client = ask(root)
    facts = client.json(client.first)
    assert (facts["episodes"], facts["frames"], facts["fps"]) == (3, 63, 30)
    assert facts["layout"] == "v3.0"
    assert facts["features"]["observation.images.cam0"]["kind"] == "camera"
    assert facts["features"]["observation.images.depth"]["depth"]


def rows(client, query: str) -> list[int]:
    answer = client.json(f"{client.first}/episodes?{query}")
    return [row["index"] for row in answer["rows"]]


def test_pages_of_episodes_are_sorted_and_filtered(ask, root):
    client = ask(root)
    assert rows(client, "") == [0, 1, 2]
    assert rows(client, "sort=length&desc=1") == [1, 2, 0]
    assert rows(client, "sort=length&from=1&n=1") == [2]
    assert rows(client, "sort=task&desc=1") == [1, 2, 0]
    assert rows(client, "q=CUBE") == [0, 2]
    assert rows(client, "q=2") == [2]
    assert rows(client, "where=length%3E20&sort=length") == [2, 1]
    assert rows(client, "q=it%27s") == []


@pytest.mark.parametrize(
    "query", ["where=length%3E", "where=1)%20or%20(1", "sort=nothing", "from=x", "n=-1"]
)
def test_what_is_not_understood_is_said(ask, root, query):
    client = ask(root)
    status, data, _ = client.ask(f"{client.first}/episodes?{query}")
    assert status == 400
    assert json.loads(data)["message"]


def test_a_line_of_motion_for_each_episode(ask, root):
    client = ask(root)
    found = client.json(f"{client.first}/motion?episodes=0,2")
    assert found.keys() == {"0", "2"}
    assert max(found["2"]) == 1.0
    assert min(found["2"]) >= 0.0


def test_a_table_that_cannot_be_read_costs_no_other_episode_its_line(ask, tmp_path):
    root = make_dataset(tmp_path / "ds", episodes=(5, 6, 7), cameras=0, layout="v2.1")
    (root / "data" / "chunk-000" / "episode_000001.parquet").write_bytes(b"PAR1")
    client = ask(root)
    assert client.json(f"{client.first}/motion?episodes=0,1,2").keys() == {"0", "2"}


def test_a_client_that_never_ends_its_request_does_not_keep_the_server(root):
    viewer = RunningViewer([str(root)])
    thread = threading.Thread(target=viewer.serve)
    thread.start()
    slow = http.client.HTTPConnection("127.0.0.1", viewer.port)
    slow.putrequest("POST", "/api/predictions")
    for name, value in {
        "Cookie": f"demoreel-{viewer.port}={viewer.token}",
        "Origin": f"http://127.0.0.1:{viewer.port}",
        "Content-Length": "10",
    }.items():
        slow.putheader(name, value)
    slow.endheaders()
    slow.send(b"x")
    assert plain(f"http://127.0.0.1:{viewer.port}/")[0] == 401  # it is at work
    viewer.stop()
    thread.join(30)
    assert not thread.is_alive()
    slow.close()


def test_a_recorded_episode_appears(ask, tmp_path):
    features = {"action": {"dtype": "float32", "shape": (2,), "names": None}}
    recorder = demoreel.create(tmp_path / "grows", fps=10, features=features)

    def record() -> None:
        for _ in range(5):
            recorder.add_frame({"action": np.ones(2, np.float32), "task": "go"})
        recorder.save_episode()

    record()
    client = ask(tmp_path / "grows")
    before = client.json(f"{client.first}/state")
    assert before["episodes"] == 1
    record()
    after = client.json(f"{client.first}/state")
    assert after["episodes"] == 2
    assert after["revision"] != before["revision"]
    assert rows(client, "") == [0, 1]
    recorder.finalize()


# An episode


def test_columns_are_those_of_the_dataset(ask, root):
    client = ask(root)
    status, data, _ = client.ask(f"{client.first}/e/1/columns")
    assert status == 200
    (size,) = struct.unpack_from("<Q", data)
    head = json.loads(data[8 : 8 + size])
    at = 8 + size
    view = demoreel.open(root).episode(1)
    assert head["length"] == 30
    for column in head["columns"]:
        kind, count = np.dtype(column["type"]), 30 * column["dims"]
        values = np.frombuffer(data, kind, count, at).reshape(30, -1)
        expected = np.asarray(view.column(column["key"])).reshape(30, -1)
        assert np.array_equal(values, expected), column["key"]
        at += -(-values.nbytes // 8) * 8
    assert at == len(data)


def decoded(data: bytes, facts: dict) -> dict[int, np.ndarray]:
    """Decode packets as a page does; return images by the episode's frame."""
    name = {"avc1": "h264", "av01": "libdav1d", "vp09": "vp9"}[facts["codec"].split(".")[0]]
    context = av.CodecContext.create(name, "r")
    if facts["description"]:
        context.extradata = bytes.fromhex(facts["description"])
    packets, at = [], 0
    while at < len(data):
        is_key, frame, size = HEADER.unpack_from(data, at)
        assert is_key or packets
        packet = av.Packet(data[at + HEADER.size : at + HEADER.size + size])
        packet.pts = frame
        packets.append(packet)
        at += HEADER.size + size
    found = {}
    for packet in (*packets, None):
        for image in context.decode(packet):
            found[(image.pts - facts["first"]) // facts["step"]] = image.to_ndarray(format="rgb24")
    return found


CODED = {
    "h264": {"codec": "h264"},
    "h264 with B-frames": {"codec": "h264", "gop": 8, "b_frames": 2},
    "h264, open GOPs": {"codec": "h264", "gop": 6, "b_frames": 2, "open_gop": True},
    "av1": {"codec": "av1", "gop": 2},
    "vp9": {"codec": "vp9", "gop": 10},
}


@pytest.mark.parametrize("coded", CODED)
def test_packets_become_the_frames_that_were_asked_for(ask, tmp_path, coded):
    """Each frame carries its episode and its number in its pixels."""
    root = make_dataset(tmp_path / "ds", episodes=(9, 25, 11), **CODED[coded])
    client = ask(root)
    camera = "observation.images.cam0"
    for episode, length in enumerate((9, 25, 11)):
        facts = client.json(f"{client.first}/e/{episode}")["cameras"][camera]
        assert facts["way"] == "packets"
        for first, stop in ((0, length), (4, 5), (length - 1, length)):
            query = f"camera={camera}&from={first}&to={stop}"
            status, data, _ = client.ask(f"{client.first}/e/{episode}/packets?{query}")
            assert status == 200
            found = decoded(data, facts)
            for frame in range(first, stop):
                mark = read_stamp(found[frame])
                assert (mark.episode, mark.frame) == (episode, frame)


def test_frames_and_thumbnails(ask, root):
    client = ask(root)
    for camera in ("observation.images.cam1", "observation.images.still"):
        for frame in (0, 17, 29):
            query = f"camera={camera}&i={frame}"
            status, data, _ = client.ask(f"{client.first}/e/1/frame?{query}")
            assert status == 200
            mark = read_stamp(np.asarray(Image.open(io.BytesIO(data))))
            assert (mark.episode, mark.frame) == (1, frame)
    _, data, _ = client.ask(f"{client.first}/e/1/frame?camera={camera}&i=0&w=32")
    assert Image.open(io.BytesIO(data)).width == 32


def test_depth_is_sent_in_millimetres(ask, root):
    client = ask(root)
    camera = "observation.images.depth"
    assert client.json(f"{client.first}/e/0")["cameras"][camera]["way"] == "depth"
    _, data, headers = client.ask(f"{client.first}/e/0/depth?camera={camera}&i=3")
    values = np.frombuffer(data, "<u2").reshape(*map(int, headers["X-Size"].split(",")))
    (expected,) = demoreel.open(root).episode(0).frames(camera, 3, 4)
    assert np.abs(values - np.clip(expected, 0, 65535)).max() <= 0.5


@pytest.mark.parametrize(
    ("path", "status"),
    [
        ("e/9", 404),
        ("e/0/frame?camera=none&i=0", 404),
        ("e/0/frame?camera=observation.images.cam0&i=99", 400),
        ("e/0/frame?camera=observation.images.cam0&i=0&w=100000", 400),
        ("e/0/packets?camera=observation.images.cam0&from=5&to=5", 400),
        ("e/0/packets?camera=observation.images.cam0&from=12", 400),
        ("e/x", 404),
    ],
)
def test_what_is_not_there(ask, root, path, status):
    client = ask(root)
    assert client.ask(f"{client.first}/{path}")[0] == status


def test_a_broken_video_is_an_error_and_the_server_goes_on(ask, root, tmp_path):
    shutil.copytree(root, tmp_path / "ds")
    for video in (tmp_path / "ds" / "videos").rglob("*.mp4"):
        if "cam0" in str(video):
            video.write_bytes(b"\0" * 1000)
    client = ask(tmp_path / "ds")
    cameras = client.json(f"{client.first}/e/0")["cameras"]
    assert cameras["observation.images.cam0"]["way"] == "error"
    assert cameras["observation.images.cam0"]["why"]["message"]
    assert cameras["observation.images.cam1"]["way"] == "packets"
    for what in ("packets", "frame"):
        query = "camera=observation.images.cam0&i=0"
        assert client.ask(f"{client.first}/e/0/{what}?{query}")[0] == 422
    assert client.ask(f"{client.first}/e/0/columns")[0] == 200


@pytest.mark.parametrize("layout", ["v2.0", "v2.1", "lance-frames", "lance-video", "lance-native"])
def test_every_layout(ask, local_datasets, layout):
    client = ask(local_datasets(layout))
    facts = client.json(client.first)
    assert facts["layout"] == layout
    cameras = client.json(f"{client.first}/e/0")["cameras"]
    for camera, way in cameras.items():
        what = "packets?from=0&to=1" if way["way"] == "packets" else "frame?i=0"
        status, data, _ = client.ask(f"{client.first}/e/0/{what}&camera={camera}")
        assert status == 200
        assert data


def test_a_dataset_in_a_store(ask, s3, proxy, root, tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    client = ask(s3.upload(root, "viewed"))
    assert client.json(f"{client.first}/draft")["target"] == str(tmp_path / "viewed-cut")
    assert client.json(client.first)["episodes"] == 3
    camera = "observation.images.cam0"
    facts = client.json(f"{client.first}/e/2")["cameras"][camera]
    _, data, _ = client.ask(f"{client.first}/e/2/packets?camera={camera}&from=7&to=8")
    mark = read_stamp(decoded(data, facts)[7])
    assert (mark.episode, mark.frame) == (2, 7)


def test_codecs_that_browsers_lack_have_no_name(root):
    video = demoreel.open(root).reader.clip(0, "observation.images.cam0").video
    name, header = codec_string(video.index.codec, b"")
    assert name.startswith("avc1.")
    assert header == video.index.codec.extradata
    from dataclasses import replace

    assert codec_string(replace(video.index.codec, name="mpeg4"), b"") is None
    assert codec_string(replace(video.index.codec, extradata=None), b"") is None
