"""Several processes on one test: `run(program, ranks)` starts a Python file of this folder once for each rank
and gives what rank 0 printed as JSON. They meet through a file, so no port is taken; each has one thread."""

import json
import os
import subprocess
import sys
import tempfile
from pathlib import Path

HERE = Path(__file__).resolve().parent


def run(program: str, ranks: int, *arguments: str, seconds: float = 120) -> object:
    with tempfile.TemporaryDirectory() as folder:
        environment = dict(os.environ, OMP_NUM_THREADS="1", TEST_STORE=str(Path(folder) / "store"))
        environment["PYTHONPATH"] = os.pathsep.join([str(HERE.parent), environment.get("PYTHONPATH", "")])
        command = [sys.executable, str(HERE / program)]
        pipes = {"stdout": subprocess.PIPE, "stderr": subprocess.PIPE, "text": True, "env": environment}
        started = [
            subprocess.Popen([*command, str(rank), str(ranks), *arguments], **pipes) for rank in range(ranks)
        ]
        try:
            said = [process.communicate(timeout=seconds) for process in started]
        finally:
            for process in started:
                process.kill()
    wrong = [f"rank {rank}: {err[-2000:]}" for rank, (_, err) in enumerate(said) if started[rank].returncode]
    assert not wrong, "\n".join(wrong)
    return json.loads(said[0][0].splitlines()[-1])


def join() -> tuple[int, int, list[str]]:
    """In the program: joins the others. Rank, ranks, and the arguments."""
    import torch
    import torch.distributed as dist

    rank, ranks = int(sys.argv[1]), int(sys.argv[2])
    torch.set_num_threads(1)
    dist.init_process_group(
        "gloo", init_method=f"file://{os.environ['TEST_STORE']}", rank=rank, world_size=ranks
    )
    return rank, ranks, sys.argv[3:]


def tell(rank: int, result: object) -> None:
    """In the program: rank 0 says what came out, and all leave together."""
    import torch.distributed as dist

    if rank == 0:
        print(json.dumps(result), flush=True)
    dist.barrier()
    dist.destroy_process_group()
