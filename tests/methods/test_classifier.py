import numpy as np
import torch

from fedunseen.encoders import Backbone
from fedunseen.methods.classifier import Classifier, ClassifierSettings


def test_the_classifier_is_torchs_cross_entropy_over_all_classes(space):
    method = Classifier(ClassifierSettings(hidden=(5,)), space, torch.zeros(8, 30), Backbone((12,)))
    params = method.init(np.random.default_rng(0))
    assert {name: tuple(value.shape) for name, value in params.items()} == {
        "f.0.weight": (5, 12),
        "f.0.bias": (5,),
        "head.weight": (8, 5),
        "head.bias": (8,),
    }
    layers = torch.nn.Sequential(torch.nn.Linear(12, 5), torch.nn.ReLU(), torch.nn.Linear(5, 8))
    layers.load_state_dict({name.replace("f.0", "0").replace("head", "2"): value for name, value in params.items()})
    inputs, labels = torch.randn(4, 12, generator=torch.Generator().manual_seed(0)), torch.tensor([1, 0, 4, 2])
    batch = {"inputs": inputs, "labels": labels, "weights": torch.tensor([1.0, 1.0, 0.0, 1.0])}
    loss, terms = method.loss(params, batch, method.context())
    kept = [0, 1, 3]
    expected = torch.nn.functional.cross_entropy(layers(inputs[kept]), labels[kept])
    torch.testing.assert_close(loss, expected)
    assert terms["loss"] is loss
    assert set(terms) == {"loss", "representation"}
    torch.testing.assert_close(terms["representation"], layers[:-1](inputs))
    torch.testing.assert_close(method.scores(params, inputs, torch.ones(2, 30)), layers(inputs))


def test_a_step_lowers_the_outputs_of_classes_that_nobody_holds(space):
    method = Classifier(ClassifierSettings(), space, torch.zeros(8, 30), Backbone((12,)))
    params = {name: value.requires_grad_() for name, value in method.init(np.random.default_rng(0)).items()}
    batch = {"inputs": torch.ones(3, 12), "labels": torch.tensor([0, 1, 2]), "weights": torch.ones(3)}
    method.loss(params, batch, method.context())[0].backward()
    assert (params["head.bias"].grad[[5, 6, 7]] > 0).all()
