"""A service that adapts: who may only read asks without moving the model."""

import numpy as np
import pytest
from fastapi.testclient import TestClient

from fedunseen import Experiment, load_run, run
from fedunseen.pages.serve import Recognizer
from fedunseen.pages.serve.app import create_app

READS, WRITES = ({"Authorization": f"Bearer a-token-for-{use}"} for use in ("reading", "writing"))
TOKENS = {"token": "a-token-for-reading", "write_token": "a-token-for-writing"}
SAMPLES = {"features": np.random.default_rng(1).random((8, 128)).round(3).tolist()}
REFUSED = {
    "detail": "this token only reads: adapting the model needs the token for writing",
    "code": "reads-alone",
}


@pytest.fixture(scope="module")
def finished(tmp_path_factory):
    settings = {
        "evaluation.selection": "last", "data.train_per_class": 20, "data.test_per_class": 4,
        "evaluation.embedding": False,
    }  # fmt: skip
    experiment = Experiment.load("digit-pairs-gaussian", settings)
    return run(experiment, tmp_path_factory.mktemp("runs") / "run").path


@pytest.fixture
def service(finished):
    """Return a service, and a function that says how many samples have moved its model."""

    def start(adapts=True, **tokens):
        model = Recognizer(load_run(finished), adapts)
        app = create_app(model, **tokens)
        app.state.warm.result(300)
        asked = TestClient(app, base_url="http://127.0.0.1", raise_server_exceptions=False)
        return asked, lambda: model._arriving.samples

    return start


def test_the_token_for_reading_moves_nothing(service):
    asked, moved = service(**TOKENS)
    first = asked.post("/predict", json=SAMPLES, headers=READS)
    assert (first.status_code, moved()) == (200, 0)
    for query in ("", "?adapt=false", "?top=5"):
        reply = asked.post(f"/predict{query}", json=SAMPLES, headers=READS)
        assert (reply.content, moved()) == (first.content, 0)
    reply = asked.post("/predict?adapt=true", json=SAMPLES, headers=READS)
    assert (reply.status_code, reply.json(), moved()) == (403, REFUSED, 0)
    for query in ("", "?adapt=true", "?top=5"):  # the token for writing does
        before = moved()
        assert asked.post(f"/predict{query}", json=SAMPLES, headers=WRITES).status_code == 200
        assert moved() == before + 8
    assert asked.post("/predict?adapt=false", json=SAMPLES, headers=WRITES).status_code == 200
    assert moved() == 24
    assert asked.get("/model", headers=READS).json()["adapts"] is True


@pytest.mark.parametrize("headers", [{}, {"Authorization": "Bearer wrong"}])
def test_without_a_token_nothing_moves_where_writing_needs_one(service, headers):
    asked, moved = service(write_token=TOKENS["write_token"])
    assert asked.post("/predict", json=SAMPLES, headers=headers).status_code == 200
    reply = asked.post("/predict?adapt=true", json=SAMPLES, headers=headers)
    assert (reply.status_code, reply.json(), moved()) == (403, REFUSED, 0)
    assert asked.post("/predict", json=SAMPLES, headers=WRITES).status_code == 200
    assert moved() == 8


def test_without_tokens_questions_move_the_model_unless_they_say_so(service):
    asked, moved = service()
    assert asked.post("/predict?adapt=false", json=SAMPLES).status_code == 200
    assert moved() == 0
    assert asked.post("/predict", json=SAMPLES).status_code == 200
    assert moved() == 8


def test_a_service_that_does_not_adapt_says_so(service):
    asked, _ = service(adapts=False, **TOKENS)
    reply = asked.post("/predict?adapt=true", json=SAMPLES, headers=WRITES)
    assert reply.status_code == 409
    assert reply.json() == {
        "detail": "this model does not adapt: start the service with --adapt",
        "code": "experiment",
    }
    assert "adapts" not in asked.get("/model", headers=READS).json()


def test_changes_of_classes_with_the_token_for_reading_have_the_same_code(service):
    asked, _ = service(**TOKENS)
    reply = asked.post("/classes", json={"name": "new"}, headers=READS)
    assert (reply.status_code, reply.json()["code"]) == (403, "reads-alone")
