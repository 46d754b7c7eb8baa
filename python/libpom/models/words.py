"""The text encoder that needs no download: a table of pieces, learned with the network that listens to it.

A word of the vocabulary is one piece, any other is spelled in bytes; letter case (of ASCII) and the amount of
space are ignored. A token is its piece, its place in the prompt and, layer by layer, its two neighbours;
then, where there are mixers, all tokens before it. B prompts, L pieces, w width. In C++: pom/codecs/words.h.
"""

import re
import warnings
from collections import Counter
from collections.abc import Iterable, Sequence
from typing import Any, cast

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from .. import masks
from ..errors import Error, fail
from ..module import PoM
from .config import TextConfig
from .fields import check_values

_SPELLED, _FIRST_WORD = 256, 257  # a piece's number: a byte, the beginning of a spelled word, the vocabulary
# Letters, digits, apostrophes and what is not ASCII make words; each sign is a word of its own.
_WORD = re.compile(rb"[a-z0-9'\x80-\xff]+|[^\x00-\x20\x7f]")


def _words_of(text: str) -> list[bytes]:
    try:
        return _WORD.findall(text.encode().lower())
    except UnicodeEncodeError:
        raise Error(f"Words: prompts: expected text, got half a surrogate pair in {text!r}") from None


def most_frequent_words(captions: Iterable[str], most: int = 2048) -> list[str]:
    """A vocabulary for `Words`, in alphabetical order; of equally frequent words the first ones."""
    counts = Counter(word for caption in captions for word in _words_of(caption))
    ranked = sorted(counts, key=lambda word: (-counts[word], word))[:most]
    return [word.decode() for word in sorted(ranked)]


class Words(nn.Module):
    """Prompts to tokens that `VDiPoM` mixes into a clip.

        words = libpom.models.load_text("assets/sprites32")
        text, mask = words(["a red star drifts to the left", ""])
        velocity = net(x, t, text, mask)

    Args:
        vocabulary: words in lower case, each once; `most_frequent_words(captions)` finds some.
        width: of a token, the network's `text_width`.
        limit: most pieces of a prompt; what comes after them is cut, with a warning.
        layers: in which a word learns of its neighbours.
        mixers: after these, in which it learns of all words before it.
    """

    def __init__(
        self,
        vocabulary: Sequence[str],
        *,
        width: int = 128,
        limit: int = 64,
        layers: int = 2,
        mixers: int = 0,
        device: torch.device | str | None = None,
        dtype: torch.dtype | None = None,
    ) -> None:
        super().__init__()
        check_values(TextConfig(width=width, limit=limit, layers=layers, mixers=mixers), "Words: ")
        self.vocabulary = list(vocabulary)
        self._numbers: dict[bytes, int] = {}
        for i, word in enumerate(self.vocabulary):
            if _words_of(word) != [word.encode()]:
                fail(f"Words: vocabulary: word {i + 1}", "one word in lower case", repr(word))
            if self._numbers.setdefault(word.encode(), _FIRST_WORD + i) != _FIRST_WORD + i:
                fail(f"Words: vocabulary: word {i + 1}", "each word once", f"{word!r} again")
        made: dict[str, Any] = {"device": device, "dtype": dtype}
        self.pieces = nn.Embedding(_FIRST_WORD + len(self.vocabulary), width, **made)
        self.places = nn.Parameter(torch.empty(limit, width, **made))
        self.near = nn.ModuleList(nn.Linear(3 * width, width, **made) for _ in range(layers))
        self.far = nn.ModuleList(PoM(width, 2, 2, **made) for _ in range(mixers))
        self.reset_parameters()

    @property
    def config(self) -> TextConfig:
        limit, width = self.places.shape
        return TextConfig(width=width, limit=limit, layers=len(self.near), mixers=len(self.far))

    def extra_repr(self) -> str:
        return f"{len(self.vocabulary)} words, limit={self.places.shape[0]}"

    @torch.no_grad()
    def reset_parameters(self) -> None:
        """The values before training: pieces of unit size, places small beside them, layers that keep the
        size."""
        nn.init.normal_(self.pieces.weight)
        nn.init.normal_(self.places, std=0.1)
        linears = list(cast(Iterable[nn.Linear], self.near))
        for mixer in cast(Iterable[PoM], self.far):
            linears += [mixer.ho_proj, mixer.se_proj, mixer.ag_proj]
        for layer in linears:
            nn.init.normal_(layer.weight, std=layer.weight.shape[1] ** -0.5)
            nn.init.zeros_(layer.bias)

    def numbers(self, prompt: str) -> list[int]:
        """The pieces of a prompt, of any number."""
        found: list[int] = []
        for word in _words_of(prompt):
            number = self._numbers.get(word)
            found += [_SPELLED, *word] if number is None else [number]
        return found

    def forward(self, prompts: str | Sequence[str], length: int = 1) -> tuple[Tensor, Tensor]:
        """Prompts -> tokens (B, L, w), 0 where nothing counts, and mask (B, L) bool, true where one does.
        Nothing counts of an empty prompt. L is that of the longest, or `length` where that is more, so that
        shapes stay what they are."""
        rows = [self.numbers(prompt) for prompt in ([prompts] if isinstance(prompts, str) else prompts)]
        limit, device = self.places.shape[0], self.places.device
        if not 1 <= length <= limit:
            fail("Words: length", f"1 to {limit}", length)
        if longest := max((len(row) for row in rows if len(row) > limit), default=0):
            warnings.warn(
                f"libpom: Words: prompts: expected at most {limit} pieces, got {longest}: "
                f"truncated to {limit}",
                stacklevel=2,
            )
        length = max([length, *(min(len(row), limit) for row in rows)])
        counts = torch.tensor([min(len(row), limit) for row in rows], dtype=torch.int64, device=device)
        mask = torch.arange(length, device=device) < counts.unsqueeze(1)
        padded = [row[:length] + [0] * (length - len(row)) for row in rows]
        numbers = torch.tensor(padded, dtype=torch.int64, device=device).reshape(len(rows), length)
        return self.tokens(numbers, mask), mask

    def tokens(self, numbers: Tensor, mask: Tensor) -> Tensor:
        """Pieces (B, L) int64, of which those under the mask (B, L) count -> (B, L, w)."""
        counts = mask.unsqueeze(2).to(self.places.dtype)
        x = (self.pieces(numbers) + self.places[: numbers.shape[1]]) * counts
        for layer in self.near:
            wide = F.pad(x, (0, 0, 1, 1))  # nothing before the first, after the last
            x = (x + F.gelu(layer(torch.cat([wide[:, :-2], x, wide[:, 2:]], 2)))) * counts
        for mixer in self.far:
            x = (x + mixer(F.layer_norm(x, (x.shape[2],), eps=1e-6), mask=masks.causal)) * counts
        return x
