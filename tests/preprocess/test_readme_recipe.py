"""The README's recipe runs as it stands there, and gives the same bytes whoever runs it."""

import re
from pathlib import Path

import pytest

from dataplane.cli import main
from preprocess import load_recipe, preprocess
from preprocess.engines import Inline, Processes
from tests.preprocess.datasets import files_of, read_table, write_jsonl

README = Path(__file__).parents[2] / "README.md"


def block(language, containing):
    blocks = re.findall(rf"```{language}\n(.*?)```", README.read_text(), re.DOTALL)
    return next(text for text in blocks if containing in text)


def rows():
    for number in range(300):
        text = f"The  cat number {number % 280} sat on the mat " + " ".join(
            f"word{number % 280 * 50 + i}" for i in range(40)
        )
        yield {"id": number, "title": None if number % 3 else f"title {number}", "text": text, "lang": "en"}
    yield {"id": 300, "title": "", "text": "Ein Satz auf Deutsch, recht lang", "lang": "de"}
    yield {"id": 301, "title": "", "text": "une phrase en français, assez longue", "lang": "fr"}
    yield {"id": 302, "title": "", "text": "short", "lang": "en"}
    yield {"id": 303, "title": "", "text": "twowords andnothingmorehere", "lang": "en"}


@pytest.fixture
def folder(tmp_path, tokenizer_file, monkeypatch):
    made = list(rows())
    for number in range(4):
        write_jsonl(tmp_path / "corpus" / f"{number}.jsonl.zst", made[number::4])
    (tmp_path / "recipe.yaml").write_text(block("yaml", "operations:"))
    (tmp_path / "functions.py").write_text(block("python", "def with_words"))
    (tmp_path / "tokenizer.json").write_bytes(Path(tokenizer_file).read_bytes())
    monkeypatch.chdir(tmp_path)
    monkeypatch.syspath_prepend(tmp_path)
    return tmp_path


def test_the_recipe_of_the_readme_runs_and_counts_what_it_drops(folder, capsys):
    with pytest.raises(SystemExit) as end:
        main(["preprocess", "corpus", "out", "--recipe", "recipe.yaml", "--level", "1", "--report", "report.json"])

    assert end.value.code == 0, capsys.readouterr().err
    report = (folder / "report.json").read_text()
    for reason, count in (
        ("too short or another language", 2),
        ("too few words", 1),
        ("exact duplicate", 20),
    ):
        assert f'"{reason}": {count}' in report
    assert read_table(folder / "out" / "train").num_rows > 10 * read_table(folder / "out" / "validation").num_rows / 3


def test_the_engine_and_the_number_of_workers_leave_no_trace(folder):
    recipe = load_recipe("recipe.yaml")
    for name, engine in {"one": Inline(), "two": Processes(2, 1), "four": Processes(4, 1)}.items():
        preprocess(["corpus"], name, recipe, engine=engine)

    assert files_of("one") == files_of("two") == files_of("four")
