import json
import os
import signal
import socket
import subprocess
import sys

import pytest
import tensorflow as tf
from hypothesis import given
from hypothesis import strategies as st

from rt_keras.cli.launch import free_addresses
from rt_keras.training import cluster as cluster_lib

WORKERS = ["10.0.0.1:2222", "10.0.0.2:2222"]


def cluster_of(monkeypatch, cluster, kind="worker", index=0, **others):
    config = {"cluster": cluster, "task": {"type": kind, "index": index}, **others}
    monkeypatch.setenv("TF_CONFIG", json.dumps(config))
    return cluster_lib.read_cluster()


@given(st.booleans(), st.integers(1, 6), st.data())
def test_ranks_and_chief_are_those_of_tensorflow(has_chief, num_workers, data):
    from tensorflow.python.distribute import multi_worker_util

    cluster = {"worker": [f"worker-{number}:2222" for number in range(num_workers)]}
    if has_chief:
        cluster["chief"] = ["chief:2222"]
    kind = data.draw(st.sampled_from(sorted(cluster)))
    index = data.draw(st.integers(0, len(cluster[kind]) - 1))
    with pytest.MonkeyPatch.context() as monkeypatch:
        found = cluster_of(monkeypatch, cluster, kind, index)
        resolver = tf.distribute.cluster_resolver.TFConfigClusterResolver()
        assert (found.task_type, found.index) == (resolver.task_type, resolver.task_id)
        assert found.address == resolver.cluster_spec().task_address(kind, index)
    assert found.rank == multi_worker_util.id_in_cluster(cluster, kind, index)
    assert found.is_chief == multi_worker_util.is_chief(cluster, kind, index)
    assert len(found.tasks) == multi_worker_util.worker_count(cluster, kind)
    assert found.addresses == (*cluster.get("chief", []), *cluster["worker"])


def test_what_else_managers_write_is_no_error(monkeypatch):
    cluster = {"chief": ["a:1"], "worker": ["[fd00::1]:2222"], "evaluator": ["c:3"]}
    found = cluster_of(monkeypatch, cluster, "worker", "0", environment="cloud")
    assert (found.rank, found.address) == (1, "[fd00::1]:2222")


def test_what_is_written_here_is_read_here(monkeypatch):
    monkeypatch.setenv("TF_CONFIG", cluster_lib.tf_config(WORKERS, 1))
    found = cluster_lib.read_cluster()
    assert (found.rank, found.addresses) == (1, tuple(WORKERS))


@pytest.mark.parametrize(
    "text, parts",
    [
        (None, ["needs the environment variable TF_CONFIG", "rt-keras launch"]),
        ("  ", ["needs the environment variable TF_CONFIG"]),
        ("{cluster", ["must be JSON"]),
        ("[]", ['"cluster"']),
        ("{}", ['"cluster"']),
        ('{"cluster": {"worker": ["a:1"]}}', ['"task"']),
        ('{"cluster": {"worker": ["a:1"]}, "task": "worker"}', ['"task"']),
    ],
)
def test_a_text_that_is_no_description_is_refused(monkeypatch, text, parts):
    monkeypatch.delenv("TF_CONFIG", raising=False)
    if text is not None:
        monkeypatch.setenv("TF_CONFIG", text)
    with pytest.raises(ValueError) as caught:
        cluster_lib.read_cluster()
    assert "\n" not in str(caught.value)
    for part in parts:
        assert part in str(caught.value)


@pytest.mark.parametrize(
    "cluster, task, message",
    [
        ({"worker": WORKERS}, ("worker", 2), "are: worker 0, worker 1. Received: type 'worker', i"),
        ({"worker": WORKERS}, ("worker", -1), "index -1"),
        ({"worker": WORKERS}, ("worker", None), "index None"),
        ({"worker": WORKERS}, ("worker", True), "index True"),
        ({"worker": WORKERS}, ("chief", 0), "type 'chief'"),
        ({"worker": WORKERS}, (None, 0), "type None"),
        ({"worker": []}, ("worker", 0), "which are: none"),
        ({"worker": WORKERS, "evaluator": ["c:3"]}, ("evaluator", 0), "Do not start an evaluator"),
        ({"worker": WORKERS, "ps": ["c:3"]}, ("worker", 0), "parameter servers"),
        ({"master": WORKERS}, ("master", 0), r"Received: \['master'\]"),
        ({"worker": "a:1"}, ("worker", 0), 'a list of addresses as "worker"'),
        ({"worker": {"0": "a:1"}}, ("worker", 0), 'a list of addresses as "worker"'),
        ({"chief": WORKERS}, ("chief", 0), "at most one chief"),
        ({"worker": ["a:1", "a:1"]}, ("worker", 0), "Received twice: a:1"),
        ({"chief": ["a:1"], "worker": ["a:1"]}, ("worker", 0), "Received twice: a:1"),
        *(
            ({"worker": [address]}, ("worker", 0), '"host:port"')
            for address in ["a", "a:", ":1", "a:0", "a:65536", "a:b", "grpc://a:1", "a b:1", "", 3]
        ),
    ],
)
def test_a_cluster_that_cannot_train_is_refused(monkeypatch, cluster, task, message):
    with pytest.raises(ValueError, match=message) as caught:
        cluster_of(monkeypatch, cluster, *task)
    assert str(caught.value).startswith("TF_CONFIG ") and "\n" not in str(caught.value)


@pytest.mark.parametrize("host", ["", "127.0.0.1"])
def test_a_port_that_is_taken_is_named(monkeypatch, host):
    with socket.create_server((host, 0)) as other:
        port = other.getsockname()[1]
        cluster = cluster_of(monkeypatch, {"worker": [f"localhost:{port}"]})
        with pytest.raises(OSError, match=f"port {port} of its address localhost:{port}") as caught:
            cluster_lib.check_port(cluster)
        assert "\n" not in str(caught.value)
    cluster_lib.check_port(cluster)


def test_a_port_that_is_only_held_is_free(monkeypatch):
    # `rt-keras launch` reserves the port of its worker like this.
    with socket.socket() as held:
        held.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        held.bind(("127.0.0.1", 0))
        port = held.getsockname()[1]
        cluster_lib.check_port(cluster_of(monkeypatch, {"worker": [f"127.0.0.1:{port}"]}))
        with socket.socket() as other, pytest.raises(OSError):
            other.bind(("127.0.0.1", port))


# Errors of TensorFlow 2.20 in worker 0 or 1 of two or more.
ERRORS = [
    (
        0,
        tf.errors.UnavailableError,
        "Graph execution error:\n\nCollective ops is aborted by: Error reported from "
        "/job:worker/task:1: The following tasks are unhealthy (stopped sending heartbeats):\n"
        "/job:worker/replica:0/task:1\nThe tasks have crashed. Check the task logs",
        "worker 1 (10.0.0.2:2222)",
    ),
    (
        1,
        tf.errors.UnavailableError,
        "Collective ops is aborted by: failed to connect to all addresses; last error: UNKNOWN: "
        "ipv4:10.0.0.1:2222: Failed to connect to remote host: Connection refused\nAdditional GRPC "
        "error information from remote target /job:worker/replica:0/task:0 while calling "
        "/tensorflow.WorkerService/CompleteInstance:",
        "worker 0 (10.0.0.1:2222)",
    ),
    *(
        (
            rank,
            tf.errors.DeadlineExceededError,
            "Barrier timed out. Id: [Init]Wait_for_all_tasks_to_register::0. # of tasks that "
            "reached the barrier: 2/3.\nThe first task at the barrier: "
            "/job:worker/replica:0/task:0. Some timed out task names:\n"
            "/job:worker/replica:0/task:1\n\n\nAdditional GRPC error information from remote "
            "target /job:worker/replica:0/task:0 while calling "
            "/tensorflow.CoordinationService/RegisterTask:",
            "worker 1 (10.0.0.2:2222)",
        )
        for rank in (0, 2)
    ),
    (
        0,
        tf.errors.UnavailableError,
        "Collective ops is aborted by: Error reported from /job:worker/task:1: The following tasks "
        "are unhealthy (stopped sending heartbeats):\n/job:worker/replica:0/task:1\n"
        "/job:worker/replica:0/task:2\nThe tasks have crashed.",
        "worker 1 (10.0.0.2:2222), worker 2 (10.0.0.3:2222)",
    ),
    (
        1,
        tf.errors.DeadlineExceededError,
        "Deadline Exceeded\nAdditional GRPC error information from remote target "
        "/job:worker/replica:0/task:0 while calling /tensorflow.CoordinationService/RegisterTask:",
        "worker 0 (10.0.0.1:2222)",
    ),
    (
        0,
        tf.errors.AbortedError,
        "The coordination service has been shut down",
        "another worker",
    ),
]


@pytest.mark.parametrize("rank, kind, message, missing", ERRORS)
def test_the_errors_of_lost_workers_name_them_in_one_line(
    monkeypatch, rank, kind, message, missing
):
    cluster = cluster_of(monkeypatch, {"worker": [*WORKERS, "10.0.0.3:2222"]}, "worker", rank)
    with pytest.raises(ConnectionError) as caught, cluster_lib.peer_errors(cluster):
        raise kind(None, None, message)
    line = str(caught.value)
    assert line.startswith(f"{missing} cannot be reached") and "\n" not in line
    assert f"this worker, worker {rank} (10.0.0.{rank + 1}:2222), ends too" in line
    assert isinstance(caught.value.__cause__, kind)


@pytest.mark.parametrize(
    "error",
    [
        tf.errors.InvalidArgumentError(None, None, "indices[0] = 300 is not in [0, 258)"),
        tf.errors.ResourceExhaustedError(None, None, "Collective ops is aborted by: OOM"),
        tf.errors.UnavailableError(None, None, "the file system does not answer"),
        ValueError("not of TensorFlow: heartbeat"),
    ],
)
def test_other_errors_stay_what_they_are(monkeypatch, error):
    cluster = cluster_of(monkeypatch, {"worker": WORKERS})
    with pytest.raises(type(error)) as caught, cluster_lib.peer_errors(cluster):
        raise error
    assert caught.value is error


WORKER = """
import os, sys
from rt_keras.training import cluster as cluster_lib
cluster = cluster_lib.read_cluster()
strategy = cluster_lib.make_strategy(cluster, start_seconds=int(sys.argv[1]))
import tensorflow as tf
with strategy.scope():
    total = tf.Variable(0.0, aggregation=tf.VariableAggregation.SUM)
add = tf.function(lambda: strategy.run(lambda: total.assign_add(1.0)), autograph=False)
with cluster_lib.peer_errors(cluster):
    for step in range(100):
        if step == 10 and cluster.rank == int(sys.argv[2]):
            assert total.numpy() == 20
            os.kill(os.getpid(), 9)
        add()
"""


def start_worker(addresses, index, start_seconds, killed):
    environment = {
        **os.environ,
        "TF_CONFIG": cluster_lib.tf_config(addresses, index),
        "CUDA_VISIBLE_DEVICES": "-1",
    }
    return subprocess.Popen(
        [sys.executable, "-c", WORKER, str(start_seconds), str(killed)],
        env=environment,
        stderr=subprocess.PIPE,
        text=True,
    )


@pytest.fixture
def addresses():
    """Two reserved addresses on this machine."""
    with free_addresses(2) as found:
        yield found


@pytest.mark.end_to_end
@pytest.mark.parametrize("lost", [0, 1])
@pytest.mark.parametrize("starts", [False, True], ids=["never comes", "is killed"])
def test_a_worker_ends_by_itself_if_another(addresses, starts, lost):
    seconds = 300 if starts else 2
    with start_worker(addresses, 1 - lost, seconds, lost) as process:
        if starts:
            with start_worker(addresses, lost, seconds, lost) as other:
                assert "Traceback" not in other.communicate()[1]
            assert other.returncode == -9
        error = process.communicate()[1]
    line = f"ConnectionError: worker {lost} ({addresses[lost]}) cannot be reached or has ended"
    assert process.returncode == 1 and f"\n{line}" in error, error


@pytest.mark.end_to_end
@pytest.mark.parametrize("handler", ["signal.SIG_DFL", "lambda number, _: sys.exit(3)"])
def test_sigterm_does_what_it_did_before(addresses, monkeypatch, handler):
    monkeypatch.setenv("TF_CONFIG", cluster_lib.tf_config(addresses[:1], 0))
    code = f"""
import os, signal, sys, time
from rt_keras.training import cluster
signal.signal(signal.SIGTERM, {handler})
cluster.make_strategy(cluster.read_cluster())
os.kill(os.getpid(), signal.SIGTERM)
time.sleep(1)
"""
    process = subprocess.run([sys.executable, "-c", code], stderr=subprocess.DEVNULL)
    assert process.returncode == (3 if "sys" in handler else -signal.SIGTERM)
