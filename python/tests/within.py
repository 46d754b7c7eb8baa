"""The program `pom` within a process that is one of several, as `python -m libpom` runs it."""

import ctypes
import os
import tempfile
from pathlib import Path

from libpom import _library

PROGRAM = ctypes.CDLL(str(Path(_library.path).with_name("libpom_program.so")), mode=ctypes.RTLD_GLOBAL)


def run_program(words):
    """The status of `pom WORDS`, and what it wrote."""
    all_words = [b"pom", *(os.fsencode(word) for word in words)]
    kept = [os.dup(1), os.dup(2)]
    with tempfile.TemporaryFile() as said:
        for descriptor in (1, 2):
            os.dup2(said.fileno(), descriptor)
        try:
            code = PROGRAM.pom_main(
                len(all_words), (ctypes.c_char_p * (len(all_words) + 1))(*all_words, None)
            )
        finally:
            for descriptor, before in zip((1, 2), kept, strict=True):
                os.dup2(before, descriptor)
                os.close(before)
        said.seek(0)
        return code, said.read().decode(errors="replace")
