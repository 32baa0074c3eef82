"""Documents to rows of tokens, in one pass."""

from collections.abc import Iterator

import pyarrow as pa

from dataplane.catalog import Dataset, parent_for
from preprocess.corpus import Corpus
from preprocess.packing import Packer, packed_schema, with_end_token
from preprocess.recipe import Packing
from preprocess.tokenizer import Vocabulary


class TokensJob:
    """Tokenises the text column and packs it. Documents without a token are dropped and counted."""

    num_passes = 1

    def __init__(
        self,
        corpus: Corpus,
        vocabulary: Vocabulary,
        packing: Packing,
        *,
        text_column: str,
        block_bytes: int,
        base: Dataset | None,
    ) -> None:
        self._corpus = corpus
        self._vocabulary = vocabulary
        self._packing = packing
        self._text_column = text_column
        self._block_bytes = block_bytes
        self._base = base

    def schema(self) -> pa.Schema:
        schema = packed_schema(self._packing.sequence_length, self._vocabulary.dtype)
        if self._base is not None:
            self._check_base(self._base, schema)
        return schema

    def blocks(self) -> Iterator[pa.RecordBatch]:
        packing, metrics = self._packing, self._corpus.metrics
        first_id = self._base.version.num_rows if self._base else 0
        packer = Packer(self.schema(), block_bytes=self._block_bytes, first_id=first_id)
        end = None if packing.eos_token is None else self._vocabulary.id_of(packing.eos_token)
        for texts in self._texts():
            tokens, lengths = self._vocabulary.encode(texts)
            filled = lengths[lengths > 0]
            if len(filled) < len(lengths):
                metrics.add(dropped_no_tokens=len(lengths) - len(filled))
            if end is not None:
                tokens, filled = with_end_token(tokens, filled, end)
            metrics.add(documents=len(filled), tokens=len(tokens))
            yield from packer.add(tokens, filled)
        yield from packer.finish()

    def metadata(self) -> dict[str, str]:
        """The `num_` entries count the whole dataset."""
        counts = self._corpus.metrics.snapshot()
        before = self._base.version.metadata if self._base else {}
        totals = {
            f"num_{name}": str(int(before.get(f"num_{name}", 0)) + int(counts[name]))
            for name in ("documents", "tokens")
        }
        return {**self._identity(), "text_column": self._text_column, **totals}

    def _identity(self) -> dict[str, str]:
        """What must be the same for all rows of a dataset."""
        end = {} if self._packing.eos_token is None else {"eos_token": self._packing.eos_token}
        return {
            "tokenizer_digest": self._vocabulary.digest,
            "vocab_size": str(self._vocabulary.size),
            "sequence_length": str(self._packing.sequence_length),
            **end,
        }

    def _texts(self) -> Iterator[list[str]]:
        for piece, reader in self._corpus.pieces():
            yield from reader.texts(piece)

    def _check_base(self, base: Dataset, schema: pa.Schema) -> None:
        parent_for(base, schema)
        ours, theirs = self._identity(), base.version.metadata
        for name in ("tokenizer_digest", "sequence_length", "eos_token"):
            if ours.get(name) != theirs.get(name):
                raise ValueError(
                    f"{base.store.url}: its rows were made with {name} {theirs.get(name, 'none')}, "
                    f"those to append with {ours.get(name, 'none')}; use the same, or another destination"
                )
