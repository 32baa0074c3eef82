"""Real data if this machine has it, and a small tokenizer."""

import os
from pathlib import Path

import pytest

from tests.preprocess.small_tokenizer import tokenizer_file

__all__ = ["data", "tokenizer_file"]

_BESIDE_THE_CHECKOUT = Path(__file__).parents[2].parent / "shared" / "data"


@pytest.fixture(scope="session")
def data():
    """The folder of real texts, tokenizers and odd files."""
    folder = Path(os.environ.get("DATAPLANE_DATA", _BESIDE_THE_CHECKOUT))
    if not folder.is_dir():
        pytest.skip(f"no real data: DATAPLANE_DATA is not set and {folder} is not there")
    return folder
