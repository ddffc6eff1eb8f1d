"""Pairs of a source and a target text, for translation and summarization."""

from rt_keras.data.batches import filled_batches, prepared
from rt_keras.data.data_sets import DataSets, read
from rt_keras.data.examples import shuffled_batches

SETS = DataSets(
    "pairs_folder, parallel_documents, scientific_papers/arxiv, scientific_papers/pubmed, or a set "
    "of WMT with its languages, such as wmt14_translate/de-en",
    r"wmt(\d\d|_t2t)_translate/[a-z]{2}-[a-z]{2}|scientific_papers/(arxiv|pubmed)",
    ("pairs_folder", "parallel_documents"),
)


def load_pairs(name, split, directory=None, data_dir=None, reverse=False):
    """Loads the pairs of texts of one split.

    Args:
        name: "pairs_folder" (the parallel files of `directory`; see `PairsFolder`),
            "parallel_documents" (its two folders; see `ParallelDocuments`), or a set downloaded
            by TensorFlow Datasets if needed: "wmt13_translate/..." to "wmt19_translate/..." and
            "wmt_t2t_translate/..." with a pair of languages, such as "wmt14_translate/de-en";
            "scientific_papers/arxiv" or "scientific_papers/pubmed".
        split: "train", "validation" or "test".
        directory: path of the folder for "pairs_folder" and "parallel_documents".
        data_dir: path of the folder for prepared data sets. Defaults to that of TensorFlow
            Datasets.
        reverse: bool, whether to swap source and target. If False, the source is the first language
            of the name, the article or the `source` file. TFDS has de-en but not en-de, for
            example; set `reverse=True` to translate English to German. Defaults to False.

    Returns:
        `tf.data.Dataset` of {"encoder_text", "decoder_text"}, scalar strings, in a fixed order, the
        inputs of `RoutingTransformerSeq2SeqLMPreprocessor`.

    Raises:
        FileNotFoundError: if the folder or its files do not exist.
        ValueError: if there is no such set or split, if `directory` is missing or given to a set
            that does not take one, or if the files are not parallel or not UTF-8.
        OSError: if the set cannot be downloaded and prepared.

    Source: scientific papers: Cohan et al. 2018, A Discourse-Aware Attention Model for Abstractive
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
    builder = SETS.prepared(name, directory, data_dir)
    first, second = builder.info.supervised_keys
    if reverse:
        first, second = second, first
    pairs = read(builder, split)
    return pairs.map(lambda pair: {"encoder_text": pair[first], "decoder_text": pair[second]})


def training_pairs(packed, preprocessor, batch_size, seed=0, first_batch=0, share=(0, 1)):
    """Returns endless batches to `fit` a `RoutingTransformerSeq2SeqLM` with `steps_per_epoch`.

    Batch b depends only on the pairs, the seed and b: each pass uses a new random order, computed
    one index at a time. Training can therefore start at any batch without delay, and each of
    several workers can read its part of every batch.

    Args:
        packed: path of a folder of pairs packed by `pack_examples`.
        preprocessor: a `RoutingTransformerSeq2SeqLMPreprocessor`, which appends end of text and
            truncates to its lengths. The model itself must have none, or it is applied twice.
        batch_size: int, number of pairs in a batch, over all workers.
        seed: int, seed of the order. Defaults to 0.
        first_batch: int, index of the first batch. Defaults to 0.
        share: pair of ints `(worker, workers)`. Each batch is split into `workers` equal parts, and
            only part `worker` is read. Defaults to `(0, 1)`, the whole batch.

    Returns:
        `tf.data.Dataset` of (inputs, labels, weights), as the preprocessor returns them. The inputs
        are a dictionary of "encoder_token_ids", int32, and "encoder_padding_mask", bool, both
        `[batch_size / workers, encoder_sequence_length]`, and the same for the decoder. The labels,
        int32 `[batch_size / workers, decoder_sequence_length]`, are the decoder tokens shifted by
        one. The weights, float32 of the same shape, are 0 for padding.

    Raises:
        FileNotFoundError: if the folder holds no packed pairs, or a file is missing.
        ValueError: if a number is out of range, if `batch_size` is not a multiple of the number of
            workers, if packing is incomplete, or if a file is damaged.

    Example:

    >>> import tempfile
    >>> import tensorflow as tf
    >>> from rt_keras.data import ByteTokenizer, pack_examples
    >>> from rt_keras.models import RoutingTransformerSeq2SeqLMPreprocessor
    >>> preprocessor = RoutingTransformerSeq2SeqLMPreprocessor(ByteTokenizer(), 6, 4)
    >>> pairs = tf.data.Dataset.from_tensors({"encoder_text": "four", "decoder_text": "4"})
    >>> packed = pack_examples(pairs, tempfile.mkdtemp())
    >>> inputs, labels, weights = next(iter(training_pairs(packed, preprocessor, batch_size=1)))
    >>> labels.numpy(), weights.numpy()
    (array([[54,  1,  0,  0]], dtype=int32), array([[1., 1., 0., 0.]], dtype=float32))
    """
    return prepared(shuffled_batches(packed, batch_size, seed, first_batch, share), preprocessor)


def evaluation_pairs(pairs, preprocessor, batch_size):
    """Returns batches that contain each pair once, in order.

    Args:
        pairs: `tf.data.Dataset` of {"encoder_text", "decoder_text"}, as from `load_pairs`.
        preprocessor: a `RoutingTransformerSeq2SeqLMPreprocessor`. It appends end of text, which is
            scored, and truncates to its lengths; truncated tokens are not scored.
        batch_size: int, number of pairs in a batch.

    Returns:
        `tf.data.Dataset` of (inputs, labels, weights), as the preprocessor returns them. The inputs
        are a dictionary of "encoder_token_ids", int32, and "encoder_padding_mask", bool, both
        `[batch_size, encoder_sequence_length]`, and the same for the decoder. The labels, int32
        `[batch_size, decoder_sequence_length]`, are the decoder tokens shifted by one. The weights,
        float32 of the same shape, are 0 for padding and for the pairs of empty texts that pad the
        last batch.

    Raises:
        ValueError: if `batch_size` is less than 1.

    Example:

    >>> import tensorflow as tf
    >>> from rt_keras.data import ByteTokenizer
    >>> from rt_keras.models import RoutingTransformerSeq2SeqLMPreprocessor
    >>> preprocessor = RoutingTransformerSeq2SeqLMPreprocessor(ByteTokenizer(), 6, 4)
    >>> pairs = tf.data.Dataset.from_tensors({"encoder_text": "four", "decoder_text": "4"})
    >>> for inputs, labels, weights in evaluation_pairs(pairs, preprocessor, batch_size=2):
    ...     print(weights.numpy())
    [[1. 1. 0. 0.]
     [0. 0. 0. 0.]]
    """
    return prepared(filled_batches(pairs, batch_size), preprocessor)
