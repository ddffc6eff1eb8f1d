import json

from tests.cli.checks import assert_one_line
from tests.convert.t2t.checks import folder_of


def test_convert_writes_a_preset_or_one_line(run, tmp_path):
    golden = folder_of("image_routing1d")
    case = json.loads((golden / "case.json").read_text())
    hparams = tmp_path / "hparams.json"
    hparams.write_text(json.dumps(case["hparams"]))
    output, figures = tmp_path / "preset", tmp_path / "figures.json"
    command = ["convert", "t2t", "--hparams", hparams, "--output", output]
    command += ["--image-shape", *case["image"], "--num-classes", 10, "--json", figures]
    status, _, error = run(*command, "--checkpoint", tmp_path / "missing")
    assert_one_line(status, error, "there is no checkpoint")
    assert not output.exists() and not figures.exists()
    status, _, _ = run(*command, "--checkpoint", golden / "model.ckpt-1")
    assert status == 0
    assert json.loads(figures.read_text())["model"] == "RoutingTransformerImageLM"
    assert (output / "task.json").is_file()
