"""A proxy between parties and their coordinator that makes the network bad: slow, narrow, lossy, and cut for a while.

TCP hides a lost packet from its users: what they see is that everything behind it waits until it is sent again. So a
"lost" piece here holds the stream up for as long as a sender takes to notice (``again``).
"""

import contextlib
import random
import socket
import threading
import time

PIECE = 1448  # bytes of a packet's content


class Proxy:
    """Listens on a port of its own and carries bytes to another, both ways.

    Args:
        port: where the bytes go to, on loopback.
        delay: seconds that every piece takes, one way.
        loss: share of the pieces that are lost and sent again.
        rate: bytes a second, of each connection and way.
        again: seconds until a lost piece is sent again.

    Attributes:
        carried: bytes so far.
        lost: pieces so far.
        cuts: connections that :meth:`cut` has ended.
    """

    def __init__(self, port, delay=0.0, loss=0.0, rate=float("inf"), again=0.2):
        self.target, self.delay, self.loss, self.rate, self.again = port, delay, loss, rate, again
        self.carried = self.lost = self.cuts = 0
        self.dice, self.lock = random.Random(0), threading.Lock()
        self.pairs, self.down = set(), threading.Event()
        self.listener = socket.create_server(("127.0.0.1", 0))
        self.port = self.listener.getsockname()[1]
        self.closed = False
        threading.Thread(target=self._accept, daemon=True).start()

    def cut(self):
        """End all connections; new ones get no answer until :meth:`mend`."""
        self.down.set()
        with self.lock:
            pairs, self.pairs = self.pairs, set()
        self.cuts += len(pairs)
        for pair in pairs:
            _close(*pair)

    def mend(self):
        """Carry again."""
        self.down.clear()

    def close(self):
        """End everything."""
        self.closed = True
        self.cut()
        _close(self.listener)

    def _accept(self):
        while not self.closed:
            with contextlib.suppress(OSError):
                near, _ = self.listener.accept()
                threading.Thread(target=self._connect, args=(near,), daemon=True).start()

    def _connect(self, near):
        """Carry a new connection, as soon as the link is there and someone listens: until then nothing comes back."""
        far = None
        while far is None and not self.closed:
            if not self.down.is_set():
                with contextlib.suppress(OSError):
                    far = socket.create_connection(("127.0.0.1", self.target), 5)
                    continue
            time.sleep(0.05)
        if far is None:
            _close(near)
            return
        far.settimeout(None)
        with self.lock:
            self.pairs.add((near, far))
        for one, other in ((near, far), (far, near)):
            threading.Thread(target=self._carry, args=(one, other, (near, far)), daemon=True).start()

    def _carry(self, one, other, pair):
        """Pass pieces on, each ``delay`` after it came, no more than ``rate``, and late if it was lost."""
        waiting, ready = [], threading.Condition()

        def send():
            free = 0.0
            while True:
                with ready:
                    ready.wait_for(lambda: waiting)
                    due, piece = waiting.pop(0)
                if piece is None:
                    _close(*pair)
                    return
                free = max(free, due) + len(piece) / self.rate
                if self.dice.random() < self.loss:
                    free += self.again
                    self.lost += 1
                time.sleep(max(0.0, free - time.monotonic()))
                try:
                    other.sendall(piece)
                except OSError:
                    _close(*pair)
                    return
                self.carried += len(piece)

        threading.Thread(target=send, daemon=True).start()
        while True:
            try:
                piece = one.recv(PIECE)
            except OSError:
                piece = b""
            with ready:
                waiting.append((time.monotonic() + self.delay, piece or None))
                ready.notify()
            if not piece:
                return


def _close(*sockets):
    for one in sockets:
        with contextlib.suppress(OSError):
            one.shutdown(socket.SHUT_RDWR)
        one.close()
