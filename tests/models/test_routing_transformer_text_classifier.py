import keras
import keras_hub
import numpy as np
import pytest
import tensorflow as tf

from rt_keras import models
from rt_keras.data import ByteTokenizer
from rt_keras.layers import LocalHeads
from tests.models import checks


@pytest.mark.weekly
def test_it_learns_from_texts_and_is_kept(tmp_path):
    preprocessor = models.RoutingTransformerTextClassifierPreprocessor(ByteTokenizer(), 24)
    sizes = {"vocabulary_size": 259, "num_layers": 1, "head_groups": [LocalHeads(1, 8)]}
    backbone = checks.make_backbone(models.RoutingTransformerEncoderBackbone, **sizes)
    model = models.RoutingTransformerTextClassifier(backbone, 2, preprocessor)
    texts, labels = ["good", "bad", "so good", "so bad"], np.array([1, 0, 1, 0])
    x = preprocessor(texts)
    # The logits are of the mean of the states at real tokens.
    hidden, mask = np.asarray(backbone(x)), np.asarray(x["padding_mask"])
    pooled = np.stack([row[real].mean(axis=0) for row, real in zip(hidden, mask)])
    expected = model.output_dense(np.tanh(model.pooled_dense(pooled)))
    assert checks.largest_difference(model(x), expected) <= 1e-5
    cls = keras_hub.models.TextClassifier
    checks.check_files(model, lambda copy: copy(x), tmp_path, cls=cls)
    model.compile(keras.optimizers.Adam(3e-2), jit_compile=False)
    model.fit(texts, labels, batch_size=4, epochs=15, verbose=0)
    assert model.predict(texts, verbose=0).argmax(axis=1).tolist() == labels.tolist()
    with pytest.raises(tf.errors.InvalidArgumentError, match="labels must be from 0 to 1"):
        model.preprocess_samples(texts, labels + 1)
