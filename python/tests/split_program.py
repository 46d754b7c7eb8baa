"""Run by test_sequence_parallel.py on four ranks: layers and networks whose tokens all four share, or two of
them, and `pom sample` on two. A process takes longer to start than any of it. Takes the path of the library
split_network, and for each pair of ranks a list of commands, as JSON."""

import json

import torch.distributed as dist

import ranks as processes
import split_layers
import split_networks
from libpom import parallel
from within import run_program

RANK, _, (LIBRARY, *COMMANDS) = processes.join()
PAIRS = [dist.new_group([0, 1]), dist.new_group([2, 3])]  # all make all of them
number = RANK // 2
found = {"4": {"layers": split_layers.results(dist.group.WORLD)}}
found["4"]["networks"] = split_networks.results(dist.group.WORLD, LIBRARY)
if number == 0:
    found["2"] = {"layers": split_layers.results(PAIRS[0])}
else:
    found["2"] = {"networks": split_networks.results(PAIRS[1], LIBRARY)}
parallel.join(PAIRS[number])
found["commands"] = {name: run_program(words) for name, words in json.loads(COMMANDS[number]).items()}
everything = [None] * 4
dist.all_gather_object(everything, found)
for what in ("2", "commands"):
    everything[0][what] |= everything[2][what]
processes.tell(RANK, everything[0])
