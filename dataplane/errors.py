"""The exception tree: what can go wrong in the world, as opposed to in a caller's arguments.

DataplaneError
├── DatasetError
│   ├── DatasetNotFoundError     no committed version at this URL, or not the one asked for
│   ├── DatasetExistsError       a dataset is there already and nobody asked to extend it
│   └── VersionConflictError     another writer committed this version number first
├── CorruptBlockError            bytes that do not match their digest, or do not decode
├── StoreError
│   ├── TruncatedObjectError     an object ends before the bytes asked for
│   ├── ChangedObjectError       an object was replaced while it was being read
│   ├── StoreUnavailableError    the store cannot be reached or keeps refusing
│   └── StorePermissionError     the store refuses these credentials
│       └── ExpiredCredentialsError  they were good once
├── InputError                   a source of preprocessing that cannot be read as what it claims to be
├── StateMismatchError           a saved state that belongs to other data or to another order
├── WorkerDiedError              a worker process was killed while it was at a task
└── MissingExtraError            an optional package that is not installed

Mistakes in arguments are plain `ValueError`; a message says what is wrong, where, the value seen and
what to do, in lower case.
"""


class DataplaneError(Exception):
    """Everything this package raises about the world outside the caller's arguments."""


class DatasetError(DataplaneError):
    """A dataset's versions are not what was expected."""


class DatasetNotFoundError(DatasetError):
    """There is no committed version at the URL, or not the one asked for."""


class DatasetExistsError(DatasetError):
    """A dataset is there already and nobody asked to extend it."""


class VersionConflictError(DatasetError):
    """Another writer committed this version number first; nothing of theirs was touched."""


class CorruptBlockError(DataplaneError):
    """Bytes that do not match their digest, or do not decode."""


class StoreError(DataplaneError):
    """A store did not do what was asked."""


class TruncatedObjectError(StoreError):
    """An object ends before the bytes asked for, or its body came short."""


class ChangedObjectError(StoreError):
    """An object was replaced by another while it was being read; what was read of the two is not to be mixed."""


class StoreUnavailableError(StoreError):
    """The store cannot be reached, or kept failing until the retries were used up."""

    def __init__(self, message: str, *, status: int | None = None) -> None:
        super().__init__(message)
        self.status = status
        """The HTTP status of the last answer; None where there was none."""


class StorePermissionError(StoreError):
    """The store refuses these credentials, or they have expired."""


class ExpiredCredentialsError(StorePermissionError):
    """The store says that these credentials have expired, and where they came from there are no others."""


class InputError(DataplaneError):
    """A source of preprocessing that cannot be read as what it claims to be."""


class StateMismatchError(DataplaneError):
    """A saved state that belongs to other data or to another order."""


class MissingExtraError(DataplaneError):
    """An optional package is needed and not installed; the message names the extra."""


class WorkerDiedError(DataplaneError):
    """A worker process was killed while it was at a task; finished tasks are kept."""
