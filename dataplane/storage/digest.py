"""The one digest of the project: BLAKE3, 32 bytes."""

from blake3 import blake3


def digest_of(data: bytes | memoryview) -> bytes:
    """BLAKE3 of the data, 32 bytes. Releases the interpreter lock for all but tiny inputs."""
    return blake3(data).digest()
