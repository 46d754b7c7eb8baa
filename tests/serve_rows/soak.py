"""A stream for a long time: viewers come and go, the prompt changes, and neither memory nor speed does."""

import random
import statistics
import threading
import time

from .world import MIB, Client, Measure, Row, World, at_most, exactly, metric

PROMPTS = ("a star", "blue", "a red circle", "a square", "stars")


def viewer(server, stream: dict, chance: random.Random, end: float, failures: list) -> None:
    """Watches for a while, goes, and comes again."""
    while time.monotonic() < end:
        leave = min(end, time.monotonic() + chance.uniform(2, 20))
        last = -1
        try:
            for index, _, _, png in server.frames(stream):
                if index <= last or not png.startswith(b"\x89PNG"):
                    failures.append((last, index))
                last = index
                if time.monotonic() > leave:
                    break
        except OSError as error:
            failures.append(error)
        time.sleep(chance.uniform(0, 2))


def soak(world: World) -> list[Measure]:
    seconds, failures = world.soak, []
    rates, memory = [], []
    with world.serve(world.tiny, world.clips) as server:
        client = Client(server)
        body = {"model": "causal", "prompt": PROMPTS[0], "fps": 8, "width": 64, "height": 64, "steps": 8}
        stream = client.json("POST", "/pom/v1/streams", body)
        began, end = time.monotonic(), time.monotonic() + seconds
        viewers = [
            threading.Thread(target=viewer, args=(server, stream, random.Random(i), end, failures))
            for i in range(3)
        ]
        for thread in viewers:
            thread.start()
        told, next_prompt = 0, began + min(60, seconds / 10)
        warm = began + min(120, seconds / 5)
        while time.monotonic() < end:
            time.sleep(1)
            if time.monotonic() > next_prompt:
                told += 1
                next_prompt += min(60, seconds / 10)
                prompt = PROMPTS[told % len(PROMPTS)]
                client.json("POST", f"/pom/v1/streams/{stream['id']}/prompt", {"prompt": prompt})
            state = client.json("GET", f"/pom/v1/streams/{stream['id']}")
            if time.monotonic() > warm and state["rate"]:
                rates.append(state["rate"])
                memory.append(server.memory())
        for thread in viewers:
            thread.join(60)
        state = client.json("GET", f"/pom/v1/streams/{stream['id']}")
        blocks, late = (
            metric(server, "pom_stream_blocks_total"),
            metric(server, "pom_stream_late_seconds_total"),
        )
    world.say(f"  {blocks:.0f} blocks, {told} prompts, {state['frame']} frames, late {late:.1f} s in all")
    some = max(1, len(rates) // 5)
    first, last = statistics.median(rates[:some]), statistics.median(rates[-some:])
    start = statistics.median(memory[: max(1, len(memory) // 50)])
    return [
        at_most(f"memory over {seconds:.0f} s", 10, (memory[-1] - start) / MIB, " MiB"),
        at_most("time of a block: last fifth against the first", 5, 100 * abs(first / last - 1), " %"),
        exactly("frames out of order, torn or not sent", 0, len(failures)),
    ]


ROWS = [Row("soak", "a stream, three viewers who come and go, a new prompt a minute", soak, small=False)]
