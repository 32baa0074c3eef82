import json
from pathlib import Path

import numpy as np
import pytest

from dataplane.errors import InputError
from preprocess.tokenizer import load_vocabulary


def test_text_comes_back_whatever_it_contains(tokenizer_file):
    vocabulary = load_vocabulary(tokenizer_file)
    texts = ["the <end> of the hat", "", "\ufeff\x00日本 🎉\u2028", "a" * 10_000]

    tokens, lengths = vocabulary.encode(texts)

    parts = np.split(tokens, np.cumsum(lengths)[:-1])
    assert [vocabulary.decode(part) for part in parts] == texts
    assert vocabulary.id_of("<end>") not in tokens


def test_the_size_is_one_more_than_the_largest_id(tokenizer_file, tmp_path):
    document = json.loads(Path(tokenizer_file).read_text())
    document["added_tokens"].append({**document["added_tokens"][0], "id": 70_000, "content": "<far>"})
    document["model"]["vocab"]["<far>"] = 70_000
    path = tmp_path / "far.json"
    path.write_text(json.dumps(document))

    assert load_vocabulary(tokenizer_file).dtype == np.uint16
    assert load_vocabulary(str(path)).size == 70_001
    assert load_vocabulary(str(path)).dtype == np.int32


def test_a_token_that_is_not_there_is_refused(tokenizer_file):
    with pytest.raises(ValueError, match="'<eos>' is not in the tokenizer's vocabulary; its special tokens are <end>"):
        load_vocabulary(tokenizer_file).id_of("<eos>")


@pytest.mark.parametrize(
    ("content", "message"),
    [
        (None, "there is no such file"),
        (b"", "is empty"),
        (b"IQ== 0\nIg== 1\n", "tiktoken"),
        (b"\n\x0e\n\x05<unk>\x15\x00", "sentencepiece"),
        (b'{"a": 1}', "this JSON is not a tokenizer"),
        (b"[]", "this JSON is not a tokenizer"),
        (b"\x89PNG", "this is not JSON"),
    ],
)
def test_another_file_is_refused_by_what_it_is(tmp_path, content, message):
    path = tmp_path / "tokenizer"
    if content is not None:
        path.write_bytes(content)

    with pytest.raises(InputError, match=f"tokenizer {path}: .*{message}"):
        load_vocabulary(str(path))
