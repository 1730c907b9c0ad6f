"""A copy of a run directory, made as docs/maintenance.md says while the run continues, resumes to the same bits."""

import shutil
import threading

import pytest

from fedunseen import Experiment, run
from processes import TRAINED

SMALL = {**TRAINED, "strategy.rounds": 12, "strategy.name": "scaffold", "evaluation.clients": False}


def backed_up(source, target):
    """Copy the checkpoints first, then the rest; a file that goes while it is copied is one that no one needs."""
    (target / "checkpoints").mkdir(parents=True)
    for folder in (source / "checkpoints", source):
        for path in sorted(folder.glob("*")):
            if path.is_file() and not path.name.startswith("."):
                try:
                    shutil.copy2(path, target / path.relative_to(source))
                except FileNotFoundError:
                    continue


@pytest.mark.slow
def test_copies_made_while_the_run_goes_on_resume_to_the_same_bits(tmp_path):
    experiment, copiers = Experiment.load("digit-pairs", SMALL), []

    def hear(stage, round, rounds, line):
        if round in (1, 4, 8):  # a copy is made beside the next rounds
            target = tmp_path / f"copy-{round}"
            copiers.append(threading.Thread(target=backed_up, args=(tmp_path / "run", target), daemon=True))
            copiers[-1].start()
        if round == rounds - 1:
            for copier in copiers:
                copier.join()

    whole = run(experiment, tmp_path / "run", progress=hear)
    for path in (tmp_path / "copy-1", tmp_path / "copy-4", tmp_path / "copy-8"):
        again = run(experiment, path, resume=True)
        assert (path / "model.safetensors").read_bytes() == (tmp_path / "run" / "model.safetensors").read_bytes()
        assert again.result["gzsl_harmonic"] == whole.result["gzsl_harmonic"]
