"""What must be the same for all rows of a dataset, and what a version says of it."""

from collections.abc import Mapping

import pyarrow as pa

from dataplane.catalog import Dataset, parent_for
from preprocess.packing import packed_schema
from preprocess.recipe import Packing, Recipe
from preprocess.schema import merge_schemas
from preprocess.tokenizer import Vocabulary


def packed_metadata(
    recipe: Recipe, vocabulary: Vocabulary, counts: Mapping[str, int], base: Dataset | None
) -> dict[str, str]:
    """Of a version of packed rows. The `num_` entries count the whole dataset."""
    assert recipe.packing is not None
    before = base.version.metadata if base else {}
    totals = {
        f"num_{name}": str(int(before.get(f"num_{name}", 0)) + counts.get(name, 0)) for name in ("documents", "tokens")
    }
    return {**_packed_identity(recipe.packing, vocabulary), "text_column": recipe.reading.text_column, **totals}


def check_alike(base: Dataset, recipe: Recipe, vocabulary: Vocabulary | None) -> None:
    """Raises ValueError if the rows of the dataset were packed otherwise than those to append will be."""
    if recipe.packing is None or vocabulary is None:
        return
    parent_for(base, packed_schema(recipe.packing.sequence_length, vocabulary.dtype))
    ours, theirs = _packed_identity(recipe.packing, vocabulary), base.version.metadata
    for name in ("tokenizer_digest", "sequence_length", "eos_token", "packing_mode"):
        if ours.get(name) != theirs.get(name):
            raise ValueError(
                f"{base.store.url}: its rows were made with {name} {theirs.get(name, 'none')}, "
                f"those to append with {ours.get(name, 'none')}; use the same, or another destination"
            )


def extended_schema(base: Dataset, found: pa.Schema) -> pa.Schema:
    """The dataset's own schema, if it can hold rows of the one found. Raises ValueError if it cannot."""
    try:
        if merge_schemas(base.schema, found) == base.schema:
            return base.schema
    except TypeError:
        pass  # said in full below
    parent_for(base, found)
    return base.schema


def _packed_identity(packing: Packing, vocabulary: Vocabulary) -> dict[str, str]:
    end = {} if packing.eos_token is None else {"eos_token": packing.eos_token}
    return {
        "tokenizer_digest": vocabulary.digest,
        "vocab_size": str(vocabulary.size),
        "sequence_length": str(packing.sequence_length),
        **({} if packing.mode == "concatenate" else {"packing_mode": packing.mode}),
        **end,
    }
