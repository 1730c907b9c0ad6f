"""Benchmarks, the class space, scalings, episodes."""

from fedunseen.data.base import BenchmarkLoader
from fedunseen.data.benchmark import Benchmark, DataSettings
from fedunseen.data.class_space import ClassSpace, read_classes
from fedunseen.data.io.features import read_features
from fedunseen.data.scaling import Quantization, Scaler, Scaling, fit_semantics

__all__ = [
    "BENCHMARKS",
    "Benchmark",
    "BenchmarkLoader",
    "ClassSpace",
    "DataSettings",
    "Quantization",
    "Scaler",
    "Scaling",
    "fit_semantics",
    "read_classes",
    "read_features",
]

BENCHMARKS = {
    "digit-pairs": "fedunseen.data.benchmarks.digit_pairs:DigitPairs",
    "digits": "fedunseen.data.benchmarks.digits:Digits",
    "folder": "fedunseen.data.benchmarks.folder:Folder",
    "table": "fedunseen.data.benchmarks.table:TableBenchmark",
    "images": "fedunseen.data.benchmarks.image_folder:ImageFolder",
    "texts": "fedunseen.data.benchmarks.text_folder:TextFolder",
    "arrays": "fedunseen.data.benchmarks.folder:Arrays",
    "cub": "fedunseen.data.benchmarks.published:Cub",
    "awa2": "fedunseen.data.benchmarks.published:Awa2",
    "sun": "fedunseen.data.benchmarks.published:Sun",
    "apy": "fedunseen.data.benchmarks.published:Apy",
    "cifar100": "fedunseen.data.benchmarks.cifar100:Cifar100",
    "cifar-fs": "fedunseen.data.benchmarks.cifar100:CifarFs",
    "fc100": "fedunseen.data.benchmarks.cifar100:Fc100",
    "mnist": "fedunseen.data.benchmarks.digits:Mnist",
    "omniglot": "fedunseen.data.benchmarks.omniglot:Omniglot",
    "miniimagenet": "fedunseen.data.benchmarks.few_shot:MiniImageNet",
    "sent140": "fedunseen.data.benchmarks.sent140:Sent140",
    "xlsa17": "fedunseen.data.benchmarks.xlsa17:Xlsa17",
}
"""Name in ``[data]`` -> "module:class", a :class:`~fedunseen.data.base.BenchmarkLoader`.

A folder that fits several is said to hold the first: CIFAR-100 before the two few-shot splits of
it.
"""
