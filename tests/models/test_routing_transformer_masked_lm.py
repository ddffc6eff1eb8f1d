import keras
import keras_hub
import numpy as np
import pytest

from rt_keras import models
from rt_keras.data import ByteTokenizer
from rt_keras.layers import LocalHeads
from tests.models import checks

TEXTS = ["the fox is quick", "a dog"]


@pytest.mark.weekly
def test_it_learns_to_predict_masked_tokens_and_is_kept(tmp_path):
    preprocessor = models.RoutingTransformerMaskedLMPreprocessor(
        ByteTokenizer(), 24, mask_selection_rate=0.9, mask_token_rate=1.0, random_token_rate=0.0
    )
    sizes = {"vocabulary_size": 259, "num_layers": 1, "head_groups": [LocalHeads(1, 8)]}
    backbone = checks.make_backbone(models.RoutingTransformerEncoderBackbone, **sizes)
    model = models.RoutingTransformerMaskedLM(backbone, preprocessor)
    x, y, weights = preprocessor(TEXTS)
    # The labels at the masked positions are the tokens of the text.
    for row, text in enumerate(TEXTS):
        whole, real = np.array(x["token_ids"][row]), np.asarray(weights[row]) == 1
        places = np.asarray(x["mask_positions"][row])[real]
        assert len(places) > 0 and np.all(whole[places] == 258)
        whole[places] = np.asarray(y[row])[real]
        assert whole[: len(text) + 2].tolist() == [1, *(b + 2 for b in text.encode()), 1]
    checks.check_files(model, lambda copy: copy(x), tmp_path, cls=keras_hub.models.MaskedLM)
    model.compile(keras.optimizers.Adam(1e-2), jit_compile=False)
    history = model.fit(TEXTS, batch_size=2, epochs=4, verbose=0).history
    assert history["loss"][-1] < history["loss"][0]
