"""The bar above the bars of an experiment's steps."""

from lisse.progress import Event
from lisse_experiments.steps import ALL_STEPS, Steps, busy_seconds


def test_the_bar_counts_the_work_of_this_start_only():
    heard: list[Event] = []
    steps = Steps("paper", heard.append, [10.0, 10.0, 20.0, 60.0])
    steps.step("a", "training", ["train"])(Event("train", say="is finished"))
    steps.finish()  # found: 90 are left
    tell = steps.step("a", "measuring", ["x", "y"])
    tell(Event("x", 0, 2))
    tell(Event("x", 1, 2))
    tell(Event("y", 0, 2))
    tell(Event("y", 1, 2))
    steps.finish()
    tell = steps.step("b", "training", ["train"])
    tell(Event("train", 50, 100))  # goes on in the middle
    tell(Event("train", 75, 100))
    shares = [event.done for event in heard if event.task == ALL_STEPS]
    expected = [0, 0, 2.5 / 90, 5 / 90, 7.5 / 90, 10 / 90, 10 / 90, 20 / 90]
    assert shares == [round(100 * share, 1) for share in expected]
    steps.finish()
    steps.skip()
    assert steps.finished == steps.total == 30
    assert heard[0] == Event("paper", say="a: training")
    assert heard[1] == Event("a, train", say="is finished")


def test_steps_weigh_by_their_seconds():
    heard: list[Event] = []
    steps = Steps("paper", heard.append, [30.0, 10.0])
    tell = steps.step("first", "training", ["train"])
    tell(Event("train", 0, 10))
    tell(Event("train", 5, 10))
    steps.finish()
    steps.step("second", "training")
    steps.finish()
    assert [event.done for event in heard if event.task == ALL_STEPS] == [0.0, 37.5, 75.0, 100.0]


def test_time_on_the_clock_is_counted_once():
    spans = [(0.0, 10.0), (2.0, 5.0), (8.0, 12.0), (100.0, 101.5)]
    assert busy_seconds(spans) == 13.5
    assert busy_seconds([]) == 0
