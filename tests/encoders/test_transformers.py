"""ResNet and ViT: against the library's own forward pass, trained and frozen, from folders as the hub keeps them."""

import json
import shutil
import sys

import numpy as np
import pytest
import torch
from PIL import Image
from pydantic import ValidationError
from safetensors.torch import load_file, save_file
from torch import nn

from fedunseen.core import array_cache as cache
from fedunseen.core.errors import ExperimentError, MissingDependencyError
from fedunseen.core.parameters import is_statistic
from fedunseen.encoders.images import resized
from fedunseen.encoders.transformers import ResNet, ResNetSettings, ViT, ViTSettings
from refusals import message_of

transformers = pytest.importorskip("transformers")
pytestmark = pytest.mark.usefixtures("one_thread")

SHAPE = (3, 20, 24)


def resnet(folder, output="vectors", shape=SHAPE, **settings):
    return ResNet(ResNetSettings(weights=str(folder), **({"size": 32} | settings)), shape, output)


def vit(folder, output="vectors", shape=SHAPE, **settings):
    return ViT(ViTSettings(weights=str(folder), **({"size": 32} | settings)), shape, output)


def prepared(images, mean, deviation, size=32):
    planes = resized(torch.from_numpy(images).float() / 255, (size, size), "bilinear")
    return (planes - torch.tensor(mean).reshape(3, 1, 1)) / torch.tensor(deviation).reshape(3, 1, 1)


IMAGENET = ((0.485, 0.456, 0.406), (0.229, 0.224, 0.225))
HALF = ((0.5, 0.5, 0.5), (0.5, 0.5, 0.5))


def test_resizing_is_that_of_pillow():
    # Far from black and white: Pillow clips what bicubic overshoots between its passes too.
    image = np.random.default_rng(0).integers(90, 160, (40, 60, 3), dtype=np.uint8)
    planes = torch.from_numpy(image).permute(2, 0, 1)[None].float() / 255
    for name, filter in (("bilinear", Image.Resampling.BILINEAR), ("bicubic", Image.Resampling.BICUBIC)):
        for size in ((25, 25), (90, 80)):
            expected = np.asarray(Image.fromarray(image).resize(size[::-1], filter), dtype=np.float32) / 255
            own = resized(planes, size, name)[0].permute(1, 2, 0).numpy()
            assert np.abs(own - expected).max() < 1.6 / 255  # Pillow rounds twice
    assert resized(planes, (40, 60), "bicubic") is planes


@pytest.mark.slow
def test_frozen_maps_are_the_librarys(resnet_folder, photographs):
    model = transformers.ResNetModel.from_pretrained(resnet_folder).eval()
    with torch.no_grad():
        expected = model(prepared(photographs, *IMAGENET))
    maps = resnet(resnet_folder, "maps").encode(photographs)
    assert (maps.shape, maps.dtype) == ((8, 16, 2, 2), np.float16)
    np.testing.assert_allclose(maps, expected.last_hidden_state.numpy(), rtol=2e-3, atol=2e-3)
    vectors = resnet(resnet_folder).encode(photographs)
    assert (vectors.shape, vectors.dtype) == ((8, 16), np.float32)
    np.testing.assert_allclose(vectors, expected.pooler_output.flatten(1).numpy(), rtol=1e-4, atol=1e-5)
    floats = photographs.astype(np.float32) / 255
    np.testing.assert_allclose(resnet(resnet_folder).encode(floats), vectors, rtol=1e-5, atol=1e-6)
    grey, wide = photographs[:, :1], np.repeat(photographs[:, :1], 3, axis=1)
    assert np.array_equal(resnet(resnet_folder, shape=(1, 20, 24)).encode(grey), resnet(resnet_folder).encode(wide))


def test_frozen_tokens_are_the_librarys_and_other_sizes_interpolate_the_positions(vit_folder, photographs):
    model = transformers.ViTModel.from_pretrained(vit_folder, add_pooling_layer=False).eval()
    with torch.no_grad():
        expected = model(prepared(photographs, *HALF)).last_hidden_state.numpy()
        values = model(prepared(photographs, *HALF, size=48), interpolate_pos_encoding=True).last_hidden_state
    vectors = vit(vit_folder).encode(photographs)
    np.testing.assert_allclose(vectors, expected[:, 0], rtol=1e-4, atol=1e-5)
    maps = vit(vit_folder, "maps").encode(photographs)
    assert maps.shape == (8, 16, 4, 4)
    np.testing.assert_allclose(maps[:, :, 2, 1], expected[:, 1 + 2 * 4 + 1], rtol=2e-3, atol=2e-3)
    network = vit(vit_folder, "maps", size=48, trained=True).backbone()
    assert network.shape == (16, 6, 6)
    own = network(network.init(np.random.default_rng(0)), torch.from_numpy(photographs))
    torch.testing.assert_close(own.flatten(2).transpose(1, 2), values[:, 1:], rtol=1e-4, atol=1e-5)


def test_vit_gives_tokens_and_takes_them_back(vit_folder, photographs):
    settings = {"add_pooling_layer": False, "attn_implementation": "eager"}
    model = transformers.ViTModel.from_pretrained(vit_folder, **settings).eval()
    with torch.no_grad():
        pixels = prepared(photographs, *HALF)
        expected = model(pixels, output_attentions=True)
    network = vit(vit_folder, trained=True).backbone()
    params = network.init(np.random.default_rng(0))
    images = torch.from_numpy(photographs)
    tokens = network.tokens(params, images)
    torch.testing.assert_close(tokens, model.embeddings(pixels))
    values, attentions = network.transform(params, tokens)
    assert attentions.shape == (3, 8, 17, 17)
    torch.testing.assert_close(values, expected.last_hidden_state, rtol=1e-4, atol=1e-5)
    torch.testing.assert_close(attentions, torch.stack(expected.attentions).mean(2), rtol=1e-4, atol=1e-6)
    torch.testing.assert_close(attentions.sum(-1), torch.ones(3, 8, 17))
    torch.testing.assert_close(network(params, images), values[:, 0], rtol=1e-4, atol=1e-5)
    leaf = tokens.clone().requires_grad_()
    network.transform(params, leaf)[0].square().sum().backward()
    assert torch.isfinite(leaf.grad).all()
    assert leaf.grad.abs().max() > 0


@pytest.mark.slow
def test_features_are_kept_until_weights_or_preparation_change(resnet_folder, tmp_path, own_cache, monkeypatch):
    folder = shutil.copytree(resnet_folder, tmp_path / "copy")
    monkeypatch.setattr(cache, "CHUNK", 4)
    images = np.random.default_rng(0).integers(0, 256, (6, 3, 8, 8), dtype=np.uint8)

    def count(**settings):
        resnet(folder, shape=(3, 8, 8), **settings).encode(images)
        return len(list((own_cache / "features").glob("*.npy")))

    assert [count(), count(), count(size=40), count(resize="bicubic")] == [1, 1, 2, 3]
    model = transformers.ResNetForImageClassification.from_pretrained(folder)
    with torch.no_grad():
        next(model.parameters()).view(-1)[0] += 1
    model.save_pretrained(folder)
    assert count() == 4
    (folder / "preprocessor_config.json").write_text(json.dumps({"image_mean": [0.5, 0.5, 0.5]}))
    assert count() == 5


def test_trained_parameters_are_fresh_copies_of_the_folders(resnet_folder):
    network = resnet(resnet_folder, trained=True).backbone()
    assert (network.trained, network.batched) == (True, False)
    model = transformers.ResNetModel.from_pretrained(resnet_folder)
    params, again = network.init(np.random.default_rng(0)), network.init(np.random.default_rng(1))
    expected = {f"f.{name}": t for name, t in model.state_dict().items() if not name.endswith("num_batches_tracked")}
    assert params.keys() == expected.keys()
    assert all(torch.equal(params[name], expected[name]) for name in expected)
    params["f.embedder.embedder.convolution.weight"].zero_()
    assert again["f.embedder.embedder.convolution.weight"].abs().sum() > 0
    trained = [name for name in params if not is_statistic(name)]
    assert len(params) - len(trained) == 2 * sum(isinstance(m, nn.BatchNorm2d) for m in model.modules())


@pytest.mark.parametrize("output", ["vectors", "maps"])
def test_training_updates_statistics_in_place_as_batchnorm_does(resnet_folder, photographs, output):
    network = resnet(resnet_folder, output, trained=True).backbone()
    params = network.init(np.random.default_rng(0))
    places = {name: value for name, value in params.items() if is_statistic(name)}
    model = transformers.ResNetModel.from_pretrained(resnet_folder).train()
    images, pixels = torch.from_numpy(photographs), prepared(photographs, *IMAGENET)
    for _ in range(2):
        result = model(pixels)
        expected = result.last_hidden_state if output == "maps" else result.pooler_output.flatten(1)
        torch.testing.assert_close(network(params, images, training=True), expected, rtol=1e-4, atol=1e-4)
    state = model.state_dict()
    for name, value in places.items():
        assert params[name] is value
        torch.testing.assert_close(value, state[name.removeprefix("f.")])
    before = {name: value.clone() for name, value in places.items()}
    model.eval()
    with torch.no_grad():
        result = model(pixels)
    expected = result.last_hidden_state if output == "maps" else result.pooler_output.flatten(1)
    torch.testing.assert_close(network(params, images), expected, rtol=1e-4, atol=1e-4)
    network(params, images[:1], training=True)  # one image has no spread between samples
    assert all(torch.equal(places[name], before[name]) for name in places)


def test_random_weights_need_no_file():
    settings = ResNetSettings(weights="microsoft/resnet-18", pretrained=False, trained=True, size=32)
    network = ResNet(settings, (3, 32, 32), "vectors").backbone()
    assert network.shape == (512,)
    params = network.init(np.random.default_rng(0))
    again = network.init(np.random.default_rng(0))
    assert all(torch.equal(params[name], again[name]) for name in params)
    assert sum(v.numel() for name, v in params.items() if not is_statistic(name)) == 11_176_512  # without a classifier
    weight = params["f.encoder.stages.3.layers.1.layer.0.convolution.weight"]
    assert weight.std().item() == pytest.approx((2 / (512 * 9)) ** 0.5, rel=0.01)
    assert torch.isfinite(network(params, torch.rand(4, 3, 32, 32), training=True)).all()
    large = ResNet(settings.model_copy(update={"size": None}), (3, 32, 32), "maps").backbone()
    assert large.multiply_adds() == pytest.approx(1.8e9, rel=0.02)  # as the paper says


def test_random_vit_starts_as_its_authors_do(vit_folder, tmp_path):
    network = ViT(ViTSettings(pretrained=False, trained=True, size=32), (3, 32, 32), "maps").backbone()
    assert network.shape == (768, 2, 2)
    published = 85_798_656 - (197 - 5) * 768  # ViT-B/16, with fewer positions
    assert sum(parameter.numel() for parameter in network.skeleton.parameters()) == published
    shutil.copy(vit_folder / "config.json", tmp_path)  # no weights are needed
    network = vit(tmp_path, pretrained=False, trained=True).backbone()
    params = network.init(np.random.default_rng(0))
    weight = params["f.vit.layers.0.mlp.fc1.weight"]
    assert weight.abs().max().item() == pytest.approx(0.6)  # two deviations
    assert weight.std().item() == pytest.approx(0.3, rel=0.1)
    assert not params["f.vit.layers.0.mlp.fc1.bias"].any()
    assert torch.equal(params["f.vit.layernorm.weight"], torch.ones(16))


def test_bad_folders_are_named(resnet_folder, vit_folder, tmp_path, monkeypatch):
    def said(folder, encode=False):
        image = np.zeros((1, *SHAPE), dtype=np.uint8)
        return message_of(resnet(folder).encode, image) if encode else message_of(resnet, folder)

    empty = tmp_path / "empty"
    assert said(empty).startswith(f"{empty} is not a folder: encoder.weights has to name one with config.json and")
    empty.mkdir()
    assert said(empty) == f"{empty} has no config.json: give a folder as save_pretrained writes it"
    shutil.copy(resnet_folder / "config.json", empty)
    assert said(empty) == f"{empty} has no weights (model.safetensors)"
    (empty / "pytorch_model.bin").write_bytes(b"never read")
    assert said(empty).startswith(f"{empty} has no weights (model.safetensors): pytorch_model.bin may run code when")
    assert said(vit_folder).startswith(f"{vit_folder} holds a model of the type 'vit', but encoder.name = 'resnet'")
    (empty / "config.json").write_text("{")
    assert said(empty) == f"{empty / 'config.json'} is damaged or not JSON"
    broken = shutil.copytree(resnet_folder, tmp_path / "broken")
    weights, whole = broken / "model.safetensors", (broken / "model.safetensors").read_bytes()
    weights.write_bytes(whole[:-100])
    assert said(broken, True).startswith(f"{broken} cannot be loaded as ResNetModel: ")
    tensors = load_file(resnet_folder / "model.safetensors")
    del tensors["resnet.encoder.stages.2.layers.0.layer.1.convolution.weight"]
    save_file(tensors, weights, {"format": "pt"})
    assert said(broken, True).startswith(f"{broken} lacks 1 of the weights of ResNetModel, such as encoder.stages.2.")
    weights.write_bytes(whole)
    config = json.loads((broken / "config.json").read_text())
    (broken / "config.json").write_text(json.dumps(config | {"hidden_sizes": [*config["hidden_sizes"][:2], 20]}))
    assert said(broken, True).startswith(f"{broken}: encoder.stages.2.layers.0.layer.0.convolution.weight has another")
    monkeypatch.setitem(sys.modules, "transformers", None)
    missing = message_of(resnet, resnet_folder, error=MissingDependencyError)
    assert missing.endswith("pip install 'fedunseen[encoders]'")


def test_a_hub_name_is_loaded_from_its_local_copy_and_a_hub_that_does_not_answer_is_named(
    monkeypatch, resnet_folder, photographs
):
    asked = []

    def snapshot_download(name, allow_patterns):
        asked.append((name, allow_patterns))
        if name == "microsoft/resnet-18":
            raise ConnectionError("Name or service not known.\nmore lines")
        return str(resnet_folder)

    monkeypatch.setattr("huggingface_hub.snapshot_download", snapshot_download)
    features = resnet("somebody/network").encode(photographs)
    assert np.array_equal(features, resnet(resnet_folder).encode(photographs))
    ((name, patterns),) = asked
    assert name == "somebody/network"
    assert not any(".bin" in pattern or ".pt" in pattern or ".py" in pattern for pattern in patterns)
    assert message_of(resnet, "microsoft/resnet-18").startswith("encoder.weights:")


@pytest.mark.parametrize(("side", "expected"), [(448, 448), (224, 224), (32, 224)])
def test_the_network_sees_images_of_the_size_that_the_data_have(resnet_folder, vit_folder, side, expected):
    """``data.size`` alone is set for larger maps: it leaves no second size behind."""
    shape = (3, side, side)
    for encoder, cells in (
        (resnet(resnet_folder, "maps", shape, size=None), 16),
        (vit(vit_folder, "maps", shape, size=None), 8),
    ):
        network = encoder.backbone()
        assert (network.prepare.size, network.shape[1:]) == (expected, (expected // cells, expected // cells))


def test_settings_that_make_no_sense_are_refused(vit_folder):
    said = message_of(lambda: vit(vit_folder, trained=True, size=36).backbone(), error=ExperimentError)
    assert said == "encoder.size: 36 is not a multiple of the patches' side, 8"
    with pytest.raises(ValidationError, match="pretrained = false leaves random numbers where nothing is trained"):
        ResNetSettings(pretrained=False)
