"""Measure DistZSL's theory on a finished run: its model, and the clients' models of one further round from it."""

from __future__ import annotations

import sys
import warnings
from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np
import torch
from numpy.typing import NDArray

from fedunseen.core.errors import ExperimentError
from fedunseen.core.files import write_json
from fedunseen.core.parameters import to_device
from fedunseen.core.random import stream
from fedunseen.engines import RoundResult
from fedunseen.experiment import load_run
from fedunseen.experiment.setup import Setup
from fedunseen.federation import Federation
from fedunseen.methods.base import AttributePredictor
from fedunseen.methods.fedzsl import FedZSL
from fedunseen.papers.distzsl import theory
from fedunseen.tasks.zero_shot_summary import model_outputs, semantics_correlation, some

if TYPE_CHECKING:
    from fedunseen.experiment import Run

_TESTED, _COMMON, _OWN = 2000, 500, 200  # test samples, of those for all clients, a client's own

Floats = NDArray[np.float64]
Ids = NDArray[np.int64]


def measure(run: Run) -> dict[str, Any]:
    """Return what DistZSL's lemmas and theorems promise, and what was measured, of a run with one seed."""
    run.check_one_model("to measure")
    experiment = run.experiment
    federation = Setup.of(experiment, run.path, lambda *_: None).assembled().federation
    method = federation.method
    if federation.partition.remote or not (isinstance(method, AttributePredictor) and method.trained):
        raise ExperimentError(
            f"{run.path}: method.name = {experiment.method.name!r} and engine.name = {experiment.engine.name!r} leave "
            "nothing to measure: take a run of a trained method that predicts attributes, with its clients here"
        )
    state = replace(federation.start(), params=to_device(run.params, federation.device))
    _, result = federation.round(state)
    space, labels = federation.benchmark.space, federation.benchmark.labels
    part, rows = np.union1d(space.seen, space.unseen), _tested(federation)
    logits, predicted = (model_outputs(federation, state.params, rows, what) for what in ("scores", "attributes"))
    prototypes, as_given = theory.common_length(federation.semantics.double().cpu().numpy())
    visual = _decoder(federation, state.params, rows, predicted, prototypes) if "h.weight" in state.params else None
    content: dict[str, Any] = {
        "tested": len(rows),
        "alignment": _alignment(federation, result, part, rows),
        "decoder": visual.report if visual else None,
        "prototypes": {
            "as_given": as_given,
            "length": float(np.sqrt((prototypes**2).sum(axis=1).mean())),
            "predicted_length": float(np.linalg.norm(predicted, axis=1).mean()),
        },
    }
    for name, candidates in (("unseen", space.unseen), ("all", part)):
        mine = np.isin(labels[rows], candidates)
        if len(candidates) > 1 and mine.any():
            answers = candidates[logits[np.ix_(mine, candidates)].argmax(axis=1)]
            by_product = candidates[(predicted[mine] @ prototypes[candidates].T).argmax(axis=1)]
            content[name] = {
                "same_answers": float((answers == by_product).mean()),
                "classes": theory.class_margins(
                    predicted[mine], labels[rows][mine], prototypes, candidates, space.names, answers,
                    visual.of(mine) if visual else None,
                ),
            }  # fmt: skip
    return content


def _cost(federation: Federation) -> int:
    """Return the divisor of the numbers of samples: with a trained backbone each of them takes time."""
    return 2 if federation.method.backbone.trained else 1


def _tested(federation: Federation) -> Ids:
    """Return test samples in random order, at least half of them of unseen classes where there are as many."""
    benchmark, rng = federation.benchmark, stream(federation.seed, "theory")
    unseen, seen = rng.permutation(benchmark.test_unseen), rng.permutation(benchmark.test_seen)
    most = _TESTED // _cost(federation)
    unseen = unseen[: max(most // 2, most - len(seen))]
    return np.asarray(rng.permutation(np.concatenate([unseen, seen[: most - len(unseen)]])))


def _decoder(federation: Federation, params: Any, rows: Ids, predicted: Floats, prototypes: Floats) -> theory.Decoder:
    method = federation.method
    assert isinstance(method, FedZSL)

    def decode(attributes: Floats) -> Floats:
        with torch.no_grad():
            inputs = torch.from_numpy(attributes).to(federation.device, torch.float32)
            return np.asarray(method.reconstruct(params, inputs).double().cpu().numpy())

    features = model_outputs(federation, params, rows, "features")
    return theory.decoder(decode, predicted, features, prototypes, federation.benchmark.labels[rows])


def _alignment(federation: Federation, result: RoundResult, part: Ids, rows: Ids) -> dict[str, Any] | None:
    """Measure Lemma 1 and Theorem 2 among the classes that take part; None without Gamma or without a reply."""
    method, benchmark = federation.method, federation.benchmark
    if not result.replies:
        return None
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")  # training has given this warning already
        given = method.context().get("gamma")
    # Without one, the correlation stands in: the graphical lasso's answer is within its penalty of it.
    gamma = semantics_correlation(benchmark.space.semantics) if given is None else given.double().cpu().numpy()
    gamma = gamma[np.ix_(part, part)]
    if not np.isfinite(gamma).all():
        return None
    # tau of Eq. 10 for a method that has a Gamma; SVIP's temperature is another one.
    temperature = 10.0 if given is None else float(getattr(method.settings, "temperature", 10.0))
    chosen = some(range(len(result.replies)))
    place = np.full(len(benchmark.space.names), -1)
    place[part] = np.arange(len(part))
    common = rows[: max(20, min(_COMMON // _cost(federation), 2**23 // (len(chosen) * len(part))))]
    clients = []
    for i in chosen:
        reply, model = result.replies[i], result.models(i)
        held = federation.partition.clients[reply.client]
        own = stream(federation.seed, "theory of a client", reply.client).permutation(held)[: _OWN // _cost(federation)]
        own_logits, logits = (model_outputs(federation, model, of, "scores")[:, part] for of in (own, common))
        clients.append(theory.Client(reply.client, reply.samples, own_logits, place[benchmark.labels[own]], logits))
    merged = model_outputs(federation, result.params, common, "scores")[:, part]
    content = theory.alignment(clients, merged, place[benchmark.labels[common]], gamma, temperature)
    shape = {"common": len(common), "classes": len(part), "of": len(result.replies)}
    return {"temperature": temperature, "estimated": given is not None, **shape, **content}


def main(run: str) -> None:
    """Write ``theory.json`` into a run directory."""
    target = Path(run) / "theory.json"
    write_json(target, measure(load_run(run)))
    print(f"wrote {target}")


if __name__ == "__main__":
    main(*sys.argv[1:])
