"""Clients' own models: trained on from the merged one as a plain loop would, measured beside it,
and never sent.
"""

from functools import partial

import numpy as np
import pytest
import torch

from fedunseen import Federation, run
from fedunseen.core.errors import ExperimentError
from fedunseen.experiment.assemble import assemble, load_data, partition_of
from fedunseen.experiment.run_encoder import RunEncoder, RunEncoderSettings
from fedunseen.federation.callbacks import personal_models
from fedunseen.federation.run_directory import load_params, of_clients
from fedunseen.metrics import accuracies
from fedunseen.pages.portable import export_model
from fedunseen.pages.report import write_report
from fedunseen.pages.report.card import model_card
from fedunseen.pages.serve.model import Recognizer
from fedunseen.strategies import FedAvg, Local
from known_names import refuses
from refusals import message_of
from same import same
from small_runs import experiment

SMALL = {"data__train_per_class": 8, "data__test_per_class": 4, "partition__clients": 4}
few = partial(experiment, "digit-pairs-fedavg", **SMALL, method__kl=0.0, method__hidden=[256])


def federation_of(experiment, strategy=None):
    benchmark = load_data(experiment, 0)
    made = assemble(experiment, benchmark, partition_of(experiment, benchmark, 0))
    return (
        Federation(benchmark, made.partition, made.method, strategy, inputs=made.inputs)
        if strategy
        else made
    )


def after(federation, rounds):
    state = federation.start()
    for _ in range(rounds):
        state, _ = federation.round(state)
    return state


def descend(made, client, start, steps):
    """Return a client's model after plain descent on one batch of all its samples, by PyTorch's own
    optimiser.

    ``steps``: which parameters are trained, and for how many epochs, one pair after another.
    """
    (phase,), config = made.method.phases(), made.method.settings
    rows = torch.from_numpy(made.partition.clients[client])
    batch = {
        "inputs": made.inputs[rows],
        "labels": made.labels[rows],
        "weights": torch.ones(len(rows)),
    }
    context = {
        **made.method.context(),
        **made.method.client_context(np.unique(made.labels[rows].numpy())),
    }
    model = {name: value.clone().requires_grad_() for name, value in start.items()}
    for names, epochs in steps:
        chosen = [model[name] for name in model if name in names]
        descent = torch.optim.SGD(
            chosen, config.lr, config.momentum, weight_decay=config.weight_decay
        )
        for _ in range(epochs):
            for value in model.values():
                value.grad = None
            phase.loss(model, batch, context)[0].backward()
            descent.step()
    return {name: value.detach() for name, value in model.items()}


def test_it_is_gradient_descent_from_the_merged_model():
    """One batch of all samples, whose order then does not matter."""
    federation = federation_of(few(method__batch_size=5000))
    state = after(federation, 1)
    models = dict(personal_models(federation, state.params, 1, 3))
    assert sorted(models) == [0, 1, 2, 3]
    for name, value in descend(federation, 2, state.params, [(set(state.params), 3)]).items():
        assert torch.allclose(models[2][name], value, atol=1e-5), name
        assert not torch.allclose(models[2][name], state.params[name], atol=1e-3), name


@pytest.mark.slow
def test_fedrep_is_heads_first_and_bodies_then():
    """Against a plain loop with means weighted by classes."""
    experiment = few(method__batch_size=5000)
    made = federation_of(experiment)
    shared = (sorted(made.first)[0].rsplit(".", 1)[0] + ".*",)
    federation = federation_of(experiment, FedAvg(shared=shared, head_epochs=3, local_epochs=2))
    kept = {name for name in made.first if name not in federation.first}
    body = {name: value for name, value in made.first.items() if name not in kept}
    own = [{name: made.first[name] for name in kept} for _ in range(4)]
    weights = [
        len(np.unique(made.labels[torch.from_numpy(rows)])) for rows in made.partition.clients
    ]
    state = after(federation, 2)
    for _ in range(2):
        trained = [
            descend(made, k, {**body, **own[k]}, [(kept, 3), (set(body), 2)]) for k in range(4)
        ]
        own = [{name: model[name] for name in kept} for model in trained]
        body = {
            n: sum(w * model[n] for w, model in zip(weights, trained, strict=True)) / sum(weights)
            for n in body
        }
    for client in range(4):
        model = {**state.params, **federation.client_params(state, client)}
        for name, value in {**body, **own[client]}.items():
            assert torch.allclose(model[name], value, atol=1e-5), name
    assert kept
    assert not any(torch.allclose(own[0][name], made.first[name], atol=1e-3) for name in kept)


@pytest.mark.slow
def test_the_merged_model_is_what_it_was_and_each_client_is_measured_beside_it(tmp_path):
    own, plain = (
        run(few(strategy__personal_epochs=5), tmp_path / "own"),
        run(few(), tmp_path / "plain"),
    )
    assert same(own, plain)
    assert own.result["bytes_up"] == plain.result["bytes_up"]
    assert "personal" not in plain.result
    result = own.result["personal"]
    assert (result["epochs"], result["clients"]) == (5, [0, 1, 2, 3])
    federation = federation_of(few())
    answers = federation.answers(load_params(own.path / "model.safetensors"))
    assert result["merged"]["zsl"] == [pytest.approx(accuracies(answers, 0.0).zsl)] * 4
    labels, said = answers.labels, answers.generalised(0.0)
    for place, client in enumerate(result["clients"]):
        held = set(federation.benchmark.labels[federation.partition.clients[client]].tolist())
        shares = [np.mean(said[labels == c] == c) for c in sorted(held) if (labels == c).any()]
        assert result["merged"]["held"][place] == pytest.approx(100 * np.mean(shares))
    # A client's own model knows the client's own classes better, which is what it is for.
    assert np.mean(result["own"]["held"]) > np.mean(result["merged"]["held"])


def test_only_clients_that_are_asked_for_train_and_are_read(fedrep):
    federation = federation_of(few())
    params = after(federation, 1).params
    whole, some = (
        dict(personal_models(federation, params, 1, 1, *clients)) for clients in ((), ({1, 3},))
    )
    assert list(some) == [1, 3]
    assert all(same(model, whole[client]) for client, model in some.items())
    path = fedrep.path / "model.safetensors"
    wanted = {
        name: value for name, value in load_params(path).items() if name.startswith("client/2/")
    }
    ((client, kept),) = of_clients(path, clients=[2])
    assert same({f"client/{client}/{name}": value for name, value in kept.items()}, wanted)


@pytest.fixture(scope="module")
def fedrep(tmp_path_factory):
    """A run in which every client keeps its head, g, from which scores come."""
    return run(
        few(strategy__shared=["f.*"], strategy__head_epochs=2),
        tmp_path_factory.mktemp("fedrep") / "run",
    )


def test_a_run_whose_heads_stay_reports_means_over_the_clients_models(fedrep):
    """Against the library's rounds, and models put together here from what travels and what has
    stayed.
    """
    federation = federation_of(few(), FedAvg(shared=("f.*",), head_epochs=2))
    state = after(federation, 2)
    stored, each = load_params(fedrep.path / "model.safetensors"), []
    assert {name.split("/")[1] for name in stored} == {"0", "1", "2", "3"}
    for client in range(4):
        kept = {name.removeprefix("own/"): value for name, value in state.clients[client].items()}
        assert {name[0] for name in kept} >= {"g"}
        assert not any(name.startswith("f.") for name in kept)
        model = {**state.params, **kept}
        assert all(
            torch.equal(stored[f"client/{client}/{name}"], value) for name, value in model.items()
        )
        each.append(accuracies(federation.answers(model), 0.0))
    assert fedrep.result["zsl"] == pytest.approx(np.mean([one.zsl for one in each]))
    assert fedrep.result["gzsl_seen"] == pytest.approx(np.mean([one.gzsl_seen for one in each]))
    assert len({one.gzsl_seen for one in each}) > 1  # heads differ
    result = fedrep.result["personal"]
    assert (result["clients"], "merged" in result) == ([0, 1, 2, 3], False)
    assert result["own"]["zsl"] == pytest.approx([one.zsl for one in each])
    assert fedrep.result["parameters_shared"] == sum(
        value.numel() for value in state.params.values()
    )
    page = write_report(fedrep).read_text("utf-8")
    assert "<th>own classes</th><th>ZSL</th><th>H</th>" in page
    assert ">travels<" in page


@pytest.mark.parametrize(
    ("use", "ask"),
    [
        ("to predict with", lambda run, out: run.predict(np.zeros((1, 28, 56)))),
        ("to add classes to", lambda run, out: run.learn({"a class": [0.0] * 20})),
        ("to export", lambda run, out: export_model(run, out, "")),
        ("to serve", lambda run, out: Recognizer(run)),
        (
            "to encode with",
            lambda run, out: RunEncoder(RunEncoderSettings(model=run.path), (1, 28, 56), "vectors"),
        ),
    ],
)
def test_what_needs_one_model_for_all_refuses_it(fedrep, tmp_path, use, ask):
    start = f"{fedrep.path}: under strategy.shared = ['f.*'] every client keeps its own model, so there is none {use}: "
    one = "" if use == "to encode with" else "name a client, --client 0, or "
    with refuses(f"{start}{one}run with strategy.shared = ['*']"):
        ask(fedrep, tmp_path / "out")
    assert not (tmp_path / "out").exists()


def test_a_clients_own_model_answers_where_it_is_named(fedrep):
    """Against scores of the tensors that the file holds under the client's name."""
    method, space, best = fedrep.method, fedrep.space, []
    rows = np.random.default_rng(0).random((5, 128)).astype(np.float32)
    for client, params in of_clients(fedrep.path / "model.safetensors", clients=[0, 2]):
        with torch.no_grad():
            scores = method.scores(params, torch.from_numpy(fedrep.scaler(rows)), method.semantics)
        own = fedrep.of_client(client)
        result = own.predict(rows, among="unseen")
        for row, ranking in zip(scores, result, strict=True):
            expected = sorted(space.unseen.tolist(), key=lambda c: -float(row[c]))
            assert [one.name for one in ranking] == [space.names[c] for c in expected]
            assert [one.score for one in ranking] == pytest.approx(
                [float(row[c]) for c in expected], abs=1e-4
            )
        assert len(own.predict(rows[:1])[0]) == len(space.seen) + len(space.unseen)
        best.append([ranking[0].score for ranking in result])
    assert best[0] != best[1]
    assert Recognizer(fedrep.of_client(2)).run.client == 2
    for wrong, hint in ((4, ""), (-1, ": did you mean '1'?")):
        sentence = message_of(fedrep.of_client, wrong, error=ExperimentError)
        assert f"unknown client '{wrong}'{hint} (known: 0, 1, 2, 3)" in sentence


@pytest.mark.slow
def test_own_models_are_trained_on_from_the_reported_round_and_can_be_asked(tmp_path):
    more = {"evaluation__selection": "best-on-test", "strategy__personal_epochs": 1}
    experiment = few(strategy__rounds=5, method__lr=0.6, **more)
    done, made = run(experiment, tmp_path / "run"), federation_of(experiment)
    selected = done.result["selected_round"]
    assert selected < 5
    expected = dict(personal_models(made, after(made, selected).params, 5, 1))
    assert (done.one_model, done.own_models) == (True, list(expected)) == (True, [0, 1, 2, 3])
    assert all(same(done.of_client(client).params, model) for client, model in expected.items())
    rows = np.zeros((1, 128), dtype=np.float32)
    scores = [
        one.predict(rows, top=1)[0][0].score for one in (done, done.of_client(0), done.of_client(1))
    ]
    assert len(set(scores)) == 3
    assert "Beside it, 4 clients have models of their own, trained on from it." in model_card(done)
    assert "the numbers below are those of the merged model." in model_card(done.of_client(0))


def test_classes_are_added_to_one_clients_model(fedrep, tmp_path):
    learnt = fedrep.of_client(1).learn({"another": [1.0] + [0.0] * 19}, out=tmp_path / "learnt")
    own = dict(of_clients(fedrep.path / "model.safetensors"))[1]
    assert learnt.one_model
    assert same({name: learnt.params[name] for name in own}, own)
    assert "This is the own model of client 1" in model_card(learnt)
    assert ".of_client" not in model_card(learnt)


@pytest.mark.slow
def test_of_many_models_some_are_measured(tmp_path):
    """Of 80 clients every second one: the means are of those, and each accuracy is of the client
    that it says.
    """
    experiment = few(partition__clients=80, strategy__rounds=1, method__hidden=[4])
    done = run(experiment.with_overrides({"strategy.name": "local"}), tmp_path / "run")
    alone = federation_of(experiment, Local())
    own = after(alone, 1).clients
    zsl = [accuracies(alone.answers(dict(own[client])), 0.0).zsl for client in range(0, 80, 2)]
    (line,) = done.metrics
    assert line["measured"] == done.result["personal"]["clients"] == list(range(0, 80, 2))
    assert line["clients"]["zsl"] == pytest.approx(zsl)
    assert done.result["zsl"] == pytest.approx(np.mean(zsl))
