"""The service as a process of its own, and what the command refuses before there is one."""

import http.client
import json
import re
import signal
import ssl
import threading
from datetime import datetime
from pathlib import Path

import pytest

from fedunseen.cli import serve as command
from fedunseen.core.errors import ArgumentError

pytestmark = pytest.mark.slow

EXAMPLE = Path(__file__).parents[2] / "examples" / "digit-pairs" / "47.png"


@pytest.fixture
def started(digits, machine):
    """Start ``fedunseen serve``; return the process and the port, once it listens."""

    def start(*options):
        process = machine.start("serve.log", "serve", digits, "--port", 0, "--json", *options)
        machine.until(lambda: '"url"' in machine.said("serve.log"), process)
        return process, int(re.search(r'"url": "\w+://[^"]*:(\d+)/"', machine.said("serve.log"))[1])

    return start


def ask(port, method="GET", path="/health", body=None, headers=None):
    connection = http.client.HTTPConnection("127.0.0.1", port, timeout=120)
    connection.request(method, path, body, headers or {})
    reply = connection.getresponse()
    return reply.status, json.loads(reply.read())


def test_it_answers_many_at_once_and_sigterm_ends_it(started, machine):
    process, port = started()
    edge = b"--x\r\n"
    body = edge + b'Content-Disposition: form-data; name="files"; filename="47.png"\r\n\r\n' + EXAMPLE.read_bytes()
    body += b"\r\n--x--\r\n"
    answers = []

    def one():
        form = {"Content-Type": "multipart/form-data; boundary=x"}
        answers.append(ask(port, "POST", "/predict?among=unseen&top=1", body, form))

    threads = [threading.Thread(target=one) for _ in range(12)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert [status for status, _ in answers] == [200] * 12
    assert {result["answers"][0]["classes"][0]["name"] for _, result in answers} == {"47"}

    large = 100 * 2**20  # a sender hears why, and the service continues
    status, result = ask(port, "POST", "/predict", bytes(large), {"Content-Type": "application/json"})
    assert (status, result) == (413, {"detail": "the request is larger than 10 MiB: send less at a time"})
    assert ask(port)[0] == 200

    process.send_signal(signal.SIGTERM)
    assert machine.ended(process) == 0
    first, _, *requests, last = machine.said("serve.log").splitlines()
    assert first.startswith("serving ")
    assert [line.split(" ", 1)[1].rsplit(" ", 2)[0] for line in requests] == [
        *["127.0.0.1 POST /predict 200"] * 12, "127.0.0.1 POST /predict 413", "127.0.0.1 GET /health 200",
    ]  # fmt: skip
    assert last == "stopped"


def test_with_a_certificate_it_speaks_tls(started, tmp_path):
    pytest.importorskip("cryptography")
    from datetime import UTC, timedelta

    from cryptography import x509
    from cryptography.hazmat.primitives import hashes, serialization
    from cryptography.hazmat.primitives.asymmetric import ec

    key, name = ec.generate_private_key(ec.SECP256R1()), x509.Name([])
    made = x509.CertificateBuilder(name, name, key.public_key(), x509.random_serial_number())
    made = made.not_valid_before(datetime.now(UTC) - timedelta(1)).not_valid_after(datetime.now(UTC) + timedelta(1))
    (tmp_path / "c.pem").write_bytes(made.sign(key, hashes.SHA256()).public_bytes(serialization.Encoding.PEM))
    (tmp_path / "k.pem").write_bytes(
        key.private_bytes(
            serialization.Encoding.PEM, serialization.PrivateFormat.PKCS8, serialization.NoEncryption()
        )
    )  # fmt: skip
    (tmp_path / "token").write_text("a-token-of-the-tests\n")
    options = ("--certificate", tmp_path / "c.pem", "--key", tmp_path / "k.pem", "--token-file", tmp_path / "token")
    _, port = started("--host", "0.0.0.0", *options)
    context = ssl.create_default_context()
    context.check_hostname, context.verify_mode = False, ssl.CERT_NONE
    for headers, expected in (({}, 401), ({"Authorization": "Bearer a-token-of-the-tests"}, 200)):
        connection = http.client.HTTPSConnection("127.0.0.1", port, context=context, timeout=120)
        connection.request("GET", "/classes", headers=headers)
        assert connection.getresponse().status == expected


def test_a_port_that_is_taken(digits):
    import socket

    with socket.socket() as other:
        other.bind(("127.0.0.1", 0))
        other.listen()
        port = other.getsockname()[1]
        with pytest.raises(ArgumentError, match=f"127.0.0.1:{port} cannot be listened at .*: choose another --host or"):
            command.serve(digits, port=port)
