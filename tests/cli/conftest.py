"""A small tokenizer."""

from tests.preprocess.small_tokenizer import tokenizer_file

__all__ = ["tokenizer_file"]
