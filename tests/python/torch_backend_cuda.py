"""A stand-in for torch.cuda: streams and events that only remember."""

import contextlib

import torch

GPU = torch.device("cuda", 0)


class FakeEvent:
    def __init__(self, cuda):
        self.cuda, self.is_done, self.stream = cuda, False, None
        cuda.events.append(self)
        self.name = f"e{len(cuda.events)}"

    def record(self, stream):
        self.stream = stream
        self.cuda.log.append(f"{self.name} recorded on {stream.name}")

    def query(self):
        self.cuda.asked.append(self.name)
        return self.is_done

    def synchronize(self):
        self.is_done = True
        self.cuda.log.append(f"host waits for {self.name} on {self.stream.name}")


class FakeStream:
    def __init__(self, cuda, name):
        self.cuda, self.name, self.is_done = cuda, name, False

    def wait_stream(self, other):
        self.cuda.log.append(f"{self.name} waits for {other.name}")

    def wait_event(self, event):
        self.cuda.log.append(f"{self.name} waits for {event.name}")

    def record_event(self):
        event = FakeEvent(self.cuda)
        event.stream = self
        return event

    def finish(self):
        self.is_done = True

    def query(self):
        return self.is_done


class FakeCuda:
    """What braid.torch uses of torch.cuda."""

    def __init__(self):
        self.log, self.events, self.asked = [], [], []
        self.current, self.made, self.is_capturing = FakeStream(self, "default"), 0, False

    def Stream(self, _device):  # noqa: N802
        self.made += 1
        return FakeStream(self, f"s{self.made}")

    def Event(self):  # noqa: N802
        return FakeEvent(self)

    def current_stream(self, _device):
        return self.current

    def is_current_stream_capturing(self):
        return self.is_capturing

    @contextlib.contextmanager
    def device(self, _device):
        yield

    @contextlib.contextmanager
    def stream(self, stream):
        before, self.current = self.current, stream
        try:
            yield stream
        finally:
            self.current = before
