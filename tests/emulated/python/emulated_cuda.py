"""torch.cuda on the emulated GPU, as far as the tests use it (sitecustomize.py)."""

import contextlib
from types import SimpleNamespace

import torch


class Stream:
    """Work of all streams is done at once, so there is nothing to wait for."""

    def __init__(self, device=None, priority=0, number=None):
        self.number = torch.ops.emulated_gpu.new_stream() if number is None else number

    def wait_stream(self, other):
        pass

    def wait_event(self, event):
        pass

    def synchronize(self):
        pass


class Graph:
    def __init__(self, keep_graph=False):
        self.made = torch.classes.emulated_gpu.Graph()

    def capture_begin(self, pool=None, capture_error_mode="global", check_input_liveness=False):
        assert pool is None, "the emulated GPU has no pools for graphs of Python"
        self.made.capture_begin()

    def capture_end(self):
        self.made.capture_end()

    def replay(self):
        self.made.replay()

    def reset(self):
        self.made.reset()


@contextlib.contextmanager
def stream(of):
    before = torch.ops.emulated_gpu.exchange_stream(of.number)
    try:
        yield
    finally:
        torch.ops.emulated_gpu.exchange_stream(before)


def nothing(*arguments, **named):
    return None


def install():
    gpu, cuda = torch.ops.emulated_gpu, torch.cuda
    properties = SimpleNamespace(name="emulated GPU", major=9, minor=0, total_memory=8 << 30)
    for name, value in {
        "_lazy_init": nothing,
        "is_available": lambda: True,
        "is_initialized": lambda: True,
        "is_bf16_supported": lambda *_: True,
        "device_count": lambda: 1,
        "current_device": lambda: 0,
        "set_device": nothing,
        "_exchange_device": lambda index: 0,
        "_maybe_exchange_device": lambda index: 0,
        "get_device_capability": lambda *_: (9, 0),
        "get_device_name": lambda *_: properties.name,
        "get_device_properties": lambda *_: properties,
        "synchronize": nothing,
        "empty_cache": nothing,
        "memory_allocated": lambda *_: gpu.allocated(),
        "max_memory_allocated": lambda *_: gpu.most_allocated(),
        "reset_peak_memory_stats": lambda *_: gpu.reset_most_allocated(),
        "manual_seed": gpu.seed,
        "manual_seed_all": gpu.seed,
        "is_current_stream_capturing": lambda: gpu.capturing(),
        "Stream": Stream,
        "stream": stream,
        "current_stream": lambda *_: Stream(number=gpu.current_stream()),
        "CUDAGraph": Graph,
    }.items():
        setattr(cuda, name, value)
    torch._C.__dict__.setdefault("_host_emptyCache", nothing)
