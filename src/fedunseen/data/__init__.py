"""Benchmarks (one file each), the class space, scalings, partitions."""

from fedunseen.data.base import BenchmarkLoader
from fedunseen.data.benchmark import Benchmark, DataSettings
from fedunseen.data.class_space import ClassSpace, read_classes
from fedunseen.data.features import read_features
from fedunseen.data.growth import GrowthSettings
from fedunseen.data.partition import Partition, PartitionSettings, make_partition
from fedunseen.data.scaling import Quantization, Scaler, Scaling, fit_semantics

__all__ = [
    "BENCHMARKS",
    "Benchmark",
    "BenchmarkLoader",
    "ClassSpace",
    "DataSettings",
    "GrowthSettings",
    "Partition",
    "PartitionSettings",
    "Quantization",
    "Scaler",
    "Scaling",
    "fit_semantics",
    "make_partition",
    "read_classes",
    "read_features",
]

BENCHMARKS = {
    "digit-pairs": "fedunseen.data.digit_pairs:DigitPairs",
    "digits": "fedunseen.data.digits:Digits",
    "folder": "fedunseen.data.folder:Folder",
    "images": "fedunseen.data.image_folder:ImageFolder",
    "arrays": "fedunseen.data.arrays:Arrays",
    "cub": "fedunseen.data.cub:Cub",
    "awa2": "fedunseen.data.awa2:Awa2",
    "sun": "fedunseen.data.sun:Sun",
    "apy": "fedunseen.data.apy:Apy",
    "deepfashion": "fedunseen.papers.distzsl.deepfashion:DeepFashion",
    "cifar100": "fedunseen.data.cifar100:Cifar100",
    "cifar-fs": "fedunseen.data.cifar_splits:CifarFs",
    "fc100": "fedunseen.data.cifar_splits:Fc100",
    "mnist": "fedunseen.data.mnist:Mnist",
    "omniglot": "fedunseen.data.omniglot:Omniglot",
    "miniimagenet": "fedunseen.data.miniimagenet:MiniImageNet",
    "sent140": "fedunseen.data.sent140:Sent140",
    "xlsa17": "fedunseen.data.xlsa17:Xlsa17",
}
"""Name in ``[data]`` -> "module:class", a :class:`~fedunseen.data.base.BenchmarkLoader`.

A folder that fits several is said to hold the first: CIFAR-100 before the two few-shot splits of it.
"""
