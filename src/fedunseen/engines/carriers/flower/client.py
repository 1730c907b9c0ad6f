"""A party's side of a deployment on Flower: a client of the SuperLink's Fleet interface.

It does what Flower's SuperNode does, with the same signatures, but passes each message to our function instead of to an
app. It never fetches an app, so a coordinator cannot make a party run its code. A party opens no port.
"""

import contextlib
import ipaddress
import logging
import re
import secrets
import ssl
import threading
import time
from base64 import b64encode
from collections.abc import Callable, Iterator
from datetime import UTC, datetime, timedelta
from email.utils import parsedate_to_datetime
from typing import Any, TypeVar
from urllib.parse import quote

import httpx
from cryptography.hazmat.primitives.asymmetric import ec
from flwr.app import Message, RecordDict

from fedunseen.core.errors import ConnectionLost, RefusedError
from fedunseen.engines.carriers.flower import kit, private
from fedunseen.engines.carriers.flower.content import PARTY, SILENCE, TOKEN, packed, record_of, unpacked
from fedunseen.engines.remote.authority import REMEDY
from fedunseen.engines.remote.link import LOOKING, Answer, Join

log = logging.getLogger("fedunseen.engines.carriers.flower")
_said = logging.getLogger("fedunseen.federation")  # what the party's people read

BEAT = 1.0  # seconds between signs of life, at least
KEPT = 10.0  # seconds for which Flower believes one; it takes no less
CALL = 20.0  # seconds that a call may take
FETCH = 60.0  # seconds to wait for the pieces of a message that the coordinator has announced
STRANGE = 5.0  # seconds to continue trying where something else than a coordinator seems to listen
WORD = 4.0  # seconds between two lines on standard error
PAUSE = 0.02  # seconds between two questions for messages; the coordinator holds each

CLOCKS = timedelta(minutes=1)  # by so much a party's clock and the coordinator's may differ

Result = TypeVar("Result")


class _Lost(Exception):
    """The coordinator does not know this process (any more): it has to connect again."""


class _Named:
    """Says in each request which party, and which process of it, sends it."""

    def __init__(self, name: str, token: str) -> None:
        self.headers = {PARTY: quote(name), TOKEN: token}

    def intercept(self, context: private.ProtobufRequestContext, call_next: private.ProtobufCall) -> httpx.Response:
        """Add the headers."""
        context.request.headers.update(self.headers)
        return call_next(context)


class _Signed:
    """Signs each request with the coordinator's time, as far as this machine's clock is from it.

    Flower takes signatures up to 5 minutes old. A clock that is set while a run continues would end it.
    """

    def __init__(self, secret: ec.EllipticCurvePrivateKey) -> None:
        self.secret, self.public = secret, b64encode(private.public_key_to_bytes(secret.public_key())).decode()
        self.ahead = timedelta()  # of the coordinator's clock, against this one

    def intercept(self, context: private.ProtobufRequestContext, call_next: private.ProtobufCall) -> httpx.Response:
        """Add the signature, and look at the time of the answer."""
        timestamp = (datetime.now(UTC) + self.ahead).isoformat()
        signature = private.sign_message(self.secret, timestamp.encode())
        context.request.headers.update(
            {
                private.FLEET_HTTP_PUBLIC_KEY_HEADER: self.public,
                private.TIMESTAMP_HEADER: timestamp,
                private.FLEET_HTTP_SIGNATURE_HEADER: b64encode(signature).decode(),
            }
        )
        response = call_next(context)
        with contextlib.suppress(KeyError, ValueError, TypeError):
            ahead = parsedate_to_datetime(response.headers["date"]) - datetime.now(UTC)
            self.ahead = ahead if abs(ahead) > CLOCKS else timedelta()
        return response


class Connection:
    """A connection to a coordinator, made again when it is lost."""

    def __init__(self, place: Join) -> None:
        self.place = place
        self.where = f"{_bracketed(place.address)}:{place.port}"
        self.token = secrets.token_hex(16)
        verify: ssl.SSLContext | bool = False
        if place.kit is None:
            secret, public = private.generate_key_pairs()
        else:
            secret = kit.party_key(place.kit, place.name)
            public = secret.public_key()
            try:
                verify = ssl.create_default_context(cafile=place.kit / "ca.crt")
            except (OSError, ssl.SSLError) as error:
                raise RefusedError(f"{place.kit}/ca.crt: no certificate ({error}); {REMEDY}") from error
        self.public = private.public_key_to_bytes(public)
        self.client = private.FleetHttpClient(
            f"{'http' if place.kit is None else 'https'}://{self.where}",
            interceptors=[_Signed(secret), _Named(place.name, self.token)],
            verify=verify,
            timeout=CALL,
        )
        self.node = private.Node()
        self.unaccepted = 0  # signatures since the last one that was accepted

    def connect(self, done: threading.Event) -> None:
        """Connect, trying again for the party's patience, or until done."""
        begin = said = time.monotonic()
        self.node = private.Node()
        while not done.is_set():
            try:
                if self.place.kit is None:
                    with contextlib.suppress(httpx.HTTPStatusError):  # known already, or activation says what is wrong
                        self.client.RegisterNode(private.RegisterNodeFleetRequest(public_key=self.public))
                request = private.ActivateNodeRequest(public_key=self.public, heartbeat_interval=KEPT)
                self.node = private.Node(node_id=self.client.ActivateNode(request).node_id)
                self.unaccepted = 0
                return
            except (httpx.HTTPError, ValueError) as error:
                patience, reason = self._judged(error)
            passed = time.monotonic() - begin
            if passed >= patience:
                raise ConnectionLost(f"no coordinator at {self.where}: {reason}")
            if time.monotonic() - said >= WORD:
                said = time.monotonic()
                more = f"trying for {patience - passed:.0f} s more"
                _said.warning("no coordinator at %s (%s): %s", self.where, reason, more, extra=LOOKING)
            time.sleep(min(0.5, patience - passed))

    def _judged(self, error: Exception) -> tuple[float, str]:
        """Return for how long to try again after an error, and why; raise if another try cannot help."""
        place, where = self.place, self.where
        if isinstance(error, httpx.HTTPStatusError):
            status, text = error.response.status_code, error.response.text
            if status == 403:
                known = (
                    f"has no party {place.name!r}" if place.kit is None else f"does not know this key of {place.name!r}"
                )
                raise RefusedError(
                    f"the coordinator at {where} {known}: take the name and the folder that were made with the "
                    "coordinator's, or ask for them to be added"
                ) from error
            if status == 409:
                # Perhaps the party's last process, killed a moment ago: `answer_messages` waits for its time-out.
                if "another process" not in text:
                    return STRANGE, f"it says {status}"
                raise _Taken from error
            if status == 401 and self.unaccepted < 3:  # the next signature has the coordinator's time
                self.unaccepted += 1
                return place.patience, "it does not accept the signature"
            if status == 401:
                raise RefusedError(
                    f"the coordinator at {where} does not accept the signature of party {place.name!r}: set both "
                    "clocks (Flower takes signatures up to 5 minutes old)"
                ) from error
            if status in (500, 502, 503, 504):
                return place.patience, f"it says {status}"
            return STRANGE, f"what listens there is no coordinator on Flower (it says {status})"
        tls = _tls_error(error)
        if isinstance(tls, ssl.SSLCertVerificationError):
            raise RefusedError(
                f"the certificate of the coordinator at {where} is not accepted: {tls.verify_message.rstrip('.')}; "
                "take the folder that was made with the coordinator's and an address that its certificate names, or "
                "make new ones with `fedunseen certs`"
            ) from error
        if isinstance(tls, ssl.SSLEOFError | ssl.SSLZeroReturnError):  # a coordinator that ends or begins, or a proxy
            return place.patience, "it hangs up while the connection is secured"
        if tls is not None:
            return STRANGE, f"what listens there does not speak TLS ({tls.reason or tls}): is it --insecure?"
        if isinstance(error, httpx.RemoteProtocolError | ValueError):
            return min(STRANGE, place.patience), "what listens there speaks something else: TLS, or no coordinator"
        return place.patience, re.sub(r"^\[Errno \S+\] ", "", str(error)) or type(error).__name__

    def answer(self, answer: Answer, done: threading.Event) -> None:
        """Answer messages until done; raises :class:`_Lost` or a transport error if the connection is lost."""
        while not done.is_set():
            response = self._called(lambda: self.client.PullMessages(private.PullMessagesRequest(node=self.node)))
            if not response.messages_list:
                done.wait(PAUSE)
                continue
            message = private.message_from_proto(response.messages_list[0])
            if message.metadata.group_id != self.token:
                continue  # meant for an earlier process of this party
            body = self._fetched(message, response.message_object_trees[0])
            if body is not None:
                self._deliver(message, answer(body))

    def _fetched(self, message: Message, tree: Any) -> bytes | None:
        """Fetch the body of a message; None if the coordinator has taken it back."""
        pull = private.make_pull_object_fn_protobuf(self.client.PullObject, self.node, message.metadata.run_id)
        try:
            body = record_of(tree)
            pieces = [node.object_id for node in private.iterate_object_tree(body)]
            contents = self._called(lambda: private.pull_objects(pieces, pull, max_time=FETCH, initial_backoff=0.05))
            return unpacked(private.inflate_object_from_contents(body.object_id, contents))
        except (_Lost, httpx.TransportError):
            raise
        except Exception as error:  # taken back, or not from a coordinator of FedUnseen
            log.warning("a message could not be fetched: %s", error)
            return None

    def _deliver(self, message: Message, body: bytes) -> None:
        """Send an answer, unless no one waits for it any more."""
        reply = Message(RecordDict({"body": packed(body)}), reply_to=message)
        # Flower hashes the whole body each time that it asks for an object's id, but for what one such context knows.
        with private.no_object_id_recompute():
            reply.metadata.__dict__["_message_id"] = reply.object_id
            request = private.PushMessagesRequest(
                node=self.node,
                messages_list=[private.message_to_proto(private.remove_content_from_message(reply))],
                message_object_trees=[private.get_object_tree(reply)],
            )
            self._push(message, request, private.get_all_nested_objects(reply.content["body"]))

    def _push(self, message: Message, request: private.PushMessagesRequest, objects: dict[str, Any]) -> None:
        """Send a message, and then the objects of its body, which are all that the coordinator reads."""
        try:
            response = self._called(lambda: self.client.PushMessages(request))
            push = private.make_push_object_fn_protobuf(
                self.client.PushObject, self.node, message.metadata.run_id, response.session_id
            )

            def push_all() -> None:
                private.push_objects(objects, push, object_ids_to_push=set(response.objects_to_push), keep_objects=True)

            self._called(push_all)
        except (httpx.HTTPStatusError, private.ObjectPushError) as error:
            log.warning("an answer came too late: %s", error)

    def _called(self, call: Callable[[], Result]) -> Result:
        """Call the coordinator, once more if the connection broke."""
        for again in (True, False):
            try:
                return call()
            except httpx.TransportError:
                if not again:
                    raise
                time.sleep(0.2)
            except httpx.HTTPStatusError as error:
                if error.response.status_code in (401, 403, 409):
                    raise _Lost from error
                raise
        raise AssertionError

    @contextlib.contextmanager
    def beating(self) -> Iterator[None]:
        """Send signs of life while the context lasts, also while an answer is computed."""
        ended = threading.Event()

        def beat() -> None:
            begin = 0.0
            while not ended.wait(max(0.05, begin + BEAT - time.monotonic())):
                begin = time.monotonic()
                with contextlib.suppress(httpx.HTTPError, ValueError, RuntimeError):
                    self.client.SendNodeHeartbeat(
                        private.SendNodeHeartbeatRequest(node=self.node, heartbeat_interval=KEPT)
                    )

        thread = threading.Thread(target=beat, name="heartbeat", daemon=True)
        thread.start()
        try:
            yield
        finally:
            ended.set()

    def leave(self) -> None:
        """Tell the coordinator, if it can be reached, that this party leaves."""
        if self.node.node_id:
            with contextlib.suppress(httpx.HTTPError, ValueError):
                self.client.DeactivateNode(private.DeactivateNodeRequest(node_id=self.node.node_id))
        self.client.close()


class _Taken(Exception):
    """Another process is connected as this party."""


def answer_messages(place: Join, answer: Answer, done: threading.Event) -> None:
    """Connect a party and answer until done; see :func:`fedunseen.engines.carriers.flower.join`."""
    connection = Connection(place)
    taken: float | None = None
    try:
        while not done.is_set():
            try:
                connection.connect(done)
                taken = None
                with connection.beating():
                    connection.answer(answer, done)
            except _Taken:
                # The coordinator takes a killed process for alive until its time-out.
                taken = time.monotonic() if taken is None else taken
                if time.monotonic() - taken > SILENCE + 2:
                    raise RefusedError(
                        f"another process is connected to {connection.where} as party {place.name!r}: end it, or join "
                        "under another name and with its key"
                    ) from None
                done.wait(0.5)
            except (_Lost, httpx.HTTPError, ValueError) as error:
                log.warning("connection lost: %r", error)
                done.wait(0.1)
    finally:
        connection.leave()


def _tls_error(error: BaseException | None) -> ssl.SSLError | None:
    while error is not None:
        if isinstance(error, ssl.SSLError):
            return error
        error = error.__cause__ or error.__context__
    return None


def _bracketed(address: str) -> str:
    try:
        return f"[{address}]" if ipaddress.ip_address(address).version == 6 else address
    except ValueError:
        return address
