"""Options that several commands share, and what their text means."""

import typer

STORAGE_OPTION = typer.Option(
    [],
    "--storage-option",
    metavar="KEY=VALUE",
    help="For the store, such as endpoint=http://localhost:9000; may be given again.",
)


def storage_options(pairs: list[str]) -> dict[str, str]:
    """The options as a dictionary. Raises ValueError for one without a key or an equals sign."""
    options = {}
    for pair in pairs:
        name, equals, value = pair.partition("=")
        if not name or not equals:
            raise ValueError(f"--storage-option needs KEY=VALUE, got {pair.split('=')[0]!r}")
        options[name] = value
    return options
