"""Events as lines in a log and as a bar in a terminal; names are shown, never interpreted."""

from __future__ import annotations

import io
import re
import sys
from types import SimpleNamespace
from typing import Any

import pytest

from lisse import progress
from lisse.progress import Bar, Event


class Clock:
    """Time that moves when told to."""

    def __init__(self) -> None:
        self.now = 100.0

    def __call__(self) -> float:
        return self.now


@pytest.fixture
def clock(monkeypatch: pytest.MonkeyPatch) -> Clock:
    clock = Clock()
    monkeypatch.setattr(progress, "time", SimpleNamespace(monotonic=clock))
    return clock


def lines(stream: io.StringIO) -> list[str]:
    return stream.getvalue().splitlines()


def test_without_a_terminal_there_is_a_first_line_one_now_and_then_and_a_last_one(clock: Clock) -> None:
    stream = io.StringIO()
    with Bar(stream, every=10.0) as bar:
        for done in range(0, 101, 4):
            bar(Event("record", done, 100, "samples"))
            clock.now += 1.0
    assert lines(stream) == [
        "record: 0 of 100 samples",
        "record: 40 of 100 samples, 4 samples/s, about 15 s left",
        "record: 80 of 100 samples, 4 samples/s, about 5 s left",
        "record: done in 26 s",
    ]


def test_many_tasks_share_the_line_of_a_minute(clock: Clock) -> None:
    stream = io.StringIO()
    with Bar(stream) as bar:
        for task in range(40):
            for done in range(3):
                bar(Event(f"task {task}", done, 2))
                clock.now += 1.0
    assert lines(stream) == ["task 0: 0 of 2", "task 20: 0 of 2", "40 steps of work done in 2 min"]


def test_every_sets_how_often_a_line_comes(clock: Clock) -> None:
    stream = io.StringIO()
    bar = Bar(stream, every=0.0)
    for done in range(5):
        bar(Event("t", done))
    assert len(lines(stream)) == 5


def test_more_than_all_is_all(clock: Clock) -> None:
    """A pass goes on in whole batches, beyond what was asked for."""
    stream = io.StringIO()
    Bar(stream, every=0.0)(Event("forward", 200, 180, "samples"))
    assert lines(stream) == ["forward: 180 of 180 samples"]


def test_what_failed_has_no_last_line_of_success(clock: Clock) -> None:
    stream = io.StringIO()

    def failing() -> None:
        with Bar(stream) as bar:
            bar(Event("a", 2, 2))
            raise ValueError("no")

    with pytest.raises(ValueError, match="no"):
        failing()
    assert lines(stream) == ["a: 2 of 2"]


def test_quiet_keeps_warnings(clock: Clock) -> None:
    stream = io.StringIO()
    with progress.silent():
        bar = Bar(stream, every=0.0)
    with bar:
        bar(Event("a", 1, 2))
        bar(Event("a", say="a word"))
        bar(Event("a", 2, 2))
        bar(Event("a", say="a layer was skipped", level="warning"))
    assert lines(stream) == ["a: a layer was skipped"]
    assert not Bar(stream).quiet


def test_two_tasks_have_their_own_time_and_a_finished_one_starts_again(clock: Clock) -> None:
    stream = io.StringIO()
    bar = Bar(stream, every=0.0)
    bar(Event("a", 0, 4))
    clock.now += 4.0
    bar(Event("b", 0, 2))
    clock.now += 1.0
    bar(Event("b", 2, 2))
    bar(Event("a", 4, 4))
    bar(Event("b", 0, 2))
    assert lines(stream) == ["a: 0 of 4", "b: 0 of 2", "b: 2 of 2, 2 /s", "a: 4 of 4, 0.8 /s", "b: 0 of 2"]


def test_an_unknown_total_has_a_rate_but_no_time_left(clock: Clock) -> None:
    stream = io.StringIO()
    bar = Bar(stream, every=0.0)
    bar(Event("t", 0, None, "steps"))
    clock.now += 2.0
    bar(Event("t", 500, None, "steps"))
    assert lines(stream)[1] == "t: 500 steps, 250 steps/s"


@pytest.mark.parametrize(("left", "text"), [(45, "45 s"), (600, "10 min"), (7200, "2.0 h")])
def test_time_left_is_said_in_a_fitting_unit(clock: Clock, left: int, text: str) -> None:
    stream = io.StringIO()
    bar = Bar(stream, every=0.0)
    bar(Event("t", 0, left + 2))
    clock.now += 2.0
    bar(Event("t", 2, left + 2))
    assert f"about {text} left" in lines(stream)[1]


def test_what_was_done_before_is_no_speed(clock: Clock) -> None:
    stream = io.StringIO()
    bar = Bar(stream, every=0.0)
    for done in (9000, 9050, 10000):
        bar(Event("train", done, 10000, "images"))
        clock.now += 10.0
    assert lines(stream) == [
        "train: 9,000 of 10,000 images",
        "train: 9,050 of 10,000 images, 5 images/s, about 3 min left",
        "train: 10,000 of 10,000 images, 50 images/s",
    ]


def test_something_to_say_is_a_line_at_once(clock: Clock) -> None:
    stream = io.StringIO()
    bar = Bar(stream)
    bar(Event("t", say="layer x was skipped", level="warning"))
    bar(Event("t", say="and y " + "z" * 200))
    assert lines(stream) == ["t: layer x was skipped", "t: and y " + "z" * 200]


HOSTILE = "[red]a[/b] [link=file:///etc]x[/link] :smile:"


@pytest.mark.parametrize("live", [False, True])
def test_markup_in_names_is_shown_not_interpreted(live: bool) -> None:
    stream = io.StringIO()
    with Bar(stream, live=live, every=0.0) as bar:
        bar.console.width = 200
        bar(Event(HOSTILE, 1, 2))
        bar(Event(HOSTILE, say=HOSTILE))
        bar(Event(HOSTILE, 2, 2))
    assert HOSTILE in stream.getvalue()
    assert f"{HOSTILE}: {HOSTILE}" in stream.getvalue()


def terminal(stream: io.StringIO, **options: Any) -> Bar:
    from rich.console import Console

    bar = Bar(stream, live=True, **options)
    bar.console = Console(file=stream, force_terminal=True, width=160, color_system=None)
    return bar


def test_a_live_bar_shows_count_and_rate_and_survives_being_closed_twice() -> None:
    stream = io.StringIO()
    bar = terminal(stream)
    for done in range(0, 101, 10):
        bar(Event("record", done, 100, "samples"))
    bar.close()
    bar.close()
    last = re.sub(r"\x1b\[[0-9;?]*[A-Za-z]", "", stream.getvalue()).replace("\r", "\n").splitlines()
    shown = [text for text in last if "record" in text][-1]
    assert "100/100" in shown
    assert "samples/s" in shown
    assert "━" in shown


def test_what_failed_is_counted(clock: Clock) -> None:
    stream = io.StringIO()
    bar = Bar(stream, every=0.0)
    bar(Event("sweep", 0, 4, "units"))
    bar(Event("sweep", 3, 4, "units", failed=2))
    assert lines(stream)[1] == "sweep: 3 of 4 units, 2 failed"
    stream = io.StringIO()
    bar = terminal(stream)
    bar(Event("sweep", 3, 4, "units", failed=2))
    bar.close()
    assert "sweep, 2 failed" in stream.getvalue()


def test_live_is_decided_by_the_stream() -> None:
    assert Bar(io.StringIO()).live is False
    assert Bar(io.StringIO(), live=True).live is True


def test_a_bar_goes_on_after_it_was_closed() -> None:
    stream = io.StringIO()
    bar = terminal(stream)
    bar(Event("a", 1, 1))
    bar.close()
    bar(Event("b", 1, 1))
    bar.close()
    assert "b" in stream.getvalue()


def test_memory_is_shown_where_it_is_asked_for():
    import re

    stream = io.StringIO()
    with Bar(stream, live=False, memory=True, every=0.0) as bar:
        bar(Event("work", 1, 2, "pieces"))
    assert re.fullmatch(r"work: 1 of 2 pieces, [\d.]+ [MG]iB\n", stream.getvalue())


def test_finished_bars_leave_the_screen_where_they_are_not_kept():
    for keep, names in ((True, ["work", "more"]), (False, ["more"])):
        bar = Bar(io.StringIO(), live=True, keep=keep)
        bar(Event("work", 1, 2))
        bar(Event("more", 1, 2))
        bar(Event("work", 2, 2))
        assert [task.description for task in bar._bars.tasks] == names
        bar.close()


def test_in_a_notebook_a_bar_is_html_that_changes_in_place_and_names_are_escaped(
    monkeypatch: pytest.MonkeyPatch, clock: Clock
) -> None:
    """No widgets: one display that is replaced, at most a few times a second, and at the end of every task."""
    pictures: list[str] = []

    class Handle:
        def update(self, picture: Any) -> None:
            pictures.append(picture)

    def display(picture: Any, display_id: bool) -> Handle:
        pictures.append(picture)
        return Handle()

    ZMQInteractiveShell = type("ZMQInteractiveShell", (), {})  # what a kernel's shell is called
    shown = SimpleNamespace(HTML=str, display=display)
    monkeypatch.setitem(sys.modules, "IPython", SimpleNamespace(get_ipython=ZMQInteractiveShell, display=shown))
    monkeypatch.setitem(sys.modules, "IPython.display", shown)
    with Bar() as bar:
        for done in range(1000):
            bar(Event("<b>record</b>", done, 999, "samples"))
        bar(Event("next", 1, 2))
    assert len(pictures) == 3  # the first, the end of a task, the last
    record, following = pictures[-1].split("<br>")
    assert record == '<progress value="999" max="999"></progress> &lt;b&gt;record&lt;/b&gt;: 999 of 999 samples'
    assert following == '<progress value="1" max="2"></progress> next: 1 of 2'
    assert Bar(io.StringIO()).notebook is None


def test_no_more_is_done_than_there_is():
    out = io.StringIO()
    bar = Bar(out)
    bar(Event("reads", 364, 360, "samples"))
    assert "360 of 360 samples" in out.getvalue()
