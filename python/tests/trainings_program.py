"""Run by torchrun for test_parallel_train.py: many trainings in the processes of one start, which costs more
than any of them. Takes a JSON file: rounds that come one after the other, each a list of jobs on some of the
ranks, at the same time. A job is {"name", "ranks", "words" of `pom`}. Single ranks, by their number in the
job, may have other words ("words_of"), work in another folder ("folder_of") or have no more than so many
bytes of memory beyond what they have ("memory_of"). How it ended on each rank, what it said, and Gloo's
network interface are left in NAME.RANK.json. A job with "leaves" is the last: its processes end with it, as
those of `python -m libpom` do."""

import json
import os
import resource
import sys
from pathlib import Path

import torch.distributed as dist

from libpom import parallel
from within import run_program


def take_part(job, folder):
    number = job["ranks"].index(dist.get_rank())

    def own(what, default):
        return job.get(what, {}).get(str(number), default)

    os.chdir(own("folder_of", "."))
    if own("memory_of", 0):
        pages = int(Path("/proc/self/statm").read_text().split()[0])
        limit = pages * resource.getpagesize() + own("memory_of", 0)
        resource.setrlimit(resource.RLIMIT_AS, (limit, limit))
    code, said = run_program(own("words_of", job["words"]))
    result = {"code": code, "said": said, "interface": os.environ.get("GLOO_SOCKET_IFNAME")}
    (folder / f"{job['name']}.{number}.json").write_text(json.dumps(result))
    if "leaves" in job:
        os._exit(code)


def main():
    path = Path(sys.argv[1])
    parallel.start()
    rank, world = dist.get_rank(), dist.get_world_size()
    for jobs in json.loads(path.read_text()):
        made = []
        for job in jobs:
            whole = job["ranks"] == list(range(world))
            group = dist.group.WORLD if whole else dist.new_group(job["ranks"])  # all make all of them
            made.append((job, group))
        mine = next(((job, group) for job, group in made if rank in job["ranks"]), None)
        if mine is not None:
            parallel.join(mine[1])
            take_part(mine[0], path.parent)
        dist.barrier()
    parallel.stop()


main()
