"""The datasets that a loader reads: what its user says of each, and all of them opened as one."""

import os
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace
from functools import cached_property
from itertools import accumulate
from typing import Any

import numpy as np
import numpy.typing as npt
import pyarrow as pa

from dataplane.catalog import Dataset, open_dataset
from dataplane.pipeline import Layout
from dataplane.plan import Block, Share

Bytes = bytes | memoryview


@dataclass(frozen=True, slots=True)
class Source:
    """A dataset, and what a loader takes from it.

    With weights, samples come in proportion to them, exactly in any few hundred samples. Without, a pass takes every
    row of every source once, or as often as `repeat` or as many as `choose` say.
    """

    url: str | os.PathLike[str]
    weight: float | Sequence[tuple[int, float]] | None = field(default=None, kw_only=True)
    """Compared with the other sources' weights; or a schedule: (sample of the run from which it holds, weight), ..."""
    repeat: float = field(default=1.0, kw_only=True)
    """How often a pass takes the rows; 0.5 takes half of them, and the next pass the other half."""
    choose: int | None = field(default=None, kw_only=True)
    """How many rows a pass takes, instead of `repeat`; the next pass goes on after them."""
    version: int | None = field(default=None, kw_only=True)
    """Pins one; the newest by default."""
    storage_options: Mapping[str, Any] | None = field(default=None, kw_only=True)  # Any: the store's own
    """The loader's own by default."""

    @property
    def name(self) -> str:
        """The last part of the URL."""
        return os.fspath(self.url).rstrip("/").rsplit("/", 1)[-1]

    @property
    def share(self) -> Share:
        weight = self.weight
        if weight is not None and not isinstance(weight, (int, float)):
            weight = tuple((int(start), float(value)) for start, value in weight)
        return Share(weight=weight, repeat=self.repeat, choose=self.choose)


Data = str | os.PathLike[str] | Source | Sequence[str | os.PathLike[str] | Source]


def sources_of(
    data: Data,
    *,
    version: int | None = None,
    storage_options: Mapping[str, Any] | None = None,  # Any: the store's own
) -> tuple[Source, ...]:
    """What a user gave as sources. Raises ValueError for none of them, or a version that could be of any."""
    given = [data] if isinstance(data, (str, os.PathLike, Source)) else list(data)
    if not given:
        raise ValueError("a loader needs at least one source")
    if version is not None and len(given) > 1:
        raise ValueError(f"version={version} of which source? Give it there: Source(url, version={version})")
    sources = [each if isinstance(each, Source) else Source(each) for each in given]
    return tuple(
        replace(
            each,
            version=each.version or version,
            storage_options=storage_options if each.storage_options is None else each.storage_options,
        )
        for each in sources
    )


@dataclass(frozen=True)
class OpenSources:
    """The versions that are read. Their blocks are numbered through, source after source."""

    sources: tuple[Source, ...]
    datasets: tuple[Dataset, ...]

    @classmethod
    def open(cls, sources: Sequence[Source], versions: Sequence[int] | None = None) -> "OpenSources":
        """Those versions; None for what the sources themselves say.

        Raises DatasetNotFoundError where there is none, StoreError where a store cannot say, ValueError for a source
        that has a weight and nothing to give.
        """
        numbers = [each.version for each in sources] if versions is None else versions
        opened = cls(
            tuple(sources),
            tuple(
                open_dataset(os.fspath(each.url), version=number, storage_options=each.storage_options)
                for each, number in zip(sources, numbers, strict=True)
            ),
        )
        for source, dataset in zip(opened.sources, opened.datasets, strict=True):
            if source.weight and len(sources) > 1 and dataset.version.num_rows == 0:
                raise ValueError(f"{dataset.store.url} has a weight and no rows; leave it out")
        return opened

    @property
    def urls(self) -> str:
        """For messages."""
        return ", ".join(dataset.store.url for dataset in self.datasets)

    @property
    def versions(self) -> tuple[int, ...]:
        return tuple(dataset.version.number for dataset in self.datasets)

    @property
    def is_local(self) -> bool:
        return all(dataset.store.is_local for dataset in self.datasets)

    @property
    def schema(self) -> pa.Schema:
        return self.datasets[0].schema

    @property
    def metadata(self) -> Mapping[str, str]:
        """What all writers recorded alike."""
        first, *others = (dataset.version.metadata for dataset in self.datasets)
        return {name: value for name, value in first.items() if all(each.get(name) == value for each in others)}

    @cached_property
    def num_rows(self) -> npt.NDArray[np.int64]:
        """(blocks,)"""
        return np.concatenate([dataset.index.num_rows for dataset in self.datasets])

    @cached_property
    def num_bytes(self) -> npt.NDArray[np.int64]:
        """(blocks,)"""
        return np.concatenate([dataset.index.num_bytes for dataset in self.datasets])

    @property
    def most_raw_bytes(self) -> int:
        """Of the largest block."""
        return max(int(dataset.index.raw_bytes.max(initial=0)) for dataset in self.datasets)

    def layout(self, columns: Sequence[str] | None) -> Layout:
        """How the columns travel. Raises ValueError naming a column that is not in all sources, or not of one type."""
        first = self.datasets[0]
        for other in self.datasets[1:]:
            names = first.schema.names if columns is None else columns
            differ = {*first.schema.names} ^ {*other.schema.names} if columns is None else set()
            for name in sorted(differ) or names:
                kinds = [
                    str(each.schema.field(name).type) if name in each.schema.names else "absent"
                    for each in (first, other)
                ]
                if kinds[0] != kinds[1]:
                    raise ValueError(
                        f"column {name!r} is {kinds[0]} in {first.store.url} and {kinds[1]} in {other.store.url}; "
                        "sources must agree in the columns taken: choose those that do with columns=[...]"
                    )
        return Layout.of(first.schema, columns)

    def locate(self, number: int) -> tuple[int, Block]:
        """The source of a block, and the block."""
        source = self._source_of(number)
        return source, self.datasets[source].index[number - self._first_block[source]]

    def describe(self, number: int) -> str:
        source, block = self.locate(number)
        return f"{self.datasets[source].store.url}/{block}"

    def decode(
        self, number: int, data: Bytes, columns: Sequence[str], out: Mapping[str, npt.NDArray[np.uint8]]
    ) -> pa.RecordBatch:
        """A block's columns in the order asked for; `out` as `Format.decode` has it."""
        dataset = self.datasets[self._source_of(number)]
        batch = dataset.format.decode(data, dataset.schema, columns=columns, out=out)
        return (
            batch if len(self.datasets) == 1 else batch.select([name for name in columns if name in batch.schema.names])
        )

    @cached_property
    def _first_block(self) -> list[int]:
        return list(accumulate((len(dataset.index) for dataset in self.datasets[:-1]), initial=0))

    def _source_of(self, number: int) -> int:
        return int(np.searchsorted(self._first_block, number, side="right")) - 1
