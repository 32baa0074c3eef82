"""The real data and the small tokenizer of the preprocessing tests."""

from tests.preprocess.conftest import data, tokenizer_file

__all__ = ["data", "tokenizer_file"]
