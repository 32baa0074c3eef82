"""Settings come from a file and from overrides under the same names, and mistakes are explained."""

from pathlib import Path

import pytest

from training import TrainConfig, load_config, parse_config, settings
from training.config import describe_config

MINIMAL = {"data": {"url": "memory://dataset"}}


def test_a_file_and_overrides_use_the_same_names(tmp_path):
    path = tmp_path / "train.toml"
    path.write_text('precision = "fp32"\n[data]\nurl = "s3://bucket/text"\n[optimizer]\nlr = 1e-3\n')

    config = load_config(path, ["optimizer.lr=3e-4", "optimizer.betas=[0.8, 0.9]", "folder=runs/a", "data.seed=7"])

    assert (config.data.url, config.data.seed, config.precision) == ("s3://bucket/text", 7, "fp32")
    assert (config.optimizer.lr, config.optimizer.betas) == (3e-4, (0.8, 0.9))
    assert config.checkpoint_url == "runs/a/checkpoints"


def test_json_holds_what_toml_does(tmp_path):
    path = tmp_path / "train.json"
    path.write_text(parse_config(MINIMAL).model_dump_json())

    assert load_config(path) == parse_config(MINIMAL)


def test_yaml_holds_what_toml_does(tmp_path):
    (tmp_path / "a.toml").write_text('seed = 3\n[data]\nurl = "s3://b/t"\n[optimizer]\nlr = 1e-3\nclip_norm = 0.5\n')
    (tmp_path / "a.yaml").write_text("seed: 3\ndata: {url: s3://b/t}\noptimizer:\n  lr: 1e-3\n  clip_norm: 0.5\n")

    assert load_config(tmp_path / "a.toml") == load_config(tmp_path / "a.yaml")


def test_every_setting_has_a_meaning_and_a_default_that_can_be_typed():
    listed = list(settings())
    typed = [f"{setting.name}={setting.default}" for setting in listed if setting.name != "data.url"]

    assert all(setting.meaning for setting in listed)
    assert load_config(None, ["data.url=memory://dataset", *typed]) == parse_config(MINIMAL)


def test_the_whole_configuration_is_said_in_few_lines_and_without_secrets():
    config = load_config(None, ["data.url=s3://b/t", 'data.storage_options={"secret_access_key": "hidden"}'])
    lines = describe_config(config)

    assert len(lines) < 12
    assert all(setting.name.rpartition(".")[2] + "=" in "\n".join(lines) for setting in settings())
    assert "hidden" not in "\n".join(lines)


@pytest.mark.parametrize(
    ("setting", "options"),
    [(None, {}), ("default", {}), ("none", {"cache_dir": None}), ("some/folder", {"cache_dir": Path("some/folder")})],
)
def test_the_cache_can_be_moved_and_switched_off(setting, options):
    config = load_config(None, ["data.url=memory://d", *([f"data.cache_dir={setting}"] if setting else [])])
    loader_options = config.data.loader_options()

    assert {name: value for name, value in loader_options.items() if name == "cache_dir"} == options


@pytest.mark.parametrize(
    ("name", "nearest"),
    [
        ("optimizer.learning_rat", None),
        ("optimizer.warmup_step", "optimizer.warmup_steps"),
        ("lr", "optimizer.lr"),
        ("data.batchsize", "data.batch_size"),
        ("chekpoint", "checkpoint"),
    ],
)
def test_an_unknown_name_is_refused_with_the_nearest(name, nearest):
    with pytest.raises(ValueError, match=f"unknown setting {name}") as caught:
        load_config(None, ["data.url=memory://dataset", f"{name}=1"])
    if nearest:
        assert str(caught.value) == f"unknown setting {name}; did you mean {nearest}?"


@pytest.mark.parametrize(
    ("override", "message"),
    [
        ("optimizer.lr=-1", r"setting optimizer.lr=-1 is not allowed: input should be greater than 0"),
        (
            "precision=fp8",
            r"setting precision='fp8' is not allowed: input should be 'auto', 'fp32', 'tf32', 'bf16' or 'fp16'",
        ),
        ("optimizer.num_steps=5", r"optimizer.warmup_steps=20 exceeds optimizer.num_steps=5"),
        ("optimizer.lr", r"an override reads name=value, got 'optimizer.lr'"),
        ("precision.x=1", r"precision.x is not a setting|setting precision="),
    ],
)
def test_a_value_that_is_not_allowed_is_shown(override, message):
    with pytest.raises(ValueError, match=message):
        load_config(None, ["data.url=memory://dataset", override])


def test_a_file_that_does_not_parse_is_named(tmp_path):
    path = tmp_path / "train.toml"
    path.write_text("data = [")
    with pytest.raises(ValueError, match=r"train.toml does not parse"):
        load_config(path)


def test_a_dataset_is_the_one_thing_that_has_no_default():
    with pytest.raises(ValueError, match=r"setting data.url is missing; give it in a file"):
        parse_config({})


def test_the_model_takes_its_size_from_the_dataset_unless_told():
    model = TrainConfig.model_validate(MINIMAL).model

    assert model.gpt(vocab_size=100, context=32).vocab_size == 100
    assert model.model_copy(update={"context": 64}).gpt(vocab_size=100, context=32).context == 64
    with pytest.raises(ValueError, match=r"does not say its context; set model.context"):
        model.gpt(vocab_size=100, context=None)
    with pytest.raises(ValueError, match=r"model.vocab_size=50 is below the dataset's 100"):
        model.model_copy(update={"vocab_size": 50}).gpt(vocab_size=100, context=32)
