"""What the tests of several ranks share: torchrun on this machine, over Gloo."""

import os
import re
import subprocess
import sys
import time

from tools import built_program
from training import checkpoints, environment

TESTS = os.path.dirname(os.path.abspath(__file__))
ONE_MACHINE = ("--standalone",)


def environment_of_ranks(**more):
    library = built_program().with_name("libpom.so")
    path = os.pathsep.join([os.path.dirname(TESTS), TESTS, *filter(None, [os.environ.get("PYTHONPATH")])])
    defaults = {"LIBPOM_LIBRARY": library, "PYTHONPATH": path, "OMP_NUM_THREADS": 1, "LIBPOM_TIMEOUT": 120}
    return environment(**(defaults | more))


def torchrun(ranks, *arguments, agent=ONE_MACHINE, module="libpom"):
    """The words of a command on so many ranks."""
    words = [sys.executable, "-m", "torch.distributed.run", *agent, "--nproc-per-node", str(ranks)]
    return [*words, "-m", module, *map(str, arguments)]


def run_ranks(ranks, *arguments, env=None, agent=ONE_MACHINE, module="libpom", **options):
    options = {"capture_output": True, "text": True, "timeout": 300} | options
    words = torchrun(ranks, *arguments, agent=agent, module=module)
    return subprocess.run(words, env=env or environment_of_ranks(), **options)


def start(ranks, *arguments, env=None, agent=ONE_MACHINE, before=()):
    """The agent, under way; `before` are words that lead to another machine."""
    return subprocess.Popen(
        [*before, *torchrun(ranks, *arguments, agent=agent)],
        env=env or environment_of_ranks(),
        stdout=subprocess.PIPE,
        stderr=subprocess.STDOUT,
        text=True,
    )


def workers_of(agent):
    """The processes of its ranks, by their number."""
    found = {}
    children = subprocess.run(["pgrep", "-P", str(agent.pid)], capture_output=True, text=True).stdout.split()
    for pid in children:
        try:
            with open(f"/proc/{pid}/environ", "rb") as file:
                variables = dict(v.split(b"=", 1) for v in file.read().split(b"\0") if b"=" in v)
        except OSError:
            continue  # it has ended
        if b"RANK" in variables:
            found[int(variables[b"RANK"])] = int(pid)
    return found


def newest(run):
    """The step of the last checkpoint; -1 where there is none."""
    return max((int(re.search(r"step_(\d+)", path.name)[1]) for path in checkpoints(run)), default=-1)


def wait_until(what, condition, seconds=180):
    until = time.monotonic() + seconds
    while not condition():
        assert time.monotonic() < until, f"{what}: not after {seconds} s"
        time.sleep(0.02)


def wait_for_step(run, step):
    wait_until(f"a checkpoint of step {step}", lambda: newest(run) >= step)
