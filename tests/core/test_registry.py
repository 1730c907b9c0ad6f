"""Classes of one's own without a package: registered in Python, or in a file that --plugin
names.
"""

import json
import pickle
import subprocess
import sys

import pytest
import torch

from fedunseen import Experiment, register, run
from fedunseen.core import registry
from fedunseen.core.errors import ArgumentError, FedUnseenError
from fedunseen.core.registry import find, names
from fedunseen.methods import FedZSL
from refusals import message_of

FILE = """
import fedunseen
from fedunseen.methods import FedZSL


@fedunseen.register("method", "small-fedzsl")
class Small(FedZSL):
    def loss(self, params, batch, context):
        loss, terms = super().loss(params, batch, context)
        small = params["g.weight"].square().mean()
        return loss + 1000 * small, {**terms, "loss": loss + 1000 * small, "small": small}
"""
QUICK = {
    "strategy.rounds": 2,
    "data.train_per_class": 4,
    "data.test_per_class": 2,
    "evaluation.selection": "last",
}
QUICK |= {
    "evaluation.theory": False,
    "evaluation.embedding": False,
    "method.kl": 0,
    "partition.clients": 2,
}


def test_a_registered_class_is_found_with_settings_of_its_own_name():
    for name in ("Mine", "Again"):  # the later one is taken
        own = register("method", "mine")(type(name, (FedZSL,), {}))
        assert find("method", "mine") is own
    assert "mine" in names("method")
    assert (
        Experiment.load("digit-pairs", {"method.name": "mine", "method.kl": 0.5}).method.kl == 0.5
    )
    assert FedZSL.Settings.model_fields["name"].default == "fedzsl"


def test_what_cannot_be_registered_is_one_sentence():
    said = message_of(register, "methods", "mine", error=ArgumentError)
    assert said.startswith("unknown section 'methods': did you mean 'method'")
    said = message_of(register("method", "fedzsl"), FedZSL, error=ArgumentError)
    assert said == "method 'fedzsl' comes with fedunseen: register FedZSL under another name"


def test_a_term_of_one_s_own_is_trained_on(tmp_path):
    """A thousand times the mean square of g: g becomes smaller than without it."""
    (tmp_path / "mine.py").write_text(FILE)
    registry.announce([tmp_path / "mine.py"])
    plain = run(Experiment.load("digit-pairs", QUICK), tmp_path / "plain")
    small = run(
        Experiment.load("digit-pairs", {**QUICK, "method.name": "small-fedzsl"}), tmp_path / "small"
    )
    assert small.metrics[0]["losses"]["small"] > 0
    assert torch.linalg.norm(small.params["g.weight"]) < 0.8 * torch.linalg.norm(
        plain.params["g.weight"]
    )


@pytest.mark.slow
def test_the_command_reads_a_plugin(tmp_path):
    (tmp_path / "mine.py").write_text(FILE)
    settings = [
        part for key, value in QUICK.items() for part in ("--set", f"{key}={json.dumps(value)}")
    ]
    words = [
        "run",
        "digit-pairs",
        "--plugin",
        "mine.py",
        "--set",
        "method.name=small-fedzsl",
        *settings,
    ]
    call = [sys.executable, "-m", "fedunseen", *words, "--out", "run", "--json"]
    done = subprocess.run(call, cwd=tmp_path, capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stderr
    assert json.loads(done.stdout)["rounds"] == 2


@pytest.mark.parametrize(
    ("text", "message"),
    [
        (
            "x = 1\n1 / 0",
            "--plugin {}, line 2 cannot be loaded (ZeroDivisionError: division by zero): fix that "
            "file",
        ),
        (
            "def f(:",
            "--plugin {} cannot be loaded (SyntaxError: invalid syntax (mine.py, line 1)): fix "
            "that file",
        ),
        (
            "raise SystemExit(3)",
            "--plugin {}, line 1 cannot be loaded (SystemExit: 3): fix that file",
        ),
        (
            FILE.replace("small-fedzsl", "fedzsl"),
            "--plugin {}, line 6: method 'fedzsl' comes with fedunseen: register Small under "
            "another name",
        ),
        (
            FILE.replace("Small(FedZSL)", "Small"),
            "--plugin {}, line 6: method 'small-fedzsl': Small is not a Method: "
            "derive it from fedunseen.methods.base.Method",
        ),
        (
            "x = 1",
            '--plugin {} registers nothing: write @fedunseen.register("method", "NAME") above a '
            "class",
        ),
        (None, "--plugin {}: there is no such file"),
    ],
)
def test_a_bad_plugin_is_one_sentence_whatever_is_looked_for(text, message, tmp_path):
    file = tmp_path / "mine.py"
    if text is not None:
        file.write_text(text)

    def look():
        registry.announce([file])
        find("method", "gaussian")

    for _ in range(2):  # it is not taken for loaded once it has been refused
        assert message_of(look, error=FedUnseenError) == message.format(file)


def test_a_name_of_another_file_or_package_is_taken(tmp_path, monkeypatch):
    files = [tmp_path / folder / "mine.py" for folder in "ab"]
    for file in files:
        file.parent.mkdir()
        file.write_text(FILE.replace("small-fedzsl", "twice"))
    registry.announce(files)
    said = message_of(find, "method", "gaussian", error=ArgumentError)
    assert said.removeprefix(f"--plugin {files[1]}, line 6: ") == (
        f"method 'twice' comes with {files[0]}: register Small under another name"
    )
    (tmp_path / "p-1.dist-info").mkdir()
    (tmp_path / "p-1.dist-info" / "METADATA").write_text(
        "Metadata-Version: 2.1\nName: p\nVersion: 1\n"
    )
    (tmp_path / "p-1.dist-info" / "entry_points.txt").write_text(
        "[fedunseen.methods]\ntheirs = p:X\n"
    )
    monkeypatch.syspath_prepend(tmp_path)
    said = message_of(register("method", "theirs"), FedZSL, error=ArgumentError)
    assert said == "method 'theirs' comes with p: register FedZSL under another name"


@pytest.mark.parametrize("name", sorted(registry.package_names("data")))
def test_settings_of_a_benchmark_come_back_from_a_pickle(name):
    kind = find("data", name)
    settings = kind.Settings.model_construct(name=name)
    assert pickle.loads(pickle.dumps(settings)) == settings  # noqa: S301
    assert kind.Settings.model_fields["name"].default == name
