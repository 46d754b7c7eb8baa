"""What tests need and a machine may lack: the program and the tools beside the library that is tested, and
other people's packages as referees. Where it is not there a test is skipped, or fails where
$LIBPOM_REQUIRE_EXTENSION=1 demands everything, as CI does."""

import importlib
import importlib.util
import os
import shutil
import subprocess
import sys
from pathlib import Path
from typing import NoReturn

import pytest
import torch

# requirements.txt and tests/referees.txt have them from Python 3.11 on.
OF_NEWER_PYTHONS = (
    "cleanfid",
    "diffusers",
    "openai",
    "prdc",
    "prometheus_client",
    "pytorch_fid",
    "scipy",
    "sentencepiece",
    "tensorboard",
    "torch_fidelity",
    "transformers",
    "webdataset",
)


def everything_is_demanded() -> bool:
    return os.environ.get("LIBPOM_REQUIRE_EXTENSION", "0") not in ("", "0")


def smaller(size: int, emulated_size: int) -> int:
    """A size that is large only because a GPU is fast: on an emulated one (tests/emulated) a smaller one."""
    emulated = torch.cuda.is_available() and "emulated" in torch.cuda.get_device_name()
    return min(size, emulated_size) if emulated else size


def lacking(reason: str):
    """Ends the test, or the file that is being collected."""
    if everything_is_demanded():
        pytest.fail(f"{reason}, and LIBPOM_REQUIRE_EXTENSION is set")
    pytest.skip(reason, allow_module_level=True)


def _beside_the_library(name: str) -> Path:
    path = Path(os.environ.get("LIBPOM_LIBRARY", "")).parent / name
    if not path.is_file():
        lacking(f"{path} was not built")
    return path


def built_program() -> Path:
    """The program pom."""
    return _beside_the_library("pom")


def built_tool(name: str) -> Path:
    """A program of tests/tools."""
    return _beside_the_library(f"tests/{name}")


def referee(name: str):
    """A module that judges ours."""
    try:
        return importlib.import_module(name)
    except ModuleNotFoundError:
        if name.split(".")[0] in OF_NEWER_PYTHONS and sys.version_info < (3, 11):
            pytest.skip(f"{name} is not installed: it needs Python 3.11", allow_module_level=True)
        lacking(f"{name} is not installed")


def referee_is_there(name: str) -> None:
    """The same of a module that is not for this process to import."""
    if importlib.util.find_spec(name) is None:
        if name in OF_NEWER_PYTHONS and sys.version_info < (3, 11):
            pytest.skip(f"{name} is not installed: it needs Python 3.11", allow_module_level=True)
        lacking(f"{name} is not installed")


def installed(name: str) -> str:
    """The path of a program of the system."""
    return shutil.which(name) or lacking(f"{name} is not installed")


def pyright() -> list[str]:
    """The command of pyright, as its package brings it. Tests demand neither the package nor Node.js, which
    it would download when it runs."""
    found, node = importlib.util.find_spec("pyright"), shutil.which("node")
    script = Path(found.origin).parent / "dist" / "index.js" if found and found.origin else None
    if node is None or script is None or not script.is_file():
        pytest.skip("pyright and Node.js are not both installed")
    return [node, str(script), "--pythonpath", sys.executable, "--outputjson"]


def chromium():
    """Playwright's sync_api and the path of the system's Chromium. Tests demand neither: a page is no part of
    what the library does."""
    found, path = importlib.util.find_spec("playwright"), shutil.which("chromium")
    if found is None or path is None:
        pytest.skip("playwright (pip) and chromium are not both installed", allow_module_level=True)
    return importlib.import_module("playwright.sync_api"), path


def firefox():
    """The package that drives Firefox (marionette_driver) and the path of the system's; demanded no more."""
    found, path = importlib.util.find_spec("marionette_driver"), shutil.which("firefox-esr")
    if found is None or path is None:
        pytest.skip("marionette_driver (pip) and firefox-esr are not both installed", allow_module_level=True)
    importlib.import_module("marionette_driver.marionette")
    return importlib.import_module("marionette_driver"), path


def proxy(name: str) -> str:
    """The path of nginx or caddy; demanded no more than a browser."""
    places = f"/usr/sbin:/usr/local/sbin:{os.environ['PATH']}"
    return shutil.which(name, path=places) or pytest.skip(f"{name} is not installed")


def axe():
    """The checker of accessibility, for a page of Playwright's; no more demanded than the browser."""
    if importlib.util.find_spec("axe_core_python") is None:
        pytest.skip("axe-core-python is not installed")
    return importlib.import_module("axe_core_python.sync_playwright").Axe()


def ffmpeg_is_there() -> None:
    """The build has FFmpeg's libraries, and its programs are here to judge them."""
    said = subprocess.run([built_tool("clip_tool"), "libraries"], capture_output=True, text=True, check=True)
    if not said.stdout.strip():
        lacking("this build has no FFmpeg")
    for name in ("ffmpeg", "ffprobe"):
        installed(name)


def not_allowed(reason: str) -> NoReturn:
    """Ends a test of what the rules of this machine, and not what is installed, forbid."""
    pytest.skip(reason)


def bound_by_permissions() -> list[str]:
    """What comes before a command so that folders without permission are closed to it, also for root."""
    if os.geteuid() != 0:
        return []
    words = ["setpriv", "--bounding-set", "-dac_override", "--"]
    if shutil.which(words[0]) is None or subprocess.run([*words, "true"]).returncode != 0:
        not_allowed("root cannot give up its rights here")
    return words
