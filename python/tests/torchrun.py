"""What the tests of several ranks share: torchrun on this machine, over Gloo."""

import os
import subprocess
import sys

from tools import built_program
from training import environment

PYTHON = os.path.dirname(os.path.dirname(os.path.abspath(__file__)))


def environment_of_ranks(**more):
    library = built_program().with_name("libpom.so")
    path = os.pathsep.join([PYTHON, *filter(None, [os.environ.get("PYTHONPATH")])])
    defaults = {"LIBPOM_LIBRARY": library, "PYTHONPATH": path, "OMP_NUM_THREADS": 1, "LIBPOM_TIMEOUT": 60}
    return environment(**(defaults | more))


def torchrun(ranks, *arguments, agent=("--standalone",)):
    """The words of a command on so many ranks."""
    words = [sys.executable, "-m", "torch.distributed.run", *agent, "--nproc-per-node", str(ranks)]
    return [*words, "-m", "libpom", *map(str, arguments)]


def run_ranks(ranks, *arguments, env=None, agent=("--standalone",), **options):
    options = {"capture_output": True, "text": True, "timeout": 300} | options
    return subprocess.run(
        torchrun(ranks, *arguments, agent=agent), env=env or environment_of_ranks(), **options
    )
