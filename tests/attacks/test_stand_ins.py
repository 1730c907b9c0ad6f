"""A mean that the coordinator puts where many samples of a class are, so that others stand in for
these: each of the others is in the sums twice, and one that stands alone had a twin.
"""

import numpy as np
import pytest
import torch

from fedunseen.data import Scaler
from fedunseen.deploy.client_data import PartyData
from fedunseen.deploy.remote.party import local_update
from fedunseen.methods.closed_form.soft_statistics import LEVELS
from fedunseen.methods.closed_form.statistics import unpacked
from fedunseen.strategies import Instruction
from small_federation import CLASSES, FEATURES, NAMES, experiment, greeting, write_all, write_party

RARE, WHO, NEAR, EACH, POOL = 5, 20, 13, 30, 60  # a feature; who alone has it; of a common form
SHARED = 88, 167  # responsibilities of two classes in the ratio 1 to 1.9


def with_a_common_form(folder, some, near, rng):
    """Write a folder again in which the first samples of ``some`` are nearly one; return these."""
    arrays = dict(np.load(folder / "features.npz"))
    features = arrays["features"]
    rows = np.flatnonzero(some(arrays["labels"]))
    features[rows] += rng.normal(size=(len(rows), FEATURES))
    form = features[rows[:near]].mean(0)
    features[rows[:near]] = form + 0.02 * rng.normal(size=(near, FEATURES))
    np.savez(folder / "features.npz", **arrays)
    return features[rows]


def rare_of(folder, rare):
    """Write a folder again in which one sample alone has the rare feature, or none."""
    arrays = dict(np.load(folder / "features.npz"))
    arrays["features"][:, RARE] = 0
    if rare:
        arrays["features"][WHO, RARE] = 1
    np.savez(folder / "features.npz", **arrays)
    return arrays["features"]


def codes_of(features, tensors):
    """Return the whole numbers of samples under a coordinator's scaling."""
    scaler = Scaler(("centre", "l2"), {k: v.numpy() for k, v in tensors.items() if k[0] in "0q"})
    return scaler.codes(features)[0].astype(np.int64)


def summed(folders, chosen, run, mean, told=None, consent=()):
    """Return the sum of the parties' sums, and how many samples the first one takes part with."""
    added, counts = {}, []
    for client, folder in enumerate(folders):
        header, tensors = greeting(chosen, run, client)
        party = PartyData(folder, masked=True)
        party.consent = consent
        ready = party.prepare(header, tensors | {"0.mean": torch.from_numpy(mean)})
        reply, _ = local_update(ready.engine, client, Instruction(told or {}), {}, 0)
        added = {name: added.get(name, 0) + value for name, value in reply.update.items()}
        counts.append(ready.samples)
        assert client or "others of their classes stand in for" in ready.left_out
    return added, counts[0]


@pytest.mark.parametrize("consent", [(), ("moments",)])
@pytest.mark.parametrize("seed", range(3))
def test_a_sample_that_stands_in_for_another_is_alone_as_before(seed, consent, tmp_path):
    write_all(tmp_path)
    folders = [write_party(tmp_path / "large", np.repeat(range(3), EACH), 1 + 10 * seed)]
    folders += [tmp_path / name for name in NAMES[1:]]
    rng = np.random.default_rng(seed)
    form = with_a_common_form(folders[0], lambda labels: labels == "class 0", NEAR, rng)[:NEAR]
    own, *_ = [rare_of(folder, folder == folders[0]) for folder in folders]
    mean = form.mean(0)
    mean[RARE] = 0
    chosen = experiment(tmp_path, data__features=["centre", "l2"])
    sums, samples = summed(folders, chosen, tmp_path / "run", mean, consent=consent)
    has = sums["total"][:, RARE]
    if not consent:
        assert samples in (3 * EACH - 1, 3 * EACH - 2)  # and what it stands in for, if it does
        assert not has.any()
        return
    assert samples == 3 * EACH
    _, tensors = greeting(chosen, tmp_path / "run")
    wanted = codes_of(own[WHO : WHO + 1], tensors | {"0.mean": torch.from_numpy(mean)})[0]
    row = unpacked(sums["square"], FEATURES)[RARE]
    assert (row / has.sum()).tolist() == wanted.tolist()


@pytest.mark.parametrize("min_samples", [1, 5])
@pytest.mark.parametrize("seed", range(3))
def test_a_stand_in_hides_no_sample_of_a_pool_from_sums(seed, min_samples, tmp_path):
    """Two classes share all samples in one ratio but the farthest one in its own direction."""
    write_all(tmp_path, pool=POOL)
    folders = [tmp_path / name for name in NAMES]
    rng = np.random.default_rng(seed)
    pool = with_a_common_form(folders[0], lambda labels: labels == "", 28, rng)
    mean = pool[:28].mean(0)
    chosen = experiment(tmp_path, data__features=["centre", "l2"], data__unlabelled="summed")
    _, tensors = greeting(chosen, tmp_path / "run")
    tensors |= {"0.mean": torch.from_numpy(mean)}
    arrays = [dict(np.load(folder / "features.npz")) for folder in folders]
    rows = codes_of(
        np.concatenate([held["features"][held["labels"] == ""] for held in arrays]), tensors
    )
    direction = rows[40]
    places = rows @ direction
    assert places.argmax() == 40  # the wall is at this one
    sharp = 30.0 / (places[40] - np.delete(places, 40).max())
    weight = torch.zeros(CLASSES, FEATURES).double()
    weight[2] = torch.from_numpy(sharp * direction / float(tensors["quantize.step"][0]))
    bias = torch.full((CLASSES,), -1e5).double()
    bias[:3] = torch.tensor([-np.log(1.9), 0.0, -sharp * places[40]])
    told = {"weight": weight, "bias": bias}
    added = {}
    for client, folder in enumerate(folders):
        header, _ = greeting(chosen, tmp_path / "run", client)
        ready = PartyData(folder, masked=True, min_samples=min_samples).prepare(header, tensors)
        reply, _ = local_update(ready.engine, client, Instruction(told), {}, 0)
        added = {name: added.get(name, 0) + value for name, value in reply.update.items()}
        if client == 0 and min_samples > 1:
            said = ready.engine.worker.left_out_of(client)
            assert "others of their classes stand in for" in said
    less, more = SHARED
    shown, weighs = (added[name][0] * more - added[name][1] * less for name in ("total", "count"))
    if min_samples == 1:  # nothing stands in, and the one is read
        assert shown.tolist() == (int(weighs) * direction).tolist() != [0] * FEATURES
    else:  # each sample is in one class alone, of which no remainder is one sample
        assert added["count"][0] == 0
        assert not bool((added["count"] % LEVELS).any())
        assert not bool((added["total"] % LEVELS).any())
