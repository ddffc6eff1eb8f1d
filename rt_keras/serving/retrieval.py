"""The functions of exported retrievers and readers, from strings to vectors and answers."""

import tensorflow as tf

from rt_keras.models.retrieval.contrastive import shorter
from rt_keras.serving import checks, signatures
from rt_keras.serving.served_tokenizer import served_tokenizer


def embedding_function(model):
    """Returns the signature `embed` of a text embedder.

    Args:
        model: a `RoutingTransformerTextEmbedder`, or an adapted one, with a preprocessor.

    Returns:
        A `tf.function` that maps `texts`, string `[batch]`, to a dictionary with `embeddings`,
        float32 `[batch, embedding_dim]`. Longer texts than the preprocessor's `sequence_length` are
        truncated, as in an index.

    >>> from rt_keras import data, layers, models
    >>> backbone = models.RoutingTransformerEncoderBackbone(
    ...     258, 1, 8, 16, [layers.LocalHeads(2, block_size=4)])
    >>> preprocessor = models.RoutingTransformerTextEmbedderPreprocessor(data.ByteTokenizer(), 20)
    >>> embed = embedding_function(models.RoutingTransformerTextEmbedder(backbone, preprocessor))
    >>> embed(tf.constant(["abc", ""]))["embeddings"].shape
    TensorShape([2, 8])
    """
    specs = [tf.TensorSpec([None], tf.string, name="texts")]

    @tf.function(input_signature=specs, autograph=False)
    def embed(texts):
        texts = signatures.checked_texts("texts", texts, model.preprocessor.tokenizer)
        return {"embeddings": _embedded(model, texts, model.preprocessor)}

    return embed


def answering_function(reader, index):
    """Returns the signature `answer` of a reader and an index of passages.

    Each row equals the output of `reader.generate` for its question and the passages that the index
    finds for it, independent of the rest of the batch, as for `generating_function`.

    Args:
        reader: a `RoutingTransformerReader` with a preprocessor.
        index: a `rt_keras.retrieval.Index`.

    Returns:
        A `tf.function` that takes `questions`, string `[batch]`, and the parameters of
        `generating_function`, of which `max_new_tokens` is at most the reader's `answer_length`. It
        returns a dictionary of `answers`, string `[batch]`; and of the passages that were read, the
        best first: `sources`, string `[batch, passages]`, the ids of their documents; `passages`,
        string `[batch, passages]`, their texts; and `scores`, float32 `[batch, passages]`.

    >>> from rt_keras import data, layers, models
    >>> from rt_keras.retrieval import ExactIndex, Index
    >>> heads, tokenizer = [layers.LocalHeads(2, block_size=4)], data.ByteTokenizer()
    >>> encoder = models.RoutingTransformerEncoderBackbone(258, 1, 8, 16, heads)
    >>> preprocessor = models.RoutingTransformerTextEmbedderPreprocessor(tokenizer, 20)
    >>> retriever = models.RoutingTransformerTextEmbedder(encoder, preprocessor)
    >>> passages = [{"document": "sky.txt", "title": "", "text": "The sky is blue."}]
    >>> index = Index(retriever, passages, ExactIndex(retriever.embed_texts([passages[0]["text"]])))
    >>> preprocessor = models.RoutingTransformerReaderPreprocessor(tokenizer, 1, 20, 10, 8)
    >>> backbone = models.RoutingTransformerBackbone(258, 1, 8, 16, heads)
    >>> answer = answering_function(models.RoutingTransformerReader(backbone, preprocessor), index)
    >>> answer(tf.constant(["why?"]), max_new_tokens=tf.constant(4))["sources"].numpy().tolist()
    [[b'sky.txt']]
    """
    preprocessor = reader.preprocessor
    served = served_tokenizer(preprocessor.tokenizer)
    # Variables, as in `ExactIndex`.
    sources = tf.Variable([x["document"] for x in index.passages], trainable=False)
    passages = tf.Variable([x["text"] for x in index.passages], trainable=False)
    titled_passages = tf.Variable(index.texts, trainable=False)
    specs = [tf.TensorSpec([None], tf.string, name="questions"), *signatures.SAMPLING]

    @tf.function(input_signature=specs, autograph=False)
    def answer(
        questions,
        max_new_tokens=signatures.COUNT,
        temperature=signatures.TEMPERATURE,
        top_p=signatures.TOP_P,
        top_k=signatures.TOP_K,
        seed=signatures.SEED,
    ):
        questions = _checked_questions(questions, index.retriever, preprocessor, served)
        batch = tf.shape(questions)[0]
        options = max_new_tokens, temperature, top_p, top_k, seed
        sampler = signatures.checked_sampler(reader, batch, *options)
        most = [checks.from_0_to(preprocessor.answer_length)]
        sampler.max_new_tokens = checks.checked("max_new_tokens", sampler.max_new_tokens, 1, most)
        retriever = index.retriever
        shortened = shorter(retriever.preprocessor, retriever.question_length)
        queries = _embedded(retriever, questions, shortened)
        scores, numbers = index.vectors.search(queries, preprocessor.num_passages)
        # A small index has fewer than the reader reads.
        missing = tf.fill([batch, preprocessor.num_passages - tf.shape(numbers)[1]], "")
        texts = tf.concat([tf.gather(titled_passages, numbers), missing], axis=1)
        texts = tf.ensure_shape(texts, [None, preprocessor.num_passages])

        def answered():
            prompts = preprocessor.generate_preprocess({"question": questions, "passages": texts})
            tokens, _, new = signatures.with_continuations(reader, prompts, sampler)
            return served.strings(tokens, new)

        return {
            "answers": tf.cond(batch > 0, answered, lambda: questions),
            "sources": tf.gather(sources, numbers),
            "passages": tf.gather(passages, numbers),
            "scores": scores,
        }

    return answer


def _checked_questions(questions, retriever, preprocessor, served):
    """Checks that the retriever and the reader can read questions, and returns them."""
    for tokenizer in (retriever.preprocessor.tokenizer, preprocessor.tokenizer):
        questions = signatures.checked_texts("questions", questions, tokenizer)
    questions = checks.checked("questions", questions, 1, [checks.not_empty])
    lengths = tf.cast(served.tokens(questions).row_lengths(), tf.int32)
    checked = checks.not_longer("questions", lengths, preprocessor.question_length)
    with tf.control_dependencies([checked]):
        return tf.identity(questions)


def _embedded(model, texts, preprocessor):
    """Returns the embeddings of texts, float32; the batch may be empty."""
    features = model.output_shape[-1]

    def embedded():
        embeddings = tf.cast(model(preprocessor(texts), training=False), tf.float32)
        return tf.ensure_shape(embeddings, [None, features])

    return tf.cond(tf.size(texts) > 0, embedded, lambda: tf.zeros([0, features]))
