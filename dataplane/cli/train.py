"""`dataplane train [URL]`: the included trainer, on one rank or several."""

from pathlib import Path

import typer

import training
from dataplane.plan import Topology

app = typer.Typer(rich_markup_mode=None)

URL = typer.Argument(None, help="Folder of the dataset; the same as --set data.url=URL.")
CONFIG = typer.Option(None, help="A TOML or JSON file of settings.")
SET = typer.Option(
    [], "--set", metavar="NAME=VALUE", help="One setting, such as optimizer.lr=3e-4; may be given again."
)
RANKS = typer.Option(1, min=1, help="Processes on this machine, one per accelerator.")


@app.command()
def command(
    url: str | None = URL,
    config: Path | None = CONFIG,
    settings: list[str] = SET,
    ranks: int = RANKS,
) -> None:
    """Train a GPT on a packed dataset; the same command again goes on from the newest checkpoint.

    On several machines use torchrun: `torchrun ... -m training --set data.url=URL`.
    """
    status = train(config, all_settings(url, settings), ranks)
    if status:
        raise typer.Exit(status)


def all_settings(url: str | None, settings: list[str]) -> list[str]:
    """The settings of the command line, the dataset among them."""
    return [*settings, *([f"data.url={url}"] if url is not None else [])]


def train(config: Path | None, settings: list[str], ranks: int) -> int:
    """Trains; the exit status. Raises ValueError for settings that are not allowed, before anything starts."""
    checked = training.load_config(config, settings)
    if ranks == 1:
        summary = training.run(checked, Topology())
        return training.INTERRUPTED if summary.stopped_by == "SIGINT" else 0
    arguments = [argument for setting in settings for argument in ("--set", setting)]
    return training.launch([*(["--config", str(config)] if config else []), *arguments], ranks)
