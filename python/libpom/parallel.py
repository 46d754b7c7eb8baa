"""Several processes on one job: `torchrun --nproc-per-node 8 -m libpom train recipe.toml`.

The processes meet through torch.distributed (NCCL between GPUs, Gloo between CPUs), and the library sees
their group. In a program of your own, after ``torch.distributed.init_process_group``,
``libpom.parallel.join()`` hands the group over.
"""

import ctypes
import fcntl
import ipaddress
import os
import socket
import struct
import threading
import uuid
from datetime import timedelta

import torch
import torch.distributed as dist
from torch._C._distributed_c10d import PrefixStore, Store, TCPStore

from . import _library
from .errors import Error

_kept: list[object] = []  # what C++ calls must stay


def _seconds(name: str, default: float) -> float:
    text = os.environ.get(name, "")
    try:
        value = float(text) if text else default
    except ValueError:
        value = -1
    if not value > 0:
        raise Error(f"libpom: {name}: expected a number of seconds above 0, got {text!r}")
    return value


def _limit() -> timedelta:
    """How long processes wait for each other until they have met."""
    return timedelta(seconds=_seconds("LIBPOM_TIMEOUT", 600))


def launched() -> bool:
    """Whether torchrun, or something like it, has started this process as one of several."""
    return int(os.environ.get("WORLD_SIZE", "1")) > 1 or "TORCHELASTIC_RUN_ID" in os.environ


def _own_address(host: str, port: int) -> str:
    """Of this machine, as `host` sees it."""
    family, kind, proto, _, address = socket.getaddrinfo(host, port, type=socket.SOCK_DGRAM)[0]
    with socket.socket(family, kind, proto) as probe:
        probe.connect(address)  # sends nothing: it only chooses the way
        return probe.getsockname()[0]


def _interface_of(address: str) -> str:
    """The name of the network interface that has this IPv4 address; empty where there is none."""
    with socket.socket(socket.AF_INET, socket.SOCK_DGRAM) as probe:
        for _, name in socket.if_nameindex():
            request = struct.pack("256s", name.encode()[:255])
            try:
                answer = fcntl.ioctl(probe.fileno(), 0x8915, request)  # SIOCGIFADDR
            except OSError:
                continue
            if socket.inet_ntoa(answer[20:24]) == address:
                return name
    return ""


def _is_of_this_machine_alone(address: str) -> bool:
    return ipaddress.ip_address(address).is_loopback


def _common_interface(store: Store, rank: int, world: int) -> str:
    """Of the network that joins the machines, by the way to the first one. There it may lead nowhere (for
    Debian's hosts file a machine's own name is 127.0.1.1): then by the way to another."""
    own = _own_address(os.environ["MASTER_ADDR"], int(os.environ["MASTER_PORT"]))
    store.set(f"address/{rank}", own)
    if _is_of_this_machine_alone(own):
        for other in range(world):
            address = store.get(f"address/{other}").decode()
            if not _is_of_this_machine_alone(address):
                own = _own_address(address, 9)  # any port
                break
    return _interface_of(own)


def _agent_store(limit: timedelta) -> Store:
    host, port = os.environ["MASTER_ADDR"], int(os.environ["MASTER_PORT"])
    return TCPStore(host, port, is_master=False, timeout=limit, wait_for_workers=False)


def _answer(ranks: range, name: str, limit: timedelta, done: threading.Event) -> None:
    """Tells every rank that asks what this attempt is called. Who asked in an attempt before is dead."""
    store, answered = _agent_store(limit), set()
    while not done.wait(0.02):
        for rank in ranks:
            if store.check([f"libpom/asks/{rank}"]):
                question = store.get(f"libpom/asks/{rank}").decode()
                if question not in answered:
                    store.set(f"libpom/answer/{question}", name)
                    answered.add(question)


def _store(rank: int, world: int, limit: timedelta, done: threading.Event) -> Store:
    """One for this attempt alone. The agent's lives through restarts with all that the dead have written, and
    ranks cannot count attempts: agents count their own. So the first rank names each attempt, and answers
    those who ask until all are there (`done`)."""
    if os.environ.get("TORCHELASTIC_USE_AGENT_STORE", "False") != "True":
        host, port = os.environ["MASTER_ADDR"], int(os.environ["MASTER_PORT"])
        return TCPStore(host, port, world, rank == 0, limit, wait_for_workers=False)
    store, own = _agent_store(limit), uuid.uuid4().hex
    if rank == 0:
        name = own
        arguments = (range(1, world), name, limit, done)
        threading.Thread(target=_answer, args=arguments, daemon=True).start()
    else:
        store.set(f"libpom/asks/{rank}", own)
        store.wait([f"libpom/answer/{own}"], limit)
        name = store.get(f"libpom/answer/{own}").decode()
    return PrefixStore(f"libpom/{name}", store)


def _backend() -> str:
    named = os.environ.get("LIBPOM_BACKEND", "")
    if named:
        return named
    here = int(os.environ.get("LOCAL_WORLD_SIZE", "1"))
    if not torch.cuda.is_available():
        return "gloo"
    gpus = torch.cuda.device_count()
    if gpus < here:
        raise Error(
            f"libpom: expected a GPU for each of the {here} ranks of this machine, got {gpus}; "
            "LIBPOM_BACKEND=gloo lets ranks share one, slowly"
        )
    return "cpu:gloo,cuda:nccl"


def _cannot_meet(rank: int, world: int, limit: timedelta, error: Exception) -> str:
    first = next(iter(str(error).splitlines()), "")
    interface = os.environ.get("GLOO_SOCKET_IFNAME") or "that it takes by itself"
    return (
        f"libpom: rank {rank} on {socket.gethostname()}: expected all {world} ranks to meet within "
        f"{limit.total_seconds():g} s (LIBPOM_TIMEOUT), with the first on {os.environ['MASTER_ADDR']}, "
        f"by the network interface {interface} (GLOO_SOCKET_IFNAME), got: {first}"
    )


def start() -> None:
    """Joins the processes that torchrun has started; nothing where this one is alone."""
    if not launched() or dist.is_initialized():
        return
    rank, world = int(os.environ["RANK"]), int(os.environ["WORLD_SIZE"])
    limit = _limit()
    backend = _backend()
    if torch.cuda.is_available():
        torch.cuda.set_device(int(os.environ.get("LOCAL_RANK", "0")) % torch.cuda.device_count())
    done = threading.Event()
    try:
        store = _store(rank, world, limit, done)
        if world > int(os.environ.get("LOCAL_WORLD_SIZE", world)):
            name = _common_interface(store, rank, world)
            if name:  # Gloo would look the machine's name up, which may lead nowhere
                os.environ.setdefault("GLOO_SOCKET_IFNAME", name)
        dist.init_process_group(backend, store=store, rank=rank, world_size=world, timeout=limit)
        dist.barrier()  # all are there
    except (RuntimeError, OSError) as error:
        raise Error(_cannot_meet(rank, world, limit, error)) from error
    finally:
        done.set()
    join()


def join(group: dist.ProcessGroup | None = None) -> None:
    """Hands a group of processes (by default all of them) to the library."""
    if _library.path is None:
        raise Error(f"libpom: parallel.join: expected libpom.so, got none: {_library.reason}")
    if not dist.is_initialized():
        raise Error("libpom: parallel.join: expected torch.distributed.init_process_group() before it")
    group = group if group is not None else dist.group.WORLD
    assert group is not None  # as it is initialized
    members = dist.get_process_group_ranks(group)
    everybody = len(members) == dist.get_world_size()
    limit = _limit()

    def make(lists: bytes, name: int) -> None:
        made = [[members[int(r)] for r in part.split(",")] for part in lists.decode().split(";")]
        mine = ""
        for ranks in made:
            # All processes make all groups, in this order; those beyond a part of them know nothing of it.
            if not everybody and dist.get_rank() not in ranks:
                continue
            part = dist.new_group(ranks, timeout=limit, use_local_synchronization=not everybody)
            if dist.get_rank() in ranks and isinstance(part, dist.ProcessGroup):
                mine = part.group_name
                _kept.append(part)
        ctypes.memmove(name, mine.encode() + b"\0", len(mine) + 1)

    maker = ctypes.CFUNCTYPE(None, ctypes.c_char_p, ctypes.c_void_p)(make)
    _kept.append(maker)
    torch.ops.pom.set_group_maker(ctypes.cast(maker, ctypes.c_void_p).value)
    torch.ops.pom.join(group.group_name)


def stop() -> None:
    """Leaves the group, so that the others see a rank that ended and not one that died."""
    if dist.is_initialized():
        dist.destroy_process_group()
