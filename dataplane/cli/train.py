"""`dataplane train [URL]`: the included trainer, on one rank or several."""

from pathlib import Path

import typer
from rich.console import Console
from rich.table import Table

import training
from dataplane.plan import Topology

app = typer.Typer(rich_markup_mode=None)

URL = typer.Argument(None, help="Folder of the dataset; the same as --set data.url=URL.")
CONFIG = typer.Option(None, help="A TOML, YAML or JSON file of settings.")
SET = typer.Option(
    [], "--set", metavar="NAME=VALUE", help="One setting, such as optimizer.lr=3e-4; may be given again."
)
RANKS = typer.Option(1, min=1, help="Processes on this machine, one per accelerator.")
MAX_RESTARTS = typer.Option(0, min=0, help="Times to start all ranks again, from the last checkpoint, when one fails.")


@app.command()
def command(
    url: str | None = URL,
    config: Path | None = CONFIG,
    settings: list[str] = SET,
    ranks: int = RANKS,
    max_restarts: int = MAX_RESTARTS,
    list_settings: bool = typer.Option(False, "--settings", help="List all settings, and do nothing else."),
) -> None:
    """Train a GPT on a packed dataset; the same command again goes on from the newest checkpoint.

    On several machines use torchrun: `torchrun ... -m training --set data.url=URL`.
    """
    if list_settings:
        Console().print(settings_table())
        return
    status = train(config, all_settings(url, settings), ranks, max_restarts=max_restarts)
    if status:
        raise typer.Exit(status)


def all_settings(url: str | None, settings: list[str]) -> list[str]:
    """The settings of the command line, the dataset among them."""
    return [*settings, *([f"data.url={url}"] if url is not None else [])]


def train(config: Path | None, settings: list[str], ranks: int, *, max_restarts: int = 0) -> int:
    """Trains; the exit status. Raises what is wrong with the settings or the dataset before any rank starts."""
    if config is None and not any(setting.startswith("data.url=") for setting in settings):
        raise ValueError(
            "which dataset? give its folder, `dataplane train URL`, or a file of settings, `dataplane train --config "
            "FILE`; `dataplane train --settings` lists what can be set"
        )
    checked = training.load_config(config, settings)
    if ranks == 1 and not max_restarts:
        summary = training.run(checked, Topology())
        return training.INTERRUPTED if summary.stopped_by == "SIGINT" else 0
    training.check(checked, num_ranks=ranks)
    arguments = [argument for setting in settings for argument in ("--set", setting)]
    arguments = [*(["--config", str(config)] if config else []), *arguments]
    return training.launch(arguments, ranks, max_restarts=max_restarts)


def settings_table() -> Table:
    """Every setting with its default and meaning."""
    table = Table("setting", "default", "meaning", box=None, header_style="", show_edge=False)
    for setting in training.settings():
        table.add_row(setting.name, setting.default, setting.meaning)
    return table
