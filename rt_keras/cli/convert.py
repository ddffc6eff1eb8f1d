"""`rt-keras convert`: imports checkpoints of other projects.

example: rt-keras convert t2t --help
"""

from rt_keras.cli.options import add_command, add_options


def add_arguments(parser):
    """Adds the command's subcommands to an `argparse` parser."""
    commands = parser.add_subparsers(required=True, metavar="FORMAT")
    add_command(commands, "t2t", add_t2t_arguments, convert_t2t)


def add_t2t_arguments(parser):
    """Adds the arguments of `convert t2t` to an `argparse` parser."""
    needed = {
        "--checkpoint PATH": "the checkpoint, without its suffix",
        "--hparams FILE": "the checkpoint's hparams.json",
        "--output DIR": "a new or empty folder",
    }
    add_options(parser, needed, required=True)
    meaning = "the vocabulary, one quoted subword per line; required for text models"
    add_options(parser, {"--vocabulary FILE": meaning})
    meaning = "shape of the training images, for image models"
    sides = ("HEIGHT", "WIDTH", "CHANNELS")
    add_options(parser, {"--image-shape": meaning}, type=int, nargs=3, metavar=sides)
    meaning = "number of classes of a class-conditional image model"
    add_options(parser, {"--num-classes N": meaning}, type=int)
    meaning = "skip variables that are missing or unused instead of rejecting the checkpoint"
    add_options(parser, {"--not-strict": meaning}, action="store_true")


def convert_t2t(args):
    """Converts a checkpoint of the paper authors' Tensor2Tensor code to a preset.

    Other commands accept the preset as --model.

    example: rt-keras convert t2t --checkpoint pg19/model.ckpt-0 --hparams pg19/hparams.json
    --vocabulary vocab.pg19_length8k.32768.subwords --output models/pg19
    """
    from rt_keras.convert.t2t.checkpoint import convert_t2t_checkpoint

    of_kind = {x: getattr(args, x) for x in ("vocabulary", "image_shape", "num_classes")}
    task = convert_t2t_checkpoint(
        args.checkpoint, args.hparams, args.output, strict=not args.not_strict, **of_kind
    )
    parameters = task.count_params()
    print(f"wrote a {type(task).__name__} of {parameters:,} parameters to {args.output}")
    return {"preset": args.output, "model": type(task).__name__, "parameters": parameters}
