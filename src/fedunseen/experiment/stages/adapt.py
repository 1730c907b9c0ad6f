"""Adapt the trained model to the unlabelled samples of the clients."""

from __future__ import annotations

import shutil
from dataclasses import replace

import torch

from fedunseen.core.files import replacing, write_tensors
from fedunseen.experiment.setup import Setup
from fedunseen.experiment.unlabelled import adapted_numbers
from fedunseen.federation.run_directory import load_params
from fedunseen.methods.closed_form.unlabelled import Adaptation, adapt, scorer

__all__ = ["adapt_unlabelled"]


def adapt_unlabelled(setup: Setup) -> Setup:
    """Replace the model by the adapted one, where the experiment asks for it (``data.unlabelled``).

    The samples are dealt to the clients in turn. The labelled model stays in ``labelled.safetensors``, from which a
    killed run is adapted again.

    Raises:
        DataError: there are too few samples.
    """
    if not getattr(setup.experiment.data, "unlabelled", False):
        return setup
    federation, rows = setup.federation, setup.benchmark.unlabelled
    labelled = setup.directory.path / "labelled.safetensors"
    if not labelled.exists():
        with replacing(labelled) as temporary:
            shutil.copy2(setup.directory.model_path, temporary)
    before = load_params(labelled, federation.device)
    factor, clients = float(setup.result["calibration_factor"]), len(federation.partition.clients)
    pools = [federation.inputs[torch.from_numpy(rows[k::clients])] for k in range(clients)]
    found = adapt(federation.method, before, pools, factor)
    write_tensors(setup.directory.model_path, found.params)
    samples = setup.benchmark.features[rows]
    result = adapted_numbers(
        federation, setup.benchmark.space, before, found, factor, setup.evaluator.accuracies, samples
    )
    sent = scorer(before, factor)
    result["adapted"] |= {
        "rounds": Adaptation.iterations,
        "bytes_down": sent.bytes,
        "bytes_up": 8 * len(sent.classes) * (sent.weight.shape[1] + 1),
    }
    return replace(setup, result={**setup.result, **result})
