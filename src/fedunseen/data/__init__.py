"""Benchmarks (one file each), the class space, scalings, partitions."""

from fedunseen.data.benchmark import Benchmark, DataSettings
from fedunseen.data.class_space import ClassSpace, read_classes
from fedunseen.data.features import read_features
from fedunseen.data.partition import Partition, PartitionSettings, make_partition
from fedunseen.data.scaling import Scaler, Scaling, fit_semantics

__all__ = [
    "BENCHMARKS",
    "Benchmark",
    "ClassSpace",
    "DataSettings",
    "Partition",
    "PartitionSettings",
    "Scaler",
    "Scaling",
    "fit_semantics",
    "make_partition",
    "read_classes",
    "read_features",
]

BENCHMARKS = {
    "digit-pairs": "fedunseen.data.digit_pairs:DigitPairs",
    "xlsa17": "fedunseen.data.xlsa17:Xlsa17",
    "folder": "fedunseen.data.folder:Folder",
    "images": "fedunseen.data.image_folder:ImageFolder",
    "cub": "fedunseen.data.cub:Cub",
    "awa2": "fedunseen.data.awa2:Awa2",
    "sun": "fedunseen.data.sun:Sun",
    "apy": "fedunseen.data.apy:Apy",
    "deepfashion": "fedunseen.data.deepfashion:DeepFashion",
    "cifar100": "fedunseen.data.cifar100:Cifar100",
    "digits": "fedunseen.data.digits:Digits",
    "mnist": "fedunseen.data.mnist:Mnist",
    "fc100": "fedunseen.data.cifar_splits:Fc100",
    "cifar-fs": "fedunseen.data.cifar_splits:CifarFs",
    "sent140": "fedunseen.data.sent140:Sent140",
    "omniglot": "fedunseen.data.omniglot:Omniglot",
    "miniimagenet": "fedunseen.data.miniimagenet:MiniImageNet",
}
"""Name in ``[data]`` -> "module:class" with ``Settings``, ``load(settings, seed)``, ``read(path, width)``."""
