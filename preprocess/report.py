"""What a run did, in numbers."""

from collections.abc import Mapping
from dataclasses import asdict, dataclass
from typing import Any

from rich.table import Table

from dataplane.catalog import Dataset, DatasetVersion

MEGA = 1_000_000

DROPPED = "dropped_"
"""Begins the names of counts of dropped records; the reason follows."""


def dropped_of(counts: Mapping[str, float]) -> dict[str, int]:
    """The records dropped, by reason."""
    return {
        name.removeprefix(DROPPED).replace("_", " "): int(count)
        for name, count in sorted(counts.items())
        if name.startswith(DROPPED) and count
    }


@dataclass(frozen=True, kw_only=True, slots=True)
class OutputReport:
    """What a run added to one dataset."""

    name: str
    """Of the part of a split; "" where there is no split."""
    version: int
    rows: int
    blocks: int
    shards: int
    raw_bytes: int
    """The rows' bytes in memory."""
    compressed_bytes: int

    @classmethod
    def between(cls, name: str, version: DatasetVersion, base: Dataset | None) -> "OutputReport":
        """What a version has more than the one before it."""
        before = base.version if base else None
        return cls(
            name=name,
            version=version.number,
            rows=version.num_rows - (before.num_rows if before else 0),
            blocks=version.num_blocks - (before.num_blocks if before else 0),
            shards=version.num_shards - (before.num_shards if before else 0),
            raw_bytes=version.raw_bytes - (before.raw_bytes if before else 0),
            compressed_bytes=version.num_bytes - (before.num_bytes if before else 0),
        )


@dataclass(frozen=True, kw_only=True, slots=True)
class Report:
    """One run: what it read, what it left out, and what it added. A run that went on from an earlier one says the same
    as one that was never interrupted, but for `tasks_resumed`, memory and seconds."""

    destination: str
    complete: bool
    """False if the run ended before it could commit; then only finished tasks are counted."""
    outputs: tuple[OutputReport, ...]
    input_files: int
    """Files found, the empty ones included."""
    empty_files: int
    hidden_files: int
    """Passed over because their names begin with a dot or an underscore."""
    unchanged_files: int
    """Left out because the dataset has them already."""
    input_bytes: int
    """Of the files that were read, as stored, usually compressed."""
    documents: int
    """Rows or documents read, without the dropped ones."""
    dropped: Mapping[str, int]
    """Records that are not in the dataset, by reason."""
    tokens: int
    """0 where nothing was tokenised."""
    tasks: int
    tasks_resumed: int
    """Tasks that an earlier run had finished."""
    peak_worker_bytes: int
    """Most memory that a process held which ran tasks; 0 where none did."""
    seconds: float

    @property
    def version(self) -> int:
        """Of the dataset, or of the first part of a split; 0 if nothing was committed."""
        return self.outputs[0].version if self.outputs else 0

    @property
    def rows(self) -> int:
        return sum(output.rows for output in self.outputs)

    @property
    def blocks(self) -> int:
        return sum(output.blocks for output in self.outputs)

    @property
    def shards(self) -> int:
        return sum(output.shards for output in self.outputs)

    @property
    def raw_bytes(self) -> int:
        return sum(output.raw_bytes for output in self.outputs)

    @property
    def compressed_bytes(self) -> int:
        return sum(output.compressed_bytes for output in self.outputs)

    @property
    def ratio(self) -> float:
        """Raw bytes for each compressed one; 0 where nothing was written."""
        return self.raw_bytes / self.compressed_bytes if self.compressed_bytes else 0.0

    def to_dict(self) -> dict[str, Any]:  # Any: as JSON
        """As JSON has it: every field, the sums over the outputs, and the ratio."""
        sums = {name: getattr(self, name) for name in _SUMS}
        return {
            **asdict(self),
            "outputs": [asdict(output) for output in self.outputs],
            "dropped": dict(self.dropped),
            **sums,
            "ratio": round(self.ratio, 4),
        }

    def table(self) -> Table:
        """For people."""
        view = Table(title=self._title(), show_header=False)
        view.add_column()
        view.add_column(justify="right")
        for name, value in self._lines():
            view.add_row(name, value)
        return view

    def _title(self) -> str:
        if not self.complete:
            return f"unfinished: {self.destination}"
        return f"version {self.version} of {self.destination}"

    def _lines(self) -> list[tuple[str, str]]:
        speed = self.input_bytes / MEGA / max(self.seconds, 1e-9)
        tasks = f"{self.tasks:,}" + (f" ({self.tasks_resumed:,} finished earlier)" if self.tasks_resumed else "")
        return [
            ("input files", f"{self.input_files:,}{self._passed_over()}"),
            ("input bytes", f"{self.input_bytes:,}"),
            ("documents", f"{self.documents:,}"),
            *((f"dropped: {reason}", f"{count:,}") for reason, count in self.dropped.items()),
            *([("tokens", f"{self.tokens:,}")] if self.tokens else []),
            ("tasks", tasks),
            *(self._output_lines() if self.complete else []),
            *self._memory_lines(),
            ("seconds", f"{self.seconds:.1f} ({speed:.1f} MB/s of input{self._token_rate()})"),
        ]

    def _output_lines(self) -> list[tuple[str, str]]:
        parts = [(f"rows of {output.name}", f"{output.rows:,}") for output in self.outputs if output.name]
        return [
            ("rows", f"{self.rows:,}"),
            *parts,
            ("blocks", f"{self.blocks:,}"),
            ("shards", f"{self.shards:,}"),
            ("raw bytes", f"{self.raw_bytes:,}"),
            ("compressed bytes", f"{self.compressed_bytes:,}"),
            ("compression ratio", f"{self.ratio:.2f}"),
        ]

    def _memory_lines(self) -> list[tuple[str, str]]:
        peak = self.peak_worker_bytes
        return [("peak memory of a worker", f"{peak / MEGA:,.0f} MB")] if peak else []

    def _token_rate(self) -> str:
        return f", {self.tokens / max(self.seconds, 1e-9):,.0f} tokens/s" if self.tokens else ""

    def _passed_over(self) -> str:
        counts = (
            ("empty", self.empty_files),
            ("hidden and skipped", self.hidden_files),
            ("unchanged", self.unchanged_files),
        )
        said = [f"{count:,} {word}" for word, count in counts if count]
        return f" ({', '.join(said)})" if said else ""


_SUMS = ("version", "rows", "blocks", "shards", "raw_bytes", "compressed_bytes")
