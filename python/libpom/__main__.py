"""`python -m libpom`: what is installed, and why the extension is not there when it is not. With arguments,
the program: `torchrun --nproc-per-node 8 -m libpom train recipe.toml` is `pom train` on 8 ranks."""

import ctypes
import os
import sys
from pathlib import Path

import torch

from . import __version__, _library
from .errors import Error


def about_library() -> str:
    """What the loaded library says of itself."""
    about = _library.build()
    if not about:
        return "of another version: it does not say what it has"
    cuda = "CUDA kernels" if about["cuda_kernels"] == "yes" else "no CUDA kernels"
    return f"{about['line']}, for torch {about['torch']}, CPU kernels {about['cpu']}, {cuda}"


def about() -> None:
    cuda = f"CUDA {torch.version.cuda}" if torch.version.cuda else "CPU only"
    print(f"libpom    {__version__}")
    print(f"torch     {torch.__version__}, {cuda}, {torch.get_num_threads()} threads")
    if _library.path is None:
        print(f"extension none: {_library.reason}; running on plain torch operations")
    else:
        print(f"extension {_library.path}")
        print(f"          {about_library()}")


def program(arguments: list[str]) -> int:
    """Runs the program in this process, which may be one of several."""
    path = _library.path and Path(_library.path).with_name("libpom_program.so")
    if path is None or not path.is_file():
        why = _library.reason if path is None else f"{path} is missing"
        print(f"pom: the program is not there: {why}", file=sys.stderr)
        return 1
    from . import parallel

    try:
        parallel.start()
    except Error as error:
        print(error, file=sys.stderr)
        return 1
    os.environ.setdefault("LIBPOM_PYTHON", sys.executable)  # for processes that it starts
    main = ctypes.CDLL(str(path), mode=ctypes.RTLD_GLOBAL).pom_main
    words = [b"pom", *(os.fsencode(word) for word in arguments)]
    code = main(len(words), (ctypes.c_char_p * (len(words) + 1))(*words, None))
    parallel.stop() if code == 0 else None
    return code


def main() -> None:
    if len(sys.argv) == 1:
        return about()
    code = program(sys.argv[1:])
    sys.stdout.flush()
    sys.stderr.flush()
    # The threads of a group that has failed may wait for the dead.
    os._exit(code) if code else sys.exit(0)


if __name__ == "__main__":
    main()
