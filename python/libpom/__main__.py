"""`python -m libpom`: what is installed, and why the extension is not there when it is not."""

import torch

from . import __version__, _library


def about_library() -> str:
    """What the loaded library says of itself."""
    about = _library.build()
    if not about:
        return "of another version: it does not say what it has"
    cuda = "CUDA kernels" if about["cuda_kernels"] == "yes" else "no CUDA kernels"
    return f"{about['line']}, for torch {about['torch']}, CPU kernels {about['cpu']}, {cuda}"


def main() -> None:
    cuda = f"CUDA {torch.version.cuda}" if torch.version.cuda else "CPU only"
    print(f"libpom    {__version__}")
    print(f"torch     {torch.__version__}, {cuda}, {torch.get_num_threads()} threads")
    if _library.path is None:
        print(f"extension none: {_library.reason}; running on plain torch operations")
    else:
        print(f"extension {_library.path}")
        print(f"          {about_library()}")


if __name__ == "__main__":
    main()
