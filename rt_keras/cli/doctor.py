"""`rt-keras doctor`: checks the installation, for bug reports."""

import json
import os
import platform
from pathlib import Path

import rt_keras
from rt_keras import installation, machine, progress
from rt_keras.tables import table
from rt_keras.try_imports import try_imports

# Modules to import for the base, and for each extra whose packages are installed. The packages of
# other extras run in separate processes.
MODULES = {
    "": ("tensorflow", "keras", "tensorflow_text", "keras_hub", "rt_keras.models"),
    "train": ("rt_keras.training.run", "rt_keras.data.text_folder", "array_record"),
    "serving": ("rt_keras.serving",),
    "plot": ("matplotlib.pyplot",),
    "speech": ("soundfile", "scipy.signal", "jiwer"),
    "retrieval": ("rouge", "bm25s"),
    "pretrained": ("safetensors",),
}


def add_arguments(parser):
    """Adds the command's arguments to an `argparse` parser."""
    parser.description = (
        "Shows the installed versions, the devices and the missing extras, and tries to import "
        "everything. Include its output in bug reports. The exit status is 0 unless something is "
        "broken."
    )
    parser.epilog = "example: rt-keras doctor"


def main(args):
    """Shows what is installed and whether it works."""
    packages = installation.needed_packages()
    complete = [
        extra
        for extra, needed in packages.items()
        if not any(package.problem for package in needed)
    ]
    modules = [module for extra, names in MODULES.items() if extra in complete for module in names]
    with progress.bar("importing what is installed"):
        imports, devices = try_imports(modules)
    figures = {
        "rt_keras": rt_keras.__version__,
        "python": platform.python_version(),
        "system": platform.platform(),
        "packages": {package.name: package.version for package in packages[""]},
        "keras_backend": keras_backend(),
        "devices": devices,
        "cores": machine.count_cores(),
        "memory_bytes": machine.machine_memory(),
        "extras": {extra: extra in complete for extra in packages if extra},
        "broken_imports": {module: problem for module, problem in imports.items() if problem},
    }
    print(table({"": "", "found": "", "needed": ""}, _rows(figures, packages)))
    problems = _problems(figures, packages)
    if not problems:
        print("no problem found")
        return figures
    more = f" (the first of {len(problems)} problems)" if problems[1:] else ""
    return {**figures, "error": f"{problems[0]}{more}"}


def keras_backend():
    """Returns the backend of Keras, from its environment variable, its file, or its default."""
    if "KERAS_BACKEND" in os.environ:
        return os.environ["KERAS_BACKEND"]
    path = Path(os.environ.get("KERAS_HOME", "~/.keras")).expanduser() / "keras.json"
    try:
        return json.loads(path.read_text(encoding="utf-8")).get("backend", "tensorflow")
    except (OSError, ValueError, AttributeError):
        return "tensorflow"


def _rows(figures, packages):
    """Yields the rows of the table: a name, the value found, and the value needed."""
    yield "rt_keras", figures["rt_keras"], ""
    yield "Python", figures["python"], installation.needed_python()
    for package in packages[""]:
        yield package.name, package.version or "missing", package.needed
    yield "Keras backend", figures["keras_backend"], "tensorflow"
    yield "devices", ", ".join(figures["devices"]) or "unknown", ""
    yield "cores", str(figures["cores"]), ""
    yield "memory", f"{figures['memory_bytes'] / 1e9:.1f} GB", ""
    yield "system", figures["system"], ""
    for extra, needed in packages.items():
        if extra:
            yield f"extra {extra}", *_extra(extra, needed)


def _extra(extra, needed):
    """Returns the state of an extra and the command that installs it."""
    missing = [package.problem for package in needed if package.problem]
    if not missing:
        return "installed", ""
    if len(missing) == len(needed):
        return "not installed", f"pip install 'rt_keras[{extra}]'"
    more = f", and {len(missing) - 1} more" if missing[1:] else ""
    return f"{missing[0]}{more}", f"pip install 'rt_keras[{extra}]'"


def _problems(figures, packages):
    """Returns a list of problems, causes before their effects."""
    python = installation.Package("Python", installation.needed_python(), figures["python"])
    problems = [package.problem for package in (python, *packages[""])]
    if figures["keras_backend"] != "tensorflow":
        problems.append(
            f"the backend of Keras is {figures['keras_backend']} and must be tensorflow: set the "
            "environment variable KERAS_BACKEND=tensorflow"
        )
    broken = (f"{module}: {why}" for module, why in figures["broken_imports"].items())
    return [*filter(None, problems), *broken]
