"""Child processes that answer, and never hang a test."""

import multiprocessing
import time
from pathlib import Path

# A child that hangs fails its test after this long.
PATIENCE_SECONDS = 40


def in_child(method, work, *arguments):
    """What `work` returns in a child process; raises what it raised."""
    context = multiprocessing.get_context(method)
    receiver, sender = context.Pipe(duplex=False)
    child = context.Process(target=_report, args=(sender, work, arguments))
    child.start()
    sender.close()
    try:
        assert receiver.poll(PATIENCE_SECONDS), f"the child process hangs in {work.__name__}"
        succeeded, result = receiver.recv()
        child.join(PATIENCE_SECONDS)
        assert child.exitcode == 0
    finally:
        child.kill()
        child.join()
        receiver.close()
    if not succeeded:
        raise result
    return result


def _report(sender, work, arguments):
    try:
        answer = True, work(*arguments)
    except BaseException as error:
        answer = False, error
    sender.send(answer)


def wait_until(holds):
    """Returns once `holds()` does. Fails if it does not for too long."""
    end = time.monotonic() + PATIENCE_SECONDS
    while not holds():
        assert time.monotonic() < end, "waited in vain"
        time.sleep(0.01)


def is_alive(pid):
    """Whether there is such a process, and it has not ended already."""
    try:
        state = Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[0]
    except (FileNotFoundError, ProcessLookupError):
        return False
    return state != "Z"
