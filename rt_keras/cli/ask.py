"""`rt-keras ask`: answers questions from the passages of an index.

example: rt-keras ask --model runs/reader --index index 'What about crime?'. Without --model, only
the passages are printed.
"""

from rt_keras.cli import options

# Characters of a passage that are shown as a source.
SHOWN = 160


def add_arguments(parser):
    """Adds the command's arguments to an `argparse` parser."""
    needed = {"--index DIR": "the folder of an index, as rt-keras index writes"}
    options.add_options(parser, needed, required=True)
    meaning = "the folder of a run or of a preset of a reader, which writes the answer"
    options.add_options(parser, {"--model DIR": meaning})
    parser.add_argument("questions", nargs="+", metavar="QUESTION", help="questions")
    meaning = "answer all questions from the passages of the first one, which are read once"
    parser.add_argument("--keep-passages", action="store_true", help=meaning)
    numbers = {
        "--passages N": "number of passages (default: as many as the reader reads, or 7)",
        "--max-length N": "maximum number of tokens in an answer (default: the reader's)",
    }
    options.add_options(parser, numbers, type=int)
    meaning = "share of the probability from which the next token is chosen, 0 for the likeliest"
    options.add_options(parser, {"--top-p P": f"{meaning} (default: 0.6)"}, type=float, default=0.6)
    options.add_integers(parser, {"seed": (0, "random seed")})


def main(args):
    """Prints the answer to each question, and its sources."""
    from rt_keras.retrieval.index_folder import read_index

    options.check_at_least_one(args, "passages", "max_length")
    _check_questions(args.questions)
    reader = None if args.model is None else _load_reader(args)
    index = read_index(args.index)
    number = args.passages or (reader.preprocessor.num_passages if reader else 7)
    found, read, results = None, None, []
    for question in args.questions:
        if found is None or not args.keep_passages:
            found, read = index.search([question], number)[0], None
        answer = None
        if reader is not None:
            if read is None:
                read = _read(reader, found)
            parts = reader.stream_answer(question, read, args.max_length)
            answer = options.print_parts(parts)
        _print_sources(found)
        results.append({"question": question, "answer": answer, "sources": found})
    return {"answers": results}


def _check_questions(questions):
    from rt_keras.data.file_reading import is_utf8

    for question in questions:
        if not question.strip():
            raise ValueError("QUESTION must not be empty")
        if not is_utf8(question):
            raise ValueError(f"QUESTION must be UTF-8 text. Received: {question!r}")


def _load_reader(args):
    """Loads the reader with its sampler, and checks that it can read questions and passages."""
    import keras_hub

    from rt_keras.models.retrieval.reader_preprocessor import tokens_to_answer

    reader = options.load_that("--model", args.model, "answer", "a reader")
    options.check_range(args, "top_p", 0, 1)
    for question in args.questions:
        tokens_to_answer(question, reader.preprocessor)
    options.check_range(args, "passages", 1, reader.preprocessor.num_passages)
    sampler = keras_hub.samplers.GreedySampler()
    if args.top_p:
        # Without `k`, KerasHub would choose among the five likeliest tokens.
        size = reader.backbone.vocabulary_size
        sampler = keras_hub.samplers.TopPSampler(p=args.top_p, k=size, seed=args.seed)
    reader.compile(sampler=sampler)
    return reader


def _read(reader, found):
    from rt_keras.data.document_source import text_of

    return reader.read_passages([text_of(passage) for passage in found])


def _print_sources(found):
    for number, passage in enumerate(found, start=1):
        text = " ".join(passage["text"].split())
        more = "..." if len(text) > SHOWN else ""
        name = passage["document"]
        print(f"[{number}] {name} ({passage['score']:.2f}): {text[:SHOWN]}{more}")
