"""What a run directory records, so that ``predict`` needs neither the data nor the parties.

The coordinator of a deployment hands every party the merged model when the run is over. The party
makes the run directory itself (:func:`bring_home`), from its own settings, files and class table:
nothing that the coordinator sends becomes a path here.
"""

import hashlib
import itertools
import re
import subprocess
import sys
import time
from collections.abc import Mapping
from contextlib import suppress
from functools import cache
from importlib.metadata import PackageNotFoundError, distribution, requires, version
from pathlib import Path
from typing import Any

import numpy as np

from fedunseen import __version__
from fedunseen.confidence import Confidence
from fedunseen.core.command_line import command_line
from fedunseen.core.errors import ExperimentError
from fedunseen.core.files import parse_json, whole_folder, write_json, write_tensors
from fedunseen.core.parameters import Params
from fedunseen.core.registry import announced, find
from fedunseen.data import Benchmark, Scaler
from fedunseen.encoders.backbone import Encoder
from fedunseen.experiment.encoding import copy_weights, make_encoder, record_weights
from fedunseen.experiment.run_model import trained_model
from fedunseen.experiment.schema import Experiment
from fedunseen.federation.engine import PartyStatus
from fedunseen.federation.federation import Federation


def write_scaling(scaler: Scaler, folder: Path) -> None:
    """Write how features are scaled, where each client has a model of its own: the file of one
    model has it, too.
    """
    statistics = dict(scaler.statistics) or {"none": np.zeros(1, dtype=np.float32)}
    write_tensors(folder / "scaling.safetensors", statistics)


_MODULES = {"pillow": "PIL", "pyyaml": "yaml"}
"""Package -> its module, where that has another name."""


@cache
def _versions() -> dict[str, str]:
    """Return the versions of the packages that results depend on and of others that are imported,
    and the commit of the source where that is known. A run asks twice, and reading takes a while.
    """
    versions = {}
    for package in ("fedunseen", "torch", "numpy", "scikit-learn", "scipy", "safetensors"):
        try:
            versions[package] = version(package)
        except PackageNotFoundError:
            versions[package] = "not installed"
    versions["fedunseen"] = __version__  # what runs: the metadata may be another installation's
    with suppress(PackageNotFoundError):
        for line in requires("fedunseen") or ():
            package = re.split(r"[^A-Za-z0-9._-]", line, maxsplit=1)[0]
            module = _MODULES.get(package.lower(), package.lower().replace("-", "_"))
            if package not in versions and module in sys.modules:
                with suppress(PackageNotFoundError):
                    versions[package] = version(package)
    with suppress(PackageNotFoundError, ValueError, KeyError):
        origin = parse_json(distribution("fedunseen").read_text("direct_url.json") or "{}")
        if commit := origin.get("vcs_info", {}).get("commit_id"):
            versions["commit"] = str(commit)
    source = Path(__file__).parents[3]
    if (source / ".git").exists():
        words = ["git", "-C", str(source), "rev-parse", "HEAD"]
        with suppress(OSError, subprocess.SubprocessError):
            answer = subprocess.run(words, capture_output=True, text=True, timeout=5, check=True)
            versions["commit"] = answer.stdout.strip()
    return versions


def manifest(experiment: Experiment, fingerprint: str, benchmark: Benchmark) -> dict[str, Any]:
    """Return what says how a model was made: settings, versions, seed, shapes, the weights of its
    encoder.
    """
    method = find("method", experiment.method.name)
    strategy = find("strategy", experiment.strategy.name)
    traits = {  # what pages need of the classes that the experiment names
        "zero_shot": method.zero_shot, "private": list(method.private), "merges": strategy.merges,
        "pools": strategy.pools, "accuracies": list(experiment.task.evaluator.accuracies),
    }  # fmt: skip
    image = {"image_shape": list(benchmark.image_shape)} if benchmark.image_shape else {}
    if benchmark.pictures is not None:
        image = {"picture_shape": list(benchmark.pictures.shape[1:])}
    return {
        "experiment": experiment.to_dict(),
        "task": method.task,
        "traits": traits,
        "seed": experiment.run.seed,
        "data_fingerprint": fingerprint,
        "benchmark": benchmark.name,
        "input_shape": list(benchmark.features.shape[1:]),
        **({} if benchmark.answers is None else {"answers": benchmark.answers.tolist()}),
        **image,
        **({"reading": list(benchmark.reading)} if benchmark.reading else {}),
        **record_weights(encoder_of(experiment, benchmark), experiment.data),
        "versions": dict(_versions()),
        **({"plugins": files} if (files := announced()) else {}),
        "command": command_line(),
        "created": time.strftime("%Y-%m-%dT%H:%M:%S%z"),
    }


def encoder_of(experiment: Experiment, benchmark: Benchmark) -> Encoder | None:
    """Return the encoder whose weights a finished run needs, frozen or trained; None where there is
    none.
    """
    shape = benchmark.image_shape if benchmark.pictures is None else benchmark.pictures.shape[1:]
    return (
        None
        if shape is None or experiment.encoder.name == "none"
        else make_encoder(experiment, shape)
    )


def bring_home(
    experiment: Experiment,
    benchmark: Benchmark,
    federation: Federation,
    result: Mapping[str, Any],
    params: Params,
    out: Path,
    confidence: Confidence | None = None,
) -> None:
    """Write a party's run directory with the merged model, whole or not at all."""
    if federation.scaler.quantization is not None:  # the coordinator's, which no party states
        bits = federation.scaler.quantization.bits
        experiment = experiment.with_overrides({"data.quantization": bits})
    with whole_folder(out) as partial:
        content = manifest(experiment, benchmark.fingerprint(), benchmark)
        write_json(partial / "manifest.json", {**content, "brought_home": True})
        benchmark.space.save(partial / "classes.csv")
        copy_weights(
            encoder_of(experiment, benchmark), experiment.data, experiment.encoder, partial
        )
        offset = float(result.get("calibration_factor", 0.0))
        weights = content.get("encoder")
        trained_model(
            experiment, federation, benchmark.space, params, offset, confidence, weights
        ).save(partial / "model.safetensors")
        write_json(partial / "result.json", {**result, "run": str(out)})


def fingerprint_of(experiment: Experiment, benchmark: Benchmark) -> str:
    """Return the hash of all files that a result depends on: the benchmark's, and the one that says
    who holds what.
    """
    holders = experiment.partition.file.read_bytes() if experiment.partition.file else b""
    corrected = b"".join(_bytes(path) for path in experiment.growth.files().values())
    return hashlib.sha256(benchmark.fingerprint().encode() + holders + corrected).hexdigest()


def _bytes(path: Path) -> bytes:
    try:
        return path.read_bytes()
    except OSError as error:
        raise ExperimentError(
            f"growth.corrected: {path} cannot be read ({error.strerror}): name a CSV file"
        ) from None


def clients_of(federation: Federation) -> list[PartyStatus]:
    """Return the clients of a simulation, and how much each holds."""
    labels = federation.labels.cpu().numpy()
    return [
        PartyStatus(f"client {client}", True, len(np.unique(labels[ids])), len(ids))
        for client, ids in enumerate(federation.partition.clients)
    ]


def free_directory(experiment: Experiment, kind: str = "") -> Path:
    """Return the default directory of a run: ``runs/NAME-seedN``, with a number added while that is
    taken. The name cannot lead elsewhere: an experiment may be a stranger's.
    """
    name = experiment.name.replace("/", "-").replace("\\", "-")
    return unused(Path("runs") / f"{kind}{name}-seed{experiment.run.seed}")


def unused(base: Path) -> Path:
    """Return a path at which nothing is: the given one, or that with a number added."""
    candidates = itertools.chain(
        [base], (base.with_name(f"{base.name}-{i}") for i in itertools.count(2))
    )
    return next(path for path in candidates if not path.exists())
