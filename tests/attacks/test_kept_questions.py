"""What clients of a service ask leaves nothing on its disk, and what a user's own samples leave in
the cache folder no other user of the machine reads.
"""

import os

import numpy as np
import pytest
from fastapi.testclient import TestClient

from fedunseen import load_run
from fedunseen.core.array_cache import (
    CHUNK,
    cached_arrays,
    cached_blocks,
    cached_features,
    keeping_nothing,
)
from fedunseen.core.class_similarity import class_similarity
from fedunseen.core.files import write_json
from fedunseen.pages.serve import Recognizer
from fedunseen.pages.serve.app import create_app
from topics import notes_run, texts_run

QUESTIONS = {  # kind of run -> what a client sends
    texts_run: {"text": ["patient 7 coughs", "a soup"]},
    notes_run: {"features": [{"note": "patient 7 coughs"}]},
}


@pytest.fixture
def cache(tmp_path, monkeypatch):
    """Return the cache folder, which is not there yet, and the files in it."""
    monkeypatch.setenv("FEDUNSEEN_CACHE", str(tmp_path / "cache"))
    return lambda: {path for path in (tmp_path / "cache").rglob("*") if path.is_file()}


@pytest.mark.slow
@pytest.mark.parametrize("make", QUESTIONS)
def test_questions_leave_no_file(make, cache, tmp_path):
    pytest.importorskip("transformers")
    path = make(tmp_path / "made")
    app = create_app(Recognizer(load_run(path)))
    app.state.warm.result(300)
    asked = TestClient(app, base_url="http://127.0.0.1")
    before = cache()
    assert asked.post("/predict", json=QUESTIONS[make]).status_code == 200
    sent = {"name": "tea", "sentence": "a cup of leaves"}
    assert asked.post("/classes", json=sent).status_code == 201
    assert cache() == before
    (said,) = QUESTIONS[make].values()
    load_run(path).predict(said)  # the user's own
    assert len(cache()) > len(before)


def test_pictures_of_a_question_leave_no_file(cache):
    pictures = np.arange(CHUNK, dtype=np.uint8)[:, None]

    def features():
        return cached_features({}, pictures, (1,), "float32", lambda images: images * 2)

    with keeping_nothing():
        np.testing.assert_array_equal(features(), pictures * 2)
    assert cache() == set()
    np.testing.assert_array_equal(features(), pictures * 2)
    assert len(cache()) == 1


def test_the_cache_is_read_by_its_user_alone(cache, tmp_path):
    pictures = np.arange(2 * CHUNK, dtype=np.uint8)[:, None]
    before = os.umask(0)
    try:
        write_json(tmp_path / "result.json", {})
        cached_blocks("images", "a", (1, 2), lambda: [np.zeros((1, 2))])
        cached_features({}, pictures, (1,), "float32", lambda images: images)
        cached_arrays("texts", "a", ("a",), lambda: {"a": np.zeros(1)})
        class_similarity(np.random.default_rng(0).normal(size=(4, 9)))
    finally:
        os.umask(before)
    assert (tmp_path / "result.json").stat().st_mode & 0o777 == 0o666
    kinds = {path.parent.name for path in cache()}
    assert kinds == {"images", "features", "texts", "class-similarity"}
    for path in cache():
        assert path.stat().st_mode & 0o777 == 0o600
        assert path.parent.stat().st_mode & 0o777 == 0o700
