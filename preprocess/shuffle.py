"""A global order of rows that is drawn, not walked: any row's place can be computed alone."""

from typing import Annotated

import numpy as np
import numpy.typing as npt
from pydantic import BaseModel, ConfigDict, Field

from dataplane.plan.permutation import derive_key, random_words


class Shuffle(BaseModel):
    """Rows are written in the order of random keys, which depend on the seed and on the row's place in the inputs."""

    model_config = ConfigDict(extra="forbid", frozen=True)

    seed: Annotated[int, Field(ge=0, lt=1 << 63)] = 0

    def keys(self, task: int, first_row: int, num_rows: int) -> npt.NDArray[np.uint64]:
        """The sort keys of rows `[first_row, first_row + num_rows)` of a task, shape (num_rows,).

        Two rows of a dataset of n rows share a key with a chance of n² / 2^65; order those by place.
        """
        return random_words(derive_key(self.seed, task), num_rows, first=first_row)
