"""The stage that says how sure a run's answers are."""

from collections.abc import Sequence
from dataclasses import replace
from typing import Literal

import numpy as np
import torch

from fedunseen.confidence import Confidence, HeldOut, fit
from fedunseen.confidence.asking import CountedAnswers
from fedunseen.confidence.counted import fit_counts
from fedunseen.confidence.drawn import can_leave_out, drawn_folds
from fedunseen.confidence.measured import measured, prior_points
from fedunseen.confidence.own_folds import question, scales_of
from fedunseen.confidence.priors import asked_unseen
from fedunseen.core.files import write_tensors
from fedunseen.core.parameters import Params
from fedunseen.experiment.assemble import assemble
from fedunseen.experiment.held_out import folds_of, held_out_of
from fedunseen.experiment.hooks import hides_samples, reads_samples
from fedunseen.experiment.setup import Setup
from fedunseen.experiment.stages import QUIET, connect
from fedunseen.federation.federation import Federation
from fedunseen.federation.partition import NEVER
from fedunseen.federation.run_directory import load_params
from fedunseen.methods.closed_form.base import ClosedForm

Way = Literal["samples", "histograms", "draws", "none"]
_COUNTS = "counts.safetensors"


def fit_confidence(setup: Setup) -> Setup:
    """Find out how sure the model's answers are.

    Closed forms are solved without some of the seen classes, which take turns, and asked about
    held-out training samples (``evaluation.confidence``). A trained method is asked as it was
    trained on the other classes, where validation classes chose its rounds. There is no
    confidence where neither can be.
    """
    way = _way(setup)
    if way == "none":
        return setup
    federation = setup.federation
    params = load_params(setup.directory.model_path, federation.device)
    setup = replace(setup, model=params)
    offset = float(setup.result["calibration_factor"])
    lowered = offset + federation.method.own_offset(params)  # the model's own included
    folds = () if way == "histograms" else _folds(setup, params, way)
    share = asked_unseen(setup.experiment.evaluation.prior, setup.benchmark.space)
    sure = fit(folds, lowered, share) if folds else None
    if way == "histograms":
        sure = _asked(setup, params)
    if sure is None:
        return setup
    # a model's scores have its own offset already
    tests = held_out_of(federation, params)
    numbers = {**measured(tests, sure, offset), "from": way}
    if way == "samples":
        numbers["priors"] = prior_points(tests, setup.chosen.get("offsets", {}))
    return replace(setup, confidence=sure, result={**setup.result, "confidence": numbers})


def _way(setup: Setup) -> Way:
    """Return what confidence is fitted to."""
    experiment = setup.experiment
    federation = setup.federation
    chosen = experiment.evaluation.confidence
    calibrates = (
        federation.strategy.one_model and setup.versions is None and federation.method.zero_shot
    )
    if chosen == "none" or not calibrates:
        return "none"
    here = reads_samples(experiment) and not setup.partition.remote
    hidden = hides_samples(experiment)
    if setup.sums is None:
        return "samples" if here and not hidden and setup.apart is not None else "none"
    if chosen == "draws" or hidden:
        return "draws"
    if here and chosen == "auto":
        return "samples"
    return "histograms" if federation.engine.asks_again else "draws"


def _folds(setup: Setup, model: Params, way: Way) -> Sequence[HeldOut]:
    """Return what held-out or drawn samples say; none where classes or samples are too few."""
    if way == "draws":
        method = setup.federation.method
        assert isinstance(method, ClosedForm)
        assert setup.sums is not None
        return drawn_folds(method, model, setup.sums, setup.federation.seed)
    if setup.sums is not None:
        return folds_of(setup.federation, setup.sums, model)
    apart = setup.apart
    assert apart is not None
    experiment = setup.experiment
    part = setup.partition.restricted_to(apart.train)
    chosen = assemble(experiment, experiment.task.client_data(apart), part, selection=True)
    path = setup.directory.path / setup.chosen_in / "model.safetensors"
    return (held_out_of(chosen, load_params(path, chosen.device)),)


def _asked(setup: Setup, params: Params) -> Confidence | None:
    """Return the confidence that follows from what the clients count, in a run of its own inside
    this one.
    """
    sums = setup.sums
    assert sums is not None
    if not can_leave_out_of(setup.federation, sums):
        return None
    offset = float(setup.result["calibration_factor"])
    lowered = offset + setup.federation.method.own_offset(params)
    asked = asked_about(setup.federation, params, sums, lowered)

    def ask(inner: Setup) -> Setup:
        strategy = inner.federation.strategy
        assert isinstance(strategy, CountedAnswers)
        strategy.question = asked
        connect(inner)
        state, result = inner.federation.round(inner.federation.start())
        write_tensors(inner.directory.path / _COUNTS, state.params)
        sizes = {"rounds": 1, "bytes_down": result.bytes_down, "bytes_up": result.bytes_up}
        return replace(inner, result=sizes)

    clients = len(setup.partition.clients)
    changes = {**QUIET, "evaluation.confidence": "asking", "strategy.fraction": 1.0}
    experiment = setup.experiment.with_overrides(changes)
    always = np.zeros(clients, np.int64), np.full(clients, NEVER)
    partition = replace(setup.partition, first=always[0], last=always[1])
    setup.sub_run(
        "confidence", (ask,), experiment=experiment, rounds=1, partition=partition, callbacks=()
    )
    connect(setup)  # parties get the model as one of the whole run
    counts = load_params(setup.directory.path / "confidence" / _COUNTS, torch.device("cpu"))
    share = asked_unseen(setup.experiment.evaluation.prior, setup.benchmark.space)
    return fit_counts(counts, asked["scales"].numpy(), share, setup.federation.method.width)


def can_leave_out_of(federation: Federation, sums: Params) -> bool:
    """Return whether parties can be asked about models without some classes."""
    method = federation.method
    return isinstance(method, ClosedForm) and can_leave_out(method, sums)


def asked_about(federation: Federation, model: Params, sums: Params, offset: float) -> Params:
    """Return what parties are sent to count their answers: see
    :func:`~fedunseen.confidence.own_folds.question`.
    """
    method = federation.method
    assert isinstance(method, ClosedForm)
    return question(sums, scales_of(method, model, sums), offset)
