"""A corpus that every machine with Python has: the sources of its standard library."""

import io
import json
import sysconfig
import tokenize
from collections.abc import Iterator
from dataclasses import dataclass
from itertools import islice
from pathlib import Path

import zstandard
from tokenizers import Tokenizer, decoders, models, pre_tokenizers, trainers

# Enough text for a vocabulary of some thousand tokens; more takes longer and changes little.
_TOKENIZER_DOCUMENTS = 300


@dataclass(frozen=True, slots=True)
class Corpus:
    documents: int
    num_bytes: int
    """Of the texts in UTF-8."""


def write_corpus(path: Path) -> Corpus:
    """Writes a line of JSON per module: id, path and text. Modules that do not decode as Python does are left out:
    they are test data, meant not to."""
    documents = num_bytes = 0
    with path.open("wb") as file, zstandard.ZstdCompressor().stream_writer(file) as stream:
        for name, text in _modules(Path(sysconfig.get_paths()["stdlib"])):
            stream.write(json.dumps({"id": documents, "path": name, "text": text}).encode() + b"\n")
            documents, num_bytes = documents + 1, num_bytes + len(text.encode())
    return Corpus(documents, num_bytes)


def train_tokenizer(corpus: Path, path: Path, *, vocabulary: int, eos: str) -> None:
    """Trains a byte-level BPE, which decodes to exactly what was encoded, and writes it as a `tokenizers` file."""
    tokenizer = Tokenizer(models.BPE())
    tokenizer.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=False)
    tokenizer.decoder = decoders.ByteLevel()
    trainer = trainers.BpeTrainer(
        vocab_size=vocabulary,
        special_tokens=[eos],
        initial_alphabet=pre_tokenizers.ByteLevel.alphabet(),
        show_progress=False,
    )
    tokenizer.train_from_iterator(islice(_texts(corpus), _TOKENIZER_DOCUMENTS), trainer)
    tokenizer.save(str(path))


def _modules(root: Path) -> Iterator[tuple[str, str]]:
    """Relative path and text of the library's modules, its own tests aside, in a fixed order."""
    for path in sorted(root.rglob("*.py")):
        parts = path.relative_to(root).parts
        if "site-packages" in parts or "test" in parts or "tests" in parts:
            continue
        try:
            with tokenize.open(path) as file:
                text = file.read()
        except (SyntaxError, UnicodeDecodeError):
            continue
        if text:
            yield "/".join(parts), text


def _texts(corpus: Path) -> Iterator[str]:
    with corpus.open("rb") as file:
        lines = io.TextIOWrapper(zstandard.ZstdDecompressor().stream_reader(file), encoding="utf-8")
        for line in lines:
            yield json.loads(line)["text"]
