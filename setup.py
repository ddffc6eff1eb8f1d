"""Packaging of rt_keras, with requirements in ranges that were installed and tested together.

`docs/versions.md` lists the tested versions, and `.ci/versions` tests them.
"""

import os
import re
from pathlib import Path

from setuptools import find_packages, setup

here = Path(__file__).parent
BASE = [
    "tensorflow>=2.20,<2.22",
    "keras>=3.15,<3.16",
    "keras-hub>=0.32,<0.33",
    # Progress bars and tables; Keras brings it too.
    "rich>=13,<16",
    "tensorflow-text>=2.20.1,<2.22",
    # The published configurations; KerasHub brings it too.
    "pyyaml>=6,<7",
]
# It needs TensorFlow 2.20, as tf-models-official does.
TRAIN = [
    "tf-models-official>=2.20,<2.21",
    "tensorflow-datasets>=4.9.10,<4.10",
    # Files of examples with random access; TensorFlow Datasets brings it too.
    "array_record>=0.8,<0.9",
    # Vocabularies; tf-models-official brings it too.
    "sentencepiece>=0.2,<0.3",
    # TensorFlow Datasets imports it without requiring it.
    "importlib_resources",
]
# The protobufs of TensorFlow Serving, which need only TensorFlow.
SERVING = ["tensorflow-serving-api>=2.20,<2.22"]
PLOT = ["matplotlib>=3.8,<4"]
# Sound files and their resampling, and the error rates of transcriptions.
SPEECH = ["soundfile>=0.13,<0.15", "scipy>=1.13,<2", "jiwer>=4,<5"]

# The site in `docs`. Its reference has the pages of what needs the other extras too.
DOCS = [
    *TRAIN,
    *SERVING,
    *PLOT,
    "sphinx>=9,<10",
    "myst-nb>=1.4,<2",
    "pydata-sphinx-theme>=0.24,<0.25",
    "sphinx-design>=0.8,<0.9",
    "latex2mathml>=3.81,<4",
]

# Weights in Hugging Face's files, which `rt_keras.adapt` reads from a folder.
PRETRAINED = ["safetensors>=0.5,<1"]

EXTRAS = {
    "train": TRAIN,
    "serving": SERVING,
    "plot": PLOT,
    "speech": SPEECH,
    "pretrained": PRETRAINED,
    # What `rt-keras benchmark` compares with.
    "rivals": ["torch>=2.13,<3", "routing-transformer>=1.6.1,<2"],
    "docs": DOCS,
    "test": [
        *TRAIN,
        *SERVING,
        *PLOT,
        *SPEECH,
        *PRETRAINED,
        "pytest>=9,<10",
        "pytest-xdist>=3.6,<4",
        "hypothesis>=6.100,<7",
        "ruff>=0.17,<0.18",
        "codespell>=2.4,<3",
        "jsonschema>=4.20,<5",
        "nbclient>=0.10,<1",
        "ipykernel>=6.29,<8",
        # They build the distributions and check them.
        "build>=1.2,<2",
        "setuptools>=77",
        "twine>=6.1,<8",
    ],
}

PYTHONS = ("3.11", "3.12")


def on_supported(requirements):
    """Returns the requirements, restricted to supported versions of Python.

    On other versions, pip then prints only one line about the version. Otherwise, it could first
    find a package that does not support them either and list all of its versions.
    """
    python = f'python_version >= "{PYTHONS[0]}" and python_version <= "{PYTHONS[-1]}"'
    return [f"{requirement}; {python}" for requirement in requirements]


def described(url):
    """The README, whose links and pictures are absolute if `url` is where the repository is.

    A package index shows the README alone, without the files beside it.
    """
    text = (here / "README.md").read_text(encoding="utf-8")
    if not url:
        return text
    text = re.sub(r"(!\[[^]]*\]\()(?!https:)", rf"\1{url}/raw/main/", text)
    return re.sub(r"(\]\()(?!https:)", rf"\1{url}/blob/main/", text)


version = re.search(r'__version__ = "(.+)"', (here / "rt_keras/__init__.py").read_text()).group(1)

setup(
    name="rt_keras",
    version=version,
    description="Routing Transformers in Keras: attention over long sequences, clustered online",
    long_description=described(os.environ.get("PROJECT_URL")),
    long_description_content_type="text/markdown",
    license_expression="Apache-2.0",
    license_files=["LICENSE"],
    python_requires=">=3.11,<3.13",
    # The YAML files of configs/ are installed as rt_keras/configs/.
    packages=[*find_packages(include=["rt_keras", "rt_keras.*"]), "rt_keras.configs"],
    package_dir={"rt_keras.configs": "configs"},
    package_data={"rt_keras.configs": ["*.yaml"], "rt_keras.convert.t2t": ["*.yaml"]},
    install_requires=on_supported(BASE),
    extras_require={extra: on_supported(needed) for extra, needed in EXTRAS.items()},
    entry_points={"console_scripts": ["rt-keras = rt_keras.__main__:run"]},
    keywords="keras tensorflow attention transformer long-context sparse-attention",
    classifiers=[
        "Development Status :: 5 - Production/Stable",
        "Intended Audience :: Developers",
        "Intended Audience :: Science/Research",
        "Operating System :: POSIX :: Linux",
        "Programming Language :: Python :: 3",
        *(f"Programming Language :: Python :: {python}" for python in PYTHONS),
        "Topic :: Scientific/Engineering :: Artificial Intelligence",
    ],
)
