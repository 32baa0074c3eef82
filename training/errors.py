"""What can go wrong in a run, beside the loader's own errors."""

from dataplane.errors import DataplaneError


class NonFiniteError(DataplaneError):
    """A loss or gradient is not finite; every rank stops before the weights see it."""


class CheckpointError(DataplaneError):
    """A checkpoint cannot be written, or is not what was written."""


class HangError(DataplaneError):
    """A rank made no progress for as long as `timeout_seconds` allows."""


class OtherRankError(DataplaneError):
    """Another rank has failed, and this one cannot go on without it; that rank's own message says why."""
