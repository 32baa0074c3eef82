"""The server starts beside others, tries again when a port is taken, and is gone when it is done."""

import multiprocessing
import os
import signal
import socket
import threading
from pathlib import Path

import pytest

from dataplane import seaweed
from dataplane.errors import MissingExtraError, StoreUnavailableError
from dataplane.seaweed import s3_server
from dataplane.storage import open_store


def server_processes():
    """Ids of the running servers, with their command lines."""
    found = {}
    for folder in Path("/proc").glob("[0-9]*"):
        try:
            command = (folder / "cmdline").read_bytes().decode(errors="replace").split("\0")
        except OSError:
            continue
        if Path(command[0]).name == "weed":
            found[folder.name] = command
    return found


def test_a_second_server_runs_beside_the_first_and_leaves_nothing(s3):
    before = server_processes().keys()
    with s3_server() as other:
        for name, server in (("one", s3), ("other", other)):
            store = open_store("s3://tests/side-by-side", server.storage_options)
            store.write(name, b"x")
            assert store.list("") == [name]
        started = {pid: command for pid, command in server_processes().items() if pid not in before}

    assert len(started) == 1
    assert not started.keys() & server_processes().keys()
    (command,) = started.values()
    (folder,) = (Path(word.removeprefix("-dir=")).parent for word in command if word.startswith("-dir="))
    assert not folder.exists()
    assert not sockets_of(command)


def sockets_of(command):
    ports = {word.partition("=")[2] for word in command if ".port" in word}
    return [path for path in Path("/tmp").glob("seaweedfs-*.sock") if path.stem.rpartition("-")[2] in ports]


def _start_and_wait(sender):
    with s3_server() as server:
        port = server.endpoint.rpartition(":")[2]
        sender.send(next(words for words in server_processes().values() if f"-s3.port={port}" in words))
        signal.pause()


def test_a_server_ends_when_its_starter_is_killed():
    context = multiprocessing.get_context("spawn")
    receiver, sender = context.Pipe(duplex=False)
    with receiver, sender:
        starter = context.Process(target=_start_and_wait, args=[sender])
        starter.start()
        command = receiver.recv()
        starter.kill()
        starter.join()
    folder = next(Path(word.removeprefix("-dir=")).parent for word in command if word.startswith("-dir="))
    for _ in range(1000):
        if not (command in server_processes().values() or folder.exists() or sockets_of(command)):
            return
        threading.Event().wait(0.01)
    pytest.fail(f"{command} goes on")


def test_a_taken_port_makes_it_try_others(monkeypatch):
    free_ports = seaweed._free_ports
    with socket.socket() as taken:
        taken.bind(("127.0.0.1", 0))
        taken.listen()
        tries = []

        def unlucky_at_first(count):
            tries.append(count)
            ports = free_ports(count)
            return [taken.getsockname()[1]] * count if len(tries) == 1 else ports

        monkeypatch.setattr(seaweed, "_free_ports", unlucky_at_first)
        with s3_server() as server:
            open_store("s3://tests/x", server.storage_options).write("name", b"x")
    assert len(tries) == 2


def test_a_program_that_does_not_start_is_named_with_its_last_words(monkeypatch, tmp_path):
    program = tmp_path / "weed"
    program.write_text("#!/bin/sh\necho no disk today\nexit 3\n")
    program.chmod(0o755)
    monkeypatch.setattr(seaweed, "_program", lambda: program)

    with pytest.raises(StoreUnavailableError, match=f"{program}.*status 3: no disk today"), s3_server():
        pass


def test_a_missing_package_is_named(monkeypatch, tmp_path):
    monkeypatch.setattr(seaweed.sys, "executable", str(tmp_path / "python"))
    monkeypatch.setitem(os.environ, "PATH", "")

    with pytest.raises(MissingExtraError, match="s3-server"), s3_server():
        pass
