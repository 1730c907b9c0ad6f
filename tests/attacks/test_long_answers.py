"""One small request with much work in it: it is counted before any of it is done, and what is left
of it ends when no one waits for its answer.
"""

import asyncio
import io
import math
import time
from types import SimpleNamespace

import numpy as np
import pytest
import torch
from fastapi.testclient import TestClient
from PIL import Image

from fedunseen import load_run, run
from fedunseen.core import deadline
from fedunseen.core.deadline import LateError, due
from fedunseen.data.io.images import ImageBytes, read_image
from fedunseen.encoders import text
from fedunseen.encoders.backbone import in_portions
from fedunseen.experiment import inputs
from fedunseen.pages.serve import Recognizer, uploads
from fedunseen.pages.serve.app import create_app
from fedunseen.pages.serve.inference_queue import InferenceQueue
from fedunseen.pages.serve.uploads import TooLargeError, Upload, read_files
from small_runs import experiment
from topics import notes_run, texts_run

pytest.importorskip("transformers")


@pytest.fixture(scope="module")
def notes(tmp_path_factory):
    """A run of a table with a column of texts."""
    return notes_run(tmp_path_factory.mktemp("notes"))


@pytest.fixture(scope="module")
def texts(tmp_path_factory):
    """A run whose samples are texts."""
    return texts_run(tmp_path_factory.mktemp("texts"))


@pytest.fixture(scope="module")
def pictures(tmp_path_factory):
    """A run whose samples are pictures."""
    place = tmp_path_factory.mktemp("pictures") / "run"
    return Recognizer(run(experiment("digit-pairs-gaussian"), place))


@pytest.fixture
def read(monkeypatch):
    """Return the list of texts and pictures that are read."""
    done = []
    for place, name in ((text, "_vectors"), (inputs, "read_sample")):
        before = getattr(place, name)

        def call(*given, before=before):
            done.append(given)
            return before(*given)

        monkeypatch.setattr(place, name, call)
    return done


def clock(monkeypatch, read, count):
    """Let the time of every answer end once so many texts or pictures are read."""

    def monotonic():
        return math.inf if len(read) >= count else time.monotonic()

    monkeypatch.setattr(deadline, "time", SimpleNamespace(monotonic=monotonic))


def served(path, read):
    """Return a client of a run's service that has read all that it reads once."""
    app = create_app(Recognizer(load_run(path)))
    app.state.warm.result(300)
    read.clear()
    return TestClient(app, base_url="http://127.0.0.1")


def array_of(shape):
    file = io.BytesIO()
    np.save(file, np.zeros(shape, np.uint8))
    return file.getvalue()


def tiff_of(frames):
    file = io.BytesIO()
    each = [Image.new("L", (16, 8), i) for i in range(frames)]
    each[0].save(file, "TIFF", save_all=True, append_images=each[1:])
    return file.getvalue()


@pytest.mark.parametrize("shape", [(8, 16), (8, 16, 1)])
def test_pictures_of_an_array_are_counted_before_one_is_read(shape, pictures, read, monkeypatch):
    monkeypatch.setattr(uploads, "MOST_SAMPLES", 3)
    (rows,) = read_files(pictures, [Upload("a.npy", array_of((3, *shape)))])
    assert (len(rows), len(read)) == (3, 3)
    with pytest.raises(TooLargeError, match="there are 4 samples"):
        read_files(pictures, [Upload("a.npy", array_of((4, *shape)))])
    assert len(read) == 3
    (rows,) = read_files(pictures, [Upload("a.npy", array_of((8, 16, 3)))])  # one, in color
    assert len(rows) == 1


def test_frames_are_counted_before_one_is_read(pictures, monkeypatch):
    monkeypatch.setattr(uploads, "MOST_SAMPLES", 3)
    monkeypatch.setattr(Recognizer, "each_frame", True)
    calls = []
    monkeypatch.setattr(pictures, "read", lambda file: calls.append(file) or np.zeros((3, 128)))
    read_files(pictures, [Upload("a.tif", tiff_of(3))])
    assert len(calls) == 1
    with pytest.raises(TooLargeError, match="there are 4 samples"):
        read_files(pictures, [Upload("a.tif", tiff_of(4))])
    assert len(calls) == 1


@pytest.mark.parametrize("way", ["rows", "file", "texts"])
def test_texts_are_counted_before_one_is_read(way, notes, texts, read, monkeypatch):
    monkeypatch.setattr(uploads, "MOST_SAMPLES", 3)
    asked = served(texts if way == "texts" else notes, read)

    def sent(count):
        said = [f"a goal in the {count}th match of {i}" for i in range(count)]
        if way == "texts":
            return {"json": {"text": said}}
        if way == "rows":
            return {"json": {"features": [{"note": one} for one in said]}}
        return {"files": {"files": ("a.csv", "\n".join(["note", *said]).encode())}}

    assert asked.post("/predict", **sent(3)).status_code == 200
    assert len(read) == 3
    assert asked.post("/predict", **sent(4)).status_code == 413
    assert len(read) == 3


def test_an_answer_whose_time_is_over_ends_between_texts(notes, read, monkeypatch):
    asked = served(notes, read)
    rows = {"features": [{"note": f"the boat of {i} at sea"} for i in range(5)]}
    with monkeypatch.context() as patched:
        clock(patched, read, 2)
        late = asked.post("/predict", json=rows)
        assert (late.status_code, len(read)) == (504, 2), late.text
    assert asked.post("/predict", json=rows).status_code == 200  # the next one
    assert len(read) == 7


def test_an_answer_whose_time_is_over_ends_between_pictures(pictures, read, monkeypatch):
    queue = InferenceQueue(1)
    files = [Upload("a.npy", array_of((5, 8, 16)))]

    def ask():
        return asyncio.run(queue.ask(lambda: read_files(pictures, files), 300))

    with monkeypatch.context() as patched:
        clock(patched, read, 2)
        with pytest.raises(TimeoutError):
            ask()
        assert len(read) == 2
    assert len(ask()[0]) == 5


@pytest.mark.parametrize(
    "work",
    [
        lambda: in_portions(np.zeros((4, 3)), 1, lambda part: part, apart=True),
        lambda: read_image(ImageBytes(tiff_of(4), "a"), 8, 9, each=True),
    ],
)
@pytest.mark.parametrize("threads", [1, 2])
def test_parts_of_an_answer_end_in_any_thread(work, threads):
    before = torch.get_num_threads()
    torch.set_num_threads(threads)
    try:
        assert len(work()) == 4
        with due(0), pytest.raises(LateError):
            work()
    finally:
        torch.set_num_threads(before)
