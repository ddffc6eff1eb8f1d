import json
import os
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


@pytest.mark.parametrize(
    "text, message",
    [
        ("", "needs the environment variable TF_CONFIG.*rt-keras launch"),
        ("{cluster", "must be JSON .*Received: {cluster"),
        ("[]", 'with an object "cluster"'),
        ('{"cluster": {"worker": ["a:1"]}, "task": "worker"}', 'with an object "task"'),
    ],
)
def test_a_text_that_is_no_description_is_refused(monkeypatch, text, message):
    monkeypatch.setenv("TF_CONFIG", text)
    with pytest.raises(ValueError, match=message):
        cluster_lib.read_cluster()


@pytest.mark.parametrize(
    "cluster, task, message",
    [
        ({"worker": WORKERS}, ("worker", 2), "are: worker 0, worker 1. Received: type 'worker', i"),
        ({"worker": WORKERS}, ("worker", -1), "index -1"),
        ({"worker": WORKERS}, ("chief", 0), "type 'chief'"),
        ({"worker": WORKERS, "evaluator": ["c:3"]}, ("evaluator", 0), "Do not start an evaluator"),
        ({"worker": WORKERS, "ps": ["c:3"]}, ("worker", 0), r"parameter .*Received: \['ps'\]"),
        ({"worker": "a:1"}, ("worker", 0), 'a list of addresses as "worker"'),
        ({"chief": WORKERS}, ("chief", 0), "at most one chief"),
        ({"chief": ["a:1"], "worker": ["a:1"]}, ("worker", 0), "Received twice: a:1"),
        *(
            ({"worker": [address]}, ("worker", 0), f'"host:port".*Received: {address!r}')
            for address in ["a", ":1", "a:0", "a:65536", "grpc://a:1", 3]
        ),
    ],
)
def test_a_cluster_that_cannot_train_is_refused(monkeypatch, cluster, task, message):
    with pytest.raises(ValueError, match=f"^TF_CONFIG .*{message}"):
        cluster_of(monkeypatch, cluster, *task)


@pytest.mark.parametrize("host", ["", "127.0.0.1"])
def test_a_port_that_is_taken_is_named(monkeypatch, host):
    with socket.create_server((host, 0)) as other:
        port = other.getsockname()[1]
        cluster = cluster_of(monkeypatch, {"worker": [f"localhost:{port}"]})
        with pytest.raises(OSError, match=f"port {port} of its address localhost:{port}"):
            cluster_lib.check_port(cluster)
    cluster_lib.check_port(cluster)


# Errors of TensorFlow 2.20 in worker 0 or 1 of three.
@pytest.mark.parametrize(
    "rank, kind, message, missing",
    [
        (
            0,
            tf.errors.UnavailableError,
            "Collective ops is aborted by: Error reported from /job:worker/task:1: The following "
            "tasks are unhealthy (stopped sending heartbeats):\n/job:worker/replica:0/task:1\n"
            "/job:worker/replica:0/task:2\nThe tasks have crashed.",
            "worker 1 (10.0.0.2:2222), worker 2 (10.0.0.3:2222)",
        ),
        (
            1,
            tf.errors.DeadlineExceededError,
            "Deadline Exceeded\nAdditional GRPC error information from remote target "
            "/job:worker/replica:0/task:0 while calling /tensorflow.CoordinationService/Register:",
            "worker 0 (10.0.0.1:2222)",
        ),
        (
            0,
            tf.errors.DeadlineExceededError,
            "Barrier timed out. Id: [Init]Wait_for_all_tasks_to_register::0.\nThe first task at "
            "the barrier: /job:worker/replica:0/task:0. Some timed out task names:\n"
            "/job:worker/replica:0/task:1\n\n\nAdditional GRPC error information from remote "
            "target /job:worker/replica:0/task:2 while calling /tensorflow.CoordinationService:",
            "worker 1 (10.0.0.2:2222)",
        ),
        (
            0,
            tf.errors.AbortedError,
            "The coordination service has been shut down",
            "another worker",
        ),
    ],
)
def test_the_errors_of_lost_workers_name_them_in_one_line(
    monkeypatch, rank, kind, message, missing
):
    cluster = cluster_of(monkeypatch, {"worker": [*WORKERS, "10.0.0.3:2222"]}, "worker", rank)
    with pytest.raises(ConnectionError) as caught, cluster_lib.peer_errors(cluster):
        raise kind(None, None, message)
    line = str(caught.value)
    assert line.startswith(f"{missing} cannot be reached") and "\n" not in line
    assert f"this worker, worker {rank} (10.0.0.{rank + 1}:2222), ends too" in line


@pytest.mark.parametrize(
    "error",
    [
        tf.errors.ResourceExhaustedError(None, None, "Collective ops is aborted by: OOM"),
        tf.errors.UnavailableError(None, None, "the file system does not answer"),
    ],
)
def test_other_errors_stay_what_they_are(monkeypatch, error):
    cluster = cluster_of(monkeypatch, {"worker": WORKERS})
    with pytest.raises(type(error)) as caught, cluster_lib.peer_errors(cluster):
        raise error
    assert caught.value is error


WORKER = """
import os, signal, sys
from rt_keras.callbacks.workers import Workers
from rt_keras.training import cluster as cluster_lib
caught = []
signal.signal(signal.SIGTERM, lambda *_: caught.append(1))
cluster = cluster_lib.read_cluster()
strategy = cluster_lib.make_strategy(cluster, start_seconds=int(sys.argv[1]))
signal.raise_signal(signal.SIGTERM)
assert caught
import tensorflow as tf
with strategy.scope():
    total = tf.Variable(0.0, aggregation=tf.VariableAggregation.SUM)
workers = Workers(strategy)
assert workers.any(cluster.rank == 1) and not workers.any(False)
assert workers.of_chief(5 + cluster.rank) == 5 and workers.count == 2
assert workers.is_chief == (cluster.rank == 0)
add = tf.function(lambda: strategy.run(lambda: total.assign_add(1.0)), autograph=False)
with cluster_lib.peer_errors(cluster):
    for step in range(100):
        if step == 10 and cluster.rank == 1:
            assert total.numpy() == 20
            os.kill(os.getpid(), 9)
        add()
"""


@pytest.mark.weekly
@pytest.mark.parametrize("starts", [False, True], ids=["never comes", "is killed"])
def test_a_worker_ends_by_itself_if_another(starts):
    with free_addresses(2) as addresses:
        processes = [
            subprocess.Popen(
                [sys.executable, "-c", WORKER, "300" if starts else "2"],
                env={
                    **os.environ,
                    "TF_CONFIG": cluster_lib.tf_config(addresses, index),
                    "CUDA_VISIBLE_DEVICES": "-1",
                },
                stderr=subprocess.PIPE,
                text=True,
            )
            for index in range(2 if starts else 1)
        ]
        errors = [process.communicate(timeout=300)[1] for process in processes]
    assert [process.returncode for process in processes] == [1, -9][: len(processes)], errors
    line = f"ConnectionError: worker 1 ({addresses[1]}) cannot be reached or has ended"
    assert f"\n{line}" in errors[0] and "Traceback" not in "".join(errors[1:])
