"""Time the decoding and the encoding of photos by EfficientNet-Lite0, in turns with another state
and other libraries.

``python benchmarks/speed/photos.py --before OLD/src`` decodes photos of 32 (PNG), 500 and 4,000 pixels
(JPEG) and encodes them. ``--data`` takes them from ``DATA/photos``; without it they are drawn. Each
state has a process of its own, and each number is a median over turns, of processor time. ONNX
Runtime and OpenVINO, where installed, compute the same network on the same pictures. Differences
are the largest one of all features from those of one picture at a time through the unfused network
in float64, in units of the features' root mean square.

``--whole`` times whole folders, as a run does with an empty cache, by the clock and in processor
time.
"""

from __future__ import annotations

import argparse
import os
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable
from functools import partial
from importlib import import_module
from importlib.util import find_spec
from pathlib import Path
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray
from PIL import Image

from fedunseen.encoders.efficientnet import EfficientNetLite, EfficientNetLiteSettings


def module(*names: str) -> Any:
    """Return the first of the package's modules that the measured state has: they had other places
    before.
    """
    for name in names:
        try:
            return import_module(f"fedunseen.{name}")
        except ModuleNotFoundError:
            continue
    raise ModuleNotFoundError(f"none of {names}")


image_files = module("data.io.images", "data.images")
read_image = image_files.read_image
in_portions = module("encoders.frozen", "encoders.backbone").in_portions

SIDE = 224
AT_ONCE = 4  # pictures a call of a library
WHOLE = ("500 px, JPEG", "12 MP, JPEG")
REPEATED = 16  # a whole folder has each photo so many times
KINDS = {
    "32 px, PNG": (32, 32, "png", 64),
    "500 px, JPEG": (500, 375, "jpg", 32),
    "12 MP, JPEG": (4000, 3000, "jpg", 4),
}
Encode = Callable[[NDArray[np.uint8]], NDArray[Any]]


def main() -> None:
    """Write the photos, start a process for each state, and print the tables."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--data", type=Path, help="with photos/*.jpg")
    parser.add_argument("--before", type=Path, help="the folder src of another state")
    parser.add_argument("--turns", type=int, default=9)
    parser.add_argument("--threads", type=int, default=1)
    parser.add_argument(
        "--whole", action="store_true", help="folders, decoded and encoded, by the clock"
    )
    parser.add_argument(
        "--smallest", action="store_true", help="two small photos, to see that it runs"
    )
    parser.add_argument("--work", nargs=2, help=argparse.SUPPRESS)
    args = parser.parse_args()
    torch.set_num_threads(args.threads)
    if args.work:
        work(Path(args.work[0]), args.work[1])
        return
    with tempfile.TemporaryDirectory() as folder:
        write_photos(Path(folder), args.data, args.smallest)
        libraries = [
            name for name in PEERS if not args.smallest | args.whole and find_spec(name.split()[0])
        ]
        sources = [("before", args.before)] * bool(args.before) + [("now", None)]
        tasks = {(name, ""): start(folder, "", source, args.threads) for name, source in sources}
        tasks |= {(name, "peer"): start(folder, name, None, args.threads) for name in libraries}
        turns = 1 if args.smallest else args.turns
        whole = [f"whole {kind}" for kind in WHOLE] if args.whole or args.smallest else []
        wanted = whole if args.whole else [*KINDS, "prepare", "encode", *whole]
        seconds, errors = measure(tasks, turns, wanted)
    if whole:
        print(whole_table(seconds))
    if not args.whole:
        print(tables(seconds, errors))


def write_photos(folder: Path, data: Path | None, smallest: bool) -> None:
    """Write a folder of photos of each size, enlarged and with a little noise, so that a JPEG has
    details to decode.
    """
    rng = np.random.default_rng(0)
    found = sorted((data / "photos").glob("*.jpg")) if data else []
    for kind, (width, height, suffix, count) in KINDS.items():
        (folder / kind).mkdir()
        if smallest:
            width, height, count = 32, 24, 2
        for i in range(count):
            drawn = rng.integers(0, 256, (12, 16, 3), dtype=np.uint8)
            photo = (
                Image.open(found[i % len(found)]).convert("RGB")
                if found
                else Image.fromarray(drawn)
            )
            large = np.asarray(photo.resize((width, height), Image.Resampling.BICUBIC)).astype(
                np.float32
            )
            large += rng.normal(0, 4, large.shape).astype(np.float32)
            Image.fromarray(large.clip(0, 255).astype(np.uint8)).save(
                folder / kind / f"{i:03d}.{suffix}", quality=90
            )


def start(folder: str, library: str, source: Path | None, threads: int) -> subprocess.Popen[str]:
    """Start a process that does a task a line: see :func:`work`."""
    # As the command does: threads that spin between operations would take the core from the other
    # process.
    environment = {**os.environ, "GOMP_SPINCOUNT": "1000"} | (
        {"PYTHONPATH": str(source.resolve())} if source else {}
    )
    command = [sys.executable, __file__, "--threads", str(threads), "--work", folder, library]
    return subprocess.Popen(
        command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True, env=environment
    )


def work(folder: Path, library: str) -> None:
    """Do what each line of the standard input names; print processor and clock seconds a picture,
    and a difference.
    """
    files = {kind: sorted((folder / kind).iterdir()) for kind in KINDS}
    images = np.concatenate([read_image(file, SIDE, 256) for file in files["500 px, JPEG"]])
    encoder = EfficientNetLite(EfficientNetLiteSettings(), (3, SIDE, SIDE), "vectors")
    own = (
        encoder.compute if hasattr(encoder, "compute") else partial(encoder._run, output="vectors")
    )
    encode = PEERS[library](encoder) if library else own
    features = encode(images)  # the first call compiles and loads
    network = encoder.backbone()
    start = network.init(np.random.default_rng(0))
    params = {name: tensor.double() for name, tensor in start.items()}
    pixels = torch.from_numpy(images[:8]).double() / 255
    with torch.inference_mode():
        right = torch.cat([network(params, pixel) for pixel in pixels.split(1)]).numpy()
    difference = np.abs(features[:8] - right).max() / np.sqrt(np.square(right).mean())
    for line in sys.stdin:
        begin, clock, task = time.process_time(), time.perf_counter(), line.strip()
        if task in files:
            for file in files[task]:
                read_image(file, SIDE, 256)
        elif task == "prepare":
            in_portions(images, AT_ONCE, lambda part: encoder.prepare(part)[:, :1, :1, :1])
        elif task == "encode":
            encode(images)
        else:
            read_and_encode(files[task.removeprefix("whole ")], encoder)
        count = (
            REPEATED * len(files[task.removeprefix("whole ")])
            if "whole" in task
            else len(files.get(task, images))
        )
        print(
            (time.process_time() - begin) / count,
            (time.perf_counter() - clock) / count,
            difference,
            flush=True,
        )


def read_and_encode(files: list[Path], encoder: EfficientNetLite) -> None:
    """Do what a run does with a folder of photos that no cache knows."""
    with tempfile.TemporaryDirectory() as cache:
        os.environ["FEDUNSEEN_CACHE"] = cache
        names = [file.name for file in files] * REPEATED
        encoder.encode(image_files.decode(files[0].parent, names, SIDE, 256)[0])


def graph(encoder: EfficientNetLite) -> bytes:
    """Return the network as ONNX."""
    from fedunseen.core.onnx import onnx_graph
    from fedunseen.encoders.efficientnet import LITE0
    from fedunseen.encoders.efficientnet_network import EfficientNetLiteNetwork

    network = EfficientNetLiteNetwork(LITE0).eval()
    network.load_state_dict(encoder._weights())
    program = onnx_graph(network, [torch.zeros(2, 3, SIDE, SIDE)], ["images"], "maps", ["count"])
    return bytes(program.model_proto.SerializeToString())


def onnxruntime(encoder: EfficientNetLite) -> Encode:
    """Return the network by ONNX Runtime, one thread a call."""
    import onnxruntime as runtime

    options = runtime.SessionOptions()
    options.intra_op_num_threads = 1
    session = runtime.InferenceSession(graph(encoder), options)
    return by_library(encoder, lambda planes: session.run(None, {"images": planes})[0])


def openvino(precision: str) -> Callable[[EfficientNetLite], Encode]:
    """Return the network by OpenVINO."""

    def load(encoder: EfficientNetLite) -> Encode:
        import openvino as vino

        core = vino.Core()
        how = {"INFERENCE_NUM_THREADS": 1, "NUM_STREAMS": 1, "INFERENCE_PRECISION_HINT": precision}
        compiled = core.compile_model(core.read_model(graph(encoder)), "CPU", how)
        return by_library(encoder, lambda planes: compiled(planes)[0])

    return load


def by_library(encoder: EfficientNetLite, maps: Callable[[NDArray[Any]], NDArray[Any]]) -> Encode:
    """Return what encodes with another library in the package's place."""

    def encode(part: torch.Tensor) -> torch.Tensor:
        return torch.from_numpy(np.asarray(maps(encoder.prepare(part).contiguous().numpy()))).mean(
            (2, 3)
        )

    return lambda images: in_portions(images, AT_ONCE, encode, apart=True)


PEERS: dict[str, Callable[[EfficientNetLite], Encode]] = {
    "onnxruntime": onnxruntime,
    "openvino": openvino("f32"),
    "openvino in bfloat16": openvino("bf16"),
}


def measure(
    processes: dict[tuple[str, str], subprocess.Popen[str]], turns: int, wanted: list[str]
) -> tuple[dict[str, dict[str, list[float]]], dict[str, float]]:
    """Return seconds a picture of each state and task, a number a turn, and the difference of each
    state.
    """
    seconds: dict[str, dict[str, list[float]]] = {name: {} for name, _ in processes}
    errors: dict[str, float] = {}
    for _ in range(turns):
        for task in wanted:
            for (name, kind), process in processes.items():
                if kind and task != "encode":
                    continue
                assert process.stdin is not None
                assert process.stdout is not None
                process.stdin.write(f"{task}\n")
                process.stdin.flush()
                took, clock, errors[name] = map(float, process.stdout.readline().split())
                seconds[name].setdefault(task, []).append(took)
                seconds[name].setdefault(f"{task}, clock", []).append(clock)
    for process in processes.values():
        process.communicate()
    return seconds, errors


def whole_table(seconds: dict[str, dict[str, list[float]]]) -> str:
    """Return milliseconds a picture of whole folders, by the clock and of the processor, and ratios
    within turns.
    """
    now, before = seconds["now"], seconds.get("before", seconds["now"])
    lines = ["| ms a picture, whole folders | before | now | ratio |", "|---|--:|--:|--:|"]
    for kind in WHOLE:
        for name, clock in (("clock", ", clock"), ("processor", "")):
            old, new = (state[f"whole {kind}{clock}"] for state in (before, now))
            ratio = np.median(np.array(old) / np.array(new))
            lines.append(
                f"| {kind}, {name} | {1e3 * np.median(old):.1f} | {1e3 * np.median(new):.1f} | "
                f"{ratio:.2f} |"
            )
    return "\n".join([*lines, f"load {os.getloadavg()[0]:.1f}", ""])


def tables(seconds: dict[str, dict[str, list[float]]], errors: dict[str, float]) -> str:
    """Return milliseconds of the parts, of whole photos, and of the libraries."""
    now = seconds["now"]
    before = seconds.get("before", now)

    def row(name: str, old: list[float], new: list[float]) -> str:
        ratio = np.median(np.array(old) / np.array(new))
        return f"| {name} | {1e3 * np.median(old):.1f} | {1e3 * np.median(new):.1f} | {ratio:.2f} |"

    lines = ["| ms a picture | before | now | ratio |", "|---|--:|--:|--:|"]
    lines += [row(f"decode {kind}", before[kind], now[kind]) for kind in KINDS]
    lines += [
        row("prepare", before["prepare"], now["prepare"]),
        row("encode", before["encode"], now["encode"]),
    ]
    for kind in KINDS:
        old, new = (
            [a + b for a, b in zip(s[kind], s["encode"], strict=True)] for s in (before, now)
        )
        lines.append(row(f"**both, {kind}**", old, new))
    lines += ["", "| encode by | ms | now / this | largest difference |", "|---|--:|--:|--:|"]
    for name, tasks in seconds.items():
        ratio = np.median(np.array(now["encode"]) / np.array(tasks["encode"]))
        lines.append(
            f"| {name} | {1e3 * np.median(tasks['encode']):.1f} | {ratio:.2f} | {errors[name]:.1e} "
            "|"
        )
    return "\n".join(lines)


if __name__ == "__main__":
    sys.exit(main())
