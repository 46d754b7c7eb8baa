"""`python -m libpom`: what is installed, and why the extension is not there when it is not."""

import torch

from . import __version__, _library

print(f"libpom    {__version__}")
print(f"torch     {torch.__version__}, {torch.get_num_threads()} threads")
if _library.path is not None:
    print(f"extension {_library.path} ({', '.join(sorted(_library._devices))})")
else:
    print(f"extension none: {_library.reason}; running on plain torch operations")
