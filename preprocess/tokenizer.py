"""A `tokenizers` file, opened for text that is only ever text."""

import re
from collections.abc import Mapping
from dataclasses import dataclass
from itertools import chain
from typing import Any

import numpy as np
import numpy.typing as npt
from tokenizers import Tokenizer

from dataplane.errors import InputError
from dataplane.storage import digest_of, open_store
from preprocess.sources import split_url

_TIKTOKEN_LINE = re.compile(rb"[A-Za-z0-9+/]+=* \d+\r?\n")


@dataclass(frozen=True, slots=True)
class Vocabulary:
    """A tokenizer and what a dataset has to say of it."""

    tokenizer: Any  # Any: the tokenizers package has no types
    digest: str
    """BLAKE3 of the file, in hexadecimal."""
    size: int
    """One more than the largest token id: the rows that a model's embedding needs. Ids may have gaps."""

    @property
    def dtype(self) -> np.dtype[Any]:
        """uint16 where every id fits, else int32."""
        return np.dtype(np.uint16 if self.size <= 1 << 16 else np.int32)

    def encode(self, texts: list[str]) -> tuple[npt.NDArray[Any], npt.NDArray[np.int64]]:
        """The tokens of all texts, one after the other, and how many each text has.

        Adds no special tokens, and takes none out of the text. Uses all cores; releases the interpreter lock.
        """
        encodings = self.tokenizer.encode_batch_fast(texts, add_special_tokens=False)
        ids = [encoding.ids for encoding in encodings]
        lengths = np.fromiter(map(len, ids), np.int64, len(ids))
        return np.fromiter(chain.from_iterable(ids), self.dtype, int(lengths.sum())), lengths

    def decode(self, tokens: npt.NDArray[Any]) -> str:
        """The text, special tokens spelled out."""
        return str(self.tokenizer.decode(tokens.tolist(), skip_special_tokens=False))

    def id_of(self, token: str) -> int:
        """Raises ValueError if the vocabulary does not have the token."""
        number = self.tokenizer.token_to_id(token)
        if number is None:
            special = [t.content for t in self.tokenizer.get_added_tokens_decoder().values()]
            raise ValueError(
                f"token {token!r} is not in the tokenizer's vocabulary; "
                f"its special tokens are {', '.join(special) or 'none'}"
            )
        return int(number)


def load_vocabulary(
    url: str,
    storage_options: Mapping[str, Any] | None = None,  # Any: as the stores' own options
) -> Vocabulary:
    """Reads a `tokenizers` JSON file; truncation and padding that it asks for are switched off.

    Raises InputError if the file is missing or something else, saying what it seems to be.
    """
    root, name = split_url(url)
    try:
        data = open_store(root, storage_options).read(name)
    except FileNotFoundError:
        raise InputError(f"tokenizer {url}: there is no such file") from None
    try:
        tokenizer = Tokenizer.from_buffer(data)
    except ValueError as error:
        raise InputError(
            f"tokenizer {url}: {_guess(data, url)}; a JSON file of the `tokenizers` library "
            f"(usually tokenizer.json) is needed ({str(error).split(': ', 1)[-1]})"
        ) from None
    tokenizer.no_truncation()
    tokenizer.no_padding()
    tokenizer.encode_special_tokens = True
    size = max(tokenizer.get_vocab(with_added_tokens=True).values(), default=-1) + 1
    return Vocabulary(tokenizer, digest_of(data).hex(), size)


def _guess(data: bytes, url: str) -> str:
    if not data:
        return "the file is empty"
    if _TIKTOKEN_LINE.match(data):
        return "this is a tiktoken file of ranks, without the pattern that splits text"
    if url.endswith(".model") or b"<unk>" in data[:64]:
        return "this is a sentencepiece model"
    if data.lstrip()[:1] in (b"{", b"["):
        return "this JSON is not a tokenizer"
    return "this is not JSON"
