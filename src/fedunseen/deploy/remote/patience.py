"""How long the coordinator bears with clients that do not answer: a time, not a number of tries."""

import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass

LONGEST = 10.0  # seconds between two times that those who are missing are asked in one round


def pause_after(tries: int, first: float) -> float:
    """Return the seconds for which a client that has failed so often is left alone."""
    return float(min(first * 2.0 ** min(tries, 20), LONGEST))


@dataclass
class Patience:
    """The seconds that one round or sum may wait for clients, beside what they take to answer.

    Attributes:
        left: seconds to wait, altogether.
        pause: the shortest wait between two tries, in seconds.
        connected: waits for so many of some clients, for so long; returns those that are there.
        tries: how often clients were asked again.
    """

    left: float
    pause: float
    connected: Callable[[Sequence[int], Callable[[], int], float], list[int]]
    tries: int = 0

    def again(self) -> bool:
        """Pause before another try, each time for longer; return False once patience is over."""
        if self.left <= 0:
            return False
        self.tries += 1
        seconds = min(pause_after(self.tries, self.pause), self.left)
        time.sleep(seconds)
        self.left -= seconds
        return True

    def wait(self, clients: Sequence[int], need: Callable[[], int]) -> list[int]:
        """Return the connected clients, as soon as ``need()`` of them are or patience ends."""
        began = time.monotonic()
        connected = self.connected(clients, need, self.left)
        self.left = max(0.0, self.left - (time.monotonic() - began))
        return connected
