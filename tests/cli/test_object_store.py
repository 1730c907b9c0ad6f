"""Samples in a real object store, an S3 server of its own process, which is killed half way.

Needs ``moto[server]`` and ``s3fs``, which nothing else does: skipped where they are missing.
"""

import json
import os
import re
import subprocess
import sys
import time
import urllib.request
from importlib.util import find_spec
from pathlib import Path

import numpy as np
import pytest

from fedunseen import Statistics, load_run
from photo_runs import ANIMALS, archive, png, tiles
from processes import environment, free_port

pytest.importorskip("moto.server", reason="pip install 'moto[server]' s3fs")
pytest.importorskip("s3fs", reason="pip install 'moto[server]' s3fs")
pytestmark = pytest.mark.slow


GONE = (
    r"error: \S+ cannot be read \(Could not connect to the endpoint URL: .*\): look at the store and "
    r"the file, and repeat the command, which continues behind the blocks that are done \[data\]\n"
)


class Store:
    """An S3 server, the files that it has, and the environment of a process that reads them."""

    def __init__(self, folder):
        self.folder, self.port, self.files = folder, free_port(), {}
        keys = {"AWS_ACCESS_KEY_ID": "here", "AWS_SECRET_ACCESS_KEY": "here"}
        self.address = f"http://127.0.0.1:{self.port}"
        self.environment = keys | {
            "AWS_ENDPOINT_URL": self.address, "AWS_DEFAULT_REGION": "us-east-1", "FSSPEC_S3_ANON": "false",
            "AWS_MAX_ATTEMPTS": "2", "NO_PROXY": "127.0.0.1",
        }  # fmt: skip

    def start(self):
        words = [sys.executable, "-m", "moto.server", "-H", "127.0.0.1", "-p", str(self.port)]
        with open(self.folder / "store.log", "ab") as log:
            self.process = subprocess.Popen(words, stdout=log, stderr=log, env={**os.environ})
        end = time.monotonic() + 300
        while True:
            try:
                self.put("bucket")
                break
            except OSError:
                assert time.monotonic() < end, (self.folder / "store.log").read_text()
                time.sleep(0.2)
        for name, content in self.files.items():
            self.put(f"bucket/{name}", content)

    def put(self, name, content=b""):
        signed = {"Authorization": "AWS4-HMAC-SHA256 Credential=here/1/us-east-1/s3/aws4_request"}
        signed["Content-Type"] = "application/octet-stream"
        words = urllib.request.Request(f"{self.address}/{name}", content, signed, method="PUT")
        urllib.request.urlopen(words).close()

    def kill(self):
        self.process.kill()
        self.process.wait()


@pytest.fixture
def store(tmp_path, monkeypatch):
    store = Store(tmp_path)
    yield store
    store.kill()


def call(store, *words, kill_at=None):
    """Run a command, and kill the store once so many blocks are done."""
    process = subprocess.Popen(
        [sys.executable, "-m", "fedunseen", *map(str, words)],
        env={**environment(), **store.environment}, stdout=subprocess.PIPE,
        stderr=subprocess.PIPE, text=True,
    )  # fmt: skip
    said = []
    for line in process.stderr:
        said.append(line)
        if kill_at and line.startswith(f"{kill_at} of "):
            store.kill()
    return process.wait(), process.stdout.read(), "".join(said)


def check_survives(store, words, key, at, total):
    """Run a command without the store, with one that is killed half way, and again."""
    code, _, said = call(store, *words)
    assert code == 2
    assert re.fullmatch(GONE, said), said
    store.start()
    code, _, said = call(store, *words, kill_at=at)
    assert code == 2
    *done, last = said.splitlines(keepends=True)
    assert done[at - 1 :] == [f"{at} of {total} blocks\n"]
    assert re.fullmatch(GONE, last), last
    store.start()
    code, out, said = call(store, *words)
    assert code == 0, said
    assert said.startswith(f"{at + 1} of {total} blocks\n")  # what was done is not done again
    return json.loads(out)[key]


def test_statistics_survive_a_store_that_is_killed(
    store, counting_run, run_samples, parquet, tmp_path
):
    whole = Statistics.plan(load_run(counting_run).model).add(
        run_samples[0], run_samples[1].tolist()
    )
    store.files = {f"some/{file.name}": file.read_bytes() for file in parquet.iterdir()}
    rest = ("--plan", counting_run, "--json", "--out", tmp_path / "sums")
    words = ("statistics", "s3://bucket/some", *rest)
    assert check_survives(store, words, "sha256", 7, 15) == whole.sha256
    rest = (*rest[:-1], tmp_path / "by-ray")
    if find_spec("ray"):
        words = ("statistics", "s3://bucket/some", *rest, "--engine", "ray", "--workers", 1)
        code, out, said = call(store, *words)
        assert code == 0, said
        assert json.loads(out)["sha256"] == whole.sha256


def test_encoding_survives_a_store_that_is_killed(store, own_photos, real_data, tmp_path):
    for number in range(4):
        name = ANIMALS[number % 3]
        pictures = [(png(tile), name) for tile in tiles(real_data, name, 12, 5 + number)]
        archive(tmp_path / f"{number}.tar", pictures, lambda one: ("txt", one.encode()))
        store.files[f"photos/{number}.tar"] = (tmp_path / f"{number}.tar").read_bytes()
    words = ("encode", "s3://bucket/photos", "--plan", own_photos, "--json", "--out")
    assert check_survives(store, (*words, tmp_path / "encoded"), "samples", 2, 4) == 48
    here = tmp_path / "here"
    here.mkdir()
    for name, content in store.files.items():
        (here / Path(name).name).write_bytes(content)
    code, _, said = call(store, words[0], here, *words[2:], tmp_path / "of-folder")
    assert code == 0, said
    parts = [np.load(tmp_path / name / "features.npz") for name in ("encoded", "of-folder")]
    for key in parts[0]:
        np.testing.assert_array_equal(parts[0][key], parts[1][key])
