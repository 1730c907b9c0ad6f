"""A coordinator that lies reads nothing of a party's data from what the party refuses, nor from how
often it does.
"""

import json
import re
import shlex
import shutil

import numpy as np
import pytest
import torch
from typer.testing import CliRunner

from fedunseen.cli.main import app
from fedunseen.core.errors import DataError, ExperimentError, FedUnseenError, RefusedError
from fedunseen.core.files import holding
from fedunseen.data.columns.treatment import CellError
from fedunseen.deploy.remote import refusals
from fedunseen.deploy.remote.refusals import (
    DATA,
    HINTS,
    LEFT,
    PLANS,
    REFUSALS,
    again_command,
    code_of,
)
from fedunseen.deploy.remote.wire import PartyError, failure, pack, unpack, unpack_answer
from fedunseen.deploy.secagg.enrolment import enrol
from fedunseen.deploy.secagg.ring import RangeError
from links import answered
from small_federation import (
    Recorder,
    experiment,
    greeting,
    host,
    party,
    write_all,
    write_party,
)

NUMBER = re.compile(r"\[-?[\d.e+]+, -?[\d.e+]+\]")


@pytest.fixture(scope="module")
def data(tmp_path_factory):
    return write_all(tmp_path_factory.mktemp("refusals") / "data")


@pytest.fixture(scope="module")
def kits(tmp_path_factory):
    out = tmp_path_factory.mktemp("kits")
    enrol(out, ("north", "south", "west"))
    return out


@pytest.fixture(scope="module")
def sigmoid(data, tmp_path_factory):
    """The greeting of a method whose outputs are in [0, 1], and that refuses features beyond."""
    chosen = experiment(
        data, "clswgan", method__output="sigmoid", data__features=["min-max"], method__hidden=4
    )
    return greeting(chosen, tmp_path_factory.mktemp("greeting") / "run")


def asks(header, tensors, feature, scale=1e-3):
    """Return the attack's greeting: it scales one feature up, and all others to 0."""
    low, width = torch.zeros(8), torch.full((8,), float("inf"))
    width[feature] = scale
    return pack(header, {**tensors, "0.min": low, "0.range": width})


@pytest.mark.parametrize("masked", [True, False], ids=["masked", "clear"])
def test_no_refusal_holds_a_range_of_features(masked, data, kits, sigmoid, tmp_path):
    """The attack: 'training features lie in [-2.36, 0.683]' was the text of a refusal."""
    header, tensors = sigmoid
    if not masked:
        header = json.loads(json.dumps(header))
        header["experiment"]["privacy"] = {}
    for feature in (0, 3, 7):
        said = []
        north = party(data / "north", tmp_path / str(feature), said, kits / "north", masked)
        answer = north.answer(asks(header, tensors, feature))
        assert unpack(answer)[0] == {"error": DATA}  # and no text
        assert NUMBER.search(str(north.error))  # the attacked line was reached, and says it at home
        assert north.done.is_set()


def test_refusals_of_other_samples_are_the_same_bytes(data, kits, sigmoid, tmp_path):
    answers = set()
    for scale in (1.0, 7.0):
        folder = write_party(tmp_path / f"data{scale}", [0, 1, 2, 2], 4, scale=scale)
        north = party(folder, tmp_path / f"state{scale}", [], kits / "north")
        answers.add(north.answer(asks(*sigmoid, 3)))
    assert len(answers) == 1


@pytest.mark.slow
def test_asking_again_after_restarts_ends(data, kits, sigmoid, tmp_path):
    """A process ends with its first refusal, and something may start it again: the count stays."""
    codes = []
    for attempt in range(HINTS + 3):
        north = party(data / "north", tmp_path / "state", [], kits / "north")
        codes.append(unpack(north.answer(asks(*sigmoid, 3, 10.0**-attempt)))[0]["error"])
    assert codes == [DATA] * HINTS + ["refused-left"] * 3
    assert north.error.code == "refused-left"
    command = again_command(tmp_path / "state")
    assert command in str(north.error)
    words = shlex.split(command.strip("`"))[1:]
    with holding(tmp_path / "state"):
        assert "in use by another process" in str(CliRunner().invoke(app, words).exception)
    north = party(data / "north", tmp_path / "state", [], kits / "north", consent=["refusals"])
    assert unpack(north.answer(asks(*sigmoid, 3)))[0]["error"] == "refused-left"
    assert CliRunner().invoke(app, words).exit_code == 0
    north = party(data / "north", tmp_path / "state", [], kits / "north")
    assert unpack(north.answer(asks(*sigmoid, 3)))[0]["error"] == DATA


@pytest.mark.slow
def test_accepted_greetings_without_a_plan_count_too(data, kits, tmp_path):
    """The attack: thresholds that rise until a refusal, which alone would count."""
    header, tensors = greeting(experiment(data), tmp_path / "run")
    codes = []
    for attempt in range(HINTS + 1):
        north = party(data / "north", tmp_path / "state", [], kits / "north")
        answer, _ = unpack(north.answer(pack({**header, "run": f"{attempt:016x}"}, tensors)))
        codes.append(answer.get("error"))
    assert codes == [None] * HINTS + ["refused-left"]


@pytest.mark.slow
def test_a_greeting_counts_again_once_the_samples_have_changed(data, kits, tmp_path):
    """The attack: the same greeting each day, whose answer says whether 20 samples are there."""
    header, tensors = greeting(experiment(data, method__min_samples=20), tmp_path / "run")
    message = pack(header, tensors)

    def answer(day, samples):
        shutil.rmtree(tmp_path / "north", ignore_errors=True)
        write_party(tmp_path / "north", [0] * samples, day)
        north = party(tmp_path / "north", tmp_path / "state", [], kits / "north")
        codes = [unpack(north.answer(message))[0].get("error")]
        for _ in range(2):  # started again, with the same samples
            north = party(tmp_path / "north", tmp_path / "state", [], kits / "north")
            codes.append(unpack(north.answer(message))[0].get("error"))
        return codes

    for day in range(HINTS - 1):
        wanted = None if day % 2 else DATA
        assert answer(day, 19 + day % 2) == [wanted] * 3  # each answer is a bit
    assert answer(7, 20) == [None, LEFT, LEFT]
    assert answer(8, 19) == [LEFT] * 3


@pytest.mark.slow
def test_plans_that_are_signed_and_never_summed_count(data, kits, tmp_path):
    """The attack: accepted thresholds rise until one is refused, and no sum is asked for."""
    places = {name: data / name for name in ("south", "west")}
    places["north"] = write_party(tmp_path / "north", [0] * 27, 1)
    signed, codes = [], set()

    class Unsummed(Recorder):
        def ask(self, name, message):
            kind = unpack(message)[0]["kind"]
            if kind == "round":
                return answered(None)
            future = super().ask(name, message)
            header = unpack(future.result())[0]
            codes.add(header.get("error"))
            signed.extend([name] * (kind == "signed" and header.get("accepted", False)))
            return future

    for more in range(HINTS + 2):
        who = {
            name: party(place, tmp_path / "state" / name, [], kits / name)
            for name, place in places.items()
        }
        asked = experiment(data, strategy__rounds=1, method__clip_norm=1 + more, **UNIT)
        with pytest.raises(FedUnseenError):
            host(asked, Unsummed(who), tmp_path / f"run{more}", kits)
    assert signed.count("north") == HINTS - 1  # the eighth ends before it is signed
    assert codes == {None, LEFT}


@pytest.mark.slow
@pytest.mark.parametrize("left", [0, 1])
def test_an_opened_sum_is_not_counted_and_experiments_are(left, data, kits, tmp_path):
    """Also over restarts: --consent again lets the same samples be summed once more."""
    folder = tmp_path / "state" / "north"
    folder.mkdir(parents=True)
    taken = [f"{number:064x}" for number in range(PLANS - left)]
    (folder / "refusals.json").write_text(json.dumps({"answers": [], "experiments": taken}))
    who = {
        name: party(data / name, tmp_path / "state" / name, [], kits / name)
        for name in ("north", "south", "west")
    }
    if not left:
        with pytest.raises(FedUnseenError):
            host(experiment(data), Recorder(who), tmp_path / "run", kits)
        assert who["north"].error.code == LEFT
        return
    host(experiment(data), Recorder(who), tmp_path / "run", kits)
    counted = json.loads((folder / "refusals.json").read_text())
    assert counted["answers"] == []
    questions = [mark for mark in counted["experiments"] if mark.startswith("question ")]
    assert (len(counted["experiments"]) - len(questions), len(questions)) == (PLANS, 1)


@pytest.mark.parametrize(
    "text", ["{", "3", "[3]", '{"answers": []}', '{"answers": [], "experiments": 3}']
)
def test_a_damaged_count_is_no_new_one(text, data, tmp_path):
    (tmp_path / "state").mkdir()
    (tmp_path / "state" / "refusals.json").write_text(text)
    with pytest.raises(RefusedError, match=r"refusals\.json is damaged"):
        party(data / "north", tmp_path / "state", [])


def nan(folder):
    arrays = dict(np.load(folder / "features.npz"))
    arrays["features"][1, 2] = np.nan
    np.savez(folder / "features.npz", **arrays)


def unnamed(folder):
    arrays = dict(np.load(folder / "features.npz"))
    arrays["labels"] = np.array(["yeti"] * len(arrays["labels"]))
    np.savez(folder / "features.npz", **arrays)


def lost(folder):
    (folder / "features.npz").unlink()


def empty(folder):
    arrays = dict(np.load(folder / "features.npz"))
    arrays["split"] = np.array(["test"] * len(arrays["labels"]))
    np.savez(folder / "features.npz", **arrays)


def none(folder):
    pass


UNIT = {"data__features": ["l2"], "data__quantization": 8}
EPISODES = {"ways": 5, "shots": 3, "queries": 9}
# what happens to the folder after the party has read it, what the greeting asks, the code, the text
SWEEP = [
    (nan, lambda h: None, DATA, "1 of 18 samples hold NaN"),
    (unnamed, lambda h: None, DATA, "yeti"),
    (lost, lambda h: None, DATA, ""),
    (empty, lambda h: None, DATA, "holds no sample to train on"),
    (none, lambda h: h.update(version="9.9"), "refused-version", "9.9"),
    (none, lambda h: h.update(run="../x"), "refused-message", "names no run"),
    (none, lambda h: h.pop("client"), "refused-message", ""),
    (none, lambda h: h["experiment"].update(attack={}), "refused-settings", "[attack]"),
    (none, lambda h: h["experiment"]["method"].update(name="x"), "refused-settings", "unknown"),
    (none, lambda h: h["experiment"]["method"].update(words="../x"), "refused-settings", "../x"),
    (none, lambda h: h.update(experiment=3), "refused-budget", "is not a table"),
    (none, lambda h: h["space"].update({next(iter(h["space"])): "0" * 64}), "refused-space", "they "
                                                                                             "differ"),
    (none, lambda h: h.update(shape=[3]), "refused-shape", "has the shape"),
    (none, lambda h: h.update(validation=[0]), "refused-space", "marks"),
    (none, lambda h: h.update(removing=["north"]), "refused-settings", "--removal"),
    (none, lambda h: h.update(names=["north", "south", "x"]), "refused-sum", "lacks one"),
    (none, lambda h: h["experiment"]["data"].update(features=["log"]), "refused-settings", "log"),
]  # fmt: skip


@pytest.mark.parametrize(("damage", "change", "code", "text"), SWEEP)
def test_each_error_of_a_greeting_leaves_as_one_code(
    damage, change, code, text, data, kits, tmp_path
):
    folder = shutil.copytree(data / "north", tmp_path / "data")
    header, tensors = greeting(experiment(data), tmp_path / "run")
    header = json.loads(json.dumps(header))
    said = []
    north = party(folder, tmp_path / "state", said, kits / "north")
    damage(folder)
    change(header)
    answer, sent = unpack(north.answer(pack(header, tensors)))
    assert (answer, sent) == ({"error": code}, {})
    assert text in f"{north.error} {said}"


def test_episodes_that_cannot_be_drawn_name_no_counts(data, kits, tmp_path):
    """``data/episodes.py`` says how many classes have how many samples."""
    chosen = experiment(
        data,
        "protonet",
        method__hidden=[4],
        method__ways=2,
        method__shots=1,
        method__queries=1,
        privacy__aggregation="masked",
    )
    header, tensors = greeting(chosen, tmp_path / "run")
    header = json.loads(json.dumps(header))
    header["experiment"]["method"].update(EPISODES)
    north = party(data / "north", tmp_path / "state", said := [], kits / "north")
    assert unpack(north.answer(pack(header, tensors)))[0] == {"error": DATA}
    assert "but of 3 classes 0 have so many" in f"{north.error} {said}"


ERRORS = (DataError, ExperimentError, FedUnseenError, ValueError, KeyError, RangeError, MemoryError)


@pytest.mark.parametrize("kind", ERRORS)
def test_an_error_without_a_listed_code_is_refused_for_the_data(kind):
    """So that an error that is added later says nothing."""
    assert code_of(kind("class 7, 3.14")) == DATA


@pytest.mark.parametrize("code", sorted(refusals._CODES))
def test_an_error_about_data_has_no_code_of_its_own(code):
    """A word of data and one of messages may be the same."""
    assert code_of(DataError("a cell", code)) == code_of(CellError(0, "", "", code)) == DATA
    assert code_of(RefusedError("a number", code)) == refusals._CODES[code]  # the positive control


def test_a_coordinator_shows_its_own_sentence_and_no_unknown_code():
    for code, sentence in REFUSALS.items():
        with pytest.raises(PartyError, match=re.escape(f"{sentence} [{code}]")):
            unpack_answer(failure(code), None)
    with pytest.raises(PartyError, match=re.escape(f"[{DATA}]")) as caught:
        unpack_answer(failure("class 7\x1b[2J"), None)
    assert "class 7" not in str(caught.value)


def test_an_undeclared_field_never_leaves(data, kits, tmp_path, monkeypatch):
    monkeypatch.setattr(
        "fedunseen.deploy.remote.party.Party._greeted",
        lambda self, *given: pack({"classes": 3, "samples": 7, "mean": 0.25}),
    )
    north = party(data / "north", tmp_path / "state", said := [], guarded=False)
    hello = pack({"kind": "hello", "run": "a" * 16, "experiment": {}})
    assert unpack(north.answer(hello))[0] == {"error": DATA}
    assert "'mean' is not declared" in said[-1]


def test_codes_are_few_and_their_sentences_name_nothing():
    assert all(code.startswith("refused-") for code in REFUSALS)
    assert not [text for text in REFUSALS.values() if re.search(r"\d|[{}%]", text)]
    assert refusals.DATA in REFUSALS
