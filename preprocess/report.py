"""What a run did, in numbers."""

from collections.abc import Mapping
from dataclasses import asdict, dataclass
from typing import Any

from rich.table import Table

MEGA = 1_000_000


@dataclass(frozen=True, kw_only=True, slots=True)
class Report:
    """One run: what it read, what it left out, and what it added to the dataset."""

    destination: str
    version: int
    input_files: int
    """Files found, the empty ones included."""
    empty_files: int
    hidden_files: int
    """Passed over because their names begin with a dot or an underscore."""
    input_bytes: int
    """As stored, usually compressed."""
    documents: int
    """Rows or documents read, without the dropped ones."""
    dropped: Mapping[str, int]
    """Records that are not in the dataset, by reason."""
    tokens: int
    """0 where nothing was tokenised."""
    rows: int
    blocks: int
    shards: int
    raw_bytes: int
    """The rows' bytes in memory."""
    compressed_bytes: int
    seconds: float

    @property
    def ratio(self) -> float:
        """Raw bytes for each compressed one."""
        return self.raw_bytes / self.compressed_bytes

    def to_dict(self) -> dict[str, Any]:  # Any: as JSON
        """As JSON has it: every field and the ratio."""
        return {**asdict(self), "dropped": dict(self.dropped), "ratio": round(self.ratio, 4)}

    def table(self) -> Table:
        """For people."""
        view = Table(title=f"version {self.version} of {self.destination}", show_header=False)
        view.add_column()
        view.add_column(justify="right")
        for name, value in self._lines():
            view.add_row(name, value)
        return view

    def _lines(self) -> list[tuple[str, str]]:
        speed = self.input_bytes / MEGA / max(self.seconds, 1e-9)
        return [
            ("input files", f"{self.input_files:,}{self._passed_over()}"),
            ("input bytes", f"{self.input_bytes:,}"),
            ("documents", f"{self.documents:,}"),
            *((f"dropped: {reason}", f"{count:,}") for reason, count in self.dropped.items()),
            *([("tokens", f"{self.tokens:,}")] if self.tokens else []),
            ("rows", f"{self.rows:,}"),
            ("blocks", f"{self.blocks:,}"),
            ("shards", f"{self.shards:,}"),
            ("raw bytes", f"{self.raw_bytes:,}"),
            ("compressed bytes", f"{self.compressed_bytes:,}"),
            ("compression ratio", f"{self.ratio:.2f}"),
            ("seconds", f"{self.seconds:.1f} ({speed:.1f} MB/s of input{self._token_rate()})"),
        ]

    def _token_rate(self) -> str:
        return f", {self.tokens / max(self.seconds, 1e-9):,.0f} tokens/s" if self.tokens else ""

    def _passed_over(self) -> str:
        counts = (("empty", self.empty_files), ("hidden and skipped", self.hidden_files))
        said = [f"{count:,} {word}" for word, count in counts if count]
        return f" ({', '.join(said)})" if said else ""
