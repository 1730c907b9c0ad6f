"""How fast the service answers and learns, over HTTP on loopback, each server as a process of its
own.

``answers`` compares it with a bare handler of FastAPI and NumPy that decodes and scores the same,
and asks the model for the same probabilities and p-values (``--scores-alone``: for a softmax, and
for no p-values). One request holds a vector as JSON or a picture of digit-pairs. Some clients each
send their next request when the last is answered. Both servers run at once, are asked in turns, and
the medians over the turns count.

``classes`` adds a class to a run of many classes, by a description and by five examples.

    python benchmarks/speed/serving.py answers [--requests 1500] [--turns 7]
    python benchmarks/speed/serving.py classes [--classes 10000] [--turns 15]
"""

from __future__ import annotations

import argparse
import asyncio
import io
import json
import math
import os
import signal
import socket
import statistics
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import numpy as np
import uvicorn
from fastapi import FastAPI, UploadFile
from PIL import Image
from pydantic import BaseModel

from fedunseen import Experiment, load_run, run

PICTURE = Path(__file__).parents[2] / "examples" / "digit-pairs" / "47.png"
CLIENTS = (1, 8, 64)
SMALL = {"evaluation.selection": "last", "evaluation.embedding": False, "data.train_per_class": 20}


class Body(BaseModel):
    """Vectors as the bare handler takes them."""

    features: list[list[float]]


def bare(path: Path, port_file: Path, scores_alone: bool) -> None:
    """Serve a run of digit-pairs-gaussian as one would without this package's service.

    ``scores_alone``: probabilities are a softmax, and there are no p-values.
    """
    model = load_run(path)
    params, names, scaler = (
        {k: v.numpy() for k, v in model.params.items()},
        model.space.names,
        model.scaler,
    )
    seen = np.isin(np.arange(len(names)), model.space.seen)
    bias = params["bias"] - float(model.result["calibration_factor"]) * seen
    app = FastAPI()

    def answer(rows: np.ndarray) -> dict[str, Any]:
        scores = (scaler(rows).astype(np.float64) - params["centre"]) @ params["weight"].T + bias
        more = {}
        if scores_alone:
            odds = np.exp(scores - scores.max(1, keepdims=True))
            odds /= odds.sum(1, keepdims=True)
        else:
            odds = model.model.chances(scores, ~seen)
            more = {"unfamiliar": model.model.unfamiliar(rows).tolist()}
        best = np.argsort(-scores, axis=1)[:, :5]
        return more | {
            "answers": [
                [{"name": names[c], "score": float(s[c]), "probability": float(o[c])} for c in b]
                for s, o, b in zip(scores, odds, best, strict=True)
            ]
        }

    @app.post("/vectors")
    async def vectors(body: Body) -> dict[str, Any]:
        return answer(np.asarray(body.features, dtype=np.float32))

    @app.post("/pictures")
    async def pictures(files: list[UploadFile]) -> dict[str, Any]:
        rows = []
        for file in files:
            with Image.open(io.BytesIO(await file.read())) as picture:
                grey = picture.convert("RGB").convert("L").resize((16, 8), Image.Resampling.BOX)
            image = np.asarray(grey, dtype=np.float32) / np.float32(255)
            border = np.concatenate([image[0], image[-1], image[:, 0], image[:, -1]])
            rows.append((1 - image if np.median(border) > 0.5 else image).reshape(-1))
        return answer(np.stack(rows))

    with socket.create_server(("127.0.0.1", 0)) as listening:
        port_file.write_text(str(listening.getsockname()[1]))
        uvicorn.Server(uvicorn.Config(app, log_level="warning", access_log=False)).run([listening])


def request(path: str, kind: str, body: bytes, method: str = "POST") -> bytes:
    """Return a whole request."""
    head = f"{method} {path} HTTP/1.1\r\nHost: 127.0.0.1\r\nContent-Type: {kind}\r\nContent-Length: {len(body)}\r\n\r\n"
    return head.encode() + body


def as_json(path: str, value: Any) -> bytes:
    """Return a request with a JSON body."""
    return request(path, "application/json", json.dumps(value).encode())


def picture(path: str) -> bytes:
    """Return a request with the picture in a form."""
    head = b'--edge\r\nContent-Disposition: form-data; name="files"; filename="47.png"\r\n\r\n'
    return request(
        path,
        "multipart/form-data; boundary=edge",
        head + PICTURE.read_bytes() + b"\r\n--edge--\r\n",
    )


class Client:
    """A connection that stays open."""

    async def open(self, port: int) -> Client:
        """Connect."""
        self.reader, self.writer = await asyncio.open_connection("127.0.0.1", port)
        return self

    async def ask(self, message: bytes) -> tuple[float, bytes]:
        """Return the milliseconds until the whole answer is there, and its body."""
        began = time.perf_counter()
        self.writer.write(message)
        head = await self.reader.readuntil(b"\r\n\r\n")
        lines = head.decode("latin-1").lower().split("\r\n")
        length = next((int(line[15:]) for line in lines if line.startswith("content-length:")), 0)
        body = await self.reader.readexactly(length)
        taken = 1000 * (time.perf_counter() - began)
        if lines[0].split()[1][0] != "2":
            raise SystemExit(f"a request was refused: {lines[0]} {body.decode()}")
        return taken, body


async def load(port: int, message: bytes, clients: int, requests: int) -> list[float]:
    """Return the milliseconds of every request."""
    taken: list[float] = []

    async def ask(client: Client) -> None:
        while len(taken) < requests:
            taken.append((await client.ask(message))[0])

    opened = [await Client().open(port) for _ in range(clients)]
    await asyncio.gather(*map(ask, opened))
    for client in opened:
        client.writer.close()
    return sorted(taken)


@contextmanager
def served(line: list[str]) -> Iterator[subprocess.Popen[str]]:
    """Run a process and end it."""
    process = subprocess.Popen(line, stdout=subprocess.PIPE, stderr=subprocess.DEVNULL, text=True)
    try:
        yield process
    finally:
        process.send_signal(signal.SIGTERM)
        process.wait()


@contextmanager
def our_service(path: Path) -> Iterator[tuple[int, int]]:
    """Serve a run with the command, and yield its port and process once it is ready."""
    with served(
        [sys.executable, "-m", "fedunseen", "serve", str(path), "--port", "0", "--json"]
    ) as process:
        assert process.stdout is not None
        yield (
            int(json.loads(process.stdout.readline())["url"].rstrip("/").rpartition(":")[2]),
            process.pid,
        )


def processor_time(process: int) -> float:
    """Return the seconds that a process has taken of the processor."""
    fields = Path(f"/proc/{process}/stat").read_text().rpartition(")")[2].split()
    return (int(fields[11]) + int(fields[12])) / os.sysconf("SC_CLK_TCK")


def answers(path: Path, requests: int, turns: int, scores_alone: bool) -> None:
    """Print p50 and p99 of both servers."""
    port_file = path.parent / "port"
    rows = load_run(path).read_inputs(PICTURE)
    line = [sys.executable, __file__, "bare", str(path), str(port_file), str(int(scores_alone))]
    with our_service(path) as (ours, our_process), served(line) as other_process:
        while not (port_file.exists() and port_file.read_text()):
            time.sleep(0.1)
        bare_port = int(port_file.read_text())
        for kind, mine, other in (
            (
                "vectors",
                as_json("/predict", {"features": rows.tolist()}),
                as_json("/vectors", {"features": rows.tolist()}),
            ),
            ("pictures", picture("/predict"), picture("/pictures")),
        ):
            check_same(ours, mine, bare_port, other)
            for clients in CLIENTS:
                found: list[list[list[float]]] = [[], []]
                work: list[list[float]] = [[], []]
                for turn in range(turns):
                    for side in (0, 1) if turn % 2 else (1, 0):
                        port, message, pid = (
                            (ours, mine, our_process),
                            (bare_port, other, other_process.pid),
                        )[side]
                        before = processor_time(pid)
                        found[side].append(asyncio.run(load(port, message, clients, requests)))
                        work[side].append(
                            1000 * (processor_time(pid) - before) / len(found[side][-1])
                        )
                numbers = [say(f"p{100 * part:g}", quantiles(found, part)) for part in (0.5, 0.99)]
                numbers.append(say("processor a request", work))
                print(f"{kind}, {clients} clients:", *numbers, sep="\n  ", flush=True)


def check_same(ours: int, mine: bytes, bare_port: int, other: bytes) -> None:
    """Ask both once and more, and compare their answers."""

    async def ask(port: int, message: bytes) -> Any:
        client = await Client().open(port)
        return json.loads([await client.ask(message) for _ in range(50)][-1][1])["answers"][0]

    one, two = asyncio.run(ask(ours, mine))["classes"], asyncio.run(ask(bare_port, other))
    assert [item["name"] for item in one] == [item["name"] for item in two], (one, two)
    assert np.allclose([item["score"] for item in one], [item["score"] for item in two])


def quantiles(found: list[list[list[float]]], part: float) -> list[list[float]]:
    """Return a quantile of every turn of both sides."""
    return [[taken[int(part * (len(taken) - 1))] for taken in side] for side in found]


def say(what: str, found: list[list[float]]) -> str:
    """Say the medians over the turns of both sides, and the median of their ratios."""
    ratio = statistics.median(
        one / two if two else math.nan for one, two in zip(*found, strict=True)
    )
    ours, other = map(statistics.median, found)
    return f"{what} {ours:.2f} ms, bare {other:.2f} ms, ratio {ratio:.2f}"


def classes(path: Path, count: int, turns: int) -> None:
    """Print how long adding a class takes."""
    model, rng = load_run(path), np.random.default_rng(0)
    more = rng.random((count - len(model.space.names), model.space.attributes))
    grown = model.learn(
        {f"class {i}": row.tolist() for i, row in enumerate(more)}, out=path.parent / "grown"
    )
    five = (model.read_inputs(PICTURE) + 0.1 * rng.random((5, 128))).clip(0, 1)
    known, taken = (
        rng.random(model.space.attributes).tolist(),
        {"a description": [], "five examples": [], "an answer": []},
    )

    async def ask(port: int) -> None:
        client = await Client().open(port)
        for turn in range(turns):
            for kind, value in (
                ("a description", {"attributes": known}),
                ("five examples", {"features": five.tolist()}),
            ):
                name = f"new {kind} {turn}"
                taken[kind].append(
                    (await client.ask(as_json("/classes", {"name": name, **value})))[0]
                )
            taken["an answer"].append((await client.ask(picture("/predict")))[0])

    with our_service(grown.path) as (port, _):
        asyncio.run(ask(port))
    for kind, times in taken.items():
        print(
            f"{count} classes, {kind}: median {statistics.median(times):.1f} ms, longest "
            f"{max(times):.1f} ms"
        )


def main() -> None:
    """Train, serve, ask, and print what it took."""
    if sys.argv[1:2] == ["bare"]:
        return bare(Path(sys.argv[2]), Path(sys.argv[3]), sys.argv[4] == "1")
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("what", nargs="?", choices=("answers", "classes"), default="answers")
    parser.add_argument("--requests", type=int, default=1500, help="a turn")
    parser.add_argument("--turns", type=int, default=7)
    parser.add_argument("--classes", type=int, default=10_000)
    parser.add_argument(
        "--scores-alone", action="store_true", help="the bare handler calibrates nothing"
    )
    parser.add_argument(
        "--smallest", action="store_true", help="a few requests, to see that it works"
    )
    chosen = parser.parse_args()
    if chosen.smallest:
        chosen.requests, chosen.turns, chosen.classes = 70, 1, 120
    with tempfile.TemporaryDirectory() as folder:
        path = run(Experiment.load("digit-pairs-gaussian", SMALL), Path(folder) / "run").path
        if chosen.what == "answers" or chosen.smallest:
            answers(path, chosen.requests, chosen.turns, chosen.scores_alone)
        if chosen.what == "classes" or chosen.smallest:
            classes(path, chosen.classes, chosen.turns)


if __name__ == "__main__":
    main()
