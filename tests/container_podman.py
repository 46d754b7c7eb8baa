"""For tests/container.py: podman with a storage of its own, so that it touches nothing of the user's;
base images by mmdebstrap, so that no registry is asked; what this machine's apt and pip are told by
their configuration, lent to the build and kept out of the image.
"""

import os
import re
import resource
import shutil
import subprocess
from pathlib import Path

ROOT = Path(__file__).resolve().parents[1]
SUITES = {"12": "bookworm", "13": "trixie"}
# Of `apt-config dump`: how packages are fetched, for instance through a proxy.
FETCHING = re.compile(r"Acquire::(http|https|Retries|Check-)")
CERTIFICATES = "/run/lent/certificates.crt"


def missing_tools() -> str:
    """What is not there, in words; nothing where all is."""
    lacking = [name for name in ("podman", "mmdebstrap") if not shutil.which(name)]
    if not shutil.which("runc") and not shutil.which("crun"):
        lacking.append("runc")
    if lacking:
        return f"{', '.join(lacking)} not installed (Debian's packages have these names)"
    return (
        ""
        if os.geteuid() == 0
        else "this user is not root, which mounts and networks of containers need here"
    )


def said_by(*words: str | Path) -> str:
    return subprocess.run([str(word) for word in words], capture_output=True, text=True, check=True).stdout


def apt_options() -> list[str]:
    lines = said_by("apt-config", "dump").splitlines()
    return [f"--aptopt={line.rstrip(';')}" for line in lines if FETCHING.match(line)]


def apt_sources(suite: str) -> list[str]:
    """Of this machine, if it runs the same Debian; else there are none, and mmdebstrap takes its own."""
    form = ("--format", "deb $(REPO_URI) $(RELEASE) $(COMPONENT)", "Created-By: Packages")
    lines = sorted(set(said_by("apt-get", "indextargets", *form).splitlines()))
    return [line for line in lines if line.split()[2].startswith(suite)]


def pip_settings() -> dict[str, str]:
    """Of this machine's pip, of its files and variables alike."""
    settings = {}
    for line in said_by(ROOT / ".venv/bin/python", "-m", "pip", "config", "list").splitlines():
        name, _, value = line.partition("=")
        key = name.split(".", 1)[1]
        if key not in ("config-file", "disable-pip-version-check"):
            settings[key] = value.strip("'\"")
    return settings


class Podman:
    """Its images, containers and volumes are in a folder, and gone with it."""

    def __init__(self, folder: Path) -> None:
        self.folder = folder
        self.words = [
            *("podman", "--root", str(folder / "storage"), "--runroot", str(folder / "run")),
            *("--storage-driver", "vfs"),
        ]
        if shutil.which("runc"):
            self.words += ["--runtime", "runc"]

    def __call__(self, *words: str | Path, check: bool = True, **options) -> subprocess.CompletedProcess:
        options = {"capture_output": True, "text": True, "timeout": 120} | options
        result = subprocess.run([*self.words, *map(str, words)], **options)
        if check and result.returncode != 0:
            raise RuntimeError(f"podman {' '.join(map(str, words))}: {result.returncode}: {result.stderr}")
        return result

    def start(self, *words: str | Path) -> subprocess.Popen:
        return subprocess.Popen(
            [*self.words, *map(str, words)], stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True
        )

    def make_base(self, containerfile: Path) -> None:
        """The image that the file begins from, by the name that it has there."""
        (name,) = set(re.findall(r"^FROM (\S+)", containerfile.read_text(), re.M))
        if self("image", "exists", name, check=False).returncode == 0:
            return
        suite = SUITES[re.fullmatch(r"debian:(\d+)-slim", name).group(1)]
        archive = self.folder / "base.tar"
        print(f"making {name} by mmdebstrap, of {suite}", flush=True)
        command = ["mmdebstrap", "--quiet", "--variant=minbase", *apt_options(), suite, str(archive)]
        command += apt_sources(suite)
        subprocess.run(command, check=True, timeout=900)
        self("import", archive, f"docker.io/library/{name}", timeout=600)
        archive.unlink()

    def lent(self) -> list[str]:
        """Mounts of the build: pip's settings and the local folders and files they name, ccache's folder."""
        mounts, lines = [], ["[global]"]
        for key, value in pip_settings().items():
            if key == "cert":
                mounts.append(f"{value}:{CERTIFICATES}:ro")
                value = CERTIFICATES
            paths = [word.removeprefix("file://") for word in value.split() if re.match(r"(file://)?/", word)]
            folders = [Path(path) for path in paths if Path(path).is_dir()]
            if key.endswith("index-url"):  # whose pages link to files beside them
                folders = [folder.parent for folder in folders]
            mounts += [f"{folder}:{folder}:ro" for folder in folders]
            lines.append(f"{key} = {value}")
        settings = self.folder / "pip.conf"
        settings.write_text("\n".join(lines) + "\n")
        mounts.append(f"{settings}:/etc/pip.conf:ro")
        if shutil.which("ccache"):
            cache = said_by("ccache", "--get-config", "cache_dir").strip()
            Path(cache).mkdir(parents=True, exist_ok=True)
            mounts.append(f"{cache}:/root/.cache/ccache")
        return [f"--volume={mount}" for mount in mounts]

    def build(self, containerfile: Path, name: str) -> None:
        index = os.environ.get("POM_TORCH_INDEX")
        command = [
            *(*self.words, "build", "--isolation", "chroot", "--pull=never", "--layers=false", *self.lent()),
            *("--format", "docker"),  # the other one has no HEALTHCHECK
            *([f"--build-arg=TORCH_INDEX={index}"] if index else []),
            *("-f", str(containerfile), "-t", name, str(ROOT)),
        ]
        subprocess.run(command, check=True, timeout=5400)

    def limits(self) -> list[str]:
        """Lower than podman's own, which some machines do not let it set."""
        names = {"nofile": resource.RLIMIT_NOFILE, "nproc": resource.RLIMIT_NPROC}
        limits = {name: min(16384, *resource.getrlimit(number)) for name, number in names.items()}
        return [f"--ulimit={name}={value}:{value}" for name, value in limits.items() if value > 0]
