"""A round on another device than the processor: no operation mixes devices, whatever the method and
the strategy.

The meta device stands for a GPU: its tensors have no numbers, and refuse operands in main memory.
Replaced are what a run reads back (labels by the data's, numbers by 1, checks of numbers by
nothing) and SGD's fused update, by plain sums.
"""

import pytest
import torch

from fedunseen import Experiment
from fedunseen.core import trainer
from fedunseen.experiment import assemble as assembling
from fedunseen.experiment.assemble import assemble, load_data, partition_of
from fedunseen.federation import in_process
from fedunseen.methods.free import FREE

pytestmark = pytest.mark.slow

META = torch.device("meta")
VECTORS = ["classifier", "fedzsl", "distzsl", "clswgan", "vaegan", "free"]
MAPS = ["fedzsl", "apn", "gem", "msdn", "svip"]
STRATEGIES = ["fedprox", "fednova", "scaffold", "moon", "fedgloss", "fedadam"]
CASES = [
    *[("digit-pairs", {"method.name": name}) for name in VECTORS],
    *[("digit-pairs", {"method.name": name, "encoder.name": "conv"}) for name in MAPS],
    *[("digit-pairs", {"strategy.name": name}) for name in STRATEGIES],
    ("digit-pairs-few-shot", {}),
    *[("digit-pairs-maml", {"method.name": name}) for name in ("maml", "maml-mi", "maml-mi-adv")],
    ("digit-pairs-few-shot", {"encoder.name": "resnet12", "encoder.widths": [4, 4, 4, 4]}),
]


@pytest.mark.parametrize("mode", ["one-at-a-time", "batched"])
@pytest.mark.parametrize(
    ("preset", "settings"),
    CASES,
    ids=["-".join([preset, *map(str, own.values())]) for preset, own in CASES],
)
def test_a_round_stays_on_its_device(preset, settings, mode, monkeypatch):
    few = {"evaluation.selection": "last", "partition.clients": 2, "engine.mode": mode}
    few |= (
        {"data.train_per_class": 4, "data.test_per_class": 2}
        if preset == "digit-pairs"
        else {"method.episodes": 2}
    )
    experiment = Experiment.load(preset, {**settings, **few})
    benchmark = load_data(experiment, 0)
    number, plain, labels = (
        torch.Tensor.__float__,
        torch.Tensor.cpu,
        torch.from_numpy(benchmark.labels),
    )

    def cpu(tensor):
        if tensor.device != META:
            return plain(tensor)
        assert tensor.shape == labels.shape
        return labels

    monkeypatch.setattr(torch.Tensor, "cpu", cpu)
    monkeypatch.setattr(assembling, "find_device", lambda choice: META)
    monkeypatch.setattr(
        torch.Tensor, "__float__", lambda tensor: 1.0 if tensor.device == META else number(tensor)
    )
    monkeypatch.setattr(trainer._Log, "means", lambda self: [{} for _ in range(self.clients)])
    monkeypatch.setattr(in_process, "not_finite", lambda reply, own: "")
    monkeypatch.setattr(FREE, "check_inputs", lambda self, inputs: None)
    monkeypatch.setattr(
        torch, "_fused_sgd_", lambda to, *more, **_: [torch._foreach_add_(to, v) for v in more if v]
    )
    federation = assemble(experiment, benchmark, partition_of(experiment, benchmark, 0))
    state, _ = federation.round(federation.start())
    state, _ = federation.round(state)
    assert {value.device for value in state.params.values()} == {META}
