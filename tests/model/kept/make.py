"""Write the files of this folder with the version that this process imports; see README.md."""

import json
import os
import shutil
import sys
from pathlib import Path

import numpy as np

from fedunseen import Benchmark, Experiment, ZeroShotClassifier, run

UNSEEN = ("zebra", "orca")
ANIMALS = {  # stripes, legs, water
    "horse": [0.0, 1.0, 0.0],
    "tiger": [1.0, 1.0, 0.0],
    "seal": [0.1, 0.1, 1.0],
    "eel": [0.9, 0.0, 1.0],
    "cow": [0.1, 1.0, 0.3],
    "otter": [0.2, 0.7, 1.0],
    "zebra": [1.0, 1.0, 0.3],
    "orca": [0.4, 0.0, 0.9],
}
MIXING = np.random.default_rng(0).normal(size=(3, 6))
METHODS = {"closed": {"name": "gaussian"}, "trained": {"name": "fedzsl", "lr": 0.1, "kl": 0.0}}
LEFT_OUT = ("report.html", "README.md", "selection", ".lock", "checkpoints")  # no reader needs them


def photograph(names, seed):
    noise = np.random.default_rng(seed).normal(size=(len(names), MIXING.shape[1]))
    return np.array([ANIMALS[name] for name in names]) @ MIXING + 0.3 * noise


def ranked(done, rows):
    return [[[item.name, item.score] for item in row] for row in done.predict(rows)]


def main():
    y = np.repeat([name for name in ANIMALS if name not in UNSEEN], 12)
    y_test = np.repeat(list(ANIMALS), 3)
    x, x_test = photograph(y, 1), photograph(y_test, 2)
    samples = photograph(np.array(list(ANIMALS)), 3).astype(np.float32)
    party = np.repeat(["me", "you", "them"], 24)
    model = ZeroShotClassifier().fit(x, y, classes=ANIMALS, groups=party)
    model.save("classifier.safetensors")
    expected = {
        "samples": samples.tolist(),
        "classifier": {
            "classes": model.classes_.tolist(),
            "scores": model.scores(samples).tolist(),
            "names": model.predict(samples).tolist(),
        },
    }
    for name, method in METHODS.items():
        tree = {
            "data": {"name": "arrays"},
            "partition": {"kind": "pccd", "clients": 3},
            "method": method,
            "strategy": {"name": "fedavg", "rounds": 1 if name == "closed" else 2},
            "evaluation": {"embedding": False},
        }
        benchmark = Benchmark.from_arrays(x, y, ANIMALS, test=(x_test, y_test), validation=2)
        done = run(Experiment.from_dict(tree), Path(name), benchmark=benchmark)
        expected[name] = ranked(done, samples)
        for part in LEFT_OUT:
            place = Path(name, part)
            shutil.rmtree(place) if place.is_dir() else place.unlink(missing_ok=True)
    Path("expected.json").write_text(json.dumps(expected) + "\n", "utf-8")


if __name__ == "__main__":
    os.chdir(sys.argv[1])  # no file names a folder of this machine
    main()
