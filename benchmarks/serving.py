"""How fast the service answers: one digit-pairs picture a request, over HTTP on loopback, to a process of its own.

Requests are sent at a fixed rate, each at its own time whether or not the one before has been answered, by a few
connections that stay open. A request's time runs from when it was due, so that waiting in a queue counts.

    python benchmarks/serving.py [--run RUN] [--rate 50] [--seconds 20] [--connections 8]

Without ``--run`` a small model is trained first.
"""

from __future__ import annotations

import argparse
import http.client
import json
import queue
import signal
import statistics
import subprocess
import sys
import tempfile
import threading
import time
from pathlib import Path

PICTURE = Path(__file__).parents[1] / "examples" / "digit-pairs" / "47.png"
HEADERS = {"Content-Type": "multipart/form-data; boundary=edge"}


def body() -> bytes:
    """Return the form of one request."""
    head = b'--edge\r\nContent-Disposition: form-data; name="files"; filename="47.png"\r\n\r\n'
    return head + PICTURE.read_bytes() + b"\r\n--edge--\r\n"


def measure(port: int, rate: float, seconds: float, connections: int) -> list[float]:
    """Return the milliseconds of every request."""
    due: queue.Queue[float | None] = queue.Queue()
    taken: list[float] = []
    failed: list[str] = []
    form = body()

    def ask() -> None:
        connection = http.client.HTTPConnection("127.0.0.1", port, timeout=60)
        while (moment := due.get()) is not None:
            connection.request("POST", "/predict?top=5", form, HEADERS)
            reply = connection.getresponse()
            result = reply.read()
            if reply.status != 200:
                failed.append(result.decode())
            taken.append(1000 * (time.perf_counter() - moment))

    threads = [threading.Thread(target=ask) for _ in range(connections)]
    for thread in threads:
        thread.start()
    began = time.perf_counter()
    for i in range(int(rate * seconds)):
        moment = began + i / rate
        time.sleep(max(0.0, moment - time.perf_counter()))
        due.put(moment)
    for _ in threads:
        due.put(None)
    for thread in threads:
        thread.join()
    if failed:
        raise SystemExit(f"{len(failed)} requests were refused: {failed[0]}")
    return taken


def main() -> None:
    """Train if there is no run, serve it, ask it, and print what it took."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--run", type=Path, help="a run of digit-pairs")
    parser.add_argument("--rate", type=float, default=50, help="requests a second")
    parser.add_argument("--seconds", type=float, default=20)
    parser.add_argument("--connections", type=int, default=8)
    parser.add_argument("--smallest", action="store_true", help="a second, to see that it works")
    chosen = parser.parse_args()
    seconds = 1.0 if chosen.smallest else chosen.seconds
    with tempfile.TemporaryDirectory() as folder:
        path = chosen.run
        if path is None:
            from fedunseen import Experiment, run

            quick = {"strategy.rounds": 2, "evaluation.selection": "last", "method.kl": 0, "evaluation.theory": False}
            quick |= {"evaluation.embedding": False, "data.train_per_class": 10, "data.test_per_class": 2}
            path = run(Experiment.load("digit-pairs", quick), Path(folder) / "run").path
        line = [sys.executable, "-m", "fedunseen", "serve", str(path), "--port", "0", "--json"]
        process = subprocess.Popen(line, stdout=subprocess.PIPE, stderr=subprocess.DEVNULL, text=True)
        try:
            assert process.stdout is not None
            port = int(json.loads(process.stdout.readline())["url"].rstrip("/").rpartition(":")[2])
            measure(port, 10, 1, 2)  # what is loaded with the first request
            taken = sorted(measure(port, chosen.rate, seconds, chosen.connections))
        finally:
            process.send_signal(signal.SIGTERM)
            process.wait()
    print(f"{len(taken)} requests at {chosen.rate:g} a second, {chosen.connections} connections")
    print(f"median {statistics.median(taken):.1f} ms, 95 % within {taken[int(0.95 * (len(taken) - 1))]:.1f} ms")


if __name__ == "__main__":
    main()
