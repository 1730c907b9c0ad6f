"""Hash the models and the numbers of short runs, and compare them with those of another version of
the package.

A change that is not meant to change any result must leave every hash as it is. The bits depend on
the machine and on the installed PyTorch, so both versions are hashed on one machine, with one
thread::

    git archive main src | tar -x -C OLD
    OMP_NUM_THREADS=1 PYTHONPATH=OLD/src python tools/same_bits.py --out before.json
    OMP_NUM_THREADS=1 python tools/same_bits.py --against before.json

What counts as a result is the list ``QUANTITIES``. ``RENAMED`` maps old names of tensors, keys and
settings to new ones, so a rename changes no hash. The runs cover trained methods, closed forms,
strategies, defences, attacks, privacy, engines, partitions and few-shot.
"""

from __future__ import annotations

import argparse
import hashlib
import json
import sys
import tempfile
import warnings
from fnmatch import fnmatchcase
from pathlib import Path
from typing import Any

from safetensors.numpy import load_file

from fedunseen import Experiment, FedUnseenError, run

FEW_SHOT = str(Path(__file__).parents[1] / "tests" / "digits-maml.toml")
SHORT: dict[str, Any] = {"strategy.rounds": 2, "evaluation.embedding": False}
DIGITS: dict[str, Any] = {**SHORT, "data.train_per_class": 10, "data.test_per_class": 4}
LAST: dict[str, Any] = {**DIGITS, "evaluation.selection": "last", "method.kl": 0}
CONV: dict[str, Any] = {**DIGITS, "evaluation.selection": "last", "partition.clients": 3}
GENERATE: dict[str, Any] = {**CONV, "method.hidden": 32, "method.batch_size": 32}
SHOT: dict[str, Any] = {
    **SHORT,
    "method.episodes": 4,
    "evaluation.episodes": 20,
    "evaluation.validation_episodes": 10,
}
SUMS: dict[str, Any] = {
    "evaluation.selection": "last",
    "evaluation.embedding": False,
    "partition.clients": 2,
}

STRATEGIES = (
    "fedavg-decay",
    "fedprox",
    "fednova",
    "scaffold",
    "moon",
    "fedgloss",
    "local",
    "centralised",
)
DEFENCES = (
    *("norm-clip", "clip-noise", "median", "trimmed-mean", "krum", "multi-krum"),
    *("bulyan", "robust-learning-rate", "flame", "class-probes"),
)

CASES: dict[str, tuple[str, dict[str, Any]]] = {
    "fedzsl, chosen on validation classes": ("digit-pairs", DIGITS),
    "fedzsl, one client at a time": ("digit-pairs", {**LAST, "engine.mode": "one-at-a-time"}),
    "fedzsl, two seeds": ("digit-pairs", {**LAST, "run.seeds": 2}),
    "fedzsl, settings chosen": (
        "digit-pairs",
        {**DIGITS, "evaluation.choose": {"method.lr": [0.1, 0.2]}},
    ),
    "fedzsl, best on test": ("digit-pairs", {**DIGITS, "evaluation.selection": "best-on-test"}),
    "distzsl": ("digit-pairs-distzsl", DIGITS),
    "classifier": ("digit-pairs-classifier", DIGITS),
    "eszsl, centralised": ("digit-pairs-eszsl", {}),
    "gaussian": ("digit-pairs-gaussian", SUMS),
    "ridge": ("digit-pairs-gaussian", {**SUMS, "method.name": "ridge"}),
    "conv backbone": ("digit-pairs-conv", CONV),
    **{
        name: ("digit-pairs-conv", {**CONV, "method.name": name})
        for name in ("apn", "gem", "msdn", "svip")
    },
    "clswgan": ("digit-pairs-clswgan", GENERATE),
    "clswgan, generator shared": (
        "digit-pairs-clswgan",
        {**GENERATE, "strategy.shared": ["generator.*"]},
    ),
    "clswgan, centralised": ("digit-pairs-clswgan", {**GENERATE, "strategy.name": "centralised"}),
    "vaegan": ("digit-pairs-clswgan", {**GENERATE, "method.name": "vaegan"}),
    "free": (
        "digit-pairs-clswgan",
        {**GENERATE, "method.name": "free", "strategy.shared": ["generator.*", "refine.*"]},
    ),
    **{name: ("digit-pairs", {**LAST, "strategy.name": name}) for name in STRATEGIES},
    "clswgan, generator shared, fedprox": (
        "digit-pairs-clswgan",
        {**GENERATE, "strategy.shared": ["generator.*"], "strategy.name": "fedprox"},
    ),
    "dirichlet": ("digit-pairs", {**LAST, "partition.kind": "dirichlet"}),
    "iid, half of the clients": (
        "digit-pairs",
        {**LAST, "partition.kind": "iid", "strategy.fraction": 0.5},
    ),
    "late and leaving clients": (
        "digit-pairs",
        {**LAST, "partition.join": {"1": 1}, "partition.leave": {"2": 1}},
    ),
    **{f"defence {name}": ("digit-pairs", {**LAST, "defence.name": name}) for name in DEFENCES},
    "scaffold, trimmed mean": (
        "digit-pairs",
        {**LAST, "strategy.name": "scaffold", "defence.name": "trimmed-mean"},
    ),
    "private": (
        "digit-pairs",
        {**LAST, "privacy.name": "client-level", "privacy.epsilon": 50, "privacy.clip": 1.0},
    ),
    "backdoor, screened": (
        "digit-pairs",
        {
            **LAST,
            "attack.name": "backdoor",
            "attack.triggers": ["object"],
            "attack.likeness": "different",
            "attack.rounds": "2",
            "screening.name": "magnitude",
            "defence.name": "norm-clip",
        },
    ),
    **{
        f"attack {name}": ("digit-pairs", {**LAST, "attack.name": name, "attack.rounds": "1-2"})
        for name in ("label-flip", "sign-flip", "gaussian", "nan")
    },
    "maml": (FEW_SHOT, SHOT),
    **{
        name: (FEW_SHOT, {**SHOT, "method.name": name})
        for name in ("maml-mi", "maml-mi-adv", "protonet")
    },
    "maml-mi, exclusive": (FEW_SHOT, {**SHOT, "method.name": "maml-mi", "method.exclusive": True}),
    "maml, two seeds": (FEW_SHOT, {**SHOT, "run.seeds": 2}),
    "maml, local": (FEW_SHOT, {**SHOT, "strategy.name": "local"}),
}

QUANTITIES = (  # patterns of the keys of metrics.jsonl and result.json whose values are compared
    *(
        "round",
        "rounds",
        "selected_round",
        "stopped",
        "participants",
        "measured",
        "dropped",
        "clock",
        "losses",
    ),
    *(
        "zsl*",
        "gzsl_unseen",
        "gzsl_seen",
        "gzsl_harmonic",
        "uncalibrated_*",
        "calibration_factor",
        "clients",
        "stages",
        "forgetting",
        "personal",
    ),
    *(
        "few_shot*",
        "mi_share",
        "backdoor*",
        "attackers",
        "screening",
        "privacy",
        "epsilon",
        "defence",
    ),
    *("bytes_down", "bytes_up", "parameters", "parameters_shared", "chosen_on_validation"),
)
LEFT_OUT: tuple[str, ...] = ()  # inside of these
RENAMED: dict[str, str] = {}
PARAMS = "params/"  # before the names of parameters in a model's file
"""Old name -> new name, of tensors, of keys, and of settings as ``section.key``."""


def renamed(value: Any) -> Any:
    """Return a JSON value with new names in the place of old ones, without what is left out."""
    if isinstance(value, dict):
        return {
            RENAMED.get(key, key): renamed(one) for key, one in value.items() if key not in LEFT_OUT
        }
    return [renamed(one) for one in value] if isinstance(value, list) else value


def hashed(path: Path) -> str:
    """Return the hash of a run: the tensors of every model, and the compared quantities of metrics
    and result.
    """
    found = hashlib.sha256()
    for model in sorted(path.rglob("model.safetensors")):
        stored = load_file(model)
        if any(name.startswith(PARAMS) for name in stored):  # a model's file has more than these
            stored = {n.removeprefix(PARAMS): v for n, v in stored.items() if n.startswith(PARAMS)}
        tensors = {RENAMED.get(name, name): value for name, value in stored.items()}
        for name, value in sorted(tensors.items()):
            found.update(f"{name} {value.dtype} {value.shape}".encode() + value.tobytes())
    numbers = [
        line
        for place in sorted(path.rglob("metrics.jsonl"))
        for line in place.read_text("utf-8").splitlines()
    ]
    for line in [*numbers, (path / "result.json").read_text("utf-8")]:
        kept = renamed(json.loads(line))
        kept = {
            key: kept[key]
            for key in kept
            if any(fnmatchcase(key, pattern) for pattern in QUANTITIES)
        }
        found.update(json.dumps(kept, sort_keys=True).encode())
    return found.hexdigest()[:16]


def one(name: str) -> str:
    """Run a case and return its hash, or how it failed."""
    preset, settings = CASES[name]
    if preset == "digit-pairs-eszsl":
        preset, settings = (
            "digit-pairs",
            {**LAST, "method.name": "eszsl", "strategy.name": "centralised"},
        )
        settings = {key: value for key, value in settings.items() if key != "method.kl"} | {
            "strategy.rounds": 1
        }
    elif preset == "digit-pairs" and "method.name" in settings:
        settings = {key: value for key, value in settings.items() if key != "method.kl"}
    try:
        experiment = Experiment.load(preset, settings)
    except FedUnseenError:  # the other version's names
        experiment = Experiment.load(
            preset, {RENAMED.get(key, key): value for key, value in settings.items()}
        )
    with tempfile.TemporaryDirectory() as folder, warnings.catch_warnings():
        warnings.simplefilter("ignore")
        try:
            return hashed(run(experiment, Path(folder) / "run").path)
        except Exception as error:  # the case is reported as failed, and the others go on
            return f"{type(error).__name__}: {error}"


def main() -> None:
    """Hash the cases and compare."""
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--out", type=Path, help="write the hashes to this file")
    parser.add_argument("--against", type=Path, help="compare with the hashes in this file")
    parser.add_argument(
        "--only", default="", help="names of cases or beginnings of them, divided by commas"
    )
    parser.add_argument(
        "--smallest", action="store_true", help="the first case alone: to see that it runs"
    )
    chosen = parser.parse_args()
    starts = tuple(part.strip() for part in chosen.only.split(",") if part.strip())
    names = [name for name in CASES if not starts or name.startswith(starts)]
    names = names[:1] if chosen.smallest else names
    before = json.loads(chosen.against.read_text("utf-8")) if chosen.against else {}
    found, wrong = {}, 0
    for name in names:
        found[name] = one(name)
        same = name not in before or before[name] == found[name]
        wrong += not same
        verdict = (
            "" if name not in before else "  same" if same else f"  DIFFERENT, was {before[name]}"
        )
        print(f"{name:40} {found[name]}{verdict}", flush=True)
    if chosen.out:
        chosen.out.write_text(json.dumps(found, indent=1), "utf-8")
    if wrong:
        sys.exit(f"{wrong} of {len(names)} cases differ")


if __name__ == "__main__":
    main()
