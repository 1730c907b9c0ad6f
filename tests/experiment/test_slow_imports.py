"""What a first run does not wait for: libraries that take long to import. No clock: a busy machine does not matter."""

import re
import sys
from pathlib import Path

import fedunseen
from fedunseen import Experiment, run

SLOW = ("sklearn", "scipy", "pandas", "matplotlib", "jinja2", "cryptography")
SOURCE = Path(fedunseen.__file__).parent
# scikit-learn's interface is its own, and so are .mat files SciPy's.
EXCEPTIONS = {"estimator.py", "data/xlsa17.py", "cli/encode.py"}


def test_no_module_imports_them_for_whoever_imports_it():
    line = re.compile(rf"^(?:from|import) (?:{'|'.join(SLOW)})\b", re.MULTILINE)
    found = {path.relative_to(SOURCE).as_posix() for path in SOURCE.rglob("*.py") if line.search(path.read_text())}
    assert {place for place in found if not place.startswith(("serve/", "engines/"))} == EXCEPTIONS


def test_a_run_trains_measures_and_draws_its_plane_without_them(monkeypatch, tmp_path):
    parts = {f"sklearn.{part}" for part in ("base", "covariance", "datasets", "manifold", "metrics", "utils")}
    loaded = {name for name in sys.modules if name.startswith(tuple(f"{one}." for one in SLOW))}
    for name in {*SLOW, *parts, *loaded} - {"sklearn"}:  # itself has to be found: the digits lie in its folder
        monkeypatch.setitem(sys.modules, name, None)  # whoever asks for it fails
    small = {"data.train_per_class": 6, "data.test_per_class": 4, "evaluation.selection": "last",
             "strategy.rounds": 1, "method.kl": 0}  # fmt: skip
    done = run(Experiment.load("digit-pairs", small), tmp_path / "run")
    assert "embedding_model" in done.evaluation
