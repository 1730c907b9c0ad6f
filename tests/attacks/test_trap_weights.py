"""A coordinator that chooses the weights of round 0 reads single samples from the masked total of
honest parties.

This succeeds: SECURITY.md says so. Each neuron of a first layer fires above its own threshold of
one projection, so that two neighbors differ by the samples between two thresholds. No party adds
another sample there. Bounds and masks do not prevent it, since all numbers are small and the total
is the promised one. Client-level noise does.
"""

import numpy as np
import pytest
import torch

from fedunseen.federation.federation import Federation, State
from fedunseen.federation.run_directory import load_params
from processes import command
from small_federation import NAMES, Recorder, experiment, host, party, write_all

pytest.importorskip("cryptography", reason="pip install 'fedunseen[masked]'")

WIDTH = 400
STEEP = 300.0
TRAINED = {
    "data__features": [],
    "method__hidden": [WIDTH],
    "method__lr": 1.0,
    "method__weight_decay": 0.0,
    "strategy__local_epochs": 1,
}
NOISE = {
    "privacy__name": "client-level",
    "privacy__clip": 1.0,
    "privacy__noise": 1.0,
    "privacy__noise_from": "system",
}


@pytest.fixture(scope="module")
def place(tmp_path_factory):
    """Folders of data, and credentials."""
    folder = tmp_path_factory.mktemp("traps")
    command("certs", "--parties", ",".join(NAMES), "--out", folder / "kits")
    return write_all(folder / "data"), folder / "kits"


def trapped(params, inputs):
    """Return weights whose neurons fire above thresholds of one projection, with one output for all
    neurons.
    """
    direction = torch.from_numpy(np.random.default_rng(3).normal(size=inputs.shape[1])).float()
    public = inputs @ direction  # the coordinator's own samples say where others lie
    low, high = float(public.min()), float(public.max())
    edges = torch.linspace(low - (high - low) / 4, high + (high - low) / 4, WIDTH)
    outputs = torch.linspace(-1.0, 1.0, len(params["head.bias"]))
    return {
        **params,
        "f.0.weight": direction.repeat(WIDTH, 1),
        "f.0.bias": -edges,
        "head.weight": outputs[:, None].repeat(1, WIDTH),
        "head.bias": torch.zeros_like(params["head.bias"]),
    }


def trapped_outputs(params, inputs):
    """Return outputs without hidden layers: a class that no party holds fires for the most extreme
    sample alone.
    """
    direction = torch.from_numpy(np.random.default_rng(3).normal(size=inputs.shape[1])).float()
    public = inputs @ direction
    weights, biases = torch.zeros_like(params["head.weight"]), torch.zeros_like(params["head.bias"])
    for row, sign in ((10, 1.0), (11, -1.0)):
        weights[row] = STEEP * sign * direction
        biases[row] = -STEEP * float((sign * public).max())
    return {**params, "head.weight": weights, "head.bias": biases}


def read_outputs(before, after, known):
    """Return how many samples (n, d) are the quotient of two changes of a class that no party
    holds.
    """
    weights, biases = (
        (after[name] - before[name]).double() for name in ("head.weight", "head.bias")
    )
    found = (weights / biases[:, None])[10:]
    distances = torch.cdist(known.double(), found).min(1).values
    return int((distances < 1e-3 * known.double().norm(dim=1)).sum())


def read(before, after, known):
    """Return how many of the parties' samples (n, d) are the quotient of two changes, up to a
    thousandth.
    """
    weights, biases = ((after[name] - before[name]).double() for name in ("f.0.weight", "f.0.bias"))
    weights, biases = weights[:-1] - weights[1:], biases[:-1] - biases[1:]
    some = biases.abs() > 1e-9
    found = weights[some] / biases[some, None]
    distances = torch.cdist(known.double(), found).min(1).values
    return int((distances < 1e-3 * known.double().norm(dim=1)).sum())


def attacked(place, out, monkeypatch, trap=trapped, reading=read, **settings):
    """Run a masked round with honest parties; return how many of their samples can be read, and how
    many there are.
    """
    data, kits = place
    sent, start = {}, Federation.start

    def started(self):
        state = start(self)
        if trap is not None:
            coordinators = self.inputs[torch.arange(len(self.benchmark.labels))]
            params = trap(state.params, coordinators)
            state = State(0, self.strategy.init(params, len(NAMES)), params, {})
        sent.update({name: value.clone() for name, value in state.params.items()})
        return state

    monkeypatch.setattr(Federation, "start", started)
    parties = {name: party(data / name, out / f"{name}.state", [], kits / name) for name in NAMES}
    chosen = experiment(data, "classifier", **{**TRAINED, **settings})
    done = host(chosen, Recorder(parties), out / "run", kits)
    known = torch.from_numpy(
        np.concatenate([np.load(data / name / "features.npz")["features"] for name in NAMES])
    )
    after = load_params(done.path / "model.safetensors")
    return reading(sent, after, known), len(known)


def test_trap_weights_read_samples_from_a_masked_total(place, tmp_path, monkeypatch):
    """Not promised: this test says how much is read, so that the page that says so stays true."""
    found, samples = attacked(place, tmp_path, monkeypatch)
    assert samples == 60
    assert found > samples // 2


def test_honest_weights_show_few_samples(place, tmp_path, monkeypatch):
    """The control of the attack: what random neurons that fire for one sample alone reveal."""
    found, samples = attacked(place, tmp_path, monkeypatch, trap=None)
    assert found <= samples // 10


def test_client_level_noise_shows_no_sample(place, tmp_path, monkeypatch):
    assert attacked(place, tmp_path, monkeypatch, **NOISE)[0] == 0


@pytest.mark.parametrize("trap", [trapped_outputs, None], ids=["trap", "honest"])
def test_outputs_of_classes_that_no_party_holds_read_a_sample_each(
    trap, place, tmp_path, monkeypatch
):
    """A method without hidden layers reveals less, and more in every round."""
    settings = {"method__hidden": [], "method__lr": 20.0, "reading": read_outputs}
    found, _ = attacked(place, tmp_path, monkeypatch, trap, **settings)
    assert found == (0 if trap is None else 1)
