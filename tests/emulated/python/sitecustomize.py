"""With this folder on PYTHONPATH, whatever Python imports torch has the emulated GPU: pytest, and what its
tests start. $POM_EMULATED_GPU names build/emulated/libpom_emulated_torch.so; without it nothing happens."""

import ctypes
import importlib.abc
import importlib.util
import os
import sys


class _AfterTorch(importlib.abc.MetaPathFinder):
    """Finds torch as it would be found without it, and has torch.cuda put in order once it is there."""

    def find_spec(self, name, path, target=None):
        if name != "torch":
            return None
        sys.meta_path.remove(self)
        spec = importlib.util.find_spec(name)
        run = spec.loader.exec_module

        def exec_module(module):
            # Before torch is imported, which asks once and for all whether there is a GPU.
            ctypes.CDLL(os.environ["POM_EMULATED_GPU"])
            run(module)
            import emulated_cuda

            emulated_cuda.install()

        spec.loader.exec_module = exec_module
        return spec


if os.environ.get("POM_EMULATED_GPU"):
    sys.meta_path.insert(0, _AfterTorch())
