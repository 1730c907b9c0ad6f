"""Clients' own models: trained on from the merged one as a plain loop would, measured beside it, and never sent."""

import numpy as np
import pytest
import torch

from fedunseen import Experiment, run
from fedunseen.core.errors import ExperimentError
from fedunseen.experiment.assemble import assemble, load_data, partition_of
from fedunseen.federation import Federation, State
from fedunseen.federation.directory import load_params
from fedunseen.federation.personal import personal_models
from fedunseen.metrics import accuracies
from fedunseen.report import write_report
from fedunseen.strategies import FedAvg

FEW = {
    "data.train_per_class": 8, "data.test_per_class": 4, "partition.clients": 4, "strategy.rounds": 2,
    "method.kl": 0.0, "evaluation.selection": "last", "evaluation.theory": False, "evaluation.embedding": False,
}  # fmt: skip


def parts(**more):
    experiment = Experiment.load("digit-pairs", {**FEW, **{k.replace("__", "."): v for k, v in more.items()}})
    benchmark = load_data(experiment, 0)
    return experiment, assemble(experiment, benchmark, partition_of(experiment, benchmark, 0))


def test_it_is_gradient_descent_from_the_merged_model():
    """One batch of all samples, whose order then does not matter, and PyTorch's own optimiser."""
    _, federation = parts(method__batch_size=5000)
    state, _ = federation.round(federation.start())
    models = dict(personal_models(federation, state.params, state, 3))
    assert sorted(models) == [0, 1, 2, 3]
    (phase,) = federation.method.phases()
    config = federation.method.settings
    client = 2
    rows = torch.from_numpy(federation.partition.clients[client])
    batch = {"inputs": federation.inputs[rows], "labels": federation.labels[rows], "weights": torch.ones(len(rows))}
    held = np.unique(federation.benchmark.labels[rows.numpy()])
    context = {**federation.method.context(), **federation.method.client_context(held)}
    params = {name: value.clone().requires_grad_() for name, value in state.params.items()}
    descent = torch.optim.SGD(params.values(), config.lr, config.momentum, weight_decay=config.weight_decay)
    for _ in range(3):
        descent.zero_grad()
        phase.loss(params, batch, context)[0].backward()
        descent.step()
    for name, value in params.items():
        assert torch.allclose(models[client][name], value.detach(), atol=1e-5), name
        assert not torch.allclose(models[client][name], state.params[name], atol=1e-3), name


@pytest.fixture(scope="module")
def both(tmp_path_factory):
    folder = tmp_path_factory.mktemp("personal")
    told = Experiment.load("digit-pairs", {**FEW, "strategy.personal_epochs": 5})
    return run(told, folder / "own"), run(Experiment.load("digit-pairs", FEW), folder / "plain")


def test_the_merged_model_is_what_it_was(both):
    own, plain = both
    one, other = (load_params(done.path / "model.safetensors") for done in both)
    assert all(torch.equal(one[name], other[name]) for name in other)
    assert own.result["bytes_up"] == plain.result["bytes_up"]
    assert "personal" not in plain.result


def test_each_client_is_measured_beside_the_merged_model(both):
    own, _ = both
    told = own.result["personal"]
    assert (told["epochs"], told["clients"]) == (5, [0, 1, 2, 3])
    _, federation = parts()
    answers = federation.answers(load_params(own.path / "model.safetensors"))
    assert told["merged"]["zsl"] == [pytest.approx(accuracies(answers, 0.0).zsl)] * 4
    labels, said = answers.labels, answers.generalised(0.0)
    for place, client in enumerate(told["clients"]):
        held = set(federation.benchmark.labels[federation.partition.clients[client]].tolist())
        shares = [np.mean(said[labels == c] == c) for c in sorted(held) if (labels == c).any()]
        assert told["merged"]["held"][place] == pytest.approx(100 * np.mean(shares))
    # A client's own model knows the client's own classes better, which is what it is for.
    assert np.mean(told["own"]["held"]) > np.mean(told["merged"]["held"])


def test_the_report_shows_them(both):
    page = write_report(both[0]).read_text("utf-8")
    assert "A model for each client" in page
    assert "A model for each client" not in write_report(both[1]).read_text("utf-8")


def test_parameters_that_never_travel_are_the_clients_own_from_the_start():
    """FedPer's way: every client goes on from the module that it has kept, and from the merged rest."""
    _, made = parts()
    body = sorted(made.first)[0].rsplit(".", 1)[0] + ".*"
    strategy = FedAvg(shared=(body,))
    federation = Federation(made.benchmark, made.partition, made.method, strategy, inputs=made.inputs)
    state, _ = federation.round(federation.start())
    kept = {name for name in made.first if name not in state.params}
    assert kept
    models = dict(personal_models(federation, state.params, state, 1))
    for client in (0, 1):
        own = {name: state.clients[client][f"own/{name}"] for name in kept}
        whole = Federation(made.benchmark, made.partition, made.method, FedAvg(), inputs=made.inputs)
        alone = State(state.round, {}, {**state.params, **own}, {})
        again = dict(personal_models(whole, alone.params, alone, 1))[client]
        assert all(torch.equal(models[client][name], again[name]) for name in made.first)


def test_who_has_no_merged_model_has_no_own_one():
    with pytest.raises(ExperimentError) as said:
        Experiment.load("digit-pairs", {**FEW, "strategy.name": "local", "strategy.personal_epochs": 2})
    assert str(said.value) == (
        "strategy.personal_epochs trains the merged model on at every client, but strategy.name = 'local' merges none: "
        "leave it out"
    )


def heads(made, **settings):
    """A federation whose clients keep one layer, and the names of that layer's parameters."""
    body = sorted(made.first)[0].rsplit(".", 1)[0] + ".*"
    strategy = FedAvg(shared=(body,), **settings)
    federation = Federation(made.benchmark, made.partition, made.method, strategy, inputs=made.inputs)
    return federation, {name for name in made.first if name not in federation.first}


def test_fedrep_is_heads_first_and_bodies_then():
    """Against a plain loop: one batch of all samples, PyTorch's own optimiser, and means weighted by classes."""
    _, made = parts(method__batch_size=5000)
    federation, kept = heads(made, head_epochs=3, local_epochs=2)
    assert kept
    (phase,) = made.method.phases()
    config = made.method.settings
    body = {name: value for name, value in made.first.items() if name not in kept}
    own = [{name: made.first[name] for name in kept} for _ in range(4)]
    state = federation.start()
    for _ in range(2):
        state, _ = federation.round(state)
        changes, weights = [], []
        for client, rows in enumerate(map(torch.from_numpy, made.partition.clients)):
            labels = made.labels[rows]
            batch = {"inputs": made.inputs[rows], "labels": labels, "weights": torch.ones(len(rows))}
            held = np.unique(labels.numpy())
            context = {**made.method.context(), **made.method.client_context(held)}
            model = {name: value.clone().requires_grad_() for name, value in {**body, **own[client]}.items()}
            for names, epochs in ((kept, 3), (set(body), 2)):
                chosen = [model[name] for name in model if name in names]
                descent = torch.optim.SGD(chosen, config.lr, config.momentum, weight_decay=config.weight_decay)
                for _ in range(epochs):
                    for value in model.values():
                        value.grad = None
                    phase.loss(model, batch, context)[0].backward()
                    descent.step()
            own[client] = {name: model[name].detach() for name in kept}
            changes.append({name: model[name].detach() - body[name] for name in body})
            weights.append(len(held))
        share = [weight / sum(weights) for weight in weights]
        body = {n: v + sum(s * change[n] for s, change in zip(share, changes, strict=True)) for n, v in body.items()}
    models = dict(personal_models(federation, state.params, state, 0))
    for client in range(4):
        for name, value in {**body, **own[client]}.items():
            assert torch.allclose(models[client][name], value, atol=1e-5), name
    assert not any(torch.allclose(own[0][name], made.first[name], atol=1e-3) for name in kept)


def test_what_never_travels_is_of_the_reported_round(tmp_path, monkeypatch):
    """Clients remember the round in which they took part: that of the model, not the last one."""
    from fedunseen.federation import rounds

    seen = {}

    def models(federation, merged, state, epochs):
        seen.update({client: float(own["last"]) for client, own in state.clients.items()})
        return iter(())

    monkeypatch.setattr(rounds, "personal_models", models)
    plain = Federation.round

    def remembering(self, state):
        state, result = plain(self, state)
        own = {client: {"last": torch.tensor(float(state.round))} for client in range(4)}
        return State(state.round, state.server, state.params, own), result

    monkeypatch.setattr(Federation, "round", remembering)
    best = {"strategy.rounds": 4, "evaluation.selection": "best-on-test", "strategy.personal_epochs": 1}
    monkeypatch.setattr(
        "fedunseen.tasks.zero_shot.ZeroShot.merit", lambda self, line: ((1.0, 3.0, 2.0, 0.0)[line["round"] - 1], 0.0)
    )
    monkeypatch.setattr("fedunseen.tasks.zero_shot.ZeroShot.personal", lambda self, merged, models, line: dict(models))
    done = run(Experiment.load("digit-pairs", {**FEW, **best}), tmp_path / "run")
    assert done.result["selected_round"] == 2
    assert seen == dict.fromkeys(range(4), 2.0)
