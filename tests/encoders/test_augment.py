"""Random changes of images, and portions of them in threads."""

import threading

import numpy as np
import pytest
import torch

from fedunseen.core.parameters import linear_layer
from fedunseen.core.phases import SGD, Phase, epochs_plan
from fedunseen.core.trainer import AUGMENT, Task, Trainer
from fedunseen.encoders.backbone import in_portions
from fedunseen.encoders.images import DRAWS, augment


def slowly(image, draws, steps):
    """Mirror first, then move by a whole number of pixels and fill with black."""
    out = np.asarray(image)
    if "flip" in steps and draws[0] < 0.5:
        out = out[..., ::-1]
    if "shift" in steps:
        _, height, width = out.shape
        up, left = (
            n // 8 - int(d * (2 * (n // 8) + 1)) for d, n in ((draws[1], height), (draws[2], width))
        )
        framed = np.pad(out, ((0, 0), (height, height), (width, width)))
        out = framed[:, height + up : 2 * height + up, width + left : 2 * width + left]
    return out


@pytest.mark.parametrize("steps", [["flip"], ["shift"], ["flip", "shift"]])
@pytest.mark.parametrize("dtype", [torch.uint8, torch.float32])
def test_every_image_is_changed_by_its_own_draws(steps, dtype):
    generator = torch.Generator().manual_seed(0)
    images = torch.randint(1, 255, (40, 3, 16, 24), generator=generator).to(dtype)
    draws = torch.rand(40, DRAWS, generator=generator)
    changed = augment(images, draws, steps)
    assert changed.dtype == dtype
    expected = np.stack(
        [slowly(i.numpy(), d.tolist(), steps) for i, d in zip(images, draws, strict=True)]
    )
    assert (changed.numpy() == expected).all()
    assert not torch.equal(changed, images)


def test_clients_batched_and_one_at_a_time_see_the_same_changes():
    rng = np.random.default_rng(0)
    images, seen = torch.from_numpy(rng.integers(0, 255, (30, 3, 8, 8), dtype=np.uint8)), []

    def loss(params, batch, context):
        out = batch["inputs"].float().flatten(1) @ params["w.weight"].T + params["w.bias"]
        value = (out.square().mean(1) * batch["weights"]).sum() * 1e-6
        return value, {"loss": value}

    def change(inputs, draws):
        seen.append(draws)
        return augment(inputs, draws, ["flip", "shift"])

    def plan(k, samples):
        made = epochs_plan(samples, 4, 2, np.random.default_rng(k))
        draws = np.random.default_rng(10 + k).random((*made.index.shape, DRAWS), dtype=np.float32)
        return type(made)(made.index, made.weight, {AUGMENT: draws})

    phases = (Phase("local", loss, SGD(0.1)),)
    start, given = (
        linear_layer("w", 192, 5, rng),
        (phases, images, torch.zeros(30, dtype=torch.int64), {}, lambda g: g),
    )
    held = np.split(np.arange(30), [7, 18])
    tasks = [Task(start, own, {"": plan(k, len(own))}, {}, {}) for k, own in enumerate(held)]
    plain, trainer = Trainer(*given), Trainer(*given, augment=change)
    together = trainer.together(tasks)
    assert seen
    for task, batched in zip(tasks, together, strict=True):
        alone = trainer.train(task)
        torch.testing.assert_close(alone.params, batched.params)
        assert not torch.allclose(plain.train(task).params["w.weight"], alone.params["w.weight"])


def test_portions_have_threads_of_their_own_and_come_back_in_order(two_threads, monkeypatch):
    monkeypatch.setattr("fedunseen.encoders.backbone.device", lambda: torch.device("cpu"))
    images, met = np.arange(24, dtype=np.float32).reshape(12, 2), threading.Barrier(2, timeout=60)

    def encode(part):
        met.wait()  # no one continues before two are here
        assert (torch.get_num_threads(), torch.is_inference_mode_enabled()) == (1, True)
        return part * 2

    for count in (12, 2):  # a few are shared out, too
        np.testing.assert_array_equal(
            in_portions(images[:count], 3, encode, apart=True), images[:count] * 2
        )
    assert torch.get_num_threads() == 2
    who = set()
    in_portions(
        images, 3, lambda part: who.add(threading.current_thread()) or part
    )  # may not be shared: one thread
    assert who == {threading.main_thread()}
