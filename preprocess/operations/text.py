"""Text in one form: Unicode normalisation, ends of lines, control characters, white space."""

from collections.abc import Callable, Sequence
from typing import ClassVar, Literal

import pyarrow as pa
import pyarrow.compute as pc

from dataplane.errors import MissingExtraError
from preprocess.operations.base import Bound, Settings
from preprocess.operations.columns import Columnwise, Names
from preprocess.operations.refusals import require_columns

Step = Callable[[pa.Array], pa.Array]


class Normalize(Settings):
    """Brings texts into one form. Doing it twice changes nothing more, but for what `fix` finds."""

    name: ClassVar[str] = "normalize"
    shorthand: ClassVar[str | None] = "columns"

    columns: Names = ("text",)
    fix: bool = False
    """Repairs text that was decoded wrongly (mojibake), by ftfy (extra `ftfy`)."""
    newlines: bool = True
    """\\r\\n and \\r become \\n."""
    control: Literal["remove", "keep"] = "remove"
    """What happens to control characters (C0 but tab, \\n and \\r; DEL; C1)."""
    unicode: Literal["NFC", "NFKC", "NFD", "NFKD"] | None = "NFC"
    whitespace: Literal["keep", "collapse"] = "keep"
    """`collapse` makes runs of spaces and tabs one space, takes them from the ends of lines, leaves one empty line of
    many, and strips the text."""

    def bind(self, schema: pa.Schema) -> Bound:
        require_columns(self.columns, schema, self)
        for name in self.columns:
            kind = schema.field(name).type
            if not (pa.types.is_string(kind) or pa.types.is_large_string(kind)):
                raise ValueError(f"{self}: column {name!r} is of type {kind}, not string")
        steps = self._steps()
        return Columnwise(schema, lambda batch: [self._column(batch, name, steps) for name in schema.names])

    def _column(self, batch: pa.RecordBatch, name: str, steps: Sequence[Step]) -> pa.Array:
        column = batch.column(name)
        if name in self.columns:
            for step in steps:
                column = step(column)
        return column

    def _steps(self) -> list[Step]:
        steps: list[Step] = []
        if self.fix:
            steps.append(_fixing())
        if self.newlines:
            steps.append(_replacing(r"\r\n?", "\n"))
        if self.control == "remove":
            steps.append(_replacing(r"[\x00-\x08\x0b\x0c\x0e-\x1f\x7f-\x{9f}]+", ""))
        if (form := self.unicode) is not None:
            steps.append(lambda column: pc.utf8_normalize(column, form))
        if self.whitespace == "collapse":
            steps += [
                _replacing(r"[\t\pZ]+", " "),
                _replacing(r" ?\n ?", "\n"),
                _replacing(r"\n{3,}", "\n\n"),
                lambda column: pc.utf8_trim(column, " \n"),
            ]
        return steps


def _replacing(pattern: str, replacement: str) -> Step:
    return lambda column: pc.replace_substring_regex(column, pattern=pattern, replacement=replacement)


def _fixing() -> Step:
    try:
        import ftfy
    except ImportError:
        raise MissingExtraError("normalize with `fix` needs the extra: pip install 'dataplane[ftfy]'") from None

    def fix(column: pa.Array) -> pa.Array:
        texts = [None if text is None else ftfy.fix_text(text) for text in column.to_pylist()]
        return pa.array(texts, column.type)

    return fix
