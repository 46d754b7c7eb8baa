"""Two machines on one: node0 and node1 are network namespaces that a cable joins (a veth pair), each with a
name of its own, and with a hosts file like that of a Debian machine, for which its own name is 127.0.1.1.

    python tests/two_machines.py [--own FOLDER] COMMAND ...

runs a command on both at the same time, as srun would, with $MACHINE 0 and 1, and ends with the worse status.
They see the same files; --own gives each its own, empty FOLDER. Linux; needs unshare, nsenter and ip, and
root or a kernel that lets users have namespaces. Plain Python, no packages.
"""

import argparse
import os
import subprocess
import sys
import tempfile
from pathlib import Path

NAMES = ("node0", "node1")
ADDRESSES = ("10.77.0.1", "10.77.0.2")
CABLE = "cable"  # what its end is called on both
ROOT_OF_ITS_OWN = [] if os.geteuid() == 0 else ["--map-root-user"]

# Of one machine. It lives until its input ends, that is with who made it.
LIFE = """
set -e
hostname "$1"
ip link set lo up
mount --bind "$2" /etc/hosts
if [ -n "$3" ]; then mount -t tmpfs none "$3"; fi
echo up
exec cat
"""


class NoMachinesError(Exception):
    """Why there can be none here."""


class Machine:
    def __init__(self, number: int, hosts: Path, own: str, beside: "Machine | None" = None) -> None:
        self.name, self.address = NAMES[number], ADDRESSES[number]
        enter = [] if beside is None or not ROOT_OF_ITS_OWN else [*beside.entrance(), "--user", "--"]
        own_user = ROOT_OF_ITS_OWN if beside is None else []
        words = [*enter, "unshare", *own_user, "--net", "--uts", "--mount"]
        words += ["sh", "-c", LIFE, "sh", self.name, str(hosts), own]
        pipes = {"stdin": subprocess.PIPE, "stdout": subprocess.PIPE, "stderr": subprocess.PIPE}
        try:
            self.keeper = subprocess.Popen(words, text=True, **pipes)
        except FileNotFoundError as error:
            raise NoMachinesError(f"{error.filename} is not installed") from None
        if self.keeper.stdout.readline() != "up\n":
            raise NoMachinesError(self.keeper.communicate()[1].strip() or "no namespaces")

    def entrance(self) -> list[str]:
        user = ["--user", "--preserve-credentials"] if ROOT_OF_ITS_OWN else []
        return ["nsenter", "--target", str(self.keeper.pid), *user]

    def command(self, *words: object) -> list[str]:
        """The words of a command on this machine."""
        return [*self.entrance(), "--net", "--uts", "--mount", "--wd=.", "--", *map(str, words)]

    def path(self, path: str | os.PathLike[str]) -> Path:
        """Where a file of this machine, also one in its own folder, is found from outside."""
        return Path(f"/proc/{self.keeper.pid}/root{path}")

    def do(self, *words: object) -> None:
        done = subprocess.run(self.command(*words), capture_output=True, text=True)
        if done.returncode != 0:
            raise NoMachinesError(f"{' '.join(map(str, words))}: {done.stderr.strip()}")

    def cut(self) -> None:
        """Pulls the cable out: nobody hears of it."""
        self.do("ip", "link", "set", CABLE, "down")

    def join(self) -> None:
        self.do("ip", "link", "set", CABLE, "up")


class TwoMachines:
    """With `with`: a list of both."""

    def __init__(self, own: str | os.PathLike[str] = "") -> None:
        self.own = str(own)
        self.folder = tempfile.TemporaryDirectory(prefix="pom-machines-")
        self.machines: list[Machine] = []

    def __enter__(self) -> list[Machine]:
        try:
            for number, name in enumerate(NAMES):
                hosts = Path(self.folder.name) / name
                others = zip(ADDRESSES, NAMES, strict=True)
                lines = [f"{address} {other}\n" for address, other in others if other != name]
                hosts.write_text(f"127.0.0.1 localhost\n127.0.1.1 {name}\n" + "".join(lines))
                self.machines.append(Machine(number, hosts, self.own, *self.machines[:1]))
            first, second = self.machines
            far = ["peer", "name", CABLE, "netns", second.keeper.pid]
            first.do("ip", "link", "add", CABLE, "type", "veth", *far)
            for machine in self.machines:
                machine.do("ip", "address", "add", f"{machine.address}/24", "dev", CABLE)
                machine.join()
        except BaseException:
            self.__exit__()
            raise
        return self.machines

    def __exit__(self, *_: object) -> None:
        for machine in self.machines:
            machine.keeper.communicate("")
        self.folder.cleanup()


def main() -> int:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--own", metavar="FOLDER", default="", help="an empty one for each machine")
    parser.add_argument("command", nargs=argparse.REMAINDER)
    options = parser.parse_args()
    if not options.command:
        parser.error("expected a command")
    try:
        with TwoMachines(os.path.abspath(options.own) if options.own else "") as machines:
            running = [
                subprocess.Popen(m.command(*options.command), env=os.environ | {"MACHINE": str(i)})
                for i, m in enumerate(machines)
            ]
            return max(abs(process.wait()) for process in running)
    except NoMachinesError as why:
        print(f"two_machines: {why}", file=sys.stderr)
        return 1


if __name__ == "__main__":
    sys.exit(main())
