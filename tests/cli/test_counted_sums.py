"""``fedunseen offline count``: an answer with sums that were counted before has the bits of one
without, after the same rules, and other sums are refused.
"""

from pathlib import Path

import numpy as np
import pytest
from safetensors import safe_open
from safetensors.torch import save_file

from fedunseen import load_run
from fedunseen.core.errors import FedUnseenError, RefusedError
from fedunseen.core.toml import toml_text
from fedunseen.deploy import client_data
from fedunseen.deploy.counted import Counted, CountedParty, CountingParty
from fedunseen.deploy.offline import files
from fedunseen.deploy.remote.wire import unpack
from fedunseen.deploy.secagg.enrolment import enrol
from processes import Deployment, sets
from small_federation import HELD, NAMES, write_party

PLANNED = ("coordinator.toml",)
ALONE = "second moments would show"
FEW = "class 2 (3)"


@pytest.fixture(scope="module")
def dealt(tmp_path_factory):
    """Parties with enough samples for their sums, but that north has a class of three, and a
    sample that second moments show.
    """
    folder = tmp_path_factory.mktemp("counted")
    for number, (name, classes) in enumerate(HELD.items(), 1):
        counts = [3 if c == 2 else 30 for c in classes]
        write_party(folder / "data" / name, np.repeat(classes, counts), number)
    arrays = dict(np.load(folder / "data/north/features.npz"))
    arrays["features"][:, 7] = arrays["features"][:, :7].mean(1)
    arrays["features"][5, 7] += 3  # which alone breaks this relation
    np.savez(folder / "data/north/features.npz", **arrays)
    labels = np.repeat(range(12), 4)
    write_party(folder / "data" / "coordinator", labels, 9, ["test"] * len(labels))
    tree = {
        "data": {"name": "folder", "root": "data/coordinator", "part": True},
        "method": {"name": "gaussian", "min_samples": 4},
        "evaluation": {"selection": "last", "embedding": False, "confidence": "none"},
    }
    (folder / "coordinator.toml").write_text(toml_text(tree))
    enrol(folder / "kits", NAMES)
    return folder


@pytest.fixture
def count(place, works):
    def call(who, plan="plan.fedunseen", *more, call=works, out="sums"):
        return call("offline", "count", plan, "--data", f"data/{who}", "--out", out, *more)

    return call


@pytest.fixture
def answer(place, works):
    """Answer a plan without the consent to moments."""

    def call(who, out, *more, plan="plan.fedunseen", call=works):
        given = ("--data", f"data/{who}", "--credentials", f"kits/{who}", "--out", out)
        return call("offline", "answer", plan, *given, *more)

    return call


def sent(path):
    """Return what an answer says, and its numbers."""
    signed = files.read(Path(path))
    if "reply" not in signed.tensors:
        return signed.content
    header, tensors = unpack(signed.tensors["reply"].numpy().tobytes())
    return header, {name: value.tolist() for name, value in tensors.items()}


@pytest.mark.slow
@pytest.mark.parametrize("way", [(), ("--plain",)], ids=["masked", "plain"])
def test_an_answer_has_the_same_bits_and_leaves_out_the_same(
    way, offline, count, answer, place, monkeypatch
):
    offline.plan("plan", NAMES, *way)
    said = count("north").err
    assert FEW in said
    assert ALONE in said
    without = answer("north", "without", *way, "--state", "first")
    with monkeypatch.context() as patch:
        for name in ("encode", "stand_ins", "without_alone"):
            patch.delattr(client_data, name)  # nothing asks for a feature
        with_sums = answer("north", "with", *way, "--statistics", "sums", "--state", "second")
    assert sent("without") == sent("with")
    for told in (without.err, with_sums.err):
        assert FEW in told
        assert ALONE in told
    counts = Counted.load(Path("sums")).sums["count"].tolist()
    assert counts == [29, 30] + [0] * 10
    released = [next(Path(state, "ledger").glob("released-*")) for state in ("first", "second")]
    assert [path.stat().st_size for path in released] == [
        len("samples with classes\n") + 59 * 32 + 32
    ] * 2
    assert Path("sums").stat().st_mode & 0o077 == 0


@pytest.mark.slow
def test_the_ledger_refuses_counted_sums_as_others(offline, count, answer, refused):
    for name in ("plan", "next"):
        offline.plan(name, NAMES)
    count("south")
    answer("south", "first", "--statistics", "sums")
    again = {"plan": "next.fedunseen", "call": refused}
    assert "--consent again" in answer("south", "second", "--statistics", "sums", **again)
    assert "--consent again" in answer("south", "second", **again)
    assert not Path("second").exists()


def change(path, **arrays):
    np.savez(path, **{**np.load(path), **arrays})


def rewritten(tensors, note):
    save_file(tensors, "sums", {"fedunseen counted": note})


@pytest.mark.slow
def test_other_sums_are_refused_in_one_sentence(offline, count, answer, refused):
    offline.plan("plan", NAMES)
    offline.plan("other", NAMES, "--set", "data.quantization=6")
    count("north")

    def said(*more, plan="plan.fedunseen"):
        given = ("--statistics", "sums", "--state", "state", *more)
        told = answer("north", "out", *given, plan=plan, call=refused)
        assert not Path("out").exists()
        assert not list(Path("state").glob("ledger/released-*"))
        return told

    assert "another class table or quantization" in said(plan="other.fedunseen")
    assert "another number of samples that a class must have" in said("--min-samples", 2)
    assert "another --consent moments" in said("--consent", "moments")
    north = Path("data/north/features.npz")
    before = north.read_bytes()
    features = np.load(north)["features"]
    features[0, 0] += 1
    change(north, features=features)
    assert "is of other samples than data/north has now" in said()
    north.write_bytes(before)
    with safe_open("sums", "pt") as file:
        note = file.metadata()["fedunseen counted"]
        tensors = {name: file.get_tensor(name) for name in file.keys()}  # noqa: SIM118
    rewritten({**tensors, "sums/count": tensors["sums/count"] + 1}, note)
    assert "are not those that were saved" in said()
    rewritten(tensors, note.replace('"format": 1', '"format": 2'))
    assert "of a later version of FedUnseen" in said()
    rewritten(
        tensors, note.replace('"version of fedunseen": "\\"', '"version of fedunseen": "\\"9')
    )
    assert "are not those that were saved" in said()
    Path("sums").write_bytes(b"damaged")
    assert "cannot be read" in said()
    assert "no such file" in said("--statistics", "none")


@pytest.mark.slow
def test_sums_to_which_no_rule_was_applied_are_no_answer(offline, count, answer, refused, works):
    offline.plan("plan", NAMES, of=(*PLANNED, *sets({"method.min_samples": 1})))
    for name in NAMES:
        answer(name, f"{name}-plan.fedunseen")
    offline.merge()
    works("statistics", "data/north", "--plan", "run", "--out", "plain")
    given = ("--statistics", "plain", "--state", "fresh")
    assert "is not the file of sums for an answer" in answer("north", "x", *given, call=refused)


def test_what_sums_do_not_answer_is_not_counted(offline, count, refused):
    offline.plan("clipped", NAMES, of=(*PLANNED, *sets({"method.min_samples": 1})))
    count("north", "clipped.fedunseen", out="fine")
    signed = files.read(Path("clipped.fedunseen"), "plan")
    asked = dict(signed["hello"])
    party = CountingParty(Path("data/north"))
    counted = CountedParty(party, Counted.load(Path("fine")), Path("fine"))
    tree = asked["experiment"]
    for other in (
        {"growing": {}},
        {"removing": ["north"]},
        {"validation": [0]},
        {"experiment": {**tree, "data": {**tree["data"], "unlabelled": "summed"}}},
        {"experiment": {**tree, "privacy": {"name": "sample-level"}}},
    ):
        for prepare in (party.count, counted.prepare):
            with pytest.raises(RefusedError) as raised:
                prepare({**asked, **other, "client": 0}, signed.greeting)
            assert raised.value.code == "not-counted"
    for broken in ([], "text", {"evaluation": [], "data": 1, "privacy": "x"}):
        with pytest.raises(FedUnseenError):
            counted.prepare({**asked, "experiment": broken, "client": 0}, signed.greeting)


@pytest.mark.slow
def test_parties_join_with_sums_that_they_have_counted(offline, count, answer, machine, place):
    offline.plan("plan", NAMES, "--plain")
    deployment = Deployment(machine, NAMES, place / "data", "coordinator.toml", insecure=True)
    for name in NAMES:
        count(name, out=f"{name}-sums")
    parties = {}
    for name in NAMES:
        deployment.more = ["--statistics", str(place / f"{name}-sums")]
        parties[name] = deployment.join(name)
    deployment.end(deployment.host(), parties)
    joined = load_run(place / "run").result["sums_sha256"]
    for name in NAMES:
        answer(name, f"{name}-plan.fedunseen", "--plain")
    offline.merge(out="merged", kits=None)
    assert load_run(place / "merged").result["sums_sha256"] == joined
