import json
import pickle
from dataclasses import replace

import pytest

from dataplane.catalog import Encoding
from dataplane.errors import InputError
from preprocess import Packing, Reading, Recipe, Shuffle, Split, load_recipe, parse_recipe
from preprocess.operations import Cast, Derive, Drop, Filter, MapFunction, Rename, Select

RECIPE = Recipe(
    reading=Reading(format="jsonl", text_column="body"),
    operations=(
        Select(columns=("id", "body")),
        Rename(columns={"id": "key"}),
        Derive(columns={"length": "utf8_length(body)"}),
        Filter(where="length > 10", reason="too short"),
        Filter(where="length < 1000"),
        MapFunction(function="json:loads", arguments={"a": [1, 2]}, schema={"a": "int8"}),
        Cast(columns={"length": "int32"}),
        Drop(columns=("key",)),
    ),
    packing=Packing(tokenizer="t.json", sequence_length=128),
    block_bytes=4096,
    encoding=Encoding(level=9, shard_bytes=1 << 20),
    split=Split(key="key", fractions={"train": 0.98, "validation": 0.02}),
    shuffle=Shuffle(seed=7),
)

YAML = """
reading: {format: jsonl, text_column: body}
operations:
  - select: [id, body]
  - rename: {id: key}
  - derive:
      length: utf8_length(body)
  - filter: {where: length > 10, reason: too short}
  - filter: length < 1000
  - map: {function: "json:loads", arguments: {a: [1, 2]}, schema: {a: int8}}
  - cast: {columns: {length: int32}}
  - drop: {columns: [key]}
packing: {tokenizer: t.json, sequence_length: 128}
output: {block_bytes: 4096, level: 9, shard_bytes: 1048576}
split: {key: key, fractions: {train: 0.98, validation: 0.02}}
shuffle: {seed: 7}
"""

TOML = """
operations = [
  {select = ["id", "body"]}, {rename = {id = "key"}}, {derive = {length = "utf8_length(body)"}},
  {filter = {where = "length > 10", reason = "too short"}}, {filter = "length < 1000"},
  {map = {function = "json:loads", arguments = {a = [1, 2]}, schema = {a = "int8"}}},
  {cast = {length = "int32"}}, {drop = ["key"]},
]
[reading]
format = "jsonl"
text_column = "body"
[packing]
tokenizer = "t.json"
sequence_length = 128
[output]
block_bytes = 4096
level = 9
shard_bytes = 1048576
[split]
key = "key"
fractions = {train = 0.98, validation = 0.02}
[shuffle]
seed = 7
"""


@pytest.fixture
def load(tmp_path):
    def load(text, suffix=".yaml", **overrides):
        path = tmp_path / f"recipe{suffix}"
        path.write_text(text)
        return load_recipe(str(path), overrides)

    return load


def test_a_file_and_python_say_the_same(load):
    assert load(YAML) == RECIPE
    assert load(TOML, ".toml") == RECIPE
    assert load(YAML).to_json() == RECIPE.to_json()
    assert pickle.loads(pickle.dumps(RECIPE)).to_json() == RECIPE.to_json()


def test_operations_are_spelled_as_they_are_read():
    values = [operation.to_dict() for operation in RECIPE.operations]

    assert parse_recipe({"operations": json.loads(json.dumps(values))}).operations == RECIPE.operations


def test_every_setting_changes_the_text_of_a_recipe():
    others = [
        replace(RECIPE, block_bytes=4097),
        replace(RECIPE, operations=RECIPE.operations[::-1]),
        replace(RECIPE, shuffle=None),
        replace(RECIPE, split=Split(key="key", fractions={"validation": 0.02, "train": 0.98})),
        replace(RECIPE, encoding=Encoding(level=8, shard_bytes=1 << 20)),
        replace(RECIPE, packing=Packing(tokenizer="t.json", sequence_length=129)),
    ]

    assert len({recipe.to_json() for recipe in [RECIPE, *others]}) == len(others) + 1


def test_an_empty_file_is_the_default_recipe(load):
    assert load("{}") == Recipe()
    assert load("{}", ".json") == Recipe()


def test_overrides_go_before_the_file(load):
    recipe = load(YAML, packing={"sequence_length": 64}, output={"codec": "lz4"})

    assert recipe.packing == Packing(tokenizer="t.json", sequence_length=64)
    assert recipe.encoding == replace(RECIPE.encoding, codec="lz4")
    assert recipe.operations == RECIPE.operations


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("reeding: {}", r"recipe.yaml: there is no section 'reeding'; did you mean 'reading'\?"),
        ("reading: {fromat: jsonl}", r"reading: there is no setting 'fromat'; did you mean 'format'\?"),
        ("reading: {format: xml}", "reading.format: "),
        ("output: {lvl: 3}", "output: there is no setting 'lvl'; did you mean 'level'"),
        ("output: {level: 99}", "level of zstd must be in"),
        ("output: {level: high}", "output.level: .*got 'high'"),
        ("output: 3", "output: must be a mapping of settings, got 3"),
        ("operations: {select: [a]}", "operations: must be a list"),
        ("operations: [{selct: [a]}]", r"operations\[0\]: there is no operation 'selct'; did you mean 'select'"),
        ("operations: [{select: [a], drop: [b]}]", r"operations\[0\]: must read `name: settings`"),
        ("operations: [{select: [a]}, {filter: {were: x}}]", r"operations\[1\].filter: .*did you mean 'where'"),
        ("operations: [{filter: {where: 'a >'}}]", r"operations\[0\].filter.where: 'a >' is not an expression"),
        ("operations: [{filter: {reason: x}}]", r"operations\[0\].filter.where: is missing"),
        ("operations: [{cast: {a: itn8}}]", r"operations\[0\].cast.columns: .*did you mean 'int8'"),
        ("operations: [{map: no colon}]", r"operations\[0\].map.function: must read module:function"),
        ("packing: {sequence_length: 2}", "packing.tokenizer: is missing"),
        ("packing: {tokenizer: t, sequence_length: 0}", "packing: sequence_length must be at least 1"),
        ("split: {fractions: {a: 0.5}}", "split.fractions: the fractions of a split must add up to 1"),
        ("shuffle: {seed: -1}", "shuffle.seed: "),
        ("columns: [a, a]", "columns must name"),
        ("reading: {format: jsonl, format: text}", "does not parse as YAML: the key 'format' stands twice"),
        ("a: [", "does not parse as YAML"),
        ("- a", "must hold a mapping of sections"),
        ("!!python/object/apply:os.system ['true']", "does not parse as YAML"),
    ],
)
def test_a_mistake_names_the_file_and_the_key(load, text, message):
    with pytest.raises(ValueError, match=rf"recipe\.yaml.*{message}" if "recipe.yaml" not in message else message):
        load(text)


def test_a_missing_file_and_another_kind_of_file_are_refused(load, tmp_path):
    with pytest.raises(InputError, match="there is no such file"):
        load_recipe(str(tmp_path / "none.yaml"))
    with pytest.raises(ValueError, match="a recipe's name ends with"):
        load("", ".txt")
