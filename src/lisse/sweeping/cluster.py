"""A Ray cluster as an executor: the only file that imports ray."""

from __future__ import annotations

from collections.abc import Callable
from concurrent.futures import BrokenExecutor, Executor, Future
from typing import Any

from lisse.libraries import extra


class RayExecutor(Executor):
    """Calls as tasks of Ray, each with ``cpus`` processors and ``gpus`` (0.25: four share one) of the cluster.

    The cluster is the one that was joined by ``ray.init`` or ``RAY_ADDRESS``, else one of this machine, of ``workers``
    processors, which ends with :meth:`shutdown`. Processes see the files of a sweep by the same paths. A call whose
    process or machine died is a ``BrokenExecutor``, as of any pool, and the sweep counts the tries; Ray makes none.
    """

    def __init__(self, *, cpus: float = 1, gpus: float = 0.0, workers: int | None = None) -> None:
        self._ray: Any = extra("ray", "ray", "sweep")
        self._local = not self._ray.is_initialized()
        if self._local:
            options = {} if workers is None else {"num_cpus": max(1, int(workers * cpus))}
            try:
                self._ray.init(address="auto", log_to_driver=False)
            except ConnectionError:  # no cluster to join
                self._ray.init(address="local", include_dashboard=False, log_to_driver=False, **options)
        # Enough to keep all busy while answers come back, however many machines join later.
        self.window = max(64, 4 * int(self._ray.cluster_resources().get("CPU", 1)))
        self._remote = self._ray.remote(_call).options(num_cpus=cpus, num_gpus=gpus, max_retries=0)

    def submit(self, fn: Callable[..., Any], /, *args: Any, **kwargs: Any) -> Future[Any]:
        """Hand a call to the cluster."""
        future: Future[Any] = Future()
        future.set_running_or_notify_cancel()
        answer = self._remote.remote(fn, args, kwargs).future()
        answer.add_done_callback(lambda answer: self._answered(answer, future))
        return future

    def shutdown(self, wait: bool = True, *, cancel_futures: bool = False) -> None:
        """Leave the cluster, or end it where it was made here."""
        if self._local and self._ray.is_initialized():
            self._ray.shutdown()

    def _answered(self, answer: Future[Any], future: Future[Any]) -> None:
        error = answer.exception()
        errors = self._ray.exceptions
        if error is None:
            future.set_result(answer.result())
        elif isinstance(error, errors.RayTaskError):
            future.set_exception(error)
        elif isinstance(error, errors.RayError):  # of the system: a process, a machine or its memory
            future.set_exception(BrokenExecutor(f"{type(error).__name__}: {str(error).strip().partition(chr(10))[0]}"))
        else:
            future.set_exception(error)


def _call(fn: Callable[..., Any], args: tuple[Any, ...], kwargs: dict[str, Any]) -> Any:
    return fn(*args, **kwargs)
