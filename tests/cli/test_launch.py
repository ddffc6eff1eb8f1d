import json
import subprocess
import sys

import pytest

from rt_keras import cli
from rt_keras.training.cluster import read_cluster

# Replaces `python -m rt_keras`: records its start and ends with the status that the test sets.
WORKER = """
import json, os, pathlib, sys
index = json.loads(os.environ["TF_CONFIG"])["task"]["index"]
name = next(n for n in range(9) if not pathlib.Path(f"{index}_{n}.json").exists())
started = {"argv": sys.argv[1:], "TF_CONFIG": os.environ["TF_CONFIG"]}
pathlib.Path(f"{index}_{name}.json").write_text(json.dumps(started))
fails = pathlib.Path("fails")
if index == 1 and fails.exists():
    statuses = fails.read_text().split()
    if name < len(statuses):
        print("the disk is full")
        sys.exit(int(statuses[name]))
"""


@pytest.fixture
def launch(tmp_path, monkeypatch, capfd):
    """Launches workers that end with the `statuses` of worker 1, start by start.

    Returns the exit status, the error output, and what the workers noted.
    """
    (tmp_path / "rt_keras.py").write_text(WORKER)
    monkeypatch.chdir(tmp_path)
    monkeypatch.delenv("TF_CONFIG", raising=False)

    def launch(*argv, statuses=()):
        (tmp_path / "fails").write_text(" ".join(map(str, statuses)))
        try:
            status = cli.main(["launch", *map(str, argv)])
        except SystemExit as ended:
            status = ended.code
        noted = {path.stem: json.loads(path.read_text()) for path in tmp_path.glob("?_?.json")}
        return status, capfd.readouterr().err, noted

    return launch


TRAIN = ["train", "--config", "books", "--output", "run"]
STRATEGY = ["--set", "trainer.strategy=multi_worker"]


def test_each_worker_has_its_place_in_one_cluster(launch, monkeypatch):
    status, error, noted = launch("--workers", 3, "--", "configs", "--keys")
    assert (status, error) == (0, "") and sorted(noted) == ["0_0", "1_0", "2_0"]
    addresses = set()
    for index in range(3):
        worker = noted[f"{index}_0"]
        assert worker["argv"] == ["configs", "--keys"]
        monkeypatch.setenv("TF_CONFIG", worker["TF_CONFIG"])
        cluster = read_cluster()
        assert (cluster.rank, len(cluster.tasks)) == (index, 3)
        addresses.add(cluster.addresses)
    (addresses,) = addresses
    assert len(set(addresses)) == 3 and all(x.startswith("127.0.0.1:") for x in addresses)


@pytest.mark.parametrize(
    "given, added",
    [
        ([], STRATEGY),
        (["--set", "trainer.steps=3"], STRATEGY),
        (["--set", "trainer.strategy=one_device"], []),
        (["--set=trainer.strategy=one_device"], []),
    ],
)
def test_a_training_gets_the_strategy_unless_one_is_named(launch, given, added):
    _, _, noted = launch("--workers", 1, "--", *TRAIN, *given)
    assert noted["0_0"]["argv"] == [*TRAIN, *given, *added]


def test_all_start_again_and_the_training_goes_on(launch):
    status, error, noted = launch("--workers", 2, "--restarts", 3, "--", *TRAIN, statuses=[7, 137])
    assert status == 0
    assert error.splitlines() == [
        "worker 1: the disk is full",
        "rt-keras: worker 1 ended with status 7; restarting all workers, 1 of 3",
        "worker 1: the disk is full",
        "rt-keras: worker 1 ended with status 137; restarting all workers, 2 of 3",
    ]
    assert noted["1_0"]["argv"] == [*TRAIN, *STRATEGY]
    assert noted["1_1"]["argv"] == noted["1_2"]["argv"] == [*TRAIN, *STRATEGY, "--resume=auto"]
    assert "1_3" not in noted


@pytest.mark.parametrize("given", ["--resume", "--resume=auto", "--overwrite"])
def test_what_was_asked_for_is_asked_for_again(launch, given):
    _, _, noted = launch("--workers", 2, "--restarts", 1, "--", *TRAIN, given, statuses=[1])
    assert noted["1_0"]["argv"] == noted["1_1"]["argv"] == [*TRAIN, given, *STRATEGY]


@pytest.mark.parametrize("restarts, starts", [(0, 1), (2, 3)])
def test_the_status_is_that_of_the_worker_that_failed(launch, restarts, starts):
    status, error, noted = launch(
        "--workers", 2, "--restarts", restarts, "--", "configs", statuses=[5] * 9
    )
    assert status == 5 and error.endswith("rt-keras: worker 1 ended with status 5\n")
    assert len([name for name in noted if name.startswith("1_")]) == starts


def test_wrong_arguments_are_not_tried_again(launch):
    status, _, noted = launch("--workers", 2, "--restarts", 4, "--", "configs", statuses=[2] * 9)
    assert status == 2 and "1_1" not in noted


def test_a_restart_never_goes_on_with_a_run_of_before(launch, tmp_path):
    (tmp_path / "run").mkdir()
    (tmp_path / "run" / "config.yaml").write_text("")
    status, error, noted = launch("--workers", 2, "--restarts", 1, "--", *TRAIN)
    assert status == 1 and error.startswith("rt-keras: error: run already exists; name a new")
    assert noted == {}


@pytest.mark.parametrize("option", [["--workers", 0], ["--workers", 2, "--restarts", -1]])
def test_numbers_out_of_range_are_refused(launch, option):
    status, error, noted = launch(*option, "--", "configs")
    assert status == 1 and error.count("\n") == 1 and noted == {}
    assert f"{option[-2]} must be at least" in error


@pytest.mark.end_to_end
def test_real_commands_run_and_the_first_is_shown_once():
    # A command without heavy imports.
    command = [sys.executable, "-m", "rt_keras", "launch", "--workers", "2", "--", "configs"]
    result = subprocess.run([*command, "--help"], capture_output=True, text=True)
    assert result.returncode == 0 and result.stderr == ""
    assert result.stdout.count("usage: rt-keras configs") == 1
