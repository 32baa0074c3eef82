"""Texts to token ids and back, by the libraries that read the files of vocabularies. Text is only ever text."""

import base64
import binascii
import hashlib
import types
from collections.abc import Mapping, Sequence
from typing import Any, Protocol

import pyarrow as pa
from tokenizers import Tokenizer

from dataplane.errors import MissingExtraError

KNOWN_RANKS = ("r50k_base", "p50k_base", "cl100k_base", "o200k_base")
"""Files of ranks whose pattern and special tokens the tiktoken package knows by name."""


class Encoder(Protocol):
    """Adds no special tokens to a text, and takes none out of it."""

    @property
    def size(self) -> int:
        """One more than the largest id."""
        ...

    @property
    def special_tokens(self) -> list[str]: ...

    def encode(self, texts: list[str]) -> list[Sequence[int]]:
        """The ids of each text. Uses the threads that this process may use; releases the interpreter lock."""
        ...

    def decode(self, ids: list[int]) -> str:
        """The text, special tokens spelled out."""
        ...

    def id_of(self, token: str) -> int | None:
        """None for what is not in the vocabulary."""
        ...


class TokenizersEncoder:
    """A JSON file of the `tokenizers` library. Truncation and padding that it asks for are switched off."""

    def __init__(self, data: bytes) -> None:
        """Raises ValueError for another file."""
        tokenizer = Tokenizer.from_buffer(data)
        tokenizer.no_truncation()
        tokenizer.no_padding()
        tokenizer.encode_special_tokens = True
        self._tokenizer = tokenizer

    @property
    def size(self) -> int:
        return max(self._tokenizer.get_vocab(with_added_tokens=True).values(), default=-1) + 1

    @property
    def special_tokens(self) -> list[str]:
        return [token.content for token in self._tokenizer.get_added_tokens_decoder().values()]

    def encode(self, texts: list[str]) -> list[Sequence[int]]:
        return [each.ids for each in self._tokenizer.encode_batch_fast(texts, add_special_tokens=False)]

    def decode(self, ids: list[int]) -> str:
        return str(self._tokenizer.decode(ids, skip_special_tokens=False))

    def id_of(self, token: str) -> int | None:
        return self._tokenizer.token_to_id(token)


class TiktokenEncoder:
    """A file of ranks, `base64(token) rank` a line, with the pattern that splits text and the special tokens."""

    def __init__(
        self, data: bytes, name: str, *, split_pattern: str | None, special_tokens: Mapping[str, int] | None
    ) -> None:
        """Without a pattern, `name` says which of KNOWN_RANKS the file is.

        Raises ValueError if the file holds something else, or is not the one of that name.
        """
        try:
            import tiktoken
        except ImportError:
            raise MissingExtraError("a .tiktoken file needs the extra: pip install 'dataplane[tiktoken]'") from None
        if split_pattern is None and name not in KNOWN_RANKS:
            raise ValueError(
                f"a file of ranks says not how text is split: name it as one of {', '.join(KNOWN_RANKS)}, "
                "or give split_pattern and special_tokens"
            )
        ranks = _ranks(data)
        known: Mapping[str, Any] = {"pat_str": split_pattern, "special_tokens": {}}  # Any: as tiktoken has it
        if split_pattern is None:
            known = _known(name, data, ranks)
        special = dict(known["special_tokens"] if special_tokens is None else special_tokens)
        taken = set(ranks.values())
        for token, number in special.items():
            if number in taken:
                raise ValueError(f"special token {token!r} has id {number}, which another token has")
            taken.add(number)
        self._encoding = tiktoken.Encoding(
            name, pat_str=known["pat_str"], mergeable_ranks=ranks, special_tokens=special
        )
        self._special = special

    @property
    def size(self) -> int:
        return int(self._encoding.max_token_value) + 1

    @property
    def special_tokens(self) -> list[str]:
        return list(self._special)

    def encode(self, texts: list[str]) -> list[Sequence[int]]:
        return list(self._encoding.encode_ordinary_batch(texts, num_threads=pa.cpu_count()))

    def decode(self, ids: list[int]) -> str:
        return str(self._encoding.decode(ids))

    def id_of(self, token: str) -> int | None:
        try:
            return int(self._encoding.encode_single_token(token))
        except KeyError:
            return None


class SentencePieceEncoder:
    """A model of sentencepiece; what its normaliser changes in a text does not come back."""

    def __init__(self, data: bytes) -> None:
        """Raises ValueError for another file."""
        try:
            import sentencepiece
        except ImportError:
            raise MissingExtraError(
                "sentencepiece models need the extra: pip install 'dataplane[sentencepiece]'"
            ) from None
        try:
            self._processor: Any = sentencepiece.SentencePieceProcessor(model_proto=data)  # Any: it has no types
        except RuntimeError as error:
            raise ValueError(str(error)) from None

    @property
    def size(self) -> int:
        return int(self._processor.get_piece_size())

    @property
    def special_tokens(self) -> list[str]:
        processor = self._processor
        return [processor.id_to_piece(number) for number in range(self.size) if processor.is_control(number)]

    def encode(self, texts: list[str]) -> list[Sequence[int]]:
        return list(self._processor.encode(texts, out_type=int, num_threads=pa.cpu_count()))

    def decode(self, ids: list[int]) -> str:
        return str(self._processor.decode(ids))

    def id_of(self, token: str) -> int | None:
        number = int(self._processor.piece_to_id(token))
        return number if self._processor.id_to_piece(number) == token else None


def _ranks(data: bytes) -> dict[bytes, int]:
    ranks: dict[bytes, int] = {}
    for number, line in enumerate(data.splitlines(), 1):
        if not line.strip():
            continue
        try:
            token, rank = line.split()
            ranks[base64.b64decode(token, validate=True)] = int(rank)
        except (ValueError, binascii.Error):
            raise ValueError(f"line {number} does not read `base64(token) rank`, found {line[:40]!r}") from None
    if len(set(ranks.values())) < len(ranks) or not ranks:
        raise ValueError(f"has {len(ranks)} tokens of {len(set(ranks.values()))} ranks; each needs its own")
    if missing := [byte for byte in range(256) if bytes([byte]) not in ranks]:
        raise ValueError(
            f"has no token for {len(missing)} bytes, the first is {missing[0]:#04x}; not every text has ids"
        )
    return ranks


def _known(name: str, data: bytes, ranks: dict[bytes, int]) -> Mapping[str, Any]:  # Any: as tiktoken has it
    """What the tiktoken package knows of its own encoding; its way of loading ranks, over a network, is not taken."""
    from tiktoken_ext import openai_public

    def given(_: str, expected_hash: str) -> dict[bytes, int]:
        if hashlib.sha256(data).hexdigest() != expected_hash:
            raise ValueError(
                f"is named {name} but is another file (SHA-256 is not {expected_hash[:16]}...); "
                "give split_pattern and special_tokens"
            )
        return ranks

    function = openai_public.ENCODING_CONSTRUCTORS[name]
    return types.FunctionType(function.__code__, {**vars(openai_public), "load_tiktoken_bpe": given})()
