"""`rt-keras generate`: continues or translates texts, or completes an image.

example: rt-keras generate --model runs/books --prompt 'It was a dark' --max-length 200
"""

import itertools
import os

from rt_keras import files
from rt_keras.cli import options
from rt_keras.data import extras

# The options of KerasHub's samplers.
SAMPLERS = {
    "random": ("temperature", "seed"),
    "greedy": (),
    "top_k": ("temperature", "seed", "top_k"),
    "top_p": ("temperature", "seed", "top_k", "top_p"),
    "beam": ("temperature", "num_beams"),
    "contrastive": ("temperature", "top_k"),
}
# Options of text models, and options of image models.
TEXT_OPTIONS = ("prompt", "max_length", "stop", "stream", "sampler", "top_k", "top_p", "num_beams")
IMAGE_OPTIONS = ("image", "known_rows", "label", "output")


def add_arguments(parser):
    """Adds the command's arguments to an `argparse` parser."""
    options.add_model(parser)
    meaning = "divisor of the logits, above 0; lower values are less random (default: 0.8)"
    options.add_options(parser, {"--temperature T": meaning}, type=float, default=0.8)
    options.add_integers(parser, {"seed": (0, "random seed")})
    _add_text_arguments(parser.add_argument_group("text models"))
    _add_image_arguments(parser.add_argument_group("image models"))


def _add_text_arguments(group):
    texts = {
        "--prompt TEXT": "the text to continue or to translate; several texts form one batch",
        "--stop TOKEN": "tokens of the vocabulary that end a text (default: end of text)",
    }
    options.add_options(group, texts, nargs="+")
    meaning = "print the text while it is generated, for one prompt of a causal model"
    options.add_options(group, {"--stream": meaning}, action="store_true")
    meaning = "method that chooses the next token (default: random)"
    options.add_options(group, {"--sampler": meaning}, choices=SAMPLERS)
    numbers = {
        "--max-length N": "maximum number of tokens, the start and the prompt too (default: 256)",
        "--top-k K": "number of most likely tokens from which top_k, top_p and contrastive choose "
        "(default: 5, all, 5)",
        "--num-beams N": "number of beams of beam search (default: 5)",
    }
    options.add_options(group, numbers, type=int)
    meaning = "probability mass from which top_p samples, above 0 and at most 1 (default: 0.9)"
    options.add_options(group, {"--top-p P": meaning}, type=float)


def _add_image_arguments(group):
    images = {
        "--output FILE": "the PNG file to write",
        "--image FILE": "the image to complete (default: none)",
    }
    options.add_options(group, images)
    numbers = {
        "--known-rows N": "number of rows of the image to keep, from the top (default: 0)",
        "--label N": "the class, for class-conditional models",
    }
    options.add_options(group, numbers, type=int)


def main(args):
    """Generates from the model and prints or writes the result."""
    model, task = options.load_model(args.model)
    if task.generates not in ("text", "image"):
        raise ValueError(f"--model {args.model} holds a {task.kind} model, which cannot generate")
    if task.generates == "image":
        _refuse(args, TEXT_OPTIONS, f"--model {args.model}, an image model")
        return _generate_image(model, args)
    _refuse(args, IMAGE_OPTIONS, f"--model {args.model}, a text model")
    return _generate_text(model, task, args)


def _refuse(args, names, what):
    """Raises a ValueError if an option is given that the model or the sampler does not support."""
    for name in names:
        value = getattr(args, name)
        if value is not None and value is not False:
            option = f"--{name.replace('_', '-')}"
            raise ValueError(f"{option} does not apply to {what}")


def _generate_text(model, task, args):
    from rt_keras.models.generation import stop_tokens

    if args.prompt is None:
        raise ValueError("--prompt is missing: the text to start from")
    options.check_at_least_one(args, "max_length")
    max_length = args.max_length or 256
    if args.stream and not (task.continues_text and len(args.prompt) == 1):
        raise ValueError("--stream is for one --prompt of a causal language model")
    model.compile(sampler=_make_sampler(args))
    tokenizer = model.preprocessor.tokenizer
    stop = stop_tokens(tokenizer) if args.stop is None else _stops(tokenizer, args.stop)
    # The bytes from the shell, which need not be UTF-8.
    prompts = [os.fsencode(prompt) for prompt in args.prompt]
    prompts = task.prompts(prompts, model, max_length)
    if args.stream:
        return {"text": _stream(model, prompts[0], max_length, stop)}
    texts = model.generate(prompts, max_length=max_length, stop_token_ids=stop)
    print("\n\n".join(texts))
    return {"text": texts[0]} if len(texts) == 1 else {"texts": texts}


def _stops(tokenizer, names):
    """Returns the ids of the tokens of `--stop`."""
    known = set(tokenizer.get_vocabulary())
    for name in names:
        if name not in known:
            raise ValueError(f"--stop must be tokens of the vocabulary. Received: {name!r}")
    return [tokenizer.token_to_id(name) for name in names]


def _stream(model, prompt, max_length, stop_token_ids):
    from rt_keras.models.streaming import stream

    parts = stream(model, prompt, max_length, stop_token_ids)
    # The first part is the prompt. The second one follows compilation.
    first = list(itertools.islice(parts, 2))
    return options.print_parts(itertools.chain(first, parts))


def _make_sampler(args):
    """Creates the KerasHub sampler that the options describe."""
    from keras_hub import samplers

    name = args.sampler or "random"
    others = [key for key in ("top_k", "top_p", "num_beams") if key not in SAMPLERS[name]]
    _refuse(args, others, f"sampler {name}")
    given = {option: getattr(args, option) for option in SAMPLERS[name]}
    # KerasHub names two options with one letter, `k` and `p`, and has no default for `p`.
    given = {key.removeprefix("top_"): x for key, x in given.items() if x is not None}
    if name == "top_p":
        given.setdefault("p", 0.9)
    return samplers.get({"class_name": name, "config": given})


def _generate_image(model, args):
    if args.output is None:
        raise ValueError("--output is missing: the PNG file to write the image to")
    files.check_writable("--output", args.output)
    with extras.needed("plot", "Reading and writing images"):
        import PIL.Image  # noqa: F401
    import keras

    shape, known_rows = model.backbone.image_shape, args.known_rows or 0
    if known_rows and args.image is None:
        raise ValueError(f"--known-rows is {known_rows}, but --image is missing")
    inputs = {"images": _read_image(args.image, shape), **_label(args, model.backbone.num_classes)}
    image = model.generate(inputs, known_rows, args.temperature, args.seed)[0]
    with files.whole_file(args.output, suffix=".png") as part:
        keras.utils.save_img(part, image, file_format="png", scale=False)
    print(f"wrote the image {args.output}, {shape[1]} x {shape[0]} pixels")
    return {"image": args.output}


def _read_image(path, shape):
    """Reads an image file as a batch of one image of a shape; zeros without a file."""
    import keras
    import numpy as np
    import PIL

    if path is None:
        return np.zeros((1, *shape), "int32")
    mode = "grayscale" if shape[2] == 1 else "rgb"
    try:
        image = keras.utils.load_img(path, color_mode=mode, target_size=shape[:2])
    except PIL.UnidentifiedImageError:
        raise ValueError(f"--image must be an image file. Received: {path}") from None
    return keras.utils.img_to_array(image)[None].astype("int32")


def _label(args, num_classes):
    """Returns the label input of class-conditional models; an empty dictionary for others."""
    import numpy as np

    if num_classes is None:
        if args.label is not None:
            raise ValueError(f"--label does not apply: {args.model} has no classes")
        return {}
    if args.label is None:
        raise ValueError(f"--label is missing: a class from 0 to {num_classes - 1}")
    options.check_range(args, "label", 0, num_classes - 1)
    return {"labels": np.array([args.label], "int32")}
