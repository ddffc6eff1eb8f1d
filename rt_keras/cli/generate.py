"""`rt-keras generate`: continues texts, writes one from another, or completes an image."""

from rt_keras import files
from rt_keras.cli import options

SAMPLERS = ("random", "greedy", "top_k", "top_p", "beam", "contrastive")


def add_arguments(parser):
    """Adds the command's arguments to an `argparse` parser."""
    parser.epilog = (
        "example: rt-keras generate --model runs/books --prompt 'It was a dark' --max-length 200"
    )
    options.add_model(parser)
    parser.add_argument(
        "--max-length",
        type=int,
        default=256,
        metavar="N",
        help="maximum number of tokens, including the prompt and the start token (default: 256)",
    )
    _add_text_arguments(parser.add_argument_group("text models"))
    _add_sampler_arguments(parser.add_argument_group("sampling"))
    _add_image_arguments(parser.add_argument_group("image models"))


def _add_text_arguments(group):
    group.add_argument(
        "--prompt",
        nargs="+",
        metavar="TEXT",
        help="the text to continue or, for an encoder-decoder, to translate; several texts are "
        "processed as one batch",
    )
    group.add_argument(
        "--stop",
        metavar="TOKEN",
        nargs="+",
        help="tokens that end a text, as the tokenizer spells them (default: end of text)",
    )
    group.add_argument(
        "--stream", action="store_true", help="print the text as it is generated; one prompt only"
    )


def _add_sampler_arguments(group):
    group.add_argument(
        "--sampler",
        choices=SAMPLERS,
        default="random",
        help="how the next token is chosen (default: random)",
    )
    group.add_argument(
        "--temperature",
        type=float,
        default=0.8,
        metavar="T",
        help="divides the logits; lower values are less random (default: 0.8)",
    )
    group.add_argument(
        "--top-k",
        type=int,
        metavar="K",
        help="number of most likely tokens that top_k, top_p and contrastive choose from "
        "(default: 5, all, 5)",
    )
    group.add_argument(
        "--top-p",
        type=float,
        metavar="P",
        help="probability mass that top_p draws from (default: 0.9)",
    )
    group.add_argument(
        "--num-beams", type=int, metavar="N", help="number of beams of beam search (default: 5)"
    )
    group.add_argument("--seed", type=int, default=0, help="random seed (default: 0)")


def _add_image_arguments(group):
    group.add_argument("--image", metavar="FILE", help="the image to complete (default: none)")
    group.add_argument(
        "--known-rows", type=int, default=0, metavar="N", help="rows of it to keep, from the top"
    )
    group.add_argument("--label", type=int, metavar="N", help="class, for class-conditional models")
    group.add_argument("--output", metavar="FILE", help="the PNG file to write")


def main(args):
    """Generates from the model and prints or writes the result."""
    from rt_keras.training import experiment
    from rt_keras.training.tasks import task_of

    if args.max_length < 1:
        raise ValueError(f"--max-length is {args.max_length}; it must be above 0")
    if not args.temperature > 0:
        raise ValueError(f"--temperature is {args.temperature}; it must be above 0")
    model = experiment.load_model(args.model)
    task = task_of(model)
    if task.generates == "image":
        return _generate_image(model, args)
    if task.generates is None:
        raise ValueError(f"{args.model} holds a model of kind {task.kind}, which generates nothing")
    if args.prompt is None:
        raise ValueError("--prompt is missing: the text to start from")
    model.compile(sampler=_make_sampler(args))
    stop = _stop_tokens(model.preprocessor.tokenizer, args.stop)
    if args.stream:
        if not task.continues_text or len(args.prompt) > 1:
            raise ValueError("--stream is for one --prompt of a causal language model")
        return {"text": _stream(model, args.prompt[0], args.max_length, stop)}
    prompts = task.prompts(args.prompt)
    texts = model.generate(prompts, max_length=args.max_length, stop_token_ids=stop)
    print("\n\n".join(texts))
    return {"text": texts[0]} if len(texts) == 1 else {"texts": texts}


def _stop_tokens(tokenizer, names):
    if names is None:
        return [tokenizer.end_token_id]
    return [tokenizer.token_to_id(name) for name in names]


def _stream(model, prompt, max_length, stop_token_ids):
    from rt_keras.models.streaming import stream

    pieces = []
    for piece in stream(model, prompt, max_length, stop_token_ids):
        print(piece, end="", flush=True)
        pieces.append(piece)
    print()
    return "".join(pieces)


def _make_sampler(args):
    """KerasHub's sampler of that name, with the options that it takes."""
    from keras_hub import samplers

    given = {"k": args.top_k, "p": args.top_p, "num_beams": args.num_beams}
    arguments = {name: value for name, value in given.items() if value is not None}
    takes = {"top_k": {"k"}, "top_p": {"k", "p"}, "beam": {"num_beams"}, "contrastive": {"k"}}
    names = {"k": "--top-k", "p": "--top-p", "num_beams": "--num-beams"}
    for name, value in arguments.items():
        if name not in takes.get(args.sampler, ()):
            raise ValueError(f"{names[name]} is {value}; sampler {args.sampler} has none")
        if not (0 < value <= 1 if name == "p" else value >= 1):
            allowed = "above 0 and at most 1" if name == "p" else "at least 1"
            raise ValueError(f"{names[name]} is {value}; it must be {allowed}")
    if args.sampler == "greedy":
        return samplers.GreedySampler()
    if args.sampler in ("random", "top_k", "top_p"):
        arguments["seed"] = args.seed
    if args.sampler == "top_p":
        arguments.setdefault("p", 0.9)
    kinds = {
        "random": samplers.RandomSampler,
        "top_k": samplers.TopKSampler,
        "top_p": samplers.TopPSampler,
        "beam": samplers.BeamSampler,
        "contrastive": samplers.ContrastiveSampler,
    }
    return kinds[args.sampler](**arguments, temperature=args.temperature)


def _generate_image(model, args):
    import keras
    import numpy as np

    if args.output is None:
        raise ValueError("--output is missing: the PNG file that the image is written to")
    shape = model.backbone.image_shape
    images = np.zeros((1, *shape), "int32")
    if args.image is not None:
        mode = "grayscale" if shape[2] == 1 else "rgb"
        picture = keras.utils.load_img(args.image, color_mode=mode, target_size=shape[:2])
        images[0] = keras.utils.img_to_array(picture)
    elif args.known_rows:
        raise ValueError(f"--known-rows is {args.known_rows}, but no --image has them")
    inputs = {"images": images}
    if model.backbone.num_classes is not None:
        if args.label is None or not 0 <= args.label < model.backbone.num_classes:
            last = model.backbone.num_classes - 1
            raise ValueError(f"--label is {args.label}; it must be from 0 to {last}")
        inputs["labels"] = np.array([args.label], "int32")
    image = model.generate(inputs, args.known_rows, args.temperature, args.seed)[0]
    with files.whole_file(args.output, suffix=".png") as part:
        keras.utils.save_img(part, image, file_format="png", scale=False)
    print(f"wrote the image {args.output}, {shape[1]} x {shape[0]} pixels")
    return {"image": args.output}
