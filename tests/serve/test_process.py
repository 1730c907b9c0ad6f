"""The service as a process of its own, and what the command refuses before there is one."""

import re
import signal
import socket
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import httpx
import pytest

from fedunseen.core.errors import ArgumentError
from fedunseen.pages.cli import serve as command

pytestmark = pytest.mark.slow

EXAMPLE = Path(__file__).parents[2] / "examples" / "digit-pairs" / "47.png"


@pytest.fixture
def started(digits, machine):
    """Start ``fedunseen serve``; return the process and the address, once it listens."""

    def start(*options):
        process = machine.start("serve.log", "serve", digits, "--port", 0, "--json", *options)
        machine.until(lambda: '"url"' in machine.said("serve.log"), process)
        return process, re.search(r'"url": "(.*?)"', machine.said("serve.log"))[1].replace(
            "0.0.0.0", "127.0.0.1"
        )

    return start


def test_it_answers_many_at_once_and_sigterm_ends_it(started, machine):
    process, url = started()

    def one(_):
        files = {"files": ("47.png", EXAMPLE.read_bytes())}
        return httpx.post(f"{url}predict?among=unseen&top=1", files=files, timeout=120)

    with ThreadPoolExecutor(12) as threads:
        answers = list(threads.map(one, range(12)))
    assert [reply.status_code for reply in answers] == [200] * 12
    assert {reply.json()["answers"][0]["classes"][0]["name"] for reply in answers} == {"47"}

    # a sender of 100 MB hears why, and the service continues
    reply = httpx.post(
        f"{url}predict", content=bytes(100 * 2**20), headers={"Content-Type": "application/json"}
    )
    larger = {"detail": "the request is larger than 10 MiB: send less at a time"}
    assert (reply.status_code, reply.json()) == (413, larger)
    assert httpx.get(f"{url}health").status_code == 200
    reply = httpx.head(url)
    assert (reply.status_code, reply.content) == (200, b"")

    process.send_signal(signal.SIGTERM)
    assert machine.ended(process) == 0
    first, _, *requests, last = machine.said("serve.log").splitlines()
    assert (first[:8], last) == ("serving ", "stopped")
    assert [line.split(" ", 1)[1].rsplit(" ", 2)[0] for line in requests] == [
        *["127.0.0.1 POST /predict 200"] * 12, "127.0.0.1 POST /predict 413", "127.0.0.1 GET "
                                                            "/health 200", "127.0.0.1 HEAD / 200",
    ]  # fmt: skip


def test_with_a_certificate_it_speaks_tls(started, tmp_path):
    certs = pytest.importorskip("fedunseen.deploy.certs")
    from fedunseen.deploy.websocket import kit

    certs.make(tmp_path / "kit", "127.0.0.1", ["north"], 1)
    certificate, key = kit.server_files(tmp_path / "kit" / "coordinator")
    (tmp_path / "token").write_text("a-token-of-the-tests\n")
    options = ("--certificate", certificate, "--key", key, "--token-file", tmp_path / "token")
    _, url = started("--host", "0.0.0.0", *options)
    for headers, expected in (({}, 401), ({"Authorization": "Bearer a-token-of-the-tests"}, 200)):
        assert (
            httpx.get(f"{url}classes", headers=headers, verify=False, timeout=120).status_code
            == expected
        )


def test_a_port_that_is_taken_is_said_before_anything_is_loaded(tmp_path):
    with socket.create_server(("127.0.0.1", 0)) as other:
        port = other.getsockname()[1]
        with pytest.raises(
            ArgumentError,
            match=f"127.0.0.1:{port} cannot be listened at .*: choose another --host or",
        ):
            command.serve(tmp_path / "no run", port=port)
