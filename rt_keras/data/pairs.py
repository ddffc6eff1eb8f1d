"""Pairs of texts, one to be written from the other: translation and summaries."""

import re

import tensorflow as tf

from rt_keras.data.batches import filled_batches, shuffled_batches

# The sets of TensorFlow Datasets whose examples are pairs of texts.
PAIRS = re.compile(r"wmt(\d\d|_t2t)_translate/[a-z]{2}-[a-z]{2}|scientific_papers/(arxiv|pubmed)")


def load_pairs(name, split, directory=None, data_dir=None, reverse=False):
    """The pairs of texts of one split.

    Args:
        name: "pairs_folder" (the parallel files of `directory`; see `PairsFolder`), or a set of
            TensorFlow Datasets, which downloads it where needed: "wmt14_translate/de-en" and the
            like, "wmt13" to "wmt19" and "wmt_t2t", with the languages that TFDS has for each;
            "scientific_papers/arxiv" and "scientific_papers/pubmed".
        split: "train", "validation" or "test".
        directory: the folder for "pairs_folder".
        data_dir: where TensorFlow Datasets keeps what it prepared; by default its own folder.
        reverse: whether to write the first text from the second. False is from the first language
            of the name to the second, from article to abstract, from source to target; as TFDS has
            de-en alone, reverse it to translate English to German.

    Returns:
        `tf.data.Dataset` of {"encoder_text", "decoder_text"}, scalar strings, in an order that does
        not change: what `RoutingTransformerSeq2SeqLMPreprocessor` takes.

    Raises:
        FileNotFoundError: if there is no such folder, or it lacks files.
        ValueError: if the name or the split does not exist, if `directory` is missing or is given
            to a set that reads none, or if the files are not parallel, or not UTF-8.
        OSError: if the set could not be downloaded and prepared.

    Source of the papers: Cohan et al. 2018, A Discourse-Aware Attention Model for Abstractive
    Summarization of Long Documents.

    Example:

    >>> import tempfile
    >>> from pathlib import Path
    >>> folder = Path(tempfile.mkdtemp())
    >>> _ = (folder / "test.source").write_text("guten Tag\\n")
    >>> _ = (folder / "test.target").write_text("good day\\n")
    >>> pairs = load_pairs("pairs_folder", "test", folder, data_dir=folder, reverse=True)
    >>> [(pair["encoder_text"], pair["decoder_text"]) for pair in pairs.as_numpy_iterator()]
    [(b'good day', b'guten Tag')]
    """
    from rt_keras.data import tfds_sets

    builder = _prepared(name, directory, data_dir)
    first, second = builder.info.supervised_keys
    if reverse:
        first, second = second, first
    pairs = tfds_sets.read(builder, split)
    return pairs.map(lambda pair: {"encoder_text": pair[first], "decoder_text": pair[second]})


def _prepared(name, directory, data_dir):
    """The builder of a set, its files in place."""
    from rt_keras.data import tfds_sets

    if name == "pairs_folder":
        from rt_keras.data.pairs_folder import PairsFolder

        if directory is None:
            raise ValueError("directory=None: pairs_folder needs the folder to read")
        builder = PairsFolder(directory, data_dir=data_dir)
        tfds_sets.prepare(builder)
        return builder
    if not PAIRS.fullmatch(name):
        raise ValueError(
            f"name={name!r} is not a set of pairs: there are pairs_folder, "
            "scientific_papers/arxiv, scientific_papers/pubmed, and those of WMT with their "
            "languages, such as wmt14_translate/de-en"
        )
    if directory is not None:
        raise ValueError(
            f"directory={str(directory)!r}: only pairs_folder reads a folder, not {name}"
        )
    return tfds_sets.download(name, data_dir)


def training_pairs(pairs, preprocessor, batch_size, seed=0, shuffle_buffer=4096):
    """Batches without end for the `fit` of a `RoutingTransformerSeq2SeqLM`, with `steps_per_epoch`.

    Each pass over the pairs has an order that depends on the seed and the number of the pass alone,
    so the batches are the same whenever the dataset is read from its beginning.

    Args:
        pairs: `tf.data.Dataset` of {"encoder_text", "decoder_text"}, as from `load_pairs`.
        preprocessor: a `RoutingTransformerSeq2SeqLMPreprocessor`. It cuts what is longer than its
            lengths, and puts an end of text behind. The model itself should have none, as it would
            do the same again.
        batch_size: number of pairs in a batch.
        seed: int, for the order.
        shuffle_buffer: number of pairs among which the next one is drawn; as many are held in
            memory. 1 keeps the order.

    Returns:
        `tf.data.Dataset` of (inputs, labels, weights) as the preprocessor makes them: a dictionary
        of "encoder_token_ids", int32, and "encoder_padding_mask", bool, both
        `[batch_size, encoder_sequence_length]`, and the same of the decoder; the token after each
        of the decoder's, int32 `[batch_size, decoder_sequence_length]`; and float32 weights of the
        same shape, 0 where that is padding.

    Raises:
        ValueError: if a number is less than 1, or if there is no pair.

    Example:

    >>> from rt_keras.data import ByteTokenizer
    >>> from rt_keras.models import RoutingTransformerSeq2SeqLMPreprocessor
    >>> preprocessor = RoutingTransformerSeq2SeqLMPreprocessor(ByteTokenizer(), 6, 4)
    >>> pairs = tf.data.Dataset.from_tensors({"encoder_text": "four", "decoder_text": "4"})
    >>> inputs, labels, weights = next(iter(training_pairs(pairs, preprocessor, batch_size=1)))
    >>> labels.numpy(), weights.numpy()
    (array([[54,  1,  0,  0]], dtype=int32), array([[1., 1., 0., 0.]], dtype=float32))
    """
    batches = shuffled_batches(pairs, batch_size, seed, shuffle_buffer)
    real = tf.ones([batch_size], tf.bool)
    return _preprocessed(batches.map(lambda batch: (batch, real)), preprocessor)


def evaluation_pairs(pairs, preprocessor, batch_size):
    """Batches in which each pair stands once, in order.

    Args:
        pairs: `tf.data.Dataset` of {"encoder_text", "decoder_text"}, as from `load_pairs`.
        preprocessor: a `RoutingTransformerSeq2SeqLMPreprocessor`. It cuts what is longer than its
            lengths, which is not scored, and puts an end of text behind, which is.
        batch_size: number of pairs in a batch.

    Returns:
        `tf.data.Dataset` as of `training_pairs`. What fills up the last batch are pairs of empty
        texts, with weights of 0.

    Raises:
        ValueError: if `batch_size` is less than 1.

    Example:

    >>> from rt_keras.data import ByteTokenizer
    >>> from rt_keras.models import RoutingTransformerSeq2SeqLMPreprocessor
    >>> preprocessor = RoutingTransformerSeq2SeqLMPreprocessor(ByteTokenizer(), 6, 4)
    >>> pairs = tf.data.Dataset.from_tensors({"encoder_text": "four", "decoder_text": "4"})
    >>> for inputs, labels, weights in evaluation_pairs(pairs, preprocessor, batch_size=2):
    ...     print(weights.numpy())
    [[1. 1. 0. 0.]
     [0. 0. 0. 0.]]
    """
    return _preprocessed(filled_batches(pairs, batch_size), preprocessor)


def _preprocessed(batches, preprocessor):
    def example(batch, real):
        inputs, labels, weights = preprocessor(batch)
        return inputs, labels, tf.cast(weights, tf.float32) * tf.cast(real, tf.float32)[:, None]

    return batches.map(example, num_parallel_calls=tf.data.AUTOTUNE).prefetch(tf.data.AUTOTUNE)
