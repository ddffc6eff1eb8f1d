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
JOB_SET = yaml.safe_load((HERE.parents[1] / "export" / "jobset.yaml").read_text())
(REPLICATED,) = JOB_SET["spec"]["replicatedJobs"]
JOB = REPLICATED["template"]["spec"]
POD = JOB["template"]["spec"]
(CONTAINER,) = POD["containers"]
# Stands in for `rt-keras`: what it was started with.
RT_KERAS = f"""#!{sys.executable}
import json, os, sys
print(json.dumps([sys.argv[1:], os.environ["TF_CONFIG"]]))
"""


@pytest.fixture
def start(tmp_path):
    """What the command of the container with this index starts: its arguments, and `TF_CONFIG`."""
    (tmp_path / "rt-keras").write_text(RT_KERAS)
    (tmp_path / "rt-keras").chmod(0o755)

    def start(index):
        environment = {variable["name"]: variable["value"] for variable in CONTAINER["env"]}
        environment["PATH"] = f"{tmp_path}{os.pathsep}{os.environ['PATH']}"
        environment["JOB_COMPLETION_INDEX"] = str(index)
        command = CONTAINER["command"]
        result = subprocess.run(command, env=environment, capture_output=True, text=True)
        assert result.returncode == 0, result.stderr
        return json.loads(result.stdout)

    return start


def test_it_follows_the_schema():
    schema = json.loads((HERE / "jobset.schema.json").read_text())
    jsonschema.Draft202012Validator.check_schema(schema)
    jsonschema.validate(JOB_SET, schema)


def test_each_worker_describes_the_same_cluster_and_its_place_in_it(start):
    name, port = JOB_SET["metadata"]["name"], CONTAINER["ports"][0]["containerPort"]
    # The names that JobSet gives to pods: JOBSET-JOB-0-INDEX.JOBSET.
    addresses = [
        f"{name}-{REPLICATED['name']}-0-{index}.{name}:{port}"
        for index in range(JOB["completions"])
    ]
    for index in range(JOB["completions"]):
        _, tf_config = start(index)
        task = {"type": "worker", "index": index}
        assert json.loads(tf_config) == {"cluster": {"worker": addresses}, "task": task}


def test_the_command_is_one_of_this_project(start):
    (name, *arguments), _ = start(0)
    parser = argparse.ArgumentParser()
    train.add_arguments(parser)
    given = parser.parse_args(arguments)
    assert name == "train" and given.resume == "auto" and given.config in published_names()
    mounts = CONTAINER["volumeMounts"]
    assert any(given.output.startswith(f"{mount['mountPath']}/") for mount in mounts)
    assert {mount["name"] for mount in mounts} == {volume["name"] for volume in POD["volumes"]}


def test_all_end_and_start_together():
    assert REPLICATED["replicas"] == 1
    assert JOB["completionMode"] == "Indexed" and JOB["completions"] == JOB["parallelism"] > 1
    assert JOB["backoffLimit"] == 0 and POD["restartPolicy"] == "Never"
    assert JOB_SET["spec"]["failurePolicy"]["maxRestarts"] > 0
    assert POD["terminationGracePeriodSeconds"] > 30
