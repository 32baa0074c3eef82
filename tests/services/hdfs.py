"""A real HDFS for the whole run: one NameNode and three DataNodes on loopback, which tests may stop and start.

The jars are those of Apache Hadoop's minicluster: in the folder `HADOOP_JARS`, else in ../shared/hadoop/jars beside the
checkout. Elsewhere `mvn -f tests/services/pom.xml dependency:copy-dependencies` brings them to tests/services/jars.
"""

import contextlib
import os
import shutil
import signal
import socket
import subprocess
import threading
import uuid
from collections.abc import Callable
from pathlib import Path

import pytest

HERE = Path(__file__).parent
NUM_DATANODES = 3
START_SECONDS = 90
_SERVERS = "org.apache.hadoop.hdfs.server"
# Runs a command that ends when we do, in whatever way: our end of its standard input closes.
_WITH_US = """
exec 3<&0
"$@" <&- 3<&- &
echo $! > "$PID_FILE"
{ read _ <&3; kill -9 $!; } &
wait $!
"""


def find_jars() -> list[Path]:
    """The jars; none where they are not installed."""
    checkout = HERE.parent.parent
    folders = (os.environ.get("HADOOP_JARS"), HERE / "jars", checkout.parent / "shared" / "hadoop" / "jars")
    return next((jars for folder in folders if folder and (jars := sorted(Path(folder).glob("*.jar")))), [])


def find_java() -> str | None:
    home = os.environ.get("JAVA_HOME")
    return shutil.which("java", path=f"{home}/bin" if home else None)


class Server:
    """One Java process, with a configuration folder of its own."""

    def __init__(self, folder: Path, name: str, main: str, properties: dict[str, object]) -> None:
        self._main = main
        self._log = folder / f"{name}.log"
        self._pid_file = folder / f"{name}.pid"
        self._process: subprocess.Popen[bytes] | None = None
        self.conf = folder / f"conf-{name}"
        self.conf.mkdir()
        rows = "".join(
            f"<property><name>{key}</name><value>{value}</value></property>" for key, value in properties.items()
        )
        for file in ("core-site.xml", "hdfs-site.xml"):
            (self.conf / file).write_text(f"<configuration>{rows}</configuration>")

    @property
    def log(self) -> str:
        return self._log.read_text(errors="replace") if self._log.exists() else ""

    def command(self, *arguments: str) -> list[str]:
        java = find_java()
        assert java
        classes = os.pathsep.join(map(str, [self.conf, *find_jars()]))
        return [java, "-Xmx256m", "-XX:TieredStopAtLevel=1", "-cp", classes, self._main, *arguments]

    def start(self) -> None:
        self._pid_file.unlink(missing_ok=True)
        with self._log.open("wb") as log:
            self._process = subprocess.Popen(
                ["/bin/sh", "-c", _WITH_US, "sh", *self.command()],
                env={**os.environ, "PID_FILE": str(self._pid_file)},
                stdin=subprocess.PIPE,
                stdout=log,
                stderr=log,
                process_group=0,
            )

    def kill(self) -> None:
        """Ends it without warning, as the loss of a machine would."""
        if self._process is not None:
            assert self._process.stdin is not None
            self._process.stdin.close()
            self._process.wait()
            self._process = None

    @contextlib.contextmanager
    def frozen(self):
        """It keeps its connections and answers nothing: a machine that hangs."""
        pid = int(self._pid_file.read_text())
        os.kill(pid, signal.SIGSTOP)
        try:
            yield
        finally:
            os.kill(pid, signal.SIGCONT)

    def wait_until(self, ready: Callable[[], bool]) -> None:
        for _ in range(START_SECONDS * 20):
            if ready():
                return
            if self._process is None or self._process.poll() is not None:
                break
            threading.Event().wait(0.05)
        pytest.fail(f"{self._main} does not start: {self.log[-2000:]}")


class HdfsCluster:
    """A NameNode and DataNodes. Whoever stops one starts it again."""

    def __init__(self, folder: Path) -> None:
        with socket.socket() as free:
            free.bind(("127.0.0.1", 0))
            self.port = free.getsockname()[1]
        self.authority = f"127.0.0.1:{self.port}"
        common: dict[str, object] = {
            "fs.defaultFS": f"hdfs://{self.authority}",
            "hadoop.tmp.dir": folder / "tmp",
            "dfs.replication": 2,
            # Small, so that the files of tests span several.
            "dfs.blocksize": 1 << 20,
            "dfs.namenode.fs-limits.min-block-size": 1 << 20,
            "dfs.namenode.name.dir": (folder / "name").as_uri(),
            "dfs.namenode.http-address": "127.0.0.1:0",
            "dfs.namenode.datanode.registration.ip-hostname-check": "false",
            "dfs.namenode.safemode.extension": 0,
            # Entries of one answer to a listing.
            "dfs.ls.limit": 10,
            # A lost DataNode is given up after about 10 s instead of 10 minutes.
            "dfs.heartbeat.interval": 1,
            "dfs.namenode.heartbeat.recheck-interval": 2000,
            # One that was silent for 3 s is used last; by default that takes 30 s, and writing does not care.
            "dfs.namenode.stale.datanode.interval": 3000,
            "dfs.namenode.avoid.write.stale.datanode": "true",
            "dfs.namenode.avoid.read.stale.datanode": "true",
        }
        self.namenode = Server(folder, "namenode", f"{_SERVERS}.namenode.NameNode", common)
        self.datanodes = [
            Server(
                folder,
                f"datanode-{number}",
                f"{_SERVERS}.datanode.DataNode",
                {
                    **common,
                    "dfs.datanode.data.dir": (folder / f"data-{number}").as_uri(),
                    "dfs.datanode.address": "127.0.0.1:0",
                    "dfs.datanode.http.address": "127.0.0.1:0",
                    "dfs.datanode.ipc.address": "127.0.0.1:0",
                },
            )
            for number in range(NUM_DATANODES)
        ]

    def start(self) -> None:
        arguments = self.namenode.command("-format", "-force", "-nonInteractive")
        subprocess.run(arguments, check=True, capture_output=True, stdin=subprocess.DEVNULL)
        for server in (self.namenode, *self.datanodes):
            server.start()
        self.wait_until_ready()

    def wait_until_ready(self) -> None:
        """Returns when the NameNode answers and each DataNode that runs has told it of its blocks."""
        self.namenode.wait_until(self._accepts)
        for datanode in self.datanodes:
            datanode.wait_until(lambda server=datanode: "Successfully sent block report" in server.log)

    def stop(self) -> None:
        for server in (*self.datanodes, self.namenode):
            server.kill()

    def _accepts(self) -> bool:
        with socket.socket() as client:
            return client.connect_ex(("127.0.0.1", self.port)) == 0


@pytest.fixture(scope="session")
def hdfs(tmp_path_factory):
    """A running cluster, started by the first test that wants it."""
    pytest.importorskip("hdfs_native", reason="needs the extra: pip install 'dataplane[hdfs]'")
    if find_java() is None:
        pytest.skip("HDFS needs Java 11 or newer on PATH or in JAVA_HOME")
    if not find_jars():
        pytest.skip(
            "no Hadoop jars: set HADOOP_JARS, or run mvn -f tests/services/pom.xml dependency:copy-dependencies"
        )
    cluster = HdfsCluster(tmp_path_factory.mktemp("hdfs"))
    try:
        cluster.start()
        yield cluster
    finally:
        cluster.stop()


@pytest.fixture
def hdfs_url(hdfs):
    """A place on the cluster that no other test uses."""
    return f"hdfs://{hdfs.authority}/{uuid.uuid4().hex}"
