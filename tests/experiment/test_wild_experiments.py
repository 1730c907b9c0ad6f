"""Settings beyond what numbers and memory can hold: each is one sentence."""

import sys
import time

import pytest

from fedunseen import Experiment, run
from fedunseen.cli.main import main
from fedunseen.core.errors import FedUnseenError

FEW = {"data.train_per_class": 4, "data.test_per_class": 2, "partition.clients": 3, "strategy.rounds": 1,
       "method.kl": 0.0, "evaluation.selection": "last", "run.device": "cpu"}  # fmt: skip


FLOAT, WHOLE = "input should be a number that float32 holds, at most 3.4e38, not", "input should be"


@pytest.mark.parametrize(
    ("setting", "sentence"),
    [
        ("method.weight_decay=1e39", f"method.weight_decay: {FLOAT} 1e+39"),
        ("method.temperature=1e300", f"method.temperature: {FLOAT} 1e+300"),
        ('evaluation.choose={"method.lr" = [0.1, 1e39]}', f"evaluation.choose: {FLOAT} 1e+39"),
        (
            f"strategy.local_epochs={10**20 - 1}",
            f"strategy.local_epochs: {WHOLE} a whole number of 64 bits, below 2^63",
        ),
        (f"strategy.rounds={2**63 - 1}", f"strategy.rounds: {WHOLE} less than or equal to 1000000, not {2**63 - 1}"),
    ],
)
def test_a_number_that_nothing_can_hold_is_one_sentence(setting, sentence, monkeypatch, capsys, tmp_path):
    monkeypatch.setattr(
        sys, "argv", ["fedunseen", "run", "digit-pairs", "--set", setting, "--out", str(tmp_path / "run")]
    )
    began = time.process_time()
    with pytest.raises(SystemExit) as end:
        main()
    assert time.process_time() - began < 2  # of computing, on a machine however busy
    assert end.value.code == 2
    assert capsys.readouterr().err == f"error: {sentence} [experiment]\n"
    assert not (tmp_path / "run").exists()


def test_too_little_memory_is_one_sentence(tmp_path):
    with pytest.raises(FedUnseenError, match=r"^this takes more memory than there is .*: lower method.batch_size"):
        run(Experiment.load("digit-pairs", {**FEW, "method.hidden": [2**33]}), tmp_path / "run")
