"""`dataplane profile [URL]`: a training run, and where its time went."""

import json
from pathlib import Path

import typer
from rich.console import Console

import training
from dataplane.cli.train import CONFIG, RANKS, SET, URL, all_settings, train
from dataplane.profile import print_report, read_accounts

app = typer.Typer(rich_markup_mode=None)


@app.command()
def command(
    url: str | None = URL,
    config: Path | None = CONFIG,
    settings: list[str] = SET,
    ranks: int = RANKS,
    report: Path | None = typer.Option(None, "--json", help="Also write the account as JSON to this file."),
) -> None:
    """Train as `dataplane train` does, then show how each step's time divides.

    The parts (data wait, transfer, forward, backward, optimizer, checkpoint, other) add up to the wall time.
    """
    everything = all_settings(url, settings)
    status = train(config, everything, ranks)
    folder = training.load_config(config, everything).folder
    job = read_accounts(folder)
    if not any(rank.num_steps for rank in job.ranks):
        raise ValueError(
            f"nothing left to profile: the run in {folder} is finished; give --set folder=NEW or more steps"
        )
    print_report(job, Console())
    if report is not None:
        report.write_text(json.dumps(job.to_dict(), indent=2) + "\n")
    if status:
        raise typer.Exit(status)
