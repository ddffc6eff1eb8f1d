"""Tests of the settings of TensorFlow Serving in `export/`."""

import re
import runpy
from pathlib import Path

import pytest
import yaml
from google.protobuf import text_format
from tensorflow_serving.config import model_server_config_pb2

EXPORT = Path(__file__).parent.parent.parent / "export"


def test_the_model_config_serves_where_models_are_mounted():
    config = text_format.Parse(
        (EXPORT / "models.config").read_text(), model_server_config_pb2.ModelServerConfig()
    )
    (model,) = config.model_config_list.config
    assert (model.name, model.base_path) == ("rt_keras", "/models/rt_keras")
    assert model.model_platform == "tensorflow"
    assert model.model_version_policy.latest.num_versions == 2


def test_compose_mounts_the_files_that_its_flags_name():
    services = yaml.safe_load((EXPORT / "docker-compose.yaml").read_text())["services"]
    assert set(services) == {"serving", "batching"}
    for service in services.values():
        assert service["image"].startswith("tensorflow/serving:")
        mounted = {}
        for volume in service["volumes"]:
            source, target, mode = volume.split(":")
            assert mode == "ro"
            mounted[target] = EXPORT / source
        assert mounted.pop("/models") == EXPORT / "models"
        assert all(path.is_file() for path in mounted.values())
        flags = dict(flag.lstrip("-").split("=", 1) for flag in service["command"])
        assert set(flags.values()) & set(mounted) == {
            value for value in flags.values() if value.startswith("/")
        }
        assert flags["model_config_file"] == "/config/models.config"
    assert "--enable_batching=true" in services["batching"]["command"]


@pytest.mark.slow
def test_the_export_script_writes_versions(retrieval_folder, tmp_path, capsys):
    script = runpy.run_path(str(EXPORT / "export.py"))
    output = tmp_path / "rt_keras"
    options = ["--model", str(retrieval_folder / "retriever"), "--output", str(output)]
    assert script["main"](options) == 0
    assert (output / "1" / "saved_model.pb").is_file()
    assert str(output / "1") in capsys.readouterr().out
    assert script["MODELS"] == EXPORT / "models" / "rt_keras"


def test_the_export_script_says_what_is_wrong(retrieval_folder, tmp_path, capsys):
    script = runpy.run_path(str(EXPORT / "export.py"))
    # A text embedder has no such length.
    options = ["--model", str(retrieval_folder / "retriever"), "--max-length", "9"]
    assert script["main"]([*options, "--output", str(tmp_path / "rt_keras")]) == 1
    (line,) = capsys.readouterr().err.splitlines()
    assert re.match("export: error: .*max_length does not apply.*9", line)
