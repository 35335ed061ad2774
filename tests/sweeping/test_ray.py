"""Real Ray, a cluster of two nodes on this machine: the same numbers, and a worker that is killed in the middle."""

from __future__ import annotations

import sys
from concurrent.futures import BrokenExecutor
from pathlib import Path

import pytest
from small_sweeps import Inline, dying, small
from test_sweep import numbers

import lisse
from lisse.sweeping.driver import drained


@pytest.fixture(scope="module")
def cluster():
    """Two nodes of one processor each, whose workers can import what the tests hand them."""
    ray = pytest.importorskip("ray")
    from ray.cluster_utils import Cluster

    with pytest.MonkeyPatch.context() as patch:
        patch.setenv("PYTHONPATH", ":".join([str(Path(__file__).parent), *filter(None, sys.path)]))
        patch.setenv("RAY_AUTH_MODE", "disabled")  # it would write a token into the person's home
        nodes = Cluster(initialize_head=True, head_node_args={"num_cpus": 1, "include_dashboard": False})
        nodes.add_node(num_cpus=1)
        ray.init(address=nodes.address, log_to_driver=False)
        yield ray
        ray.shutdown()
        nodes.shutdown()


@pytest.mark.slow
def test_two_nodes_give_the_same_numbers_bit_for_bit(cluster, tmp_path):
    assert len(cluster.nodes()) == 2
    training = {"models": small()["models"][0], "recipes": {"epochs": 1}, "seeds": [0, 1]}
    plan = small(trainings=[training])
    table = lisse.sweep(plan, out=tmp_path / "ray", executor="ray")
    assert [outcome.status for _, outcome in table] == ["done"] * 4
    assert cluster.is_initialized()  # a cluster that others joined is theirs to leave
    lisse.sweep(plan, out=tmp_path / "here", executor=Inline())
    assert numbers(tmp_path / "ray") == numbers(tmp_path / "here")


@pytest.mark.slow
def test_a_worker_that_is_killed_takes_only_its_own_work(cluster, tmp_path):
    from lisse.sweeping.cluster import RayExecutor

    tasks = [(number, str(tmp_path)) for number in range(5)]
    rows = {task[0]: outcome for task, outcome in drained(tasks, dying, RayExecutor(), retries=1)}
    assert [rows[number].status for number in range(5)] == ["done", "done", "killed", "done", "done"]
    assert "died 2 times (WorkerCrashedError" in rows[2].reason
    assert len(list(tmp_path.iterdir())) == 7


@pytest.mark.slow
def test_an_error_of_a_call_is_no_death(cluster):
    from lisse.sweeping.cluster import RayExecutor

    error = RayExecutor().submit(int, "x").exception()
    assert isinstance(error, ValueError)
    assert not isinstance(error, BrokenExecutor)


def test_without_ray_the_extra_is_named(monkeypatch, tmp_path):
    monkeypatch.setitem(sys.modules, "ray", None)
    with pytest.raises(ImportError, match=r'sweep: ray must be installed, got none. pip install "lisse\[ray\]"'):
        lisse.sweep(small(), out=tmp_path, executor="ray")
