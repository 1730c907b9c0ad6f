"""``fedunseen attack leakage`` and ``attack backdoor``."""

import json

import numpy as np
import pytest
from safetensors.numpy import load_file

from fedunseen import Experiment
from fedunseen.pages.report.backdoor_page import conclusions
from fedunseen.research.backdoor_study import defended, guards, verdict
from processes import sets

FEW = {"data.train_per_class": 2, "data.test_per_class": 1, "method.consistency": 0}
MORE = {"data.train_per_class": 10, "data.test_per_class": 4, "strategy.rounds": 4}
TINY, SMALL = (["digit-pairs", *sets({**settings, "method.kl": 0})] for settings in (FEW, MORE))


@pytest.mark.slow
def test_an_attack_writes_numbers_tensors_and_a_page(works, tmp_path):
    out = tmp_path / "deep" / "out"
    small = ["--images", 2, "--method", "dlg", "--steps", 1, "--sums", "3", "--out", out, "--json"]
    done = works("attack", "leakage", *TINY, "--set", "privacy.aggregation=masked", *small)
    result, facts = done.answer, json.loads((out / "leakage.json").read_text())
    assert sorted(path.name for path in out.iterdir()) == [
        "leakage.html",
        "leakage.json",
        "leakage.safetensors",
    ]
    assert (result["out"], result["report"], result["seed"]) == (
        str(out),
        str(out / "leakage.html"),
        0,
    )
    assert result["samples"] == facts["samples"]
    assert result["classifier"]["dlg"]["mse"] == facts["classifier"]["attacks"]["dlg"]["mse"]
    analytic = result["phases"]["local"]["analytic"]["inputs"]
    assert (analytic["recovered"], "samples" in analytic) == (2, False)
    tensors = load_file(out / "leakage.safetensors")
    assert tensors["classifier.source"].shape == (2, 1, 8, 16)
    np.testing.assert_array_equal(
        tensors["classifier.source"].reshape(2, -1), tensors["method.inputs"]
    )
    np.testing.assert_allclose(
        tensors["method.local.analytic.inputs"], tensors["method.inputs"], atol=1e-5
    )
    error = np.square(tensors["classifier.dlg.recovered"] - tensors["classifier.source"]).mean(
        (1, 2, 3)
    )
    told_of_each = [one["mse"] for one in facts["classifier"]["attacks"]["dlg"]["images"]]
    np.testing.assert_allclose(told_of_each, error, rtol=1e-4)
    first, second, *_, numbers, report = done.err.splitlines()
    assert first.startswith(
        "note: under masks the coordinator sees no single gradient"
    )  # it is not what is sent
    assert (first, facts["note"]) == (f"note: {result['note']}", result["note"])
    assert f"Note: {result['note']}." in (out / "leakage.html").read_text()
    assert second.startswith("classifier, dlg, update 1: recovered ")
    assert "classifier, dlg, the sum of 3: recovered" in done.err
    assert (numbers, report) == (
        f"numbers: {out / 'leakage.json'}",
        f"report:  {out / 'leakage.html'}",
    )
    sums, whole = result["sums"], facts["sums"]
    assert sums["samples"] == whole["samples"]
    assert sums["samples"][0] == facts["samples"][0]
    assert (
        len({one["class"] for one in sums["samples"]}) == 3
    )  # of three parties, which hold classes of their own
    (row,), (in_file,) = (found["phases"]["local"]["analytic"] for found in (sums, whole))
    assert (row["seen"], row["parties"], row["inputs"]["recovered"]) == ("sum", 3, 0)
    assert row["inputs"]["mse"] == in_file["inputs"]["mse"]
    assert "samples" not in row["inputs"]
    assert [row["seen"] for row in sums["classifier"]["dlg"]] == ["sum"]


def test_without_images_the_classifier_is_left_out_and_said_so(works, small, tmp_path):
    arguments = ["--images", 1, "--steps", 2, "--method", "cosine", "--sums", "none"]
    done = works("attack", "leakage", small, *arguments, "--out", tmp_path / "out", "--json")
    assert "under masks" not in done.err
    assert not {"note", "sums"} & set(done.answer)
    why = done.answer["classifier"]["left_out"]
    assert why.endswith("gives features, no images that a classifier could see")
    assert f"The classifier that sees images is left out: {why}." in done.err
    assert set(done.answer["phases"]["local"]) == {"depends", "analytic", "cosine"}


@pytest.mark.slow
def test_sums_are_of_as_many_parties_as_there_are(works, tmp_path):
    few = ["--set", "partition.clients=4", "--images", 1, "--method", "cosine", "--steps", 1]
    result = works("attack", "leakage", *TINY, *few, "--out", tmp_path / "out", "--json").answer
    assert [row["parties"] for row in result["sums"]["phases"]["local"]["cosine"]] == [1, 2, 3, 4]


# Backdoors


@pytest.mark.slow
def test_an_attack_is_run_against_each_defence(works, tmp_path):
    out = tmp_path / "out"
    chosen = ["--defences", "magnitude,magnitude-ignored,norm-clip,krum"]
    done = works(
        "attack",
        "backdoor",
        *SMALL,
        "--set",
        "partition.clients=4",
        *chosen,
        "--out",
        out,
        "--json",
    )
    result, facts = done.answer, json.loads((out / "backdoor.json").read_text())
    assert sorted(path.name for path in out.iterdir()) == ["backdoor.html", "backdoor.json", "runs"]
    assert sorted(path.name for path in (out / "runs").iterdir()) == [
        "magnitude-attacked", "magnitude-honest", "magnitude-ignored-attacked", "none-attacked", "none-honest",
        "norm-clip-attacked", "norm-clip-honest",
    ]  # fmt: skip
    assert result["attacked_rounds"] == [2]  # half way
    assert list(result["defences"]) == [
        "none",
        "magnitude",
        "magnitude-ignored",
        "krum",
        "norm-clip",
    ]
    assert "needs" in result["defences"]["krum"]["refused"]  # 2 f + 3 clients
    for name in ("none", "magnitude", "magnitude-ignored", "norm-clip"):
        row = result["defences"][name]
        lines = [
            json.loads(s)
            for s in (out / "runs" / f"{name}-attacked" / "metrics.jsonl").read_text().splitlines()
        ]
        expected = {
            "zsl": lines[-1]["zsl"],
            "zsl_attacked": lines[1]["zsl"],
            "backdoor_attacked": lines[1]["backdoor"],
        }
        assert row["attacked"] | expected == row["attacked"]
        assert facts["defences"][name]["curves"]["backdoor"] == [
            round(line["backdoor"], 3) for line in lines
        ]
        assert "curves" not in row
    screened = [
        result["defences"][name]["attacked"]["screened"]
        for name in ("magnitude", "magnitude-ignored")
    ]
    assert screened[0]["poisoned"] > 0 == screened[1]["poisoned"]
    page = (out / "backdoor.html").read_text()
    said = [f'<th scope="row">{name}</th>' for name in ("none", "magnitude", "norm-clip")]
    said += ["krum was refused", "data:image/png;base64"]  # the triggers
    assert all(words in page for words in said)
    assert done.err.splitlines()[-2:] == [
        f"numbers: {out / 'backdoor.json'}",
        f"report:  {out / 'backdoor.html'}",
    ]


@pytest.mark.slow
def test_a_study_is_resumed_and_gains_defences(works, refused, tmp_path):
    out = tmp_path / "out"
    small = ["attack", "backdoor", *SMALL, "--set", "strategy.rounds=2", "--out", out]
    works(*small, "--defences", "norm-clip")
    before = {path: path.stat().st_mtime_ns for path in out.glob("runs/*/result.json")}
    works(*small, "--defences", "median", "--resume")
    assert len(before) == 4
    assert all(path.stat().st_mtime_ns == when for path, when in before.items())
    assert list(json.loads((out / "backdoor.json").read_text())["defences"]) == [
        "none",
        "median",
        "norm-clip",
    ]
    (out / "backdoor.json").write_text('{"def')
    said = refused(*small, "--defences", "median", "--resume")
    assert said.startswith(f"{out / 'backdoor.json'} cannot be read (Unterminated string")


@pytest.mark.slow
@pytest.mark.parametrize(
    "settings", [{"attack.rounds": "never"}, {"attack.rounds": 1, "strategy.fraction": 0.1}]
)
def test_a_study_in_which_nobody_attacks_says_so(works, tmp_path, settings):
    small = [
        *SMALL,
        *sets({"strategy.rounds": 2, "attack.clients": [9], **settings}),
        "--out",
        tmp_path / "out",
    ]
    done = works("attack", "backdoor", *small, "--defences", "norm-clip", "--json")
    assert done.answer["attacked_rounds"] == done.answer["holds"] == []
    assert "No one attacked." in done.err.splitlines()
    assert "backdoor_attacked" not in done.answer["defences"]["none"]["attacked"]
    assert "No one attacked." in (tmp_path / "out" / "backdoor.html").read_text()


@pytest.mark.slow
@pytest.mark.parametrize(("seed", "drawn"), [(1, [False, True]), (2, [True, False])])
def test_means_are_of_what_every_seed_has(works, tmp_path, seed, drawn):
    drawing = {
        "run.seed": seed,
        "run.seeds": 2,
        "strategy.fraction": 0.5,
        "attack.rounds": 1,
        "strategy.rounds": 1,
    }
    words = [*SMALL, *sets(drawing), "--defences", "norm-clip"]
    done = works("attack", "backdoor", *words, "--out", tmp_path, "--json")
    each = [
        json.loads(path.read_text())
        for path in sorted(tmp_path.glob("runs/none-attacked/seed-*/result.json"))
    ]
    assert ["backdoor_attacked" in one for one in each] == drawn
    assert (done.answer["attacked_rounds"], done.answer["holds"]) == ([1], [])
    row = done.answer["defences"]["none"]["attacked"]
    assert row["backdoor"] == pytest.approx(sum(one["backdoor"] for one in each) / 2)
    assert not {"backdoor_attacked", "backdoor_highest", "zsl_attacked"} & set(row)
    assert (
        "With some of the seeds no one attacked, so that there are no means of attacked rounds: "
        "raise strategy.fraction, or let the attack last longer (attack.rounds)."
    ) in done.err.splitlines()


def test_each_defence_is_tried_alone_whatever_the_experiment_names():
    attack = {
        "evaluation.selection": "last",
        "attack.name": "backdoor",
        "attack.ignore_defence": True,
    }
    named = {
        "defence.name": "krum",
        "defence.malicious": 3,
        "screening.name": "magnitude",
        "screening.percentile": 9.0,
    }
    experiment = Experiment.load("digit-pairs", {**named, **attack})
    rows = {name: defended(experiment, settings) for name, settings in guards().items()}
    assert rows["none"].to_dict() == Experiment.load("digit-pairs", attack).to_dict()
    assert (rows["none"].defence.name, rows["none"].screening.name) == ("none", "none")
    magnitude = rows["magnitude"]
    assert (magnitude.defence.name, magnitude.screening.name) == ("none", "magnitude")
    assert magnitude.screening.percentile == 9.0  # as the experiment says
    assert (magnitude.attack.ignore_defence, rows["magnitude-ignored"].attack.ignore_defence) == (
        False,
        True,
    )
    assert (rows["krum"].defence.malicious, rows["krum"].screening.name) == (3, "none")
    assert (rows["multi-krum"].defence.malicious, rows["multi-krum"].screening.name) == (
        1,
        "none",
    )  # not krum's


def facts(**attacked):
    """Give what a study finds: no defence, and some with other numbers."""
    none = {
        "backdoor": 90.0,
        "backdoor_before": 1.0,
        "backdoor_attacked": 99.0,
        "backdoor_highest": 99.0,
    }
    none |= {"zsl": 80.0, "zsl_attacked": 60.0}
    changes = {"none": {}, **attacked}
    rows = {
        name: {"honest": {"zsl": 82.0}, "attacked": none | changed}
        for name, changed in changes.items()
    }
    experiment = {"attack": {"clients": [0], "scale": 10.0}}
    return {"experiment": experiment, "attacked_rounds": [20], "defences": rows, "holds": []}


def test_a_defence_holds_if_the_backdoor_is_low_and_the_main_task_whole():
    result = facts(
        good={"backdoor_highest": 9.9, "zsl": 79.1},
        late={"backdoor_highest": 10.0, "zsl": 82.0},
        dear={"backdoor_highest": 0.0, "zsl": 79.0},
        magnitude={"backdoor_highest": 0.0, "zsl": 82.0},  # which an attacker can leave out
    )
    assert verdict(result) == ["good"]


def test_what_is_said_of_an_attack():
    counts = {"clean": 200, "clean_dropped": 10, "poisoned": 50, "poisoned_dropped": 40}
    result = facts(magnitude={"backdoor_attacked": 30.0, "backdoor": 12.0, "screened": counts})
    assert conclusions(result) == [
        "Undefended, client 0 (beta = 10, round 20) takes the backdoor accuracy from 1.0 % to 99.0 "
        "% in round 20; the highest is 99.0 %, the last 90.0 %.",
        "ZSL is 60.0 % in round 20 and 80.0 % in the last, 82.0 % if no one attacks.",
        "The feature magnitude defence, kept by everyone: backdoor accuracy 30.0 % when attacked, "
        "12.0 % at the end. It dropped 80.0 % of the poisoned samples and 5.0 % of the clean ones.",
        "No defence keeps the backdoor under 10 % and ZSL within 3 points of the honest run "
        "without one.",
    ]
    assert conclusions(result | {"holds": ["krum"]})[-1] == (
        "The backdoor stays under 10 % and ZSL within 3 points of the honest run without a defence "
        "under: krum."
    )
