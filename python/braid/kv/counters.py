"""What a prefiller or a decoder has done, for people and for Prometheus."""

import threading
from collections import Counter

HELP = {
    "requests": "requests that began",
    "done": "requests that ended well",
    "failed": "requests that ended with an error",
    "cancelled": "requests that were taken back",
    "pages": "pages of one layer that were written or read",
    "bytes": "bytes of them",
    "expired": "leases that ran out",
    "peers_lost": "peers that said nothing for too long",
    "refused": "messages and peers that were refused",
    "repeated": "messages that came again, or for requests that are over",
}


class Counters:
    """Counts by name; any thread."""

    def __init__(self, engine: str) -> None:
        self._engine = engine
        self._mutex = threading.Lock()
        self._counts: Counter[str] = Counter()

    def add(self, name: str, count: int = 1) -> None:
        assert name in HELP, name
        with self._mutex:
            self._counts[name] += count

    def __getitem__(self, name: str) -> int:
        with self._mutex:
            return self._counts[name]

    def as_dict(self) -> dict[str, int]:
        with self._mutex:
            return {name: self._counts[name] for name in HELP}

    def prometheus(self, prefix: str = "braid_kv") -> str:
        """All counts in the text form that Prometheus scrapes."""
        label = self._engine.replace("\\", r"\\").replace('"', r"\"").replace("\n", r"\n")
        lines = []
        for name, count in self.as_dict().items():
            lines += [
                f"# HELP {prefix}_{name}_total {HELP[name]}",
                f"# TYPE {prefix}_{name}_total counter",
                f'{prefix}_{name}_total{{engine="{label}"}} {count}',
            ]
        return "\n".join(lines) + "\n"
