"""From texts to numbers of tokens, as CLIP and SigLIP were trained.

The vocabulary is in the file `tokenizer.json` beside the weights. The tokenizers package reads it and searches for
tokens. How a text is prepared before that is fixed by the model.

**CLIP** (Radford et al. 2021): NFC, lower case, words by a fixed pattern, byte pairs inside a word. A text is a start
token, its tokens and an end token. It is cut so that the end token stays.

**SigLIP** (Zhai et al. 2023, `c4_en` in big_vision): lower case, ASCII punctuation removed, the rules for characters
that the vocabulary was trained with (these are in the file), then the most probable tokens of the whole text (unigram
model). A text is its tokens and an end token, and is filled up with more end tokens.
"""

import string
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from typing import TYPE_CHECKING

import numpy as np

from dpfc_cli.backbones.hub import AGAIN
from dpfc_cli.backbones.vision_transformer import TOKENIZER
from dpfc_cli.backbones.vision_transformer.models import Model
from dpfc_cli.errors import UserError, conflict, damaged
from dpfc_cli.files import bytes_in
from dpfc_cli.progress import Progress

if TYPE_CHECKING:
    from tokenizers import Tokenizer as Search

START, END = "<|startoftext|>", "<|endoftext|>"
"""CLIP's."""
CLOSE = "</s>"
"""SigLIP's end token, which it also fills up with."""
_WORDS = r"<\|startoftext\|>|<\|endoftext\|>|'s|'t|'re|'ve|'m|'ll|'d|[\p{L}]+|[\p{N}]|[^\s\p{L}\p{N}]+"
_SPACE = "▁"
"""What stands for a space in a unigram vocabulary."""
_PUNCTUATION = str.maketrans("", "", string.punctuation)


@dataclass(frozen=True, kw_only=True, eq=False)
class Encoded:
    """Texts in tokens: int32 (texts, context), the position of the end token (texts,), and the numbers of the texts
    that were too long.
    """

    ids: np.ndarray
    ends: np.ndarray
    cut: list[int]


@dataclass(frozen=True, kw_only=True)
class Tokenizer:
    """A vocabulary and its rules.

    Attributes:
        description: what the origin of vectors says about it.
        tokens: from a text to numbers, without a start or end token.
        start: the numbers that each text begins with.
        end: the number of the token that each text ends with.

    """

    description: dict[str, str]
    tokens: Callable[[str], list[int]]
    start: tuple[int, ...]
    end: int

    def __call__(self, texts: Sequence[str], context: int, source: str, vocabulary: int) -> Encoded:
        """The tokens of texts. context: how many the tower reads; vocabulary: how many it knows; source: what messages
        call its weights. Raises UserError if the tower does not know one of the tokens, or has no room for any.
        """
        id = self.description["id"]
        room = context - len(self.start) - 1
        ids = np.full((len(texts), context), self.end, np.int32)
        ends, cut = np.empty(len(texts), np.int32), []
        for i, text in enumerate(texts):
            with _refused(id):
                found = self.tokens(text)
            if len(found) > room:
                cut.append(i)
            row = [*self.start, *found[: max(room, 0)], self.end]
            if room < 1 or max(row) >= vocabulary:
                raise conflict(
                    f"The tokenizer '{id}' has the token {max(row)} in a text of {len(row)}, but the text tower of "
                    f"'{source}' knows {vocabulary} tokens, and reads {context} of a text.",
                    "Get both again from one repository.",
                )
            ids[i, : len(row)] = row
            ends[i] = row.index(self.end)
        return Encoded(ids=ids, ends=ends, cut=cut)


def load(model: Model, progress: Progress | None = None) -> Tokenizer:
    """Read the tokenizer that lies beside the weights of a model, and fetch it if it is not on this machine. UserError:
    there is none, it cannot be fetched or read, or it is not one of this kind of model.
    """
    local = model.file.beside(TOKENIZER).local(progress)
    with _refused(local.id):
        description = local.describe()
        from tokenizers import Tokenizer as Search

        whole = Search.from_str(bytes_in(local.path).decode())
        kind, own = type(whole.model).__name__, "BPE" if model.text == "clip" else "Unigram"
        if kind != own:
            raise ValueError(f"it is a {kind} tokenizer, and that of this model is {own}")
        return (_clip if model.text == "clip" else _siglip)(whole, description)


@contextmanager
def _refused(id: str) -> Iterator[None]:
    """UserError in place of whatever a damaged tokenizer raises."""
    try:
        yield
    except (UserError, MemoryError, KeyboardInterrupt, SystemExit):
        raise
    except BaseException as error:  # The tokenizers package raises nothing more exact, and may end in a panic.
        said = str(error).splitlines()[0][:200].rstrip(".") if str(error) else "it is damaged"
        raise damaged(
            f"The tokenizer '{id}' cannot be used: {said}.",
            AGAIN,
        ) from error


def _clip(whole: "Search", description: dict[str, str]) -> Tokenizer:
    from tokenizers import Regex, normalizers, pre_tokenizers
    from tokenizers import Tokenizer as Search

    if whole.model.end_of_word_suffix != "</w>":
        raise ValueError("its words do not end as those of CLIP")
    search = Search(whole.model)
    start, end = _number(search, START), _number(search, END)
    search.normalizer = normalizers.Sequence(
        [normalizers.NFC(), normalizers.Replace(Regex(r"\s+"), " "), normalizers.Lowercase()]
    )
    search.pre_tokenizer = pre_tokenizers.Sequence(
        [pre_tokenizers.Split(Regex(_WORDS), "removed", invert=True), pre_tokenizers.ByteLevel(add_prefix_space=False)]
    )
    search.add_special_tokens([START, END])
    return Tokenizer(description=description, tokens=lambda text: _numbers(search, text), start=(start,), end=end)


def _siglip(whole: "Search", description: dict[str, str]) -> Tokenizer:
    from tokenizers import Tokenizer as Search

    search, rules = Search(whole.model), whole.normalizer

    def tokens(text: str) -> list[int]:
        # Without characters that could be a space, punctuation or a special token.
        plain = " ".join(text.replace(_SPACE, " ").lower().translate(_PUNCTUATION).split())
        words = (plain if rules is None else rules.normalize_str(plain)).split(" ")
        joined = "".join(_SPACE + word for word in words if word)
        return _numbers(search, joined) if joined else []

    return Tokenizer(description=description, tokens=tokens, start=(), end=_number(search, CLOSE))


def _number(search: "Search", token: str) -> int:
    found: int | None = search.token_to_id(token)
    if found is None:
        raise ValueError(f"it lacks the token {token}")
    return found


def _numbers(search: "Search", text: str) -> list[int]:
    return list(search.encode(text, add_special_tokens=False).ids)
