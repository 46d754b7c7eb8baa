"""Which library is loaded, and what happens when there is none."""

import os
import re
import shutil
import subprocess
import sys
from pathlib import Path

import pytest
import torch

import libpom

PACKAGE = Path(libpom.__file__).resolve().parent


def python(*arguments, **environment):
    env = {name: value for name, value in os.environ.items() if not name.startswith("LIBPOM_")}
    env |= {"PYTHONPATH": str(PACKAGE.parent)} | environment
    return subprocess.run([sys.executable, *arguments], env=env, capture_output=True, text=True)


def test_disabled():
    done = python(
        "-m", "libpom", LIBPOM_DISABLE_EXTENSION="1", LIBPOM_LIBRARY=os.environ.get("LIBPOM_LIBRARY", "")
    )
    assert done.returncode == 0, done.stderr
    assert "extension none: LIBPOM_DISABLE_EXTENSION is set" in done.stdout


def test_what_the_library_has(extension):
    """In its own words: a build without CUDA kernels does not claim them, though it takes CUDA tensors."""
    done = python("-m", "libpom", LIBPOM_LIBRARY=os.environ["LIBPOM_LIBRARY"], POM_CPU_ISA="base")
    assert done.returncode == 0, done.stderr
    about = torch.ops.pom.build()
    built_for = torch.__version__.split("+")[0]
    assert f"libpom {libpom.__version__} (" in done.stdout and f"for torch {built_for}," in done.stdout
    assert "CPU kernels base," in done.stdout
    assert ("no CUDA kernels" in done.stdout) == (about["cuda_kernels"] == "no")
    if torch.version.cuda is None:  # no kernels can be linked
        assert about["cuda_kernels"] == "no" and "torch     " in done.stdout and ", CPU only," in done.stdout


def test_named_library_must_exist(tmp_path):
    done = python("-m", "libpom", LIBPOM_LIBRARY=str(tmp_path / "none.so"))
    assert "libpom: LIBPOM_LIBRARY: expected the path of libpom.so, got" in done.stderr
    (tmp_path / "bad.so").write_text("not a library")
    done = python("-m", "libpom", LIBPOM_LIBRARY=str(tmp_path / "bad.so"))
    assert "libpom: LIBPOM_LIBRARY: expected a library that loads, got" in done.stderr


def test_library_of_another_torch_is_not_loaded(tmp_path):
    """A package that was built for another torch says so and goes on without its library."""
    copy = tmp_path / "libpom"
    shutil.copytree(PACKAGE, copy, ignore=shutil.ignore_patterns("__pycache__", "lib"))
    (copy / "lib").mkdir()
    (copy / "lib" / "libpom.so").write_text("")
    (copy / "lib" / "build.json").write_text('{"torch": "2.7.1"}')
    done = python("-m", "libpom", PYTHONPATH=str(tmp_path))
    assert done.returncode == 0, done.stderr
    assert (
        f"extension none: it was built for torch 2.7.1 and this is torch {torch.__version__}" in done.stdout
    )
    assert "RuntimeWarning: libpom: lib/libpom.so is not used" in done.stderr


def test_force(extension):
    """Each path gives the operator; they nest, and come back when left, by an error too."""
    ho, se = torch.randn(2, 9, 8), torch.randn(2, 9, 8)
    want = libpom.mixer(ho, se, 2)
    for path in ("auto", "fused", "composed", "python"):
        with libpom.force(path):
            torch.testing.assert_close(libpom.mixer(ho, se, 2), want)
    with libpom.force("composed"):
        with pytest.raises(ZeroDivisionError), libpom.force("fused"):
            1 / 0  # noqa: B018
        assert torch.ops.pom.set_path(2) == 2
    assert torch.ops.pom.set_path(0) == 0


def test_operators_are_registered(extension):
    """With the schemas the functions call."""
    schemas = {
        name: str(getattr(torch.ops.pom, name).default._schema)
        for name in ("mixer", "mixer_layer", "mixer_scan")
    }
    tail = "int order, Tensor? mask=None, int block=0, int window=0, Tensor? cu_q=None, Tensor? cu_k=None)"
    tail += " -> Tensor"
    assert schemas["mixer"] == f"pom::mixer(Tensor ho, Tensor se, {tail}"
    assert schemas["mixer_layer"].endswith(tail)
    assert schemas["mixer_scan"].endswith("int order, Tensor sum, Tensor count) -> (Tensor, Tensor)")


def test_other_devices_fall_back(extension):
    """Tensors of a device the library has no kernels for go to the plain torch operations."""
    from libpom import _library

    assert _library.serves(torch.device("cpu"))
    assert not _library.serves(torch.device("xla"))


def exported(library):
    done = subprocess.run(["nm", "-D", "--defined-only", library], capture_output=True, text=True, check=True)
    return [line.split()[-1] for line in done.stdout.splitlines()]


def test_only_our_names_are_exported(extension):
    """A standard library or torch's templates among them would meet those of the process: where a compiler
    links its standard library in, that ends in a crash far from here."""
    names = exported(os.environ["LIBPOM_LIBRARY"])
    ours = re.compile(r"_Z(TV|TT|TI|TS|GV|Th\w+?_|Tv\w+?_|Tc\w+?_)?NK?3pom")
    assert [name for name in names if not ours.match(name)] == []
    assert len(names) > 500 and any(name.startswith("_ZN3pom3ops16polynomial_mixer") for name in names)


def test_the_program_exports_its_entry_alone(extension):
    program = Path(os.environ["LIBPOM_LIBRARY"]).with_name("libpom_program.so")
    assert exported(program) == ["pom_main"]
