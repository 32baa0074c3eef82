import io
import os
import pty

from preprocess.progress import Lines, display_on


def test_lines_come_every_ten_seconds_and_are_plain():
    stream, seconds = io.StringIO(), 0
    lines = Lines("preprocess", 100_000_000, stream, now=lambda: seconds)
    for seconds in range(61):
        lines.update(seconds * 1_000_000, lambda: "5 rows")

    printed = stream.getvalue().splitlines()
    assert len(printed) == 6
    assert printed[0] == "preprocess: 10.0 of 100.0 MB, 1.0 MB/s, 90 s left, 5 rows"
    assert "\x1b" not in stream.getvalue()
    assert "\r" not in stream.getvalue()


def test_a_stream_that_is_no_terminal_gets_one_plain_line_at_the_end():
    stream = io.StringIO()

    with display_on(stream)("preprocess", 100) as display:
        display.update(50, lambda: "note")

    assert stream.getvalue() == "preprocess: 0.0 MB in 0.0 s, note\n"


def test_a_terminal_gets_one_bar():
    ours, theirs = pty.openpty()
    with os.fdopen(theirs, "w") as stream, display_on(stream)("preprocess", 100) as display:
        display.update(50, lambda: "7 rows")
    shown = os.read(ours, 1 << 16).decode()
    os.close(ours)

    assert "\x1b[" in shown
    assert shown.count("preprocess") <= shown.count("\x1b[2K") + 1
