"""The bytes of a checkpoint: what torch.distributed.checkpoint asks of a storage, over our stores."""

import dataclasses
import json
import os
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import Any

import torch
from blake3 import blake3
from torch import Tensor
from torch.distributed.checkpoint.metadata import (
    ChunkStorageMetadata,
    Metadata,
    MetadataIndex,
    TensorProperties,
    TensorStorageMetadata,
)
from torch.distributed.checkpoint.planner import LoadPlan, LoadPlanner, SavePlan, SavePlanner, WriteItem
from torch.distributed.checkpoint.storage import StorageReader, StorageWriter, WriteResult
from torch.futures import Future

from dataplane.storage import Store
from training.errors import CheckpointError

FORMAT = 2  # a reader refuses what it does not know
MANIFEST = "manifest.json"
FILE_BYTES = 64 << 20  # pieces share files up to this size: few requests, and little memory to gather one


@dataclass(frozen=True, kw_only=True, slots=True)
class Piece:
    """A block of a tensor, and where its bytes are: row-major, of the tensor's type, in this machine's byte order."""

    offsets: tuple[int, ...]
    shape: tuple[int, ...]
    file: str
    start: int
    num_bytes: int
    blake3: str


@dataclass(frozen=True, kw_only=True, slots=True)
class SavedTensor:
    """A tensor's type and shape, and the pieces that make it up."""

    dtype: str
    shape: tuple[int, ...]
    pieces: tuple[Piece, ...]


@dataclass(frozen=True, kw_only=True, slots=True)
class Manifest:
    """What a checkpoint holds."""

    step: int
    world_size: int
    metric: float | None
    """What the best checkpoint has the least of."""

    values: dict[str, Any]  # Any: JSON values
    tensors: dict[str, SavedTensor]

    def to_json(self) -> bytes:
        return json.dumps({"format": FORMAT, **dataclasses.asdict(self)}).encode()

    @classmethod
    def from_json(cls, data: bytes) -> "Manifest":
        """What `to_json` wrote.

        Raises:
            CheckpointError: it is of another format.
        """
        values = json.loads(data)
        if (found := values.pop("format", None)) != FORMAT:
            raise CheckpointError(f"the checkpoint has format {found}, this version reads {FORMAT}")
        tensors = {
            name: SavedTensor(
                dtype=tensor["dtype"],
                shape=tuple(tensor["shape"]),
                pieces=tuple(
                    Piece(**{**piece, "offsets": tuple(piece["offsets"]), "shape": tuple(piece["shape"])})
                    for piece in tensor["pieces"]
                ),
            )
            for name, tensor in values.pop("tensors").items()
        }
        return cls(**values, tensors=tensors)


class PieceWriter(StorageWriter):
    """Writes this rank's pieces; on the coordinator the manifest too, which completes the checkpoint."""

    def __init__(self, store: Store, folder: str, manifest: Manifest, *, rank: int) -> None:
        self._store = store
        self._folder = folder
        self._manifest = manifest
        self._rank = rank

    def write_data(self, plan: SavePlan, planner: SavePlanner) -> Future[list[WriteResult]]:
        results = []
        for number, items in enumerate(_files(plan.items)):
            file = f"rank-{self._rank:05d}-{number:03d}.bin"
            data = bytearray()
            for item in items:
                raw = _raw(planner.resolve_data(item))
                assert item.tensor_data is not None  # we save nothing but tensors
                piece = Piece(
                    offsets=tuple(item.tensor_data.chunk.offsets),
                    shape=tuple(item.tensor_data.chunk.sizes),
                    file=file,
                    start=len(data),
                    num_bytes=len(raw),
                    blake3=blake3(raw).hexdigest(),
                )
                data += raw
                results.append(WriteResult(index=item.index, size_in_bytes=len(raw), storage_data=piece))
            self._store.write(f"{self._folder}/{file}", memoryview(data))
        done: Future[list[WriteResult]] = Future()
        done.set_result(results)
        return done

    def finish(self, metadata: Metadata, results: list[list[WriteResult]]) -> None:
        pieces: dict[str, list[Piece]] = {name: [] for name in metadata.state_dict_metadata}
        for result in (result for of_rank in results for result in of_rank):
            pieces[result.index.fqn].append(result.storage_data)
        tensors = {}
        for name, tensor in metadata.state_dict_metadata.items():
            assert isinstance(tensor, TensorStorageMetadata)
            tensors[name] = SavedTensor(
                dtype=str(tensor.properties.dtype).removeprefix("torch."),
                shape=tuple(tensor.size),
                pieces=tuple(pieces[name]),
            )
        manifest = dataclasses.replace(self._manifest, tensors=tensors)
        self._store.create(f"{self._folder}/{MANIFEST}", manifest.to_json())

    def reset(self, checkpoint_id: str | os.PathLike[str] | None = None) -> None: ...

    def set_up_storage_writer(self, is_coordinator: bool, *args: Any, **kwargs: Any) -> None: ...

    def prepare_local_plan(self, plan: SavePlan) -> SavePlan:
        return plan

    def prepare_global_plan(self, plans: list[SavePlan]) -> list[SavePlan]:
        return plans

    @classmethod
    def validate_checkpoint_id(cls, checkpoint_id: str | os.PathLike[str]) -> bool:
        return True


class PieceReader(StorageReader):
    """Reads the pieces that this rank needs, and checks the digest of each."""

    def __init__(self, store: Store, folder: str) -> None:
        self._store = store
        self._folder = folder
        self._pieces: dict[MetadataIndex, tuple[str, Piece]] = {}

    def read_metadata(self, *args: Any, **kwargs: Any) -> Metadata:
        manifest = Manifest.from_json(self._store.read(f"{self._folder}/{MANIFEST}"))
        self._pieces = {
            MetadataIndex(name, piece.offsets): (tensor.dtype, piece)
            for name, tensor in manifest.tensors.items()
            for piece in tensor.pieces
        }
        return Metadata(
            state_dict_metadata={
                name: TensorStorageMetadata(
                    properties=TensorProperties(dtype=getattr(torch, tensor.dtype)),
                    size=torch.Size(tensor.shape),
                    chunks=[
                        ChunkStorageMetadata(offsets=torch.Size(piece.offsets), sizes=torch.Size(piece.shape))
                        for piece in tensor.pieces
                    ],
                )
                for name, tensor in manifest.tensors.items()
            },
            storage_data=self._pieces,
        )

    def read_data(self, plan: LoadPlan, planner: LoadPlanner) -> Future[None]:
        for item in plan.items:
            whole = self._read(item.storage_index)
            for dimension, (start, length) in enumerate(zip(item.storage_offsets, item.lengths, strict=True)):
                whole = whole.narrow(dimension, start, length)
            target = planner.resolve_tensor(item).detach()
            target.copy_(whole)
            planner.commit_tensor(item, target)
        done: Future[None] = Future()
        done.set_result(None)
        return done

    def _read(self, index: MetadataIndex) -> Tensor:
        dtype, piece = self._pieces[index]
        path = f"{self._folder}/{piece.file}"
        data = self._store.read_range(path, piece.start, piece.start + piece.num_bytes)
        if (found := blake3(data).hexdigest()) != piece.blake3:
            raise CheckpointError(
                f"{self._store.url}/{path} is damaged: bytes [{piece.start}, {piece.start + piece.num_bytes}), of "
                f"{index.fqn}, have digest {found}, written was {piece.blake3}; remove {self._folder} to go on "
                "from the checkpoint before"
            )
        if not data:
            return torch.empty(piece.shape, dtype=getattr(torch, dtype))
        return torch.frombuffer(bytearray(data), dtype=getattr(torch, dtype)).reshape(piece.shape)

    def reset(self, checkpoint_id: str | os.PathLike[str] | None = None) -> None: ...

    def set_up_storage_reader(self, metadata: Metadata, is_coordinator: bool, *args: Any, **kwargs: Any) -> None: ...

    def prepare_local_plan(self, plan: LoadPlan) -> LoadPlan:
        return plan

    def prepare_global_plan(self, plans: list[LoadPlan]) -> list[LoadPlan]:
        return plans

    @classmethod
    def validate_checkpoint_id(cls, checkpoint_id: str | os.PathLike[str]) -> bool:
        return True


def _files(items: Sequence[WriteItem]) -> Iterator[list[WriteItem]]:
    """The items in order, those of one file together."""
    file: list[WriteItem] = []
    num_bytes = 0
    for item in items:
        size = item.tensor_storage_size() or 0
        if file and num_bytes + size > FILE_BYTES:
            yield file
            file, num_bytes = [], 0
        file.append(item)
        num_bytes += size
    if file:
        yield file


def _raw(tensor: Any) -> memoryview:  # Any: as torch's planner declares it; it is a tensor
    """The bytes of a tensor, row-major."""
    flat = tensor.detach().cpu().contiguous().reshape(-1)
    return memoryview(flat.view(torch.uint8).numpy())
