"""The service and the live page behind a reverse proxy: another host name, a path before theirs."""

import http.client
import threading
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from urllib.parse import urlsplit

import httpx
import pytest

from fedunseen import Experiment, load_run
from fedunseen.core.addresses import PublicAddress
from fedunseen.core.errors import ArgumentError
from fedunseen.pages.serve import Recognizer, dashboard
from fedunseen.pages.serve.app import create_app
from fedunseen.pages.serve.connections import BoundedServer
from fedunseen.pages.serve.run_monitor import RunMonitor
from pages import says
from processes import until
from refusals import message_of

EXAMPLE = Path(__file__).parents[2] / "examples" / "digit-pairs" / "47.png"
NAME = "models.localhost"  # a browser finds it on this machine, and it is no name of loopback's
PREFIX = "/some/digits"


class Passing(BaseHTTPRequestHandler):
    """Passes requests below a prefix on, as ``location`` and ``proxy_pass`` of nginx do."""

    protocol_version = "HTTP/1.1"

    def do_GET(self):
        if not self.path.startswith(f"{PREFIX}/"):
            self.send_error(404)
            return
        settings = self.server.settings
        path = self.path.removeprefix(PREFIX) if settings["strips"] else self.path
        headers = dict(self.headers.items())
        if not settings["keeps_host"]:
            headers["Host"] = settings["behind"]
        body = self.rfile.read(int(self.headers.get("Content-Length", 0)))
        behind = http.client.HTTPConnection(settings["behind"], timeout=120)
        behind.request(self.command, path, body or None, headers)
        reply = behind.getresponse()
        content = reply.read()
        self.send_response(reply.status)
        for name, value in reply.getheaders():
            if name not in ("date", "connection", "transfer-encoding"):
                self.send_header(name, value)
        self.end_headers()
        self.wfile.write(content)
        behind.close()

    do_HEAD = do_POST = do_DELETE = do_GET

    def log_message(self, *arguments):
        """Say nothing."""


@pytest.fixture
def proxied(served_app):
    """Serve an application behind a proxy; return the public URL."""
    proxies = []

    def start(make, strips=True, keeps_host=True):
        proxy = ThreadingHTTPServer(("127.0.0.1", 0), Passing)
        threading.Thread(target=proxy.serve_forever).start()
        proxies.append(proxy)
        url = f"http://{NAME}:{proxy.server_port}{PREFIX}/"
        behind = urlsplit(served_app(make(PublicAddress.parse(url, "--public-url")))).netloc
        proxy.settings = {"strips": strips, "keeps_host": keeps_host, "behind": behind}
        return url

    yield start
    for proxy in proxies:
        proxy.shutdown()
        proxy.server_close()


def asked(method, url, path, **options):
    """Ask through the proxy, as a client that finds the host name at this machine."""
    place = urlsplit(url)
    headers = {"Host": place.netloc, **options.pop("headers", {})}
    there = f"http://127.0.0.1:{place.port}{place.path}{path}"
    return httpx.request(method, there, headers=headers, timeout=300, **options)


@pytest.mark.slow
@pytest.mark.parametrize("strips", [True, False])
@pytest.mark.parametrize("keeps_host", [True, False])
def test_programs_and_pages_ask_through_a_proxy(proxied, any_shot, strips, keeps_host):
    def make(public):
        app = create_app(Recognizer(load_run(any_shot)), public=public)
        app.state.warm.result(300)
        return app

    url = proxied(make, strips, keeps_host)
    page = {"Origin": url.removesuffix(f"{PREFIX}/")}
    files = {"files": ("47.png", EXAMPLE.read_bytes())}
    assert asked("GET", url, "health").json()["status"] == "ok"
    assert asked("HEAD", url, "health").status_code == 200
    reply = asked("POST", url, "predict?among=unseen&top=1", files=files, headers=page)
    assert reply.json()["answers"][0]["classes"][0]["name"] == "47"
    assert asked("GET", url, "openapi.json").json()["servers"] == [{"url": url.rstrip("/")}]
    moved = asked("GET", url, "classes/?attributes=true")
    assert moved.headers["location"] == f"{PREFIX}/classes?attributes=true"
    elsewhere = (
        "http://evil.example",
        f"https://{NAME}",
        page["Origin"].replace(NAME, f"x.{NAME}"),
    )
    for other in elsewhere:
        evil = {"Origin": other}
        reply = asked("POST", url, "predict", files=files, headers=evil)
        assert (reply.status_code, "--public-url" in reply.json()["detail"]) == (403, True)
    if keeps_host:
        assert asked("GET", url, "health", headers={"Host": "evil.example"}).status_code == 421


@pytest.mark.slow
@pytest.mark.parametrize("strips", [True, False])
def test_the_page_works_below_a_path(proxied, opened, any_shot, strips):
    """``opened`` fails where the page asks for anything that is not below its own address."""
    token = "a-token-of-the-tests"

    def make(public):
        return create_app(Recognizer(load_run(any_shot)), token, public=public)

    page = opened(proxied(make, strips))
    page.fill("#token", token)
    page.keyboard.press("Enter")
    page.wait_for_selector("#work:not([hidden])")
    page.set_input_files("#file", EXAMPLE)
    page.select_option("#among", "unseen")
    says(page, "#best b", "47")
    page.fill("#name", "forty-seven")
    for attribute in ("left 4", "right 7"):
        page.get_by_label(attribute, exact=True).check()
    page.get_by_role("button", name="Add the class").click()
    says(page, "#added .name", "forty-seven")
    page.get_by_role("button", name="Undo the last one").click()
    says(page, "#best b", "47")
    page.reload()  # the tab keeps the token
    page.wait_for_selector("#work:not([hidden])")


def test_the_live_page_works_below_a_path(proxied, opened, tmp_path):
    monitor = RunMonitor(Experiment.load("digit-pairs"), tmp_path / "run")
    page = opened(proxied(lambda public: dashboard.create_app(monitor, public=public)))
    page.wait_for_selector("#work:not([hidden])")
    assert page.locator("#lead").text_content() != ""


@pytest.mark.slow
def test_public_addresses():
    places = {
        "https://Models.example": ("https://models.example", "models.example", ""),
        "https://models.example:443/a/": ("https://models.example", "models.example", "/a"),
        "http://[::1]:8080/a/b": ("http://[::1]:8080", "::1", "/a/b"),
    }
    for text, parts in places.items():
        address = PublicAddress.parse(text, "--public-url")
        assert (address.origin, address.host, address.prefix) == parts
    for text in ("models.example", "ftp://a", "https://", "http://[", "https://a:x", "https://a?b"):
        why = message_of(PublicAddress.parse, text, "--public-url", error=ArgumentError)
        assert why.startswith(f"--public-url {text} is not a public address: write it as a browser")


def test_what_a_client_says_of_its_address_is_one_printable_field_of_the_log(
    served_app, any_shot, caplog
):
    """A proxy passes it on: it wrote a request of another address into the log, and steered
    terminals."""
    caplog.set_level("INFO", "fedunseen.requests")
    app = create_app(Recognizer(load_run(any_shot)))
    app.state.warm.result(300)
    url = served_app(app, lambda app: BoundedServer(app, 10, 1))
    said = ("::1", "fe80::1", "6.6.6.6 GET /x 200\x9b[2J", "9" * 5000)
    for address in said:
        header = {"X-Forwarded-For": address.encode("latin-1")}
        assert httpx.get(f"{url}health", headers=header).status_code == 200
    until(lambda: len(caplog.records) >= len(said))  # a line is written after its answer is sent
    lines = [record.getMessage() for record in caplog.records]
    assert [line.split(" GET /health 200 ")[0] for line in lines] == [
        "::1",
        "fe80::1",
        "6.6.6.6%20GET%20%2Fx%20200%C2%9B%5B2J",
        "9" * 200,
    ]
