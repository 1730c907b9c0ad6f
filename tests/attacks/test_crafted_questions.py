"""A coordinator adds made-up samples to the sums that it asks parties about.

One prototype then lies so that all samples of a class are right and sure but the one that is
largest along a direction. The mean of five neighbors, four of them sure, would show that one.
"""

import numpy as np
import pytest
import torch

from fedunseen.confidence.counted import _LEVELS, UNIT
from fedunseen.confidence.own_folds import question
from fedunseen.core.errors import RefusedError
from fedunseen.deploy.client_data import PartyData
from fedunseen.deploy.remote.party import local_update
from fedunseen.methods.closed_form.statistics import packed, unpacked
from fedunseen.strategies import Instruction
from small_federation import CLASSES, HELD, NAMES, experiment, greeting, write_party

EACH = 12
MADE_UP, FEW = 2**22, 2**14  # samples of a class; few of them let a class weigh more
SCALE = 5.66
LONE = {  # prototypes are means of classes, whatever their descriptions are
    "method__variance": 1e6, "method__nugget": 1e6, "method__width": 1.0,
    "method__shrinkage": 1e-6, "data__features": ["l2"], "data__quantization": 8,
}  # fmt: skip


@pytest.fixture(scope="module")
def folder(tmp_path_factory):
    place = tmp_path_factory.mktemp("parties")
    for number, (name, classes) in enumerate(HELD.items(), 1):
        write_party(place / name, np.repeat(classes, EACH), number)
    labels = np.repeat(range(CLASSES), 4)
    split = ["train" if c < 10 and i % 2 else "test" for i, c in enumerate(labels)]
    write_party(place / "coordinator", labels, 9, split)
    return place


def totals(folder, out, min_samples, instruction, **settings):
    """Return the masked total of all parties."""
    parts = []
    for client, name in enumerate(NAMES):
        asked = experiment(folder, **LONE, **settings)
        header, tensors = greeting(
            asked, out / f"run-{min_samples}-{client}-{len(settings)}", client
        )
        held = PartyData(folder / name, masked=True, min_samples=min_samples)
        engine = held.prepare(header, tensors).engine
        parts.append(local_update(engine, client, instruction, {}, 0)[0].update)
    first = {name: value for name, value in parts[0].items() if name == "space"}
    return first | {key: sum(part[key] for part in parts) for key in parts[0] if key != "space"}


def crafted(sums, cut, feature):
    """Return sums with made-up samples, and the weights and bias of the score that cuts class 0."""
    width = sums["total"].shape[1]
    there = sums["count"] > 0
    count, total = sums["count"].double(), sums["total"].double()
    means = (total / count.clamp(min=1)[:, None]).round()
    scatter = unpacked(sums["square"], width).double() - (
        (total[there] / count[there][:, None]).T @ total[there]
    )
    within = scatter / (count.sum() - there.sum())
    within += 0.05 * torch.eye(width) * within.diagonal().mean()
    along = within[:, feature] / within[feature, feature]
    means[3] = (means[0] + 2 * (cut - means[0, feature]) * along).clamp(-126, 126).round()
    fake = there.long() * MADE_UP
    fake[0] = FEW
    square = (means.T @ (fake[:, None] * means)) + fake.sum() * within
    added = {
        "count": sums["count"] + fake,
        "total": sums["total"] + fake[:, None] * means.long(),
        "square": sums["square"] + packed(square.round().long()),
    }
    weight = torch.linalg.solve(within, means[3] - means[0])
    return sums | added, weight, float(weight @ (means[3] + means[0])) / 2


@pytest.mark.slow
@pytest.mark.parametrize("min_samples", [1, 5])
def test_no_count_of_answers_is_that_of_one_sample_among_sure_ones(min_samples, folder, tmp_path):
    arrays = np.load(folder / "north" / "features.npz")
    rows = arrays["features"][arrays["labels"] == "class 0"].astype(np.float64)
    _, tensors = greeting(experiment(folder, **LONE), tmp_path / "units")
    step = float(tensors["quantize.step"][0])
    codes = np.rint(rows / np.linalg.norm(rows, axis=1, keepdims=True) / step)
    largest = np.sort(codes, axis=0)[::-1]
    feature = int((largest[0] - largest[1]).argmax())
    sums = totals(folder, tmp_path, 5, Instruction({}))
    lie, weight, bias = crafted(sums, float(largest[:2, feature].mean()), feature)
    beyond = codes @ weight.numpy() - bias
    assert (beyond > 0).sum() == 1
    asking = Instruction(question(lie, np.full(9, SCALE), 0.0))
    counts = totals(folder, tmp_path, min_samples, asking, evaluation__confidence="asking")
    one = UNIT * EACH / ((EACH + FEW) * EACH)  # what a sample of class 0 weighs
    levels = counts["levels"][0, 0].numpy()
    assert levels.sum() >= 40 * one  # it is asked about, in both cases
    bins = np.flatnonzero(levels > one / 2)
    sure = np.searchsorted(_LEVELS, np.log(10)) - 1
    if min_samples == 1:  # the positive control
        read = (np.log(10) - (_LEVELS[bins[0]] + _LEVELS[bins[0] + 1]) / 2) / SCALE
        assert read == pytest.approx(beyond.max(), rel=0.05)
    else:
        assert bins.tolist() == [sure]
        asked = counts["asked"][counts["asked"] > 0]
        assert int(asked.min()) >= min_samples
        lengths = counts["lengths"][counts["lengths"] > 0]
        assert int(lengths.min()) >= min_samples
        assert int(lengths.sum()) == int(counts["asked"][1].sum())
    wrong = counts["right"][0, 0].numpy().sum(0)[0]
    wrong = wrong[wrong > one / 2] / one
    if min_samples == 1:  # one sample of class 0 is answered wrongly, by each of four folds
        assert wrong.min() < 5
    else:
        assert (wrong >= min_samples).all()
    right = counts["right"].sum((2, 3, 4))
    assert torch.equal(counts["levels"][:, :2].sum(2), right)  # no difference shows a list


@pytest.mark.parametrize(
    ("name", "features", "min_samples"),
    [
        ("quantize.bits", ["l2"], 1),
        ("quantize.step", ["l2"], 5),
        ("quantize.offset", ["l2"], 5),
        ("0.mean", ["standard"], 5),
        ("0.deviation", ["standard"], 5),
        ("0.range", ["min-max"], 1),
    ],
)
def test_a_greeting_that_lacks_a_scaling_is_refused_in_a_sentence(
    name, features, min_samples, folder, tmp_path
):
    """Files of a plan showed a traceback."""
    asked = experiment(folder, data__features=features, data__quantization=8)
    header, tensors = greeting(asked, tmp_path / "run")
    party = PartyData(folder / "north", min_samples=min_samples)
    assert party.prepare(header, tensors).samples  # the control
    del tensors[name]
    with pytest.raises(RefusedError, match=f"sends no {name}") as refused:
        party.prepare(header, tensors)
    assert refused.value.code == "refused-message"
