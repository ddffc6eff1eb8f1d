"""Tests of the Kubernetes settings in `export/jobset.yaml`."""

import argparse
import json
import os
import subprocess
import sys
from pathlib import Path

import jsonschema
import pytest
import yaml

from rt_keras.cli import train
from rt_keras.training.config_files import published_names

HERE = Path(__file__).parent
# Stands in for `rt-keras`: what it was started with.
RT_KERAS = f"""#!{sys.executable}
import json, os, sys
print(json.dumps([sys.argv[1:], os.environ["TF_CONFIG"]]))
"""


@pytest.fixture(scope="module")
def job_set():
    return yaml.safe_load((HERE.parent.parent / "export" / "jobset.yaml").read_text())


@pytest.fixture(scope="module")
def job(job_set):
    (replicated,) = job_set["spec"]["replicatedJobs"]
    assert replicated["replicas"] == 1
    return replicated["template"]["spec"]


@pytest.fixture(scope="module")
def pod(job):
    return job["template"]["spec"]


@pytest.fixture
def start(pod, tmp_path):
    """What the command of the container with this index starts: its arguments, and `TF_CONFIG`."""
    (container,) = pod["containers"]
    (tmp_path / "rt-keras").write_text(RT_KERAS)
    (tmp_path / "rt-keras").chmod(0o755)

    def start(index):
        given = {variable["name"]: variable["value"] for variable in container["env"]}
        environment = {
            "PATH": f"{tmp_path}{os.pathsep}{os.environ['PATH']}",
            "JOB_COMPLETION_INDEX": str(index),
            **given,
        }
        command = container["command"]
        result = subprocess.run(command, env=environment, capture_output=True, text=True)
        assert result.returncode == 0, result.stderr
        return json.loads(result.stdout)

    return start


def test_it_follows_the_schema(job_set):
    schema = json.loads((HERE / "jobset.schema.json").read_text())
    jsonschema.Draft202012Validator.check_schema(schema)
    jsonschema.validate(job_set, schema)


def test_each_worker_describes_the_same_cluster_and_its_place_in_it(job_set, job, pod, start):
    jobs = f"{job_set['metadata']['name']}-{job_set['spec']['replicatedJobs'][0]['name']}"
    port = pod["containers"][0]["ports"][0]["containerPort"]
    # The names that JobSet gives to pods: JOBSET-JOB-0-INDEX.JOBSET.
    addresses = [
        f"{jobs}-0-{index}.{job_set['metadata']['name']}:{port}"
        for index in range(job["completions"])
    ]
    for index in range(job["completions"]):
        _, tf_config = start(index)
        task = {"type": "worker", "index": index}
        assert json.loads(tf_config) == {"cluster": {"worker": addresses}, "task": task}


def test_the_command_is_one_of_this_project(start, pod):
    (name, *arguments), _ = start(0)
    parser = argparse.ArgumentParser()
    train.add_arguments(parser)
    given = parser.parse_args(arguments)
    assert name == "train" and given.resume == "auto" and given.config in published_names()
    mounted = {mount["mountPath"] for mount in pod["containers"][0]["volumeMounts"]}
    assert any(given.output.startswith(f"{path}/") for path in mounted)
    names = {mount["name"] for mount in pod["containers"][0]["volumeMounts"]}
    assert names == {volume["name"] for volume in pod["volumes"]}


def test_all_end_and_start_together(job_set, job, pod):
    assert job["completionMode"] == "Indexed" and job["completions"] == job["parallelism"] > 1
    assert job["backoffLimit"] == 0 and pod["restartPolicy"] == "Never"
    assert job_set["spec"]["failurePolicy"]["maxRestarts"] > 0
    assert pod["terminationGracePeriodSeconds"] > 30
