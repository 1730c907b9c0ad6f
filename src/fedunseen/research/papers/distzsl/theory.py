r"""DistZSL's theory (section III-F; proofs in its appendix B), on arrays and on a run, its model
and a further round.

Lemma 1's proof ends in an expectation (Eq. 29): the mean distance obeys the bound, single samples
may exceed it. Eq. 38 fails: u = (0.9, 0.1) and q = (0.1, 0.9) give 0 instead of log 9;
:func:`lipschitz_of_divergence` has a bound. A4 needs equal lengths alone.
"""

import sys
import warnings
from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray

from fedunseen.core.errors import ExperimentError
from fedunseen.core.files import write_json
from fedunseen.core.parameters import to_device
from fedunseen.core.random import stream
from fedunseen.experiment.result.run import Run, load_run
from fedunseen.experiment.setup import Setup
from fedunseen.federation.federation import Federation
from fedunseen.federation.server_step import RoundResult
from fedunseen.methods.base import AttributePredictor
from fedunseen.methods.fedzsl import FedZSL
from fedunseen.tasks.zero_shot_summary import model_outputs, semantics_correlation, some

Floats = NDArray[np.float64]
Ids = NDArray[np.int64]

_CLIENTS = 30  # all pairs of the first so many are compared
_PAIRED = 500  # points whose pairs are all compared
# test samples, of those for all clients, a client's own
_TESTED = 2000
_COMMON = 500
_OWN = 200
_TOLERANCE = 1e-9  # of inequalities that rounding may turn round, relative


def log_distribution(logits: Floats, temperature: float) -> Floats:
    r"""Return :math:`\log p(\cdot|x;\tau) = \log\mathrm{softmax}(z/\tau)` (Eq. 10), for logits
    (..., C).
    """
    scaled = np.asarray(logits, dtype=np.float64) / temperature
    scaled = scaled - scaled.max(axis=-1, keepdims=True)
    return np.asarray(scaled - np.log(np.exp(scaled).sum(axis=-1, keepdims=True)))


def divergence(log_p: Floats, log_q: Floats) -> Floats:
    r"""Return :math:`KL(p\,\|\,q)` along the last axis, in nats, from log-probabilities (...,
    C).
    """
    return np.asarray((np.exp(log_p) * (log_p - log_q)).sum(axis=-1))


def distance(p: Floats, q: Floats) -> Floats:
    r"""Return :math:`\|p-q\|_1` along the last axis, in [0, 2] for distributions (..., C)."""
    return np.asarray(np.abs(p - q).sum(axis=-1))


def alignment_error(log_target: Floats, log_p: Floats, temperature: float) -> Floats:
    r"""Return (n,) :math:`\tau^2\,KL(p_\Gamma(\cdot|y;\tau)\,\|\,p_k(\cdot|x;\tau))` of each sample
    (Eq. 12).
    """
    return temperature**2 * divergence(log_target, log_p)


def client_bound(error: float, temperature: float) -> float:
    r"""Return :math:`\sqrt{2\varepsilon_k/\tau^2}`, what Eq. 13 allows :math:`\|p_k-p_\Gamma\|_1`
    to be.
    """
    return float(np.sqrt(2.0 * error) / temperature)


def mixture(log_p: Floats, weights: Floats) -> Floats:
    r"""Return :math:`\log\bar p=\log\sum_k\alpha_k p_k` (..., C)."""
    return np.asarray(
        np.logaddexp.reduce(log_p + np.log(weights).reshape(-1, *[1] * (log_p.ndim - 1)), axis=0)
    )


def lipschitz_of_divergence(log_r: Floats, log_s: Floats, log_q: Floats) -> tuple[float, float]:
    r"""Return a constant C of Eq. 39, :math:`|KL(r\|q)-KL(s\|q)|\le C\,\|r-s\|_1`, as printed and
    as it should be.
    """
    smallest = min(float(log_r.min()), float(log_s.min()))
    printed = abs(smallest - float(log_q.min())) + 1.0
    proven = max(float(np.abs(log_r - log_q).max()), float(np.abs(log_s - log_q).max())) + 1.0
    return printed, proven


@dataclass(frozen=True, eq=False)
class Client:
    """What is known of one client's own model."""

    number: int
    samples: int
    own_logits: Floats
    own_labels: Ids
    logits: Floats


def alignment(
    clients: Sequence[Client], global_logits: Floats, labels: Ids, gamma: Floats, temperature: float
) -> dict[str, Any]:
    """Measure Lemma 1 and Theorem 2."""
    target = log_distribution(gamma, temperature)
    common = target[labels]
    logs = [log_distribution(item.logits, temperature) for item in clients]
    rows: list[dict[str, Any]] = []
    for item, log_p in zip(clients, logs, strict=True):
        own_error = alignment_error(
            target[item.own_labels], log_distribution(item.own_logits, temperature), temperature
        )
        error = float(alignment_error(common, log_p, temperature).mean())
        who = {"client": item.number, "samples": item.samples}
        errors = {"epsilon_own": float(own_error.mean()), "epsilon_common": error}
        rows.append({**who, **errors, **_compared(log_p, common, client_bound(error, temperature))})
    pairs = []
    for j in range(min(len(logs), _CLIENTS)):
        for k in range(j):  # Lemma 1 (Eq. 14), from errors on common and on own samples
            bound, bound_own = (
                client_bound(rows[j][error], temperature)
                + client_bound(rows[k][error], temperature)
                for error in ("epsilon_common", "epsilon_own")
            )
            pair = {"clients": [clients[k].number, clients[j].number], "bound_own": bound_own}
            pairs.append({**pair, **_compared(logs[j], logs[k], bound)})
    counts = np.array([item.samples for item in clients], dtype=np.float64)
    merged = log_distribution(global_logits, temperature)
    return {
        "clients": rows,
        "pairs": pairs,
        "server": _server(np.stack(logs), counts / counts.sum(), merged, common),
    }


def _compared(log_p: Floats, log_q: Floats, bound: float) -> dict[str, float]:
    """Return a bound, the mean distance, and the share of samples over the bound."""
    apart = distance(np.exp(log_p), np.exp(log_q))
    return {"bound": bound, "observed": float(apart.mean()), "over": float((apart > bound).mean())}


def _server(logs: Floats, weights: Floats, merged: Floats, target: Floats) -> dict[str, float]:
    """Measure both sides of Theorem 2 (Eqs. 15 and 16), sample by sample, from
    log-probabilities.
    """
    mixed = mixture(logs, weights)
    right = np.tensordot(weights, divergence(logs, target[None]), axes=1)
    left = divergence(mixed, target)
    single = divergence(merged, target)
    xi = distance(np.exp(merged), np.exp(mixed))
    printed, proven = lipschitz_of_divergence(merged, mixed, target)
    slack = _TOLERANCE * (1.0 + right)
    return {
        "mixture": float(left.mean()),
        "clients": float(right.mean()),
        "merged": float(single.mean()),
        "xi": float(xi.mean()),
        "constant_printed": printed,
        "constant": proven,
        "bound": float((right + proven * xi).mean()),
        "holds_15": float((left <= right + slack).mean()),
        "holds_16": float((single <= right + proven * xi + slack).mean()),
        "below_clients": float((single <= right + slack).mean()),
    }


Visual = tuple[dict[str, float], Floats]
"""The visual half of the theory: its constants, uniform over all samples measured, and (n,) epsilon
of some samples.
"""


def decoder(
    decode: Callable[[Floats], Floats],
    predicted: Floats,
    visual: Floats,
    prototypes: Floats,
    labels: Ids,
) -> Visual:
    """Measure delta, c_h and L_h, and check Lemmas 3 and 4 with them.

    c_h and L_h are the extremes of ||h(a) - h(a')|| / ||a - a'|| over all pairs of up to 500
    predicted attributes and of the prototypes, and over every sample's predicted attributes with
    its own prototype.
    """
    rebuilt = decode(predicted)
    anchors = decode(prototypes)
    epsilon = np.linalg.norm(anchors[labels] - visual, axis=1)
    delta = float(np.linalg.norm(rebuilt - visual, axis=1).max())
    off = np.linalg.norm(predicted - prototypes[labels], axis=1)
    head = slice(0, _PAIRED)
    points = np.concatenate([predicted[head], prototypes[:_PAIRED]])
    images = np.concatenate([rebuilt[head], anchors[:_PAIRED]])
    inner = np.concatenate([_pairs(points), off])
    outer = np.concatenate([_pairs(images), np.linalg.norm(rebuilt - anchors[labels], axis=1)])
    apart = inner > 1e-6 * max(
        float(inner.max()), 1e-300
    )  # the ratio of points that coincide is rounding
    ratios = outer[apart] / inner[apart]
    smallest, largest = (float(ratios.min()), float(ratios.max())) if len(ratios) else (0.0, 0.0)
    seen = _pairs(visual[head])
    kept = _pairs(predicted[head])
    promised = (seen - 2 * delta) / largest if largest else np.zeros_like(seen)
    allowed = (epsilon + delta) / smallest if smallest else np.full_like(epsilon, np.inf)
    report = {
        "delta": delta,
        "c_h": smallest,
        "L_h": largest,
        "lemma_3_holds": float((kept >= promised - _slack(kept)).mean()) if len(seen) else 1.0,
        "lemma_3_says_something": float((promised > 0).mean()) if len(seen) else 0.0,
        "lemma_4_holds": float((off <= allowed + _slack(inner)).mean()),
    }
    return report, epsilon


def _slack(values: Floats) -> float:
    """Return what rounding of the samples themselves, float32 from the model, may turn round."""
    return 1e-6 * float(np.abs(values).max(initial=1e-300))


def common_length(prototypes: Floats) -> tuple[Floats, bool]:
    """Return prototypes (C, a) of one common length, and whether they were so already.

    Theorem 5's proof uses A4's unit length only in Eq. 57, where any common length does as well.
    Prototypes of unequal lengths are brought to their root mean square length; a zero prototype
    stays.
    """
    lengths = np.linalg.norm(prototypes, axis=1, keepdims=True)
    wanted = float(np.sqrt(np.mean(lengths**2)))
    if np.abs(lengths - wanted).max() <= 1e-4 * wanted:
        return prototypes, True
    return np.asarray(
        prototypes * np.where(lengths > 0, wanted / np.maximum(lengths, 1e-300), 1.0)
    ), False


def _pairs(points: Floats) -> Floats:
    """Return (n (n - 1) / 2,) the distances of all pairs of points (n, d), row after row."""
    return np.asarray(
        torch.pdist(torch.from_numpy(np.ascontiguousarray(points, dtype=np.float64))).numpy()
    )


def margins(distances: Floats) -> tuple[Floats, Floats, Floats]:
    r"""Return (m,) the distances Delta_y to the nearest and d_max to the farthest other prototype,
    and the room.

    The room :math:`\tfrac12\Delta_y^2/d_{\max}` is what Eq. 61 lets attributes be away from each
    prototype.
    """
    to_others = distances + np.where(np.eye(len(distances), dtype=bool), np.inf, 0.0)
    nearest = to_others.min(axis=1)
    farthest = distances.max(axis=1)
    return nearest, farthest, 0.5 * nearest**2 / np.maximum(farthest, 1e-300)


def class_margins(
    predicted: Floats, labels: Ids, prototypes: Floats, candidates: Ids, names: Sequence[str], answers: Ids,
    visual: Visual | None = None,
) -> list[dict[str, Any]]:  # fmt: skip
    """Measure Theorem 5 for every class that has samples, worst accuracy first; without a decoder,
    no Eq. 20.

    ``prototypes`` (C, a) are of one length; ``candidates`` (m,) are the ids of the classes that may
    be answered.
    """
    place = np.full(len(prototypes), -1)
    place[candidates] = np.arange(len(candidates))
    held = torch.from_numpy(np.ascontiguousarray(prototypes[candidates], dtype=np.float64))
    distances = torch.cdist(held, held, compute_mode="donot_use_mm_for_euclid_dist").numpy()
    nearest, farthest, room = margins(distances)
    closest = (distances + np.where(np.eye(len(candidates), dtype=bool), np.inf, 0.0)).argmin(
        axis=1
    )
    position = place[labels]
    off = np.linalg.norm(predicted - prototypes[labels], axis=1)
    near = off < room[position]
    records = []
    for y in np.unique(labels).tolist():
        mine = labels == y
        at = int(place[y])
        record: dict[str, Any] = {
            "class": y,
            "name": names[y],
            "samples": int(mine.sum()),
            "accuracy": float(100 * (answers[mine] == y).mean()),
            "nearest": names[candidates[closest[at]]],
            "delta_y": float(nearest[at]),
            "d_max": float(farthest[at]),
            "room": float(room[at]),
            "off": float(off[mine].mean()),
            "eq_61": float(near[mine].mean()),
        }
        if visual is not None:
            constants, epsilon = visual
            off_visual = constants["delta"] + epsilon[mine]
            right = constants["c_h"] * record["room"]
            left = constants["delta"] + float(epsilon[mine].mean())
            record |= {"left": left, "right": right, "ratio": left / right if right > 0 else None}
            record["eq_20"] = float((off_visual < right).mean())
        records.append(record)
    return sorted(records, key=lambda item: (item["accuracy"], -item["off"], item["class"]))


def measure(run: Run) -> dict[str, Any]:
    """Return what DistZSL's lemmas and theorems promise, and what was measured, of a run with one
    seed.
    """
    run.check_one_model("to measure")
    experiment = run.experiment
    federation = Setup.of(experiment, run.path, lambda *_: None).assembled().federation
    method = federation.method
    if federation.partition.remote or not (
        isinstance(method, AttributePredictor) and method.trained
    ):
        raise ExperimentError(
            f"{run.path}: method.name = {experiment.method.name!r} and engine.name = "
            f"{experiment.engine.name!r} leave nothing to measure: take a run of a trained method "
            "that predicts attributes, with its clients here"
        )
    state = replace(federation.start(), params=to_device(run.params, federation.device))
    _, result = federation.round(state)
    space = federation.benchmark.space
    labels = federation.benchmark.labels
    part = np.union1d(space.seen, space.unseen)
    rows = _tested(federation)
    logits, predicted = (
        model_outputs(federation, state.params, rows, output) for output in ("scores", "attributes")
    )
    prototypes, as_given = common_length(federation.semantics.double().cpu().numpy())
    visual = (
        _decoder(federation, state.params, rows, predicted, prototypes)
        if "h.weight" in state.params
        else None
    )
    content: dict[str, Any] = {
        "tested": len(rows),
        "alignment": _alignment(federation, result, part, rows),
        "decoder": visual[0] if visual else None,
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
                "classes": class_margins(
                    predicted[mine], labels[rows][mine], prototypes, candidates, space.names, answers,
                    (visual[0], visual[1][mine]) if visual else None,
                ),
            }  # fmt: skip
    return content


def _cost(federation: Federation) -> int:
    """Return the divisor of the numbers of samples: with a trained backbone each of them takes
    time.
    """
    return 2 if federation.method.backbone.trained else 1


def _tested(federation: Federation) -> Ids:
    """Return test samples in random order, at least half of them of unseen classes where there are
    as many.
    """
    benchmark = federation.benchmark
    rng = stream(federation.seed, "theory")
    unseen = rng.permutation(benchmark.test_unseen)
    seen = rng.permutation(benchmark.test_seen)
    most = _TESTED // _cost(federation)
    unseen = unseen[: max(most // 2, most - len(seen))]
    return np.asarray(rng.permutation(np.concatenate([unseen, seen[: most - len(unseen)]])))


def _decoder(
    federation: Federation, params: Any, rows: Ids, predicted: Floats, prototypes: Floats
) -> Visual:
    method = federation.method
    assert isinstance(method, FedZSL)

    def decode(attributes: Floats) -> Floats:
        with torch.no_grad():
            inputs = torch.from_numpy(attributes).to(federation.device, torch.float32)
            return np.asarray(method.reconstruct(params, inputs).double().cpu().numpy())

    features = model_outputs(federation, params, rows, "features")
    return decoder(decode, predicted, features, prototypes, federation.benchmark.labels[rows])


def _alignment(
    federation: Federation, result: RoundResult, part: Ids, rows: Ids
) -> dict[str, Any] | None:
    """Measure Lemma 1 and Theorem 2 among the classes that take part; None without Gamma or without
    a reply.
    """
    method = federation.method
    benchmark = federation.benchmark
    if not result.replies:
        return None
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")  # training has given this warning already
        method_gamma = method.context().get("gamma")
    # Without one, the correlation stands in: the graphical lasso's answer is within its penalty of
    # it.
    gamma = (
        semantics_correlation(benchmark.space.semantics)
        if method_gamma is None
        else method_gamma.double().cpu().numpy()
    )
    gamma = gamma[np.ix_(part, part)]
    if not np.isfinite(gamma).all():
        return None
    # tau of Eq. 10 for a method that has a Gamma; SVIP's temperature is another one.
    temperature = (
        10.0 if method_gamma is None else float(getattr(method.settings, "temperature", 10.0))
    )
    chosen = some(range(len(result.replies)))
    place = np.full(len(benchmark.space.names), -1)
    place[part] = np.arange(len(part))
    common = rows[: max(20, min(_COMMON // _cost(federation), 2**23 // (len(chosen) * len(part))))]
    clients = []
    for i in chosen:
        reply = result.replies[i]
        model = result.models(i)
        held = federation.partition.clients[reply.client]
        own_rows = stream(federation.seed, "theory of a client", reply.client).permutation(held)[
            : _OWN // _cost(federation)
        ]
        own_logits, logits = (
            model_outputs(federation, model, of, "scores")[:, part] for of in (own_rows, common)
        )
        clients.append(
            Client(
                reply.client, reply.samples, own_logits, place[benchmark.labels[own_rows]], logits
            )
        )
    merged = model_outputs(federation, result.params, common, "scores")[:, part]
    content = alignment(clients, merged, place[benchmark.labels[common]], gamma, temperature)
    shape = {"common": len(common), "classes": len(part), "of": len(result.replies)}
    return {"temperature": temperature, "estimated": method_gamma is not None, **shape, **content}


def main(run: str) -> None:
    """Write ``theory.json`` into a run directory."""
    target = Path(run) / "theory.json"
    write_json(target, measure(load_run(run)))
    print(f"wrote {target}")


if __name__ == "__main__":
    main(*sys.argv[1:])
