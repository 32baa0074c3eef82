import base64
import json
from pathlib import Path

import numpy as np
import pytest

from dataplane.errors import InputError
from preprocess.tokenizer import load_vocabulary
from tests.preprocess.datasets import plain_lines


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
        (b"IQ== 0\nIg== 1\n", "should end with .tiktoken"),
        (b"\n\x0e\n\x05<unk>\x15\x00", "should end with .model"),
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


PATTERN = r"\w+|\s+|[^\w\s]+"
BYTES = b"".join(base64.b64encode(bytes([byte])) + f" {byte}\n".encode() for byte in range(256))


def test_ranks_with_a_pattern_and_special_tokens(tmp_path):
    path = tmp_path / "mine.tiktoken"
    path.write_bytes(BYTES + base64.b64encode(b"th") + b" 256\n")

    vocabulary = load_vocabulary(str(path), split_pattern=PATTERN, special_tokens={"<end>": 300})

    tokens, lengths = vocabulary.encode(["the <end>", "", "th"])
    assert tokens.tolist() == [256, *b"e <end>", 256]
    assert lengths.tolist() == [8, 0, 1]
    assert (vocabulary.id_of("<end>"), vocabulary.size, vocabulary.dtype) == (300, 301, np.uint16)
    assert vocabulary.decode(np.array([256, 300])) == "th<end>"
    assert vocabulary.digest != load_vocabulary(str(path), split_pattern=PATTERN).digest


@pytest.mark.parametrize(
    ("content", "settings", "message"),
    [
        (BYTES, {}, "name it as one of r50k_base, p50k_base"),
        (b"IQ== 0\n", {"split_pattern": "."}, "has no token for 255 bytes, the first is 0x00"),
        (b"IQ== 0\n\nnonsense\n", {"split_pattern": "."}, "line 3 does not read"),
        (b"", {"split_pattern": "."}, "has 0 tokens"),
        (BYTES, {"split_pattern": "(", "special_tokens": {}}, "."),
        (BYTES, {"split_pattern": ".", "special_tokens": {"<a>": 5}}, "special token '<a>' has id 5, which another"),
    ],
)
def test_wrong_ranks_are_refused_by_what_is_wrong(tmp_path, content, settings, message):
    path = tmp_path / "mine.tiktoken"
    path.write_bytes(content)

    with pytest.raises(InputError, match=f"tokenizer {path}: .*{message}"):
        load_vocabulary(str(path), **settings)


def test_a_file_that_only_has_the_name_of_known_ranks_is_refused(tmp_path):
    path = tmp_path / "cl100k_base.tiktoken"
    path.write_bytes(BYTES)

    with pytest.raises(InputError, match="is named cl100k_base but is another file"):
        load_vocabulary(str(path))


def test_a_pattern_does_not_go_with_a_file_that_has_its_own(tokenizer_file):
    with pytest.raises(ValueError, match=r"go with \.tiktoken files alone"):
        load_vocabulary(tokenizer_file, split_pattern=PATTERN)


def test_ranks_and_the_tokenizers_file_of_one_vocabulary_give_equal_ids(data):
    ours = load_vocabulary(str(data / "tokenizers" / "cl100k_base.tiktoken"))
    theirs = load_vocabulary(str(data / "tokenizers" / "gpt-3.5-turbo.tokenizer.json"))
    texts = ["a" * 50_000, " " * 50_000, "<|endoftext|> is text"]
    for name in ("multilingual.jsonl.zst", "peps.jsonl.gz", "tldr_short_docs.jsonl.zst", "emoji.jsonl.gz"):
        lines = plain_lines(data / "text" / name)
        texts += [json.loads(line)["text"] for line in lines[:: max(1, len(lines) // 150)]]

    for one, other in zip(ours.encode(texts), theirs.encode(texts), strict=True):
        assert np.array_equal(one, other)
    assert ours.id_of("<|endoftext|>") == theirs.id_of("<|endoftext|>") == 100_257


def test_a_sentencepiece_model_gives_its_own_pieces(data):
    vocabulary = load_vocabulary(str(data / "tokenizers" / "botchan_en_bpe_1000.model"))

    tokens, lengths = vocabulary.encode(["I was a cat.", "", "so"])

    assert vocabulary.decode(tokens[: lengths[0]]) == "I was a cat."
    assert (lengths[1], vocabulary.size, vocabulary.id_of("</s>")) == (0, 1000, 2)
    with pytest.raises(ValueError, match="special tokens are <s>, </s>"):
        vocabulary.id_of("<end>")
