"""Questions with passages, for retrievers and for models that read what was retrieved."""

import warnings

import tensorflow as tf


def retrieval_pairs(questions, num_negatives=0):
    """Keeps one right passage of each question, and passages that do not answer it.

    The right passage is the first of "passages" or, if there are none, of "answers"; those without
    text do not count. Questions with neither are left out, and their number is printed once.

    Args:
        questions: `tf.data.Dataset`, as from `load_question_answers`.
        num_negatives: int, number of "negatives" to keep. Defaults to 0.

    Returns:
        `tf.data.Dataset` of {"question", "passages"}, a string and strings `[1 + num_negatives]`,
        the right passage first.

    Raises:
        ValueError: while the data set is read, if a question has fewer negatives.

    >>> question = {"question": "why?", "answers": ["so"], "passages": [], "negatives": ["no"]}
    >>> questions = tf.data.Dataset.from_tensors({**question, "documents": []})
    >>> for pair in retrieval_pairs(questions, 1).as_numpy_iterator():
    ...     print(pair["passages"].tolist())
    [b'so', b'no']
    """

    def pair(example):
        right = [x for x in (*example["passages"], *example["answers"]) if x.strip()][:1]
        wrong = example["negatives"][:num_negatives]
        if len(wrong) < num_negatives:
            raise ValueError(
                f"each question must have at least {num_negatives} negatives. Received: "
                f"{len(wrong)} for {example['question'].decode()!r}"
            )
        return right and {"question": example["question"], "passages": [*right, *wrong]}

    shape = [1 + num_negatives]
    return _converted(questions, pair, {"passages": tf.TensorSpec(shape, tf.string)}, "no passage")


def reading_examples(questions, num_passages):
    """Keeps the best passages of each question, and its first answer.

    Questions without an answer are left out, and their number is printed once.

    Args:
        questions: `tf.data.Dataset`, as from `load_question_answers`.
        num_passages: int, number of passages to keep. Missing ones are empty.

    Returns:
        `tf.data.Dataset` of {"question", "passages", "answer"}: a string, strings `[num_passages]`
        and a string, the inputs of `RoutingTransformerReaderPreprocessor`.

    >>> question = {"question": "why?", "answers": ["so", "thus"], "passages": ["a"]}
    >>> questions = tf.data.Dataset.from_tensors({**question, "negatives": [], "documents": []})
    >>> for example in reading_examples(questions, 2).as_numpy_iterator():
    ...     print(example["passages"].tolist(), example["answer"])
    [b'a', b''] b'so'
    """

    def example_of(example):
        passages = [*example["passages"][:num_passages]]
        passages += [b""] * (num_passages - len(passages))
        answers = [answer for answer in example["answers"] if answer.strip()]
        return answers and {
            "question": example["question"],
            "passages": passages,
            "answer": answers[0],
        }

    specs = {
        "passages": tf.TensorSpec([num_passages], tf.string),
        "answer": tf.TensorSpec([], tf.string),
    }
    return _converted(questions, example_of, specs, "no answer")


def _converted(questions, convert, specs, problem):
    """Converts questions, and leaves out those for which nothing is returned."""

    def read():
        left_out = 0
        for example in questions.as_numpy_iterator():
            found = convert(example)
            left_out += not found
            if found:
                yield found
        if left_out:
            message = f"{left_out:,} questions have {problem} and are left out"
            warnings.warn(message, stacklevel=2)

    specs = {"question": tf.TensorSpec([], tf.string), **specs}
    return tf.data.Dataset.from_generator(read, output_signature=specs)
