r"""How far each party's statistics move the means of classes that other parties hold too.

Without a party's n samples of a class, of N in all, the class mean lies elsewhere by

.. math:: \frac{n}{N}\,\lVert m - m'\rVert, \qquad \sqrt{\frac{n}{N (N - n)}}\;\sigma
    \quad\text{by chance},

m and m' being the means of its samples and of the others'. The unit is the within-class deviation
:math:`\sigma`: the root mean squared distance of a sample from its class mean, the median of the
parties' own values, so that a minority cannot stretch it.
"""

import math
import statistics
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor

from fedunseen.core.parameters import Params
from fedunseen.data import Quantization

MOVED = 0.2
RATIO = 3.0
"""A mean that one party moves by more than this many deviations, and this many times as far as
chance would, makes the party conspicuous. Honest parties of digit-pairs stay below 2.2 times, over
iid and Dirichlet partitions of 3 to 30 clients; means moved by 0.12 cost others 1.4 points of
accuracy (docs/research/security.md)."""
LISTED = 10  # classes that are listed for a party
_DIGITS = 4


@dataclass(eq=False)
class _Shares:
    """What is left of all parties' statistics: count (C,) and total (C, d), and the deviation."""

    count: Tensor
    total: Tensor
    deviation: float


def influence(parts: Mapping[int, Params], quantization: Quantization | None) -> dict[str, Any]:
    """Return how far each client moves the means of classes that others hold too.

    {} under masks, where the one part is a total, and before anything is merged.

    Args:
        parts: client -> its statistics, as they were sent.
        quantization: how features became whole numbers, if they did.

    Returns:
        ``deviation`` of a sample from its class mean in feature units, and ``clients``, a list with
        ``client``, ``share`` of all samples, how many classes are ``shared`` with others, and of
        the :data:`LISTED` that it moves most the ids (``classes``), how far (``moved``, in
        deviations) and how many times as far as chance would (``ratio``). ``conspicuous`` lists
        clients that move ``count`` means by more than :data:`MOVED` and :data:`RATIO`. Who differs
        from the others in most classes is judged first, and the others then without it. Where
        two differ in as many, both are judged: nothing shows which of them is wrong.
    """
    if min(parts, default=-1) < 0:
        return {}
    step = 1.0 if quantization is None else torch.from_numpy(quantization.step).double()
    natural = {
        client: (sums["count"].double().cpu(), sums["total"].double().cpu() * step)
        for client, sums in parts.items()
    }
    count = torch.stack([n for n, _ in natural.values()]).sum(0)
    total = torch.zeros_like(next(iter(natural.values()))[1])
    for _, client_total in natural.values():
        total += client_total
    shares = _Shares(count, total, _deviation(parts, natural, step))
    clients = [_of_client(client, shares, *sums) for client, sums in natural.items()]
    clients = [entry for entry in clients if entry["shared"]]
    return {
        "deviation": _rounded(shares.deviation),
        "clients": [_short(entry) for entry in clients],
        "conspicuous": _conspicuous(natural, shares),
    }


def _of_client(client: int, shares: _Shares, count: Tensor, total: Tensor) -> dict[str, Any]:
    """Return what one client's count (C,) and total (C, d) do to the means of what is left."""
    rest = shares.count - count
    ids = torch.nonzero((count > 0) & (rest > 0))[:, 0]
    n = count[ids]
    other_counts = rest[ids]
    client_total = total[ids]
    apart = client_total / n[:, None] - (shares.total[ids] - client_total) / other_counts[:, None]
    moved = apart.norm(dim=1) * n / (n + other_counts) / shares.deviation
    chance = (n / ((n + other_counts) * other_counts)).sqrt()
    order = torch.argsort(moved, descending=True)
    return {
        "client": client,
        "share": float(count.sum() / shares.count.sum()),
        "shared": len(ids),
        "classes": ids[order].tolist(),
        "moved": moved[order].tolist(),
        "ratio": (moved / chance)[order].tolist(),
    }


def _conspicuous(
    natural: Mapping[int, tuple[Tensor, Tensor]], shares: _Shares
) -> list[dict[str, Any]]:
    """Return the clients that move means too far, judged in the order of :func:`influence`."""
    signs: list[dict[str, Any]] = []
    remaining = dict(natural)
    while len(remaining) > 1:
        judged = [
            _only(_of_client(client, shares, *sums), 0.0) for client, sums in remaining.items()
        ]
        most = max(len(entry["classes"]) for entry in judged)
        if not most:
            break
        for entry in judged:
            if len(entry["classes"]) < most:
                continue
            far = _only(entry, MOVED)
            if far["classes"]:
                signs.append({**_short(far), "count": len(far["classes"])})
            count, total = remaining.pop(entry["client"])
            shares = _Shares(shares.count - count, shares.total - total, shares.deviation)
    return signs


def _only(entry: dict[str, Any], moved: float) -> dict[str, Any]:
    """Return a client's entry with the means alone that it moves so far, and no one does by
    chance.
    """
    rows = zip(entry["classes"], entry["moved"], entry["ratio"], strict=True)
    kept = [row for row in rows if row[1] > moved and row[2] > RATIO]
    lists = {name: [row[i] for row in kept] for i, name in enumerate(("classes", "moved", "ratio"))}
    return {**entry, **lists}


def _short(entry: Mapping[str, Any]) -> dict[str, Any]:
    """Return a client's entry with few classes and digits."""
    few = {name: [_rounded(value) for value in entry[name][:LISTED]] for name in ("moved", "ratio")}
    return {**entry, "share": _rounded(entry["share"]), **few, "classes": entry["classes"][:LISTED]}


def _rounded(value: float) -> float:
    return float(f"{value:.{_DIGITS}g}")


def _deviation(
    parts: Mapping[int, Params],
    natural: Mapping[int, tuple[Tensor, Tensor]],
    step: float | Tensor,
) -> float:
    """Return the within-class deviation, the median of the parties' own."""
    variances = []
    for client, sums in parts.items():
        count, total = natural[client]
        freedom = float(count.sum()) - int((count > 0).sum())
        if freedom < 1:
            continue
        width = total.shape[1]
        diagonal = torch.cumsum(torch.tensor([0, *range(width, 1, -1)]), 0)
        second_moments = sums["square"].cpu()[diagonal].double()
        squares = (second_moments * torch.as_tensor(step).square()).sum()
        observed = count > 0
        of_means = (total[observed].square().sum(1) / count[observed]).sum()
        variances.append(float((squares - of_means).clamp(min=0.0)) / freedom)
    tiny = float(torch.finfo(torch.float64).tiny)
    return math.sqrt(max(statistics.median(variances or [0.0]), tiny))
