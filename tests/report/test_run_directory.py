"""docs/run-directory.md does what it says, on a real run."""

import doctest
import re
from pathlib import Path

import pytest

from fedunseen.federation.run_directory import load_params

TEXT = (Path(__file__).parents[2] / "docs" / "run-directory.md").read_text("utf-8")


def test_its_examples_are_right(made):
    pytest.importorskip("pandas")
    parsed = doctest.DocTestParser().get_doctest(
        TEXT.replace("```", ""), {"run": made().path}, "run-directory", "", 0
    )
    assert len(parsed.examples) > 10
    failures, _ = doctest.DocTestRunner(optionflags=doctest.NORMALIZE_WHITESPACE).run(parsed)
    assert failures == 0


@pytest.mark.slow
@pytest.mark.parametrize(
    "overrides", [(), (("evaluation.selection", "validation"),), (("run.seeds", 2),)]
)
def test_every_file_of_a_run_is_listed(made, overrides):
    listed = set(
        re.findall(
            r"`([\w.-]+/?)`",
            "\n".join(line for line in TEXT.splitlines() if line.startswith("| `")),
        )
    )
    for path in made(*overrides).path.iterdir():
        if not path.name.startswith("."):
            name = re.sub(r"^seed-\d+$", "seed-N", path.name)
            assert (f"{name}/" if path.is_dir() else name) in listed


def test_every_tensor_of_a_run_is_listed(made):
    listed = re.findall(r"`([\w.]+)`", TEXT)
    for name in load_params(made().path / "evaluation.safetensors"):
        assert name in listed or f"{name.partition('_')[0]}_..." in listed
