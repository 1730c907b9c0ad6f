"""A class's sum of many random features, from which each of its samples can be read.

The sum of samples hides them, their number being far larger than what is sent. Of random features
of a kernel there are more numbers than the samples of a class have.
"""

import numpy as np
import pytest
from scipy.optimize import nnls

from fedunseen.core.errors import FedUnseenError
from fedunseen.data import Scaler
from fedunseen.deploy.client_data import PartyData
from fedunseen.deploy.remote.party import local_update
from fedunseen.strategies import Instruction
from small_federation import NAMES, experiment, greeting, write_all

KERNEL = ["standard", "kernel"]


@pytest.mark.parametrize("min_samples", [1, 5])
def test_sums_of_a_kernel_show_who_took_part_only_where_the_owner_allows(tmp_path, min_samples):
    write_all(tmp_path)
    chosen = experiment(tmp_path, data__features=KERNEL)
    header, tensors = greeting(chosen, tmp_path / "run")
    held = PartyData(tmp_path / NAMES[0], masked=True, min_samples=min_samples)
    if min_samples > 1:
        with pytest.raises(FedUnseenError, match="random features of a kernel") as refused:
            held.prepare(header, tensors)
        assert refused.value.code == "refused-settings"
        return
    engine = held.prepare(header, tensors).engine
    reply, _ = local_update(engine, 0, Instruction({}), {}, 0)
    arrays = np.load(tmp_path / NAMES[0] / "features.npz")
    members = arrays["features"][arrays["labels"] == "class 0"]
    others = np.random.default_rng(0).normal(members.mean(0), members.std(0), (200, 8))
    statistics = {key: value.numpy() for key, value in tensors.items() if key != "semantics"}
    scaler = Scaler(tuple(KERNEL), statistics)
    total = reply.update["total"][0].numpy() * scaler.quantization.step
    candidates = np.concatenate([members, others]).astype(np.float32)
    weights, _ = nnls(scaler(candidates).astype(np.float64).T, total)
    assert (weights[: len(members)] > 0.9).all()  # each of six samples, among 206
    assert (weights[len(members) :] < 0.1).all()
