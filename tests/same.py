"""Whether models and run directories are the same bit for bit."""

import json
import os
from pathlib import Path

import torch
from safetensors import safe_open
from safetensors.torch import load_file, save_file

from fedunseen.federation.run_directory import load_params


def tensors(model):
    """Return the tensors of a run, of a run directory, or of a dictionary."""
    path = getattr(model, "path", model)
    return load_params(path / "model.safetensors") if isinstance(path, Path) else dict(model)


def write_again(path, tensors):
    """Write a safetensors file with some tensors replaced."""
    with safe_open(path, "pt") as file:
        metadata = file.metadata()
    changed = {name: torch.tensor(value) for name, value in tensors.items()}
    save_file(load_file(path) | changed, path, metadata)


def write_older(path):
    """Write a run's model as run directories had it: parameters, scaling and confidence apart."""
    tensors = load_file(path / "model.safetensors")
    for name, beginning in (
        ("confidence", "confidence/"),
        ("scaling", "scaling/"),
        ("model", "params/"),
    ):
        of_file = {
            key.removeprefix(beginning): value
            for key, value in tensors.items()
            if key.startswith(beginning)
        }
        save_file(of_file or {"none": torch.zeros(1)}, path / f"{name}.safetensors")


def same(one, other):
    """Say whether two models have the same tensors."""
    one, other = tensors(one), tensors(other)
    return one.keys() == other.keys() and all(torch.equal(one[name], other[name]) for name in one)


def distance(one, other):
    """The largest difference of two models' weights."""
    one, other = tensors(one), tensors(other)
    assert one.keys() == other.keys()
    return max(float((one[name].double() - other[name].double()).abs().max()) for name in one)


def content(path):
    """Return everything in a run directory that must not depend on whether the run was killed."""
    found = {}
    for file in sorted(path.rglob("*")):
        name = str(file.relative_to(path))
        if file.suffix in (".safetensors", ".clients", ".csv"):
            found[name] = file.read_bytes()
        elif file.name == "metrics.jsonl":
            lines = [json.loads(line) for line in file.read_text().splitlines()]
            found[name] = [{k: v for k, v in line.items() if k != "seconds"} for line in lines]
        elif file.name == "result.json":
            text = file.read_text().replace(str(path), "RUN")  # remedies name the run's folder
            found[name] = {k: v for k, v in json.loads(text).items() if k != "seconds"}
        elif file.name not in ("manifest.json", ".lock", "report.html") and file.is_file():
            found[name] = "a file that should not be there"
    return found


def noted(way, how, digest):
    """Keep the digest of the sums of a way for the table of tools/same_sums.py, which asks for it.

    All are of digit-pairs-gaussian with six training samples of each class.
    """
    if folder := os.environ.get("FEDUNSEEN_SUMS"):
        Path(folder).mkdir(parents=True, exist_ok=True)
        row = {"way": way, "how": how, "sums_sha256": digest}
        (Path(folder) / f"{way}.json").write_text(json.dumps(row))
