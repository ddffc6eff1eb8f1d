"""`rt-keras configs`: the published configurations."""

from rt_keras import files


def add_arguments(parser):
    """Adds the command's arguments to an `argparse` parser."""
    parser.epilog = "example: rt-keras configs --json configs.json"


def main(args):
    """Lists the published configurations, each with the comment that its file starts with."""
    summaries = {}
    for path in sorted(files.config_folder().glob("*.yaml")):
        summaries[path.stem] = path.read_text(encoding="utf-8").splitlines()[0].lstrip("# ")
    width = max(map(len, summaries))
    for name, summary in summaries.items():
        print(f"{name:{width}}  {summary}")
    return summaries
