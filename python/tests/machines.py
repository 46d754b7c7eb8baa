"""tests/two_machines.py for tests: `two_machines()` gives both, or ends the test where there can be none."""

import contextlib
import sys
from pathlib import Path

from tools import not_allowed

sys.path.insert(0, str(Path(__file__).resolve().parents[2] / "tests"))

import two_machines as machines_of_tests

CABLE = machines_of_tests.CABLE


@contextlib.contextmanager
def two_machines(own=""):
    with contextlib.ExitStack() as stack:
        try:
            machines = stack.enter_context(machines_of_tests.TwoMachines(own))
        except machines_of_tests.NoMachinesError as why:
            not_allowed(f"two network namespaces cannot be joined here: {why}")
        yield machines


def rendezvous(machines, *more):
    """torchrun's words on each of several machines, as docs/cluster.md has them. It waits for less long for
    machines that come or go than it would by itself."""
    waits = ["last_call_timeout=1", "keep_alive_interval=1", "keep_alive_max_attempt=3"]
    place = ["--rdzv-backend", "c10d", "--rdzv-endpoint", "node0:29400", "--rdzv-id", "kills"]
    return ["--nnodes", machines, *place, "--rdzv-conf", ",".join(waits), *more]
