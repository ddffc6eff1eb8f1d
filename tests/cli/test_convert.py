import json

import numpy as np

from rt_keras.training.experiment import load_model
from tests.convert.t2t.checks import Case


def test_convert_writes_a_preset(run, tmp_path):
    case = Case("image_routing1d")
    hparams = tmp_path / "hparams.json"
    hparams.write_text(json.dumps(case.hparams))
    output, figures = tmp_path / "preset", tmp_path / "figures.json"
    command = ["convert", "t2t", "--hparams", hparams, "--output", output, "--num-classes", 10]
    command += ["--image-shape", *case.options["image_shape"], "--json", figures]
    status, _, _ = run(*command, "--checkpoint", case.checkpoint)
    assert status == 0
    assert json.loads(figures.read_text())["model"] == "RoutingTransformerImageLM"
    found = load_model(output)({"images": case.inputs["targets"]})
    np.testing.assert_array_equal(found, case.load()(case.inputs))
