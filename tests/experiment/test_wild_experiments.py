"""Mutated experiments: each runs or is one sentence, within seconds of computing and within bounded memory.

Which mutations are tried is fixed, so that a failure can be repeated: the message names its number.
"""

import resource
import signal
import sys
import time
import warnings

import numpy as np
import pytest

from fedunseen import Experiment, run
from fedunseen.cli.main import main
from fedunseen.core.errors import FedUnseenError
from fedunseen.experiment.schema import preset_names, preset_text

MEMORY = 3 * 2**30  # bytes that an experiment may make us take beyond what the process has
SECONDS = 20  # of computing, not of the clock
WORDS = [
    "", "=", "[", "]", '"', "\n", "\x00", "\ufeff", "nan", "-inf", "1e400", "1e39", "9" * 400, "true", "{}", "[[",
    "name", "\u202e", "x" * 100_000, ".", "#", "-1", "0", "[strategy]\n", "'''",
]  # fmt: skip
WILD = [
    0, -1, 1, 2**31, 2**62, 2**63 - 1, 2**63, 99999999999999999999, 10**400, 0.5, -0.0, 1e-320, 1e-40, 1e-9, 1e38, 1e39,
    1e300, 1.7e308, True, "x", "", [], {}, [1], ["a"], [[1]], "nan", "1e400", None, [10**6], [2**40],
]  # fmt: skip
SECTIONS = ("partition", "method", "strategy", "evaluation", "run", "engine")
FEW = {
    "data.train_per_class": 4, "data.test_per_class": 2, "partition.clients": 3, "strategy.rounds": 1, "method.kl": 0.0,
    "evaluation.selection": "last", "evaluation.embedding": False, "evaluation.theory": False, "run.device": "cpu",
}  # fmt: skip


@pytest.fixture(autouse=True)
def _bounded():
    """Refuse more memory and more computing than any of these needs."""

    def stop(*_):
        raise TimeoutError(f"more than {SECONDS} s of computing")

    before = resource.getrlimit(resource.RLIMIT_AS)
    with open("/proc/self/statm") as file:
        taken = int(file.read().split()[0]) * resource.getpagesize()
    resource.setrlimit(resource.RLIMIT_AS, (taken + MEMORY, before[1]))
    old = signal.signal(signal.SIGPROF, stop)
    yield
    signal.setitimer(signal.ITIMER_PROF, 0)
    signal.signal(signal.SIGPROF, old)
    resource.setrlimit(resource.RLIMIT_AS, before)


def outcome(call, number):
    """Say whether a call succeeds; a refusal has to be one sentence."""
    signal.setitimer(signal.ITIMER_PROF, SECONDS)
    try:
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")
            call()
    except FedUnseenError as error:
        sentence = str(error).strip()
        if "\n" in sentence:
            pytest.fail(f"mutation {number}: {sentence!r}")
        return False
    except Exception as error:
        pytest.fail(f"mutation {number}: {type(error).__name__}: {error}")
    finally:
        signal.setitimer(signal.ITIMER_PROF, 0)
    return True


def test_mutated_experiment_files(tmp_path):
    seen = set()
    names = preset_names()
    for number in range(200):
        rng = np.random.default_rng([11, number])
        text = preset_text(names[number % len(names)])
        for _ in range(rng.integers(1, 4)):
            start, stop = np.sort(rng.integers(0, len(text) + 1, 2))
            stop = min(stop, start + 20)
            piece = text[start:stop]
            new = [WORDS[rng.integers(len(WORDS))], piece * 2, "", piece[::-1]][rng.integers(4)]
            text = text[:start] + new + text[stop:]
        path = tmp_path / "experiment.toml"
        path.write_bytes(text.encode("utf-8", "surrogatepass"))
        seen.add(outcome(lambda path=path: Experiment.load(path), number))
    assert seen == {True, False}  # some mutations do no harm


@pytest.mark.slow
def test_wild_settings(tmp_path, one_thread):
    """Accepted ones are run for a round."""
    base = Experiment.load("digit-pairs", FEW)
    keys = [f"{s}.{key}" for s in SECTIONS for key in type(getattr(base, s)).model_fields if key != "name"]
    seen = set()
    for number in range(40):
        rng = np.random.default_rng([12, number])
        told = {**FEW, keys[rng.integers(len(keys))]: WILD[rng.integers(len(WILD))]}
        seen.add(
            outcome(lambda told=told, n=number: run(Experiment.load("digit-pairs", told), tmp_path / str(n)), number)
        )
    assert seen == {True, False}


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
