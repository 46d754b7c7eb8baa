"""libpom: the Polynomial Mixer, a mixer of tokens in linear time, for PyTorch.

In place of attention, self or cross, whole sequences or a block at a time:

    pom = libpom.PoM(dim=384, order=2, order_expand=2)
    y = pom(x)                          # every token sees every token
    y = pom(x, mask=libpom.causal)      # the past only; or in blocks, libpom.block_causal(K, window=None)
    y = pom(x, context)                 # cross
    y, state = pom.step(block, state)   # what the causal forms compute, a block of tokens at a time
    y = decoder.step(token)             # libpom.Decoder: a whole stack of blocks, token by token

The networks of the paper as modules, to change and to train:

    net = libpom.models.DiPoM.variant("DiPoM-S/2", classes=10)

And the pictures of a model folder, where the compiled library is there:

    pictures, requests = libpom.Engine("assets/shapes64").sample(class_="star", seed=7, count=2)
"""

from . import codecs, models
from ._version import __version__
from .decoder import Decoder
from .engine import Engine, samplers
from .errors import Error
from .functional import force, has_extension, mixer, mixer_layer, mixer_scan, mixer_select, mixer_summary
from .masks import CausalMask, block_causal, causal
from .module import Polymorpher, PoM
from .split import SplitTokens
from .state import MixerState

__all__ = [
    "CausalMask",
    "Decoder",
    "Engine",
    "Error",
    "MixerState",
    "PoM",
    "Polymorpher",
    "SplitTokens",
    "__version__",
    "block_causal",
    "causal",
    "codecs",
    "force",
    "has_extension",
    "mixer",
    "mixer_layer",
    "mixer_scan",
    "mixer_select",
    "mixer_summary",
    "models",
    "samplers",
]
