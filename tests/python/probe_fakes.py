"""Lanes and players of tests: times are told, not taken."""

from braid.probe.lane import Lane, Running
from braid.probe.player import Player


class Clock:
    """Moves when it is told to."""

    def __init__(self):
        self.now = 0.0

    def __call__(self):
        return self.now


class Told(Running):
    """Over as soon as it is waited for, or from the start."""

    def __init__(self, us, over=False):
        self._us, self._over = us, over

    def took_us(self):
        return self._us

    def is_over(self):
        return self._over


class FakeLane(Lane):
    """Takes `us` per copy, and `busy_us` while others run."""

    def __init__(self, name, us=10.0, wrong=0, over_below=0):
        self.name, self.us, self.wrong, self.over_below = name, us, wrong, over_below
        self.start_name, _, self.end_name = name.partition(">")
        self.started = []

    def resize(self, nbytes, slots=1):
        self.size = nbytes, slots

    def wrong_bytes(self):
        return self.wrong

    def start(self, copies):
        self.started.append(copies)
        return Told(self.us, over=copies < self.over_below)


class FakePlayer(Player):
    """Remembers what it was asked."""

    def __init__(self, name="braid", wrong=0):
        self.name, self.wrong, self.ran = name, wrong, []

    def prepare(self, calls):
        return dict.fromkeys(calls, self.wrong)

    def run(self, call):
        self.ran.append(call)
