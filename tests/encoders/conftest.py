"""What the tests of the encoders share: small random networks saved as the hub keeps them."""

import numpy as np
import pytest
import torch


@pytest.fixture
def photographs():
    """Eight colored images of bytes, the same each time."""
    return np.random.default_rng(3).integers(0, 256, (8, 3, 20, 24), dtype=np.uint8)


@pytest.fixture(scope="session")
def resnet_folder(tmp_path_factory):
    """Save a small residual network of three stages, with a classifier, as the hub keeps it."""
    from transformers import ResNetConfig, ResNetForImageClassification

    torch.manual_seed(0)
    sizes = {"embedding_size": 8, "hidden_sizes": [8, 12, 16], "depths": [1, 2, 1]}
    model = ResNetForImageClassification(ResNetConfig(**sizes, layer_type="basic", num_labels=5))
    for (
        name,
        buffer,
    ) in model.named_buffers():  # statistics as training leaves them, not zeros and ones
        if name.endswith(("running_mean", "running_var")):
            buffer.copy_(torch.rand(buffer.shape) + 0.5)
    for name, parameter in model.named_parameters():
        if name.endswith(
            "normalization.bias"
        ):  # otherwise its features are all zero, and tests compare nothing
            torch.nn.init.uniform_(parameter, 0.5, 1.0)
    folder = tmp_path_factory.mktemp("resnet")
    model.save_pretrained(folder)
    return folder


@pytest.fixture(scope="session")
def vit_folder(tmp_path_factory):
    """Save a small vision transformer of three layers, two heads and 4 x 4 patches, with a
    classifier.
    """
    from transformers import ViTConfig, ViTForImageClassification

    torch.manual_seed(0)
    sizes = {
        "hidden_size": 16,
        "num_hidden_layers": 3,
        "num_attention_heads": 2,
        "intermediate_size": 24,
    }
    config = ViTConfig(**sizes, image_size=32, patch_size=8, initializer_range=0.3)
    folder = tmp_path_factory.mktemp("vit")
    ViTForImageClassification(config).save_pretrained(folder)
    return folder
