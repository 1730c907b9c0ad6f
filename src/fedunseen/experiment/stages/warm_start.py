"""Begin a trained method with the closed form: parties send statistics before they train."""

from __future__ import annotations

from dataclasses import replace

from fedunseen.experiment.setup import Setup
from fedunseen.experiment.stages.train import QUIET, train
from fedunseen.federation.evaluator import Choice
from fedunseen.federation.run_directory import load_params
from fedunseen.methods import WarmStartable


def warm_start(setup: Setup) -> Setup:
    """Set the first parameters to those of the closed form, where the method asks for it.

    The result then says what the closed form reaches on the test samples, and the bytes that a client sends for it.
    """
    experiment, federation = setup.experiment, setup.federation
    if getattr(experiment.method, "start", "random") != "closed-form":
        return setup
    strategy = {"strategy.name": "fedavg", "strategy.fraction": 1.0, "strategy.stop_after": None}
    changes = {"method.name": "gaussian", "data.quantization": "none", **strategy, **QUIET}
    closed = experiment.with_overrides(changes)
    label = "beginning with the closed form"
    how = {"experiment": closed, "rounds": 1, "choice": Choice(1, 0.0), "label": label, "callbacks": ()}
    result = setup.sub_run("start", (train,), **how)
    model = load_params(setup.directory.path / "start" / "model.safetensors", federation.device)
    bias = model["bias"] - model["weight"] @ model["centre"]
    assert isinstance(federation.method, WarmStartable)  # it has the setting
    federation.first = federation.method.warm_start(federation.first, model["weight"], bias)
    if setup.nested:
        return setup
    start = {name: result[name] for name in (*setup.evaluator.accuracies, "bytes_up")}
    return replace(setup, result={**setup.result, "start": start})
