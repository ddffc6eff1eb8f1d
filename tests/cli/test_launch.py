import json

from rt_keras import cli
from rt_keras.training.cluster import read_cluster

# Replaces `python -m rt_keras`: records how it was started; worker 1 fails the first time.
WORKER = """
import json, os, pathlib, sys
index = json.loads(os.environ["TF_CONFIG"])["task"]["index"]
name = next(n for n in range(9) if not pathlib.Path(f"{index}_{n}.json").exists())
started = {"argv": sys.argv[1:], "TF_CONFIG": os.environ["TF_CONFIG"]}
pathlib.Path(f"{index}_{name}.json").write_text(json.dumps(started))
if (index, name) == (1, 0):
    print("the disk is full")
    sys.exit(7)
"""
TRAIN = ["train", "--config", "books", "--output", "run"]
STRATEGY = ["--set", "trainer.strategy=multi_worker"]


def test_workers_of_one_cluster_start_again_with_the_training_resumed(tmp_path, monkeypatch, capfd):
    (tmp_path / "rt_keras.py").write_text(WORKER)
    monkeypatch.chdir(tmp_path)
    assert cli.main(["launch", "--workers", "2", "--restarts", "3", "--", *TRAIN]) == 0
    assert capfd.readouterr().err.splitlines() == [
        "worker 1: the disk is full",
        "rt-keras: worker 1 ended with status 7; restarting all workers, 1 of 3",
    ]
    noted = {path.stem: json.loads(path.read_text()) for path in tmp_path.glob("?_?.json")}
    assert noted["1_0"]["argv"] == [*TRAIN, *STRATEGY]
    assert noted["1_1"]["argv"] == [*TRAIN, *STRATEGY, "--resume=auto"]
    monkeypatch.setenv("TF_CONFIG", noted["1_1"]["TF_CONFIG"])
    cluster = read_cluster()
    assert (cluster.rank, len(cluster.tasks), len(set(cluster.addresses))) == (1, 2, 2)
