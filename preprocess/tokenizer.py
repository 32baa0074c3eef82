"""A vocabulary and what a dataset has to say of it: `tokenizers` JSON, tiktoken ranks or a sentencepiece model."""

import json
import re
from collections.abc import Mapping
from dataclasses import dataclass
from itertools import chain
from typing import Any

import numpy as np
import numpy.typing as npt

from dataplane.errors import InputError
from dataplane.storage import digest_of, open_store
from preprocess.encoders import Encoder, SentencePieceEncoder, TiktokenEncoder, TokenizersEncoder
from preprocess.sources import split_url

_TIKTOKEN_LINE = re.compile(rb"[A-Za-z0-9+/]+=* \d+\r?\n")


@dataclass(frozen=True, slots=True)
class Vocabulary:
    """A tokenizer and what a dataset has to say of it."""

    encoder: Encoder
    digest: str
    """BLAKE3 of the file, and of the pattern and special tokens where they are given; in hexadecimal."""
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
        ids = self.encoder.encode(texts)
        lengths = np.fromiter(map(len, ids), np.int64, len(ids))
        return np.fromiter(chain.from_iterable(ids), self.dtype, int(lengths.sum())), lengths

    def decode(self, tokens: npt.NDArray[Any]) -> str:
        """The text, special tokens spelled out."""
        return self.encoder.decode(tokens.tolist())

    def id_of(self, token: str) -> int:
        """Raises ValueError if the vocabulary does not have the token."""
        number = self.encoder.id_of(token)
        if number is None:
            raise ValueError(
                f"token {token!r} is not in the tokenizer's vocabulary; "
                f"its special tokens are {', '.join(self.encoder.special_tokens) or 'none'}"
            )
        return number


def load_vocabulary(
    url: str,
    storage_options: Mapping[str, Any] | None = None,  # Any: as the stores' own options
    *,
    split_pattern: str | None = None,
    special_tokens: Mapping[str, int] | None = None,
) -> Vocabulary:
    """Reads a `tokenizers` JSON file, a `.tiktoken` file of ranks or a sentencepiece `.model`.

    `split_pattern` and `special_tokens` are for ranks alone, and needed where the file is not one of those that
    tiktoken knows by name.

    Raises:
        InputError: the file is missing or something else; says what it seems to be.
        MissingExtraError: the library that reads it is not installed.
        ValueError: a pattern or special tokens were given for a file that has its own.
    """
    root, name = split_url(url)
    try:
        data = open_store(root, storage_options).read(name)
    except FileNotFoundError:
        raise InputError(f"tokenizer {url}: there is no such file") from None
    stem, _, suffix = name.rpartition(".")
    if suffix != "tiktoken" and (split_pattern is not None or special_tokens is not None):
        raise ValueError(f"tokenizer {url}: split_pattern and special_tokens go with .tiktoken files alone")
    try:
        if suffix == "tiktoken":
            encoder: Encoder = TiktokenEncoder(data, stem, split_pattern=split_pattern, special_tokens=special_tokens)
        elif suffix == "model" and data:
            encoder = SentencePieceEncoder(data)
        else:
            encoder = TokenizersEncoder(data)
    except ValueError as error:
        reason = str(error).split(": ", 1)[-1]
        if suffix == "tiktoken":
            raise InputError(f"tokenizer {url}: {error}") from None
        raise InputError(
            f"tokenizer {url}: {_guess(data)}; a JSON file of the `tokenizers` library (usually tokenizer.json), "
            f"a .tiktoken file or a sentencepiece .model is needed ({reason})"
        ) from None
    given = json.dumps([split_pattern, special_tokens], sort_keys=True) if split_pattern or special_tokens else ""
    return Vocabulary(encoder, digest_of(data + given.encode()).hex(), encoder.size)


def _guess(data: bytes) -> str:
    if not data:
        return "the file is empty"
    if _TIKTOKEN_LINE.match(data):
        return "this seems a tiktoken file of ranks, its name should end with .tiktoken"
    if b"<unk>" in data[:64]:
        return "this seems a sentencepiece model, its name should end with .model"
    if data.lstrip()[:1] in (b"{", b"["):
        return "this JSON is not a tokenizer"
    return "this is not JSON"
