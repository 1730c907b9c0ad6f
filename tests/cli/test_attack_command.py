"""``fedunseen attack leakage``."""

import json

import numpy as np
import pytest
from safetensors.numpy import load_file

from processes import sets

FEW = {"data.train_per_class": 2, "data.test_per_class": 1, "method.kl": 0, "method.consistency": 0}
TINY = ["digit-pairs", *sets(FEW)]


@pytest.mark.slow
def test_an_attack_writes_numbers_tensors_and_a_page(works, tmp_path):
    out = tmp_path / "deep" / "out"
    small = ["--images", 2, "--method", "dlg", "--steps", 1, "--sums", "3", "--out", out, "--json"]
    done = works("attack", "leakage", *TINY, "--set", "privacy.aggregation=masked", *small)
    result, facts = done.answer, json.loads((out / "leakage.json").read_text())
    assert sorted(path.name for path in out.iterdir()) == ["leakage.html", "leakage.json", "leakage.safetensors"]
    assert (result["out"], result["report"], result["seed"]) == (str(out), str(out / "leakage.html"), 0)
    assert result["samples"] == facts["samples"]
    assert result["classifier"]["dlg"]["mse"] == facts["classifier"]["attacks"]["dlg"]["mse"]
    analytic = result["phases"]["local"]["analytic"]["inputs"]
    assert (analytic["recovered"], "samples" in analytic) == (2, False)
    tensors = load_file(out / "leakage.safetensors")
    assert tensors["classifier.source"].shape == (2, 1, 8, 16)
    np.testing.assert_array_equal(tensors["classifier.source"].reshape(2, -1), tensors["method.inputs"])
    np.testing.assert_allclose(tensors["method.local.analytic.inputs"], tensors["method.inputs"], atol=1e-5)
    error = np.square(tensors["classifier.dlg.recovered"] - tensors["classifier.source"]).mean((1, 2, 3))
    told_of_each = [one["mse"] for one in facts["classifier"]["attacks"]["dlg"]["images"]]
    np.testing.assert_allclose(told_of_each, error, rtol=1e-4)
    first, second, *_, numbers, report = done.err.splitlines()
    assert first.startswith("note: under masks the coordinator sees no single gradient")  # it is not what is sent
    assert (first, facts["note"]) == (f"note: {result['note']}", result["note"])
    assert f"Note: {result['note']}." in (out / "leakage.html").read_text()
    assert second.startswith("classifier, dlg, update 1: recovered ")
    assert "classifier, dlg, the sum of 3: recovered" in done.err
    assert (numbers, report) == (f"numbers: {out / 'leakage.json'}", f"report:  {out / 'leakage.html'}")
    sums, whole = result["sums"], facts["sums"]
    assert sums["samples"] == whole["samples"]
    assert sums["samples"][0] == facts["samples"][0]
    assert len({one["class"] for one in sums["samples"]}) == 3  # of three parties, which hold classes of their own
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


def test_sums_are_of_as_many_parties_as_there_are(works, tmp_path):
    few = ["--set", "partition.clients=4", "--images", 1, "--method", "cosine", "--steps", 1]
    result = works("attack", "leakage", *TINY, *few, "--out", tmp_path / "out", "--json").answer
    assert [row["parties"] for row in result["sums"]["phases"]["local"]["cosine"]] == [1, 2, 3, 4]
