"""What makes a federation learn faster, stop in time, fit each client, and forget a party: tables
over three data sets.

    python benchmarks/accuracy/living.py PART [digit-pairs AWA1_LAMPERT CIFAR100_MBV2] --root
    FOLDER_WITH_XLSA17

``servers``: server optimisers at their defaults, early stopping on validation classes, and a model
for each client, beside FedAvg and the closed form. Nothing is chosen on test samples.

``growing``: three of ten clients come in the middle and bring classes that nobody knew. Beside it
the run that knew all from the start, trained as long, and one that goes on for as many rounds as
the newcomers have missed.

``forgetting``: a client that came in the middle is forgotten, by ``fedunseen forget`` from the last
state in which it had no share. Beside it the run before, a run anew without the client, and one of
another seed, which says how far apart two such models are anyway. Two attacks guess which samples
the client has trained on, against test samples of the same classes: by the loss (Yeom et al. 2018),
and by the loss in comparison with the model of another seed that never saw the client (one
reference of the likelihood-ratio attack of Carlini et al. 2022). An area of 0.5 is a guess.
"""

from __future__ import annotations

import argparse
import os
import sys
import tempfile
import warnings
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor
from torch.nn.functional import cross_entropy

from compression import CLOSED, TRAINED, data_of
from fedunseen import Experiment, FedUnseenError, run
from fedunseen.core.parameters import Params
from fedunseen.data import Benchmark
from fedunseen.experiment.assemble import assemble, load_data, partition_of
from fedunseen.experiment.forget import forget
from fedunseen.federation.federation import Federation
from fedunseen.federation.partition import Partition
from fedunseen.metrics import accuracies, group_accuracies

ROUNDS = {"digit-pairs": 8, "AWA1_LAMPERT": 8, "CIFAR100_MBV2": 3}
OPTIMISERS = ("fedavgm", "fedadam", "fedyogi", "fedadagrad")
PATIENCE, PERSONAL = 2, 2  # rounds without gain; epochs


def said(numbers: list[float], digits: int = 1) -> str:
    """Return mean and deviation."""
    spread = f" ± {np.std(numbers, ddof=1):.{digits}f}" if len(numbers) > 1 else ""
    return f"{np.mean(numbers):.{digits}f}{spread}"


def measured(tree: Mapping[str, Any], seeds: int) -> list[dict[str, Any]]:
    """Return the result of each seed."""
    found = []
    for seed in range(seeds):
        with tempfile.TemporaryDirectory() as folder:
            found.append(
                run(
                    Experiment.from_dict(dict(tree), {"run.seed": seed}), Path(folder) / "run"
                ).result
            )
    return found


def servers(name: str, root: Path, seeds: int, rounds: int) -> None:
    """Print the table of one data set."""
    print(f"\n| {name} | ZSL | H | rounds | a client's own classes |")
    print("|---|--:|--:|--:|--:|", flush=True)
    base = {
        **TRAINED,
        "data": data_of(name, root),
        "strategy": {**TRAINED["strategy"], "rounds": rounds},
    }

    def row(words: str, results: list[dict[str, Any]], own: str = "") -> None:
        zsl, harmonic = (said([one[key] for one in results]) for key in ("zsl", "gzsl_harmonic"))
        print(
            f"| {words} | {zsl} | {harmonic} | {said([one['rounds'] for one in results])} | {own} "
            "|",
            flush=True,
        )

    strategy = {**base["strategy"], "personal_epochs": PERSONAL}
    results = measured({**base, "strategy": strategy}, seeds)
    held = {
        kind: said([np.mean(one["personal"][kind]["held"]) for one in results])
        for kind in ("merged", "own")
    }
    row("FedAvg", results, held["merged"])
    zsl = said([np.mean(one["personal"]["own"]["zsl"]) for one in results])
    harmonic = said([np.mean(one["personal"]["own"]["gzsl_harmonic"]) for one in results])
    print(
        f"| each client's own, {PERSONAL} epochs more | {zsl} | {harmonic} | {rounds} | "
        f"{held['own']} |",
        flush=True,
    )
    for optimiser in OPTIMISERS:
        row(
            optimiser,
            measured({**base, "strategy": {**base["strategy"], "name": optimiser}}, seeds),
        )
    stopping = {**base["strategy"], "rounds": 2 * rounds, "stop_after": PATIENCE}
    evaluation = {**TRAINED["evaluation"], "selection": "validation"}
    results = measured({**base, "strategy": stopping, "evaluation": evaluation}, seeds)
    row(f"FedAvg, stopped after {PATIENCE} of {2 * rounds} rounds without gain", results)
    row("closed form (`gaussian`)", measured({**CLOSED, "data": data_of(name, root)}, seeds))


def growing(name: str, root: Path, seeds: int, rounds: int, few: bool = False) -> None:
    """Print the table of one data set."""
    late, half = range(7, 10), rounds // 2
    print(f"\n| {name}, clients 7 to 9 of 10 come in round {half + 1} | rounds | classes of the "
          "first | of the late | held by nobody | ZSL | fall of the first |")  # fmt: skip
    print("|---|--:|--:|--:|--:|--:|--:|", flush=True)
    data = data_of(name, root) | ({"train_per_class": 10, "test_per_class": 3} if few else {})
    if "semantics" in data:  # a mean of descriptions would change with the classes
        data["semantics"] = ["l2"]
    partition = {**TRAINED["partition"], "join": {"7-9": half}}
    cases: dict[str, tuple[Mapping[str, Any], dict[str, Any], int]] = {}
    for words, kind in (("`fedzsl`", TRAINED), ("`gaussian`", CLOSED)):
        arriving = {"partition": partition, "growth": {"name": "unknown"}}
        cases[f"{words}, the classes arrive"] = (kind, arriving, rounds)
        if kind is TRAINED:
            cases[f"{words}, they arrive, {half} rounds more"] = (kind, arriving, rounds + half)
        cases[f"{words}, known from the start"] = (kind, {}, rounds if kind is TRAINED else 1)
    for words, (kind, more, lasts) in cases.items():
        lines: list[tuple[float, ...]] = []
        for seed in range(seeds):
            tree = {**kind, "data": data, "strategy": {**kind["strategy"], "rounds": lasts}, **more}
            experiment = Experiment.from_dict(tree, {"run.seed": seed})
            benchmark = load_data(experiment, seed)
            dealt = partition_of(experiment, benchmark, seed)
            came = np.unique(np.concatenate([benchmark.labels[dealt.clients[k]] for k in late]))
            groups = {
                "first": np.setdiff1d(benchmark.space.seen, came),
                "late": came,
                "nobody": benchmark.space.unseen,
            }
            with tempfile.TemporaryDirectory() as folder:
                done = run(experiment, Path(folder) / "run")
                params = dict(done.params)
            if more:  # the run has measured what it knew then
                found = done.result["stages"]
                stages = (found["from round 1"], found[f"from round {half + 1}"], found["unseen"])
                fall = done.result["forgetting"]["from round 1"]
            else:
                answers = assemble(experiment, benchmark, dealt).answers(params)
                stages, fall = (
                    tuple(group_accuracies(answers, groups)[one] for one in groups),
                    float("nan"),
                )
            lines.append((*stages, done.result["zsl"], fall))
        columns = [list(column) for column in zip(*lines, strict=True)]
        cells = ["" if np.isnan(column).any() else said(column) for column in columns]
        print(f"| {words} | {lasts} | {' | '.join(cells)} |", flush=True)


def trained(
    experiment: Experiment, benchmark: Benchmark, partition: Partition
) -> tuple[Params, float]:
    """Return the model and the ZSL accuracy of an experiment whose seed is not that of its
    partition.
    """
    federation = assemble(experiment, benchmark, partition)
    state = federation.start()
    for _ in range(experiment.strategy.rounds):
        state, _ = federation.round(state)
    return state.params, accuracies(federation.answers(state.params), 0.0).zsl


def area(members: NDArray[np.float64], others: NDArray[np.float64]) -> float:
    """Return how often a member's number is above another's: the area under the ROC curve."""
    order = np.sort(others)
    below = np.searchsorted(order, members, "left") + np.searchsorted(order, members, "right")
    return float(below.mean() / (2 * len(others)))


def distance(one: Mapping[str, Tensor], other: Mapping[str, Tensor]) -> float:
    """Return the L2 distance of two models over the length of the second."""
    pairs = [(one[name].double(), value.double()) for name, value in other.items()]
    apart = sum(float(((a - b) ** 2).sum()) for a, b in pairs)
    return float(np.sqrt(apart / sum(float((b**2).sum()) for _, b in pairs)))


def forgetting(name: str, root: Path, seeds: int, rounds: int, few: bool = False) -> None:
    """Print the table of one data set."""
    print(f"\n| {name}, client 3 came in round {rounds // 2 + 1} of {rounds} | rounds trained | "
          "ZSL | its own classes | distance to anew | attack by loss | by loss compared |")  # fmt: skip
    print("|---|--:|--:|--:|--:|--:|--:|", flush=True)
    for kind in ("pccd", "iid")[few:]:
        partition = {"kind": kind, "clients": 10, "join": {"3": rounds // 2}}
        strategy = {**TRAINED["strategy"], "rounds": rounds}
        data = data_of(name, root) | ({"train_per_class": 10, "test_per_class": 3} if few else {})
        base = {**TRAINED, "data": data, "strategy": strategy, "partition": partition}
        rows: dict[str, list[tuple[float, ...]]] = {}
        for seed in range(seeds):
            with tempfile.TemporaryDirectory() as folder:
                kept = Experiment.from_dict(base, {"run.seed": seed, "run.forgettable": True})
                alone = {**base, "partition": {**partition, "without": [3]}}
                before = run(kept, Path(folder) / "before")
                again = forget(before, "3", Path(folder) / "again")
                anew = run(Experiment.from_dict(alone, {"run.seed": seed}), Path(folder) / "anew")
                benchmark = load_data(kept, seed)
                left = partition_of(Experiment.from_dict(alone), benchmark, seed)
                other = trained(
                    Experiment.from_dict(alone, {"run.seed": seed + 100}), benchmark, left
                )
                held = partition_of(kept, benchmark, seed)
                federation = assemble(kept, benchmark, held)
                members = held.clients[3]
                tests = benchmark.test_seen[
                    np.isin(benchmark.labels[benchmark.test_seen], benchmark.labels[members])
                ]  # of classes that the client holds
                every = torch.from_numpy(np.concatenate([members, tests]))
                inputs, labels, count = (
                    federation.inputs[every],
                    federation.labels[every],
                    len(members),
                )

                def scores(
                    params: Params, inputs: Tensor = inputs, federation: Federation = federation
                ) -> Tensor:
                    with torch.no_grad():
                        return federation.method.scores(params, inputs, federation.semantics)

                plain = cross_entropy(scores(other[0]), labels, reduction="none")
                settings: dict[str, tuple[Params, float, int]] = {
                    "before": (dict(before.params), before.result["zsl"], rounds),
                    "forgotten": (
                        dict(again.params),
                        again.result["zsl"],
                        again.result["rounds_trained_again"],
                    ),
                    "anew": (dict(anew.params), anew.result["zsl"], rounds),
                    "anew, another seed": (*other, rounds),
                }
                for words, (params, zsl, lasted) in settings.items():
                    found = scores(params)
                    own = cross_entropy(found, labels, reduction="none")
                    guesses = [(-own).numpy(), (plain - own).numpy()]
                    areas = [area(guess[:count], guess[count:]) for guess in guesses]
                    right = float((found.argmax(1) == labels)[count:].double().mean())
                    numbers = (
                        float(lasted),
                        zsl,
                        100 * right,
                        distance(params, dict(anew.params)),
                        *areas,
                    )
                    rows.setdefault(words, []).append(numbers)
        for words, lines in rows.items():
            columns = [list(column) for column in zip(*lines, strict=True)]
            cells = [
                said(column, digits)
                for column, digits in zip(columns, (0, 1, 1, 3, 3, 3), strict=True)
            ]
            if words == "anew, another seed":
                cells[-1] = ""  # it is what the attack compares with
            print(f"| {kind}: {words} | {' | '.join(cells)} |", flush=True)


def main() -> None:
    """Print a table for each data set."""
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument(
        "what", choices=["servers", "growing", "forgetting"], nargs="?", default="servers"
    )
    parser.add_argument("datasets", nargs="*", default=["digit-pairs"], help="[digit-pairs]")
    parser.add_argument(
        "--root", default=Path(os.environ.get("FEDUNSEEN_DATA", ".")) / "xlsa17", type=Path
    )
    parser.add_argument("--seeds", default=3, type=int)
    parser.add_argument("--rounds", type=int, help="by default 8, and 3 on CIFAR100_MBV2")
    parser.add_argument(
        "--smallest", action="store_true", help="two rounds, one seed: to see that it runs"
    )
    asked = parser.parse_args()
    warnings.simplefilter("ignore")
    if asked.smallest:
        small = growing if asked.what == "growing" else forgetting
        small("digit-pairs", asked.root, 1, 2, few=True)
        return
    table = {"servers": servers, "growing": growing, "forgetting": forgetting}[asked.what]
    for name in asked.datasets:
        table(name, asked.root, asked.seeds, asked.rounds or ROUNDS.get(name, 8))


if __name__ == "__main__":
    try:
        main()
    except FedUnseenError as error:
        sys.exit(f"error: {error}")
