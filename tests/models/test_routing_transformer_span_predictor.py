import keras
import numpy as np
import pytest

from rt_keras import models
from rt_keras.data import ByteTokenizer
from rt_keras.layers import LocalHeads
from rt_keras.models.routing_transformer_span_predictor import best_spans
from tests.models import checks

QUESTIONS = {"question": ["who?", "when is it"], "context": ["é was Ann, not Bo", "it is 9"]}
ANSWERS = {"answer": ["Ann", "9"], "answer_start": [6, 6]}


@pytest.mark.weekly
def test_it_answers_with_the_likeliest_span_and_is_kept(tmp_path):
    preprocessor = models.RoutingTransformerSpanPredictorPreprocessor(ByteTokenizer(), 32)
    sizes = {"vocabulary_size": 259, "num_layers": 1, "head_groups": [LocalHeads(1, 8)]}
    backbone = checks.make_backbone(models.RoutingTransformerEncoderBackbone, **sizes)
    model = models.RoutingTransformerSpanPredictor(backbone, preprocessor, max_answer_length=5)
    x, spans, weights = preprocessor({**QUESTIONS, **ANSWERS})
    assert spans.numpy().tolist() == [[13, 15], [18, 18]] and np.all(weights == 1)
    assert preprocessor.answers(QUESTIONS, spans) == ANSWERS["answer"]
    outside = np.repeat(~np.asarray(x["context_mask"])[:, None], 2, 1)
    assert np.all(keras.ops.convert_to_numpy(keras.ops.softmax(model(x)))[outside] == 0)
    logits = np.random.default_rng(0).normal(size=[20, 2, 9]).astype("float32")
    for (start, end), found in zip(logits, best_spans(logits, 3).numpy()):
        allowed = [(i, j) for i in range(9) for j in range(i, min(9, i + 3))]
        assert max(allowed, key=lambda x: start[x[0]] + end[x[1]]) == tuple(found)
    checks.check_files(model, lambda copy: copy(x), tmp_path)
    model.compile(keras.optimizers.Adam(1e-2), jit_compile=False)
    data = {**QUESTIONS, **ANSWERS}
    history = model.fit(data, batch_size=2, epochs=4, verbose=0).history
    assert history["loss"][-1] < history["loss"][0]
