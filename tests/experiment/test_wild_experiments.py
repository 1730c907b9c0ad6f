"""Settings beyond what numbers and memory can hold: each is one sentence."""

import sys
import time

import pytest

from fedunseen import Experiment, run
from fedunseen.cli.main import main
from fedunseen.core.errors import FedUnseenError

FEW = {"data.train_per_class": 4, "data.test_per_class": 2, "partition.clients": 3, "strategy.rounds": 1,
       "method.kl": 0.0, "evaluation.selection": "last", "run.device": "cpu"}  # fmt: skip


@pytest.mark.parametrize(
    ("setting", "sentence"),
    [
        (
            "method.weight_decay=1e39",
            "method.weight_decay: input should be a number that float32 holds, at most 3.4e38, not 1e+39",
        ),
        (
            "method.temperature=1e300",
            "method.temperature: input should be a number that float32 holds, at most 3.4e38, not 1e+300",
        ),
        (
            "strategy.local_epochs=99999999999999999999",
            "strategy.local_epochs: input should be a whole number of 64 bits, below 2^63",
        ),
        (
            "strategy.rounds=9223372036854775807",
            "strategy.rounds: input should be less than or equal to 1000000, not 9223372036854775807",
        ),
        (
            'evaluation.choose={"method.lr" = [0.1, 1e39]}',
            "evaluation.choose: input should be a number that float32 holds, at most 3.4e38, not 1e+39",
        ),
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
