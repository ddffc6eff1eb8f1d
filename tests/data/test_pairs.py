import keras
import numpy as np
import pytest
import tensorflow as tf

from rt_keras.data import (
    ByteTokenizer,
    evaluation_pairs,
    load_pairs,
    pack_examples,
    training_pairs,
)
from rt_keras.layers import FullHeads
from rt_keras.models import (
    RoutingTransformerSeq2SeqBackbone,
    RoutingTransformerSeq2SeqLM,
    RoutingTransformerSeq2SeqLMPreprocessor,
)
from tests.data.checks import write_set

SENTENCES = {"eins": "one", "zwei": "two", "drei": "three"}


def preprocessor():
    return RoutingTransformerSeq2SeqLMPreprocessor(ByteTokenizer(), 6, 5)


def texts(pairs):
    return {
        pair["encoder_text"].decode(): pair["decoder_text"].decode()
        for pair in pairs.as_numpy_iterator()
    }


def test_translation(tmp_path):
    examples = [{"de": de, "en": en} for de, en in SENTENCES.items()]
    splits = {"train": examples, "validation": examples[:1], "test": examples[1:]}
    write_set("wmt14_translate/de-en", tmp_path, splits)
    name = "wmt14_translate/de-en"
    pairs = load_pairs(name, "train", data_dir=tmp_path)
    string = tf.TensorSpec([], tf.string)
    assert pairs.element_spec == {"encoder_text": string, "decoder_text": string}
    assert texts(pairs) == SENTENCES
    assert texts(load_pairs(name, "validation", data_dir=tmp_path)) == {"eins": "one"}
    to_german = load_pairs(name, "test", data_dir=tmp_path, reverse=True)
    assert texts(to_german) == {"two": "zwei", "three": "drei"}


@pytest.mark.parametrize("config", ["arxiv", "pubmed"])
def test_summaries(config, tmp_path):
    papers = [{"article": "long", "abstract": "short", "section_names": "1"}]
    write_set(f"scientific_papers/{config}", tmp_path, {"train": papers})
    pairs = load_pairs(f"scientific_papers/{config}", "train", data_dir=tmp_path)
    assert texts(pairs) == {"long": "short"}
    with pytest.raises(ValueError, match="for scientific_papers. Received: split='test'"):
        load_pairs(f"scientific_papers/{config}", "test", data_dir=tmp_path)


def test_parallel_files(tmp_path):
    (tmp_path / "validation.source").write_text("\n".join(SENTENCES))
    (tmp_path / "validation.target").write_text("\n".join(SENTENCES.values()))
    where = {"directory": tmp_path, "data_dir": tmp_path / "prepared"}
    assert texts(load_pairs("pairs_folder", "validation", **where)) == SENTENCES
    assert texts(load_pairs("pairs_folder", "validation", **where, reverse=True)) == {
        target: source for source, target in SENTENCES.items()
    }


def test_bad_names_and_folders(tmp_path):
    for name in ("wmt14", "wmt14_translate", "scientific_papers", "pg19", "../x_translate/de-en"):
        with pytest.raises(ValueError, match="name must be pairs_folder, "):
            load_pairs(name, "train", data_dir=tmp_path)
    with pytest.raises(
        ValueError, match="TensorFlow Datasets. Received: name='wmt14_translate/de-nl'"
    ):
        load_pairs("wmt14_translate/de-nl", "train", data_dir=tmp_path)
    with pytest.raises(ValueError, match="directory must be the path to read for pairs_folder"):
        load_pairs("pairs_folder", "train")
    with pytest.raises(
        ValueError, match="must be None for scientific_papers.*it is for pairs_folder"
    ):
        load_pairs("scientific_papers/arxiv", "train", directory=tmp_path)


def dataset_of(pairs):
    columns = {"encoder_text": list(pairs), "decoder_text": list(pairs.values())}
    return tf.data.Dataset.from_tensor_slices(columns)


@pytest.fixture
def packed(tmp_path):
    return pack_examples(dataset_of(SENTENCES), tmp_path / "packed")


def test_training_batches(packed):
    batches = training_pairs(packed, preprocessor(), batch_size=2, seed=3)
    encoder, decoder = [2, 6], [2, 5]
    assert batches.element_spec == (
        {
            "encoder_token_ids": tf.TensorSpec(encoder, tf.int32),
            "encoder_padding_mask": tf.TensorSpec(encoder, tf.bool),
            "decoder_token_ids": tf.TensorSpec(decoder, tf.int32),
            "decoder_padding_mask": tf.TensorSpec(decoder, tf.bool),
        },
        tf.TensorSpec(decoder, tf.int32),
        tf.TensorSpec(decoder, tf.float32),
    )

    def seen():
        rows = [[], []]
        for inputs, labels, weights in batches.take(3):
            expected = preprocessor()(
                {
                    "encoder_text": ByteTokenizer().detokenize(inputs["encoder_token_ids"]),
                    "decoder_text": ByteTokenizer().detokenize(inputs["decoder_token_ids"]),
                }
            )
            found = (inputs, labels, tf.cast(weights, tf.bool))
            tf.nest.map_structure(np.testing.assert_array_equal, found, expected)
            rows[0] += ByteTokenizer().detokenize(inputs["encoder_token_ids"]).numpy().tolist()
            rows[1] += ByteTokenizer().detokenize(inputs["decoder_token_ids"]).numpy().tolist()
        return rows

    # The decoder reads 5 tokens including the start, so "three" lacks its last letter.
    sources, targets = seen()
    assert sorted(sources[:3]) == sorted(sources[3:]) == [b"drei", b"eins", b"zwei"]
    short = {source.encode(): target[:4].encode() for source, target in SENTENCES.items()}
    assert [short[source] for source in sources] == targets
    assert seen() == [sources, targets]


def test_training_starts_anywhere_and_workers_share_batches(packed):
    def labels(**options):
        batches = training_pairs(packed, preprocessor(), 4, seed=3, **options)
        return np.stack([y for _, y, _ in batches.take(6)])

    whole = labels()
    np.testing.assert_array_equal(labels(first_batch=2)[:4], whole[2:])
    halves = [labels(share=(worker, 2)) for worker in range(2)]
    np.testing.assert_array_equal(np.concatenate(halves, axis=1), whole)


def test_evaluation_has_every_pair_once():
    batches = list(evaluation_pairs(dataset_of(SENTENCES), preprocessor(), 2).as_numpy_iterator())
    labels, weights = (np.concatenate([batch[part] for batch in batches]) for part in (1, 2))
    inputs = {name: np.concatenate([x[name] for x, _, _ in batches]) for name in batches[0][0]}
    expected = preprocessor()({name: list(column) for name, column in columns().items()})
    for name, rows in expected[0].items():
        np.testing.assert_array_equal(inputs[name][:3], rows)
    np.testing.assert_array_equal(labels[:3], expected[1])
    np.testing.assert_array_equal(weights[:3], expected[2])
    # Letters and one end of text per text, except that "three" lacks its last letter.
    assert weights.sum() == 4 + 4 + 5 and not weights[3].any()
    # Padding examples are not empty for the encoder, or its softmax would sum over nothing.
    assert inputs["encoder_padding_mask"][3].any()


def columns():
    return {"encoder_text": SENTENCES, "decoder_text": SENTENCES.values()}


@pytest.mark.end_to_end
def test_any_tokenizer(tokenizer, tmp_path):
    pairs = {"the quick fox": "the dog", "the dog": "", "the fox": "the quick fox"}
    made = RoutingTransformerSeq2SeqLMPreprocessor(tokenizer, 24, 24)
    batches = list(evaluation_pairs(dataset_of(pairs), made, 2))
    tokens = sum(len(tokenizer(target)) + 1 for target in pairs.values())
    assert sum(float(tf.reduce_sum(weights)) for _, _, weights in batches) == tokens
    packed = pack_examples(dataset_of(pairs), tmp_path)
    _, _, weights = next(iter(training_pairs(packed, made, 3)))
    assert weights.shape == (3, 24) and float(tf.reduce_sum(weights)) == tokens


@pytest.mark.end_to_end
def test_the_model_takes_them(packed):
    keras.utils.set_random_seed(0)
    heads = [FullHeads(2)]
    backbone = RoutingTransformerSeq2SeqBackbone(
        vocabulary_size=258,
        num_encoder_layers=1,
        num_layers=1,
        hidden_dim=8,
        intermediate_dim=8,
        encoder_head_groups=heads,
        head_groups=heads,
        cross_head_groups=heads,
    )
    model = RoutingTransformerSeq2SeqLM(backbone)
    model.compile(keras.optimizers.Adam(1e-2), jit_compile=False)
    batches = training_pairs(packed, preprocessor(), 2)
    history = model.fit(batches, steps_per_epoch=3, epochs=4, shuffle=False, verbose=0).history
    assert history["loss"][-1] < history["loss"][0]
    found = model.evaluate(evaluation_pairs(dataset_of(SENTENCES), preprocessor(), 2), verbose=0)
    assert np.isfinite(found).all()


def test_bad_numbers(packed):
    for batches in (evaluation_pairs, training_pairs):
        pairs = packed if batches == training_pairs else dataset_of(SENTENCES)
        with pytest.raises(ValueError, match="batch_size must be at least 1. .* batch_size=0"):
            batches(pairs, preprocessor(), 0)
