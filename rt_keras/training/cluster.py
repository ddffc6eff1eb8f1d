"""The workers that train one model together, as described by `TF_CONFIG`."""

import contextlib
import dataclasses
import json
import os
import re
import signal
import socket
import threading

# The distribution strategies: one device, all GPUs of this machine, several machines, a TPU.
STRATEGIES = ("one_device", "mirrored", "multi_worker", "tpu")
ADDRESS = re.compile(r"(\[[0-9a-fA-F:.]+\]|[^\s:/\[\]]+):(\d{1,5})")
# Words in the errors of TensorFlow 2.20 that another worker causes.
PEER_FAILED = re.compile("coordination|heartbeat|collective|from remote target", re.IGNORECASE)
TASK = re.compile(r"/job:(chief|worker)/(?:replica:0/)?task:(\d+)")
# A list of failed tasks. Without one, an error names the task that did not answer.
FAILED_TASKS = re.compile(
    r"(?:stopped sending heartbeats\)|timed out task names):((?:\s+/job:\S+)+)"
)


@dataclasses.dataclass(frozen=True)
class Cluster:
    """All workers, as seen by one of them.

    Attributes:
        task_type: "chief" or "worker", the type of this task.
        index: int, its index among the tasks of its type, from 0.
        tasks: tuple of pairs (task type, index) of all workers, in the order of their ranks.
        addresses: tuple of strings "host:port" of all workers, in the same order.
    """

    task_type: str
    index: int
    tasks: tuple
    addresses: tuple

    @property
    def rank(self):
        """The rank of this worker among all workers, from 0."""
        return self.tasks.index((self.task_type, self.index))

    @property
    def is_chief(self):
        """True for the worker that writes the files of the run."""
        return self.rank == 0

    @property
    def address(self):
        """The "host:port" of this worker."""
        return self.addresses[self.rank]

    def describe(self, task_type, index):
        """Returns the name of a task for messages.

        >>> cluster = Cluster("worker", 0, (("worker", 0),), ("10.0.0.1:2222",))
        >>> cluster.describe("worker", 0)
        'worker 0 (10.0.0.1:2222)'
        """
        name = "chief" if task_type == "chief" else f"worker {index}"
        return f"{name} ({self.addresses[self.tasks.index((task_type, index))]})"


def tf_config(addresses, index):
    """Returns the value of `TF_CONFIG` for one worker.

    Args:
        addresses: list of strings "host:port", the addresses of all workers.
        index: int, the index of the worker.

    Returns:
        A string.

    >>> tf_config(["10.0.0.1:2222", "10.0.0.2:2222"], 1)
    '{"cluster": {"worker": ["10.0.0.1:2222", "10.0.0.2:2222"]},
      "task": {"type": "worker", "index": 1}}'
    """
    return json.dumps(
        {"cluster": {"worker": list(addresses)}, "task": {"type": "worker", "index": index}}
    )


def read_cluster():
    """Reads the environment variable `TF_CONFIG`.

    The variable holds a JSON object. `cluster` has the addresses of all tasks by type, and `task`
    the type and index of this task. The chief is the task of type "chief" if there is one, and
    otherwise the first worker. Addresses of type "evaluator" are ignored, because every worker of a
    run validates.

    Returns:
        A `Cluster`.

    Raises:
        ValueError: if the variable is not set or does not describe a cluster for training.

    >>> os.environ["TF_CONFIG"] = tf_config(["10.0.0.1:2222", "10.0.0.2:2222"], 1)
    >>> cluster = read_cluster()
    >>> cluster.rank, cluster.address, cluster.is_chief
    (1, '10.0.0.2:2222', False)
    >>> del os.environ["TF_CONFIG"]
    """
    text = os.environ.get("TF_CONFIG", "")
    if not text.strip():
        raise ValueError(
            "trainer.strategy=multi_worker needs the environment variable TF_CONFIG, which names "
            "all workers. `rt-keras launch` sets it for workers on this machine"
        )
    try:
        config = json.loads(text)
    except ValueError as error:
        raise ValueError(f"TF_CONFIG must be JSON ({error}). Received: {text}") from None
    cluster, task = (_object(config, key, text) for key in ("cluster", "task"))
    _check_types(cluster)
    tasks = tuple(
        (kind, index) for kind in ("chief", "worker") for index in range(len(cluster.get(kind, [])))
    )
    task_type, index = _own_task(task, tasks)
    addresses = tuple(cluster[kind][number] for kind, number in tasks)
    _check_addresses(addresses)
    return Cluster(task_type, index, tasks, addresses)


def _object(config, key, text):
    value = config.get(key) if isinstance(config, dict) else None
    if not isinstance(value, dict):
        raise ValueError(
            'TF_CONFIG must be an object such as {"cluster": {"worker": ["host:port", ...]}, '
            f'"task": {{"type": "worker", "index": 0}}}} with an object "{key}". Received: {text}'
        )
    return value


def _check_types(cluster):
    unknown = sorted(set(cluster) - {"chief", "worker", "evaluator"})
    if unknown:
        raise ValueError(
            'TF_CONFIG must name tasks of type "chief" and "worker", and no others such as '
            f'parameter servers ("ps"). Received: {unknown}'
        )
    for kind, addresses in cluster.items():
        if not isinstance(addresses, list):
            raise ValueError(
                f'TF_CONFIG must have a list of addresses as "{kind}". Received: {addresses}'
            )
    if len(cluster.get("chief", [])) > 1:
        raise ValueError(f"TF_CONFIG must name at most one chief. Received: {cluster['chief']}")


def _own_task(task, tasks):
    kind, index = task.get("type"), str(task.get("index"))
    if kind == "evaluator":
        raise ValueError(
            "TF_CONFIG makes this task an evaluator, but every worker of a run validates. Do not "
            "start an evaluator"
        )
    # Some launchers write the index as a string, which TensorFlow also accepts.
    own = (kind, int(index)) if index.isdecimal() else None
    if own not in tasks:
        named = ", ".join(f"{name} {number}" for name, number in tasks) or "none"
        raise ValueError(
            f"TF_CONFIG must have a task of its cluster, which are: {named}. Received: type "
            f"{kind!r}, index {task.get('index')!r}"
        )
    return own


def _check_addresses(addresses):
    for address in addresses:
        match = ADDRESS.fullmatch(address) if isinstance(address, str) else None
        if match is None or not 0 < int(match[2]) < 2**16:
            raise ValueError(
                'TF_CONFIG must have addresses "host:port", with a port from 1 to 65535. Received: '
                f"{address!r}"
            )
        if addresses.count(address) > 1:
            raise ValueError(f"TF_CONFIG must name each address once. Received twice: {address}")


def check_port(cluster):
    """Raises an `OSError` if this worker cannot listen on the port of its address.

    TensorFlow's own error does not name the port.

    Args:
        cluster: a `Cluster`.

    Raises:
        OSError: if another process uses the port, or this process lacks permission to use it.
    """
    port = int(cluster.address.rpartition(":")[2])
    both = socket.has_dualstack_ipv6()
    family = socket.AF_INET6 if both else socket.AF_INET
    try:
        socket.create_server(("", port), family=family, dualstack_ipv6=both).close()
    except OSError as error:
        raise OSError(
            f"this worker cannot listen on port {port} of its address {cluster.address}: "
            f"{os.strerror(error.errno)}. End the process that uses it, such as a worker of an "
            "earlier start, or set another port in the TF_CONFIG of all workers"
        ) from None


def make_strategy(cluster, start_seconds=60):
    """Creates the strategy that trains on all workers of a cluster, on their GPUs or CPUs.

    The function returns once all workers have called it. NCCL sums the gradients if there are GPUs.
    Call it before TensorFlow computes anything. While it waits, TensorFlow makes the process ignore
    SIGTERM.

    Args:
        cluster: the `Cluster` that `read_cluster` returned in this process.
        start_seconds: int, seconds to wait for the other workers. Defaults to 60; TensorFlow's
            own default is an hour.

    Returns:
        A `tf.distribute.MultiWorkerMirroredStrategy`.

    Raises:
        OSError: if the port of this worker is in use.
        ConnectionError: if a worker does not connect in time.
    """
    import tensorflow as tf

    from rt_keras.keras_internals import await_workers

    check_port(cluster)
    counts = {kind: sum(task[0] == kind for task in cluster.tasks) for kind, _ in cluster.tasks}
    await_workers(counts, cluster.tasks[0][0], start_seconds)
    kinds = tf.distribute.experimental.CommunicationImplementation
    has_gpus = bool(tf.config.list_physical_devices("GPU"))
    options = tf.distribute.experimental.CommunicationOptions(
        implementation=kinds.NCCL if has_gpus else kinds.RING
    )
    with _own_sigterm(), peer_errors(cluster):
        return tf.distribute.MultiWorkerMirroredStrategy(communication_options=options)


@contextlib.contextmanager
def _own_sigterm():
    """Restores this process's handler of SIGTERM: TensorFlow's own only records the signal."""
    handler = signal.getsignal(signal.SIGTERM)
    try:
        yield
    finally:
        if threading.current_thread() is threading.main_thread():
            signal.signal(signal.SIGTERM, handler)


@contextlib.contextmanager
def peer_errors(cluster):
    """Replaces TensorFlow's errors about another worker by a one-line `ConnectionError`.

    Args:
        cluster: a `Cluster`.

    Raises:
        ConnectionError: if another worker did not connect, has ended or cannot be reached.
    """
    from tensorflow import errors

    # Errors of this worker, such as running out of memory, have other types.
    kinds = (
        errors.AbortedError,
        errors.CancelledError,
        errors.DeadlineExceededError,
        errors.InternalError,
        errors.UnavailableError,
    )
    try:
        yield
    except kinds as error:
        message = str(error)
        if not PEER_FAILED.search(message):
            raise
        raise ConnectionError(
            f"{_failed_tasks(cluster, message)} cannot be reached or has ended, so this worker, "
            f"{cluster.describe(cluster.task_type, cluster.index)}, ends too. Restart all workers "
            "with --resume=auto"
        ) from error


def _failed_tasks(cluster, message):
    """Returns the names of the other workers that an error of TensorFlow mentions."""
    listed = FAILED_TASKS.search(message)
    named = TASK.findall(listed[1] if listed else message)
    others = dict.fromkeys((kind, int(index)) for kind, index in named)
    others.pop((cluster.task_type, cluster.index), None)
    known = [cluster.describe(*task) for task in others if task in cluster.tasks]
    return ", ".join(known) or "another worker"
