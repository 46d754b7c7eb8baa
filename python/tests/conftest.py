"""Every test that takes `backend` runs on libpom.so ("extension") and on plain torch ("fallback").

The library is $LIBPOM_LIBRARY, else build/release/libpom.so of this tree, else the installed package's.
Where there is none its tests are skipped, or fail with $LIBPOM_REQUIRE_EXTENSION=1.
"""

import os
import signal
import sys
from pathlib import Path

# In the background of a shell Ctrl-C is ignored, and by all that is started there: tests would wait for good.
signal.signal(signal.SIGINT, signal.default_int_handler)
os.environ.setdefault("OMP_WAIT_POLICY", "PASSIVE")  # waiting threads do not spin on shared machines
os.environ.setdefault("ONEDNN_MAX_CPU_ISA", "AVX512_CORE_BF16")  # the Makefile says why
os.environ.setdefault("MKL_CBWR", "AUTO,STRICT")  # as pom and libpom have it: bits are compared between them
_BUILT = Path(__file__).resolve().parents[2] / "build" / "release" / "libpom.so"
if _BUILT.is_file():
    os.environ.setdefault("LIBPOM_LIBRARY", str(_BUILT))
sys.path.insert(0, str(Path(__file__).resolve().parent))

import pytest  # noqa: E402
import torch  # noqa: E402

import libpom  # noqa: E402
from tools import lacking  # noqa: E402


def pytest_report_header(config):
    from libpom import _library

    return f"libpom: extension {_library.path or 'none: ' + _library.reason}"


def need_extension():
    if not libpom.has_extension():
        lacking("libpom.so was not found")


@pytest.fixture(params=["extension", "fallback"])
def backend(request):
    if request.param == "extension":
        need_extension()
        yield request.param
    else:
        with libpom.force("python"):
            yield request.param


@pytest.fixture
def extension():
    need_extension()


@pytest.fixture(autouse=True)
def _seed():
    torch.manual_seed(0)


@pytest.fixture
def threads():
    """torch.set_num_threads, set back afterwards."""
    before = torch.get_num_threads()
    yield torch.set_num_threads
    torch.set_num_threads(before)


# Files that take longest go first, so that no worker is left alone with one of them at the end.
LONG = [
    "test_docs",
    "test_experiment",
    "test_cli",
    "test_cli_output",
    "test_bench_paper",
    "test_compile",
    "test_scores",
    "test_oracle",
    "test_codecs",
    "test_cli_video",
    "test_cli_init",
    "test_eval_sprites",
    "test_parallel_train",
    "test_shards",
    "test_serve_rows",
    "test_score_samples",
    "test_parallel_kill",
    "test_bench",
    "test_cli_items",
    "test_parallel_failures",
    "test_typing",
    "test_train_kill",
    "test_serve",
    "test_sequence_parallel",
    "test_latents_kill",
    "test_autograd",
    "test_plan",
    "test_clips",
    "test_clip_scores",
    "test_latent_models",
    "test_serve_live",
    "test_serve_state",
]


def pytest_collection_modifyitems(items):
    order = {name: place for place, name in enumerate(LONG)}
    items.sort(key=lambda item: order.get(item.path.stem, len(LONG)))
