"""Adapt the trained model to the unlabelled samples of the clients."""

from __future__ import annotations

import shutil
from dataclasses import replace

import numpy as np

from fedunseen.core.files import replacing, write_tensors
from fedunseen.experiment.setup import Setup
from fedunseen.experiment.stages.meet import connect
from fedunseen.experiment.stages.train import QUIET, train
from fedunseen.experiment.unlabelled import adapted_numbers
from fedunseen.federation.evaluator import Choice
from fedunseen.federation.partition import NEVER
from fedunseen.federation.run_directory import RunDirectory, load_params
from fedunseen.methods.closed_form.unlabelled import Adaptation, SoftSums


def adapt_unlabelled(setup: Setup) -> Setup:
    """Replace the model by the adapted one, where the experiment asks for it (``data.unlabelled``).

    The iterations are the rounds of a run inside this one, ``adapting``, over the same clients. The labeled model
    stays in ``labelled.safetensors``, so that a killed run continues.
    """
    if not getattr(setup.experiment.data, "unlabelled", False):
        return setup
    labelled = setup.directory.path / "labelled.safetensors"
    if not labelled.exists():
        with replacing(labelled) as temporary:
            shutil.copy2(setup.directory.model_path, temporary)
    before = load_params(labelled, setup.federation.device)
    offset, rounds = float(setup.result["calibration_factor"]), Adaptation.iterations

    def start(inner: Setup) -> Setup:
        strategy = inner.federation.strategy
        assert isinstance(strategy, SoftSums)
        inner.federation.first, strategy.offset = before, offset
        return inner

    experiment = setup.experiment.with_overrides({**QUIET, "data.unlabelled": "summed"})
    clients = len(setup.partition.clients)
    done = setup.sub_run(
        "adapting", (start, train), experiment=experiment, rounds=rounds,
        partition=replace(setup.partition, first=np.zeros(clients, np.int64), last=np.full(clients, NEVER)),
        choice=Choice(rounds, offset), label="adapting to unlabelled samples", callbacks=(),
    )  # fmt: skip
    inner = RunDirectory(setup.directory.path / "adapting")
    adapted = SoftSums.adapted(load_params(inner.model_path, setup.federation.device), inner.metrics()[-1])
    write_tensors(setup.directory.model_path, adapted.params)
    pool = None if setup.partition.remote else setup.benchmark.features[setup.benchmark.unlabelled]
    federation, space = setup.federation, setup.benchmark.space
    numbers = adapted_numbers(federation, space, before, adapted, offset, setup.evaluator.accuracies, pool)
    numbers["adapted"] |= {"rounds": rounds, **{way: done[way] for way in ("bytes_down", "bytes_up")}}
    connect(setup)  # parties get the model as one of the whole run
    return replace(setup, result={**setup.result, **numbers})
