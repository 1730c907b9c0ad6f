"""``fedunseen look``: parties of a real table are seen before a run; bad files are refused."""

import json
import subprocess
import sys
from pathlib import Path

import numpy as np
import pytest

from fedunseen.deploy.look.question import ANSWER, FORM, LIMIT
from fedunseen.deploy.offline import files
from fedunseen.deploy.remote.declared import LOOK, declaration, paths
from fedunseen.deploy.secagg.enrolment import Credentials, enrol
from published_layouts import write_image

NAMES = ("north", "south", "west")
CLASSES = "name\nAdelie\nGentoo\nChinstrap\nEmperor\n"
COLUMNS = ("bill_length_mm", "body_mass_g", "sex")


@pytest.fixture(scope="module")
def kept(tmp_path_factory):
    """Credentials of a federation, and of another one."""
    folder = tmp_path_factory.mktemp("look")
    for name in ("kits", "strange"):
        enrol(folder / name, NAMES)
    return folder


@pytest.fixture
def place(kept, tmp_path, monkeypatch):
    """Penguins: South weighs in kilograms, West writes a class in another way and knows no sex."""
    penguins = pytest.importorskip("palmerpenguins").load_penguins()
    pd = pytest.importorskip("pandas")
    penguins = penguins.rename(columns={"species": "label"})
    south = penguins[penguins.label == "Gentoo"].assign(body_mass_g=lambda f: f.body_mass_g / 1000)
    adelie = penguins[penguins.label == "Adelie"]
    other = penguins[penguins.label == "Chinstrap"]
    west = pd.concat([other, adelie[:12].assign(label="adelie")]).drop(columns="sex")
    for name, rows in zip(NAMES, (adelie, south, west), strict=True):
        (tmp_path / "data" / name).mkdir(parents=True)
        rows.to_csv(tmp_path / "data" / name / "penguins.csv", index=False)
    (tmp_path / "classes.csv").write_text(CLASSES)
    for name in ("kits", "strange"):
        (tmp_path / name).symlink_to(kept / name)
    monkeypatch.chdir(tmp_path)
    return tmp_path


@pytest.fixture
def look(works):
    class Look:
        def plan(self, name="plan", *more, call=works, kits="kits", classes="classes.csv"):
            words = "--credentials", f"{kits}/coordinator", "--parties", ",".join(NAMES)
            words += "--out", f"{name}.look", "--classes", classes
            asked = [word for column in COLUMNS for word in ("--column", column)]
            return call("look", "plan", *words, *asked, *more)

        def answer(self, who, plan="plan", *more, consent=("look",), call=works, kits="kits"):
            words = "--data", f"data/{who}", "--credentials", f"{kits}/{who}"
            words += "--out", f"{who}-{plan}.look"
            agreed = [word for one in consent for word in ("--consent", one)]
            return call("look", "answer", f"{plan}.look", *words, *agreed, *more)

        def read(self, *paths, plan="plan", out="seen", call=works):
            paths = paths or [f"{name}-{plan}.look" for name in NAMES]
            return call("look", "read", f"{plan}.look", *paths, "--out", out, "--json")

        def all(self, *more, consent=("look", "names")):
            self.plan("plan", *more)
            for name in NAMES:
                self.answer(name, "plan", *more, consent=consent)
            return self.read().answer

    return Look()


def codes(facts):
    return [warning["code"] for warning in facts["warnings"]]


@pytest.mark.slow
@pytest.mark.usefixtures("place")
def test_masks_show_the_sum_and_the_names_that_parties_give(look):
    facts = look.all()
    assert [(c["name"], c["parties"], c["samples"], c["who"]) for c in facts["classes"]] == [
        ("Adelie", 1, 150, []),
        ("Gentoo", 1, 120, []),
        ("Chinstrap", 1, 65, []),
        ("Emperor", 0, 0, []),
        ("adelie", 1, None, ["west"]),
    ]
    assert facts["samples"] == [
        {"at": "all parties", "samples": 335, "others": 10, "unlabelled": 0}
    ]
    assert codes(facts) == ["class-clash", "class-without-samples", "two-groups", "missing-column"]
    said = " ".join(warning["what"] for warning in facts["warnings"])
    assert "'Adelie' (the plan) and 'adelie' (west)" in said
    assert "no column 'sex' at 1 of 3 parties" in said
    page = Path("seen/look.html").read_text()
    assert all(warning["what"].split("'")[1] in page for warning in facts["warnings"])
    assert json.loads(Path("seen/look.json").read_text()) == facts


@pytest.mark.slow
@pytest.mark.usefixtures("place")
def test_in_clear_each_party_is_seen(look):
    facts = look.all("--plain")
    assert [(c["name"], c["who"], c["samples"]) for c in facts["classes"]] == [
        ("Adelie", ["north"], 150),
        ("Gentoo", ["south"], 120),
        ("Chinstrap", ["west"], 65),
        ("Emperor", [], 0),
        ("adelie", ["west"], 10),
    ]
    assert codes(facts) == [
        "class-clash", "class-without-samples", "one-party-few-samples", "range-factor",
        "missing-column",
    ]  # fmt: skip
    said = " ".join(warning["what"] for warning in facts["warnings"])
    assert "no column 'sex' at west" in said
    assert "'body_mass_g' is about 5 at south and 3,700 at" in said
    quantiles = {c["at"]: c["quantiles"] for c in facts["columns"] if c["name"] == "body_mass_g"}
    penguins = pytest.importorskip("palmerpenguins").load_penguins()
    for name, species, unit in (("north", "Adelie", 1), ("south", "Gentoo", 1000)):
        true = penguins[penguins.species == species].body_mass_g.quantile([0.1, 0.5, 0.9]) / unit
        np.testing.assert_allclose(quantiles[name], true, rtol=0.1)  # a cell is 26 % wide


@pytest.mark.slow
@pytest.mark.usefixtures("place")
def test_without_consent_to_names_none_leaves(look):
    facts = look.all(consent=("look",))
    assert [c["name"] for c in facts["classes"]] == ["Adelie", "Gentoo", "Chinstrap", "Emperor"]
    assert facts["samples"][0]["others"] == 10
    for name in NAMES:
        content = Path(f"{name}-plan.look").read_bytes()
        assert b"adelie" not in content
        assert b"flipper" not in content


@pytest.mark.usefixtures("place")
def test_what_leaves_is_listed_and_needs_consent(look, command):
    look.plan()
    done = look.answer("west", consent=(), call=command)
    assert done.code == 2
    listed, error = done.err.rsplit("error: ", 1)
    assert "[look-consent]" in error
    assert "Chinstrap (65)" in listed
    assert "adelie" in listed  # to its owner
    assert not Path("west-plan.look").exists()
    assert not Path("fedunseen-west/look").exists()


@pytest.mark.slow
@pytest.mark.usefixtures("place")
def test_the_history_has_each_answer_and_a_second_look_needs_consent(look, works, refused):
    look.plan()
    look.answer("north")
    first = Path("north-plan.look").read_bytes()
    assert "the same bytes" in look.answer("north").err
    assert Path("north-plan.look").read_bytes() == first
    history = works("ledger", "fedunseen-north", "--json").answer
    assert [line["kind"] for line in history["releases"]] == ["budget", "file"]
    assert history["bytes"] == len(first)
    look.plan("second")
    assert "answered another look" in look.answer("north", "second", call=refused)
    look.answer("north", "second", consent=("look", "again"))
    for kept in Path("fedunseen-north/look").iterdir():
        kept.unlink()
    assert "missing or damaged" in look.answer("north", call=refused)


@pytest.mark.usefixtures("place")
@pytest.mark.parametrize("masked", [True, False], ids=["masked", "plain"])
def test_an_answer_has_only_fields_that_are_declared(look, masked):
    more = [] if masked else ["--plain"]
    look.plan("plan", *more)
    look.answer("west", "plan", *more, consent=("look", "names"))
    answer = files.read(Path("west-plan.look"), ANSWER, LIMIT, FORM)
    for path in paths(dict(answer.header)) | set(answer.tensors):
        assert declaration(LOOK, ANSWER, masked, path) is not None, path


@pytest.mark.slow
@pytest.mark.usefixtures("place")
def test_bad_answers_are_refused_and_nothing_is_written(look, refused):
    look.plan()
    look.plan("other")
    for name in NAMES:
        look.answer(name)
    look.answer("west", "other", consent=("look", "again"))
    good = [f"{name}-plan.look" for name in NAMES]
    assert "another plan" in look.read(*good[:2], "west-other.look", call=refused)
    assert "are both of west" in look.read(*good, good[2], call=refused)
    assert "no answer of west" in look.read(*good[:2], call=refused)
    assert "not 'look-answer'" in look.read(*good[:2], "other.look", call=refused)
    whole = Path(good[2]).read_bytes()
    for damaged, said in (
        (whole[:40], "damaged, or no file of `fedunseen look`"),
        (whole[:-1] + bytes([whole[-1] ^ 1]), "was changed since"),
        (b"", "first line is missing"),
    ):
        Path("bad.look").write_bytes(damaged)
        assert said in look.read(*good[:2], "bad.look", call=refused)
    assert not Path("seen").exists()
    assert "no file of `fedunseen offline`" in refused("offline", "show", "plan.look")
    assert "of the kind 'look-answer'" in refused(
        "look", "answer", good[0], "--data", "data/west", "--credentials", "kits/west",
        "--out", "x",
    )  # fmt: skip


@pytest.mark.slow
@pytest.mark.usefixtures("place")
def test_a_party_that_sends_other_counts_is_found(look, refused):
    look.plan("plan", "--plain")
    for name in NAMES:
        look.answer(name, "plan", "--plain")
    answer = files.read(Path("west-plan.look"), ANSWER, LIMIT, FORM)
    own = Credentials.load(Path("kits/west"))
    fields = {
        key: answer[key] for key in ("party", "plan", "masked", "minimum", "classes", "columns")
    }
    for change, said in (
        ({"counts/samples": -answer.tensors["counts/samples"]}, "no samples can have"),
        ({"counts/holds": answer.tensors["counts/holds"] + 1}, "no samples can have"),
        ({"counts/has": answer.tensors["counts/has"][:1]}, "another form"),
        ({"counts/cells": answer.tensors["counts/cells"].double()}, "another form"),
        ({"more": answer.tensors["counts/has"]}, "more than counts"),
    ):
        content = files.signed(
            ANSWER, fields, {**answer.tensors, **change}, own.enrolment, own.signing
        )
        Path("bad.look").write_bytes(content)
        sentence = look.read("north-plan.look", "south-plan.look", "bad.look", call=refused)
        assert sentence.startswith("the answer of west is refused")
        assert said in sentence
    assert not Path("seen").exists()


@pytest.mark.slow
@pytest.mark.usefixtures("place")
def test_plans_of_others_and_wrong_options_are_refused(look, refused):
    look.plan("strange", kits="strange")
    assert "unknown key" in look.answer("north", "strange", call=refused)
    look.plan("clear", "--plain")
    assert "--plain if its owner agrees" in look.answer("north", "clear", call=refused)
    assert "there already" in look.plan("clear", call=refused)
    Path("twice.csv").write_text("name\nA\nA\n")
    assert "given twice" in look.plan("twice", classes="twice.csv", call=refused)
    look.plan()
    assert "did you mean 'label'" in look.answer("north", "plan", "--label", "lable", call=refused)
    assert "choose among again, federations, look" in look.answer(
        "north", consent=("moments",), call=refused
    )
    Path("data/east").mkdir()
    refused_folder = refused(
        "look", "answer", "plan.look", "--data", "data/east", "--credentials", "kits/west",
        "--out", "x", "--consent", "look",
    )  # fmt: skip
    assert "holds no samples" in refused_folder
    assert not list(Path().glob("north-*.look"))


@pytest.mark.slow
@pytest.mark.usefixtures("place")
def test_pictures_and_arrays_are_counted_too(look):
    for i in range(12):
        name = ("Gentoo", "Emperor")[i % 2] if i < 10 else "Emperor"
        write_image(Path("data/photos") / name / f"{i}.png", i, (8, 8))
    for i in range(6):
        write_image(Path("data/photos/unlabelled") / f"{i}.png", 100 + i, (8, 8))
    arrays = Path("data/arrays")
    arrays.mkdir()
    labels = np.array(["Gentoo"] * 7 + [""] * 11 + ["Adelie"] * 9 + ["Adelie"])
    features = np.arange(56, dtype=np.float32).reshape(28, 2)
    features[-1] = features[-2]  # the same sample twice
    split = np.array(["train"] * 18 + ["test"] * 5 + ["train"] * 5)
    np.savez(arrays / "features.npz", features=features, labels=labels, split=split)
    look.plan("plan", "--plain")
    for who, folder in zip(NAMES, ("photos", "arrays", "west"), strict=True):
        look.answer(who, "plan", "--plain", "--data", f"data/{folder}")
    facts = look.read().answer
    held = {c["name"]: (c["who"], c["samples"]) for c in facts["classes"]}
    assert held["Gentoo"] == (["north", "south"], 10)  # of 5 and 7
    assert held["Emperor"] == (["north"], 5)  # of 7
    assert held["Adelie"] == ([], 0)  # four of ten train, and are different
    assert [s["unlabelled"] for s in facts["samples"]] == [5, 10, 0]
    assert codes(facts).count("one-party-few-samples") == 1


@pytest.mark.slow
def test_real_processes_end_with_a_page(place):
    def call(*words):
        command = [sys.executable, "-m", "fedunseen", "look", *words]
        subprocess.run(command, check=True, capture_output=True)

    words = "--credentials", "kits/coordinator", "--parties", ",".join(NAMES)
    call("plan", *words, "--classes", "classes.csv", "--out", "plan.look")
    for name in NAMES:
        call("answer", "plan.look", "--data", f"data/{name}", "--credentials", f"kits/{name}",
             "--out", f"{name}.look", "--consent", "look")  # fmt: skip
    call("read", "plan.look", *(f"{name}.look" for name in NAMES), "--out", "seen")
    assert "Chinstrap" in (place / "seen/look.html").read_text()
