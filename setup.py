"""Packaging of rt_keras: what it needs, in ranges that were installed and tested together."""

import re
from pathlib import Path

from setuptools import find_packages, setup

here = Path(__file__).parent
TRAIN = [
    "tf-models-official>=2.20,<2.21",
    "tensorflow-datasets>=4.9.10,<4.10",
    # Files of examples with random access; TensorFlow Datasets brings it too.
    "array_record>=0.8,<0.9",
    # TensorFlow Datasets imports it without requiring it.
    "importlib_resources",
]
# The protobufs of TensorFlow Serving, which need only TensorFlow.
SERVING = ["tensorflow-serving-api>=2.20,<2.21"]
PLOT = ["matplotlib>=3.8,<4"]
# The TPU compiler, in the versions known to take what TensorFlow 2.20 gives them; it compiles the
# training step of a configuration.
TPU_CHECK = [*TRAIN, "jax==0.10.2", "jaxlib==0.10.2", "libtpu==0.0.42.1"]

version = re.search(r'__version__ = "(.+)"', (here / "rt_keras/__init__.py").read_text()).group(1)

setup(
    name="rt_keras",
    version=version,
    description="Routing Transformers in Keras: attention over long sequences, clustered online",
    long_description=(here / "README.md").read_text(encoding="utf-8"),
    long_description_content_type="text/markdown",
    license="Apache-2.0",
    python_requires=">=3.11,<3.13",
    # The YAML files of configs/ are installed as rt_keras/configs/.
    packages=[*find_packages(include=["rt_keras", "rt_keras.*"]), "rt_keras.configs"],
    package_dir={"rt_keras.configs": "configs"},
    package_data={"rt_keras.configs": ["*.yaml"]},
    install_requires=[
        "tensorflow>=2.20,<2.21",
        "keras>=3.15,<3.16",
        "keras-hub>=0.32,<0.33",
        # Progress bars and tables; Keras brings it too.
        "rich>=13,<16",
        "tensorflow-text>=2.20,<2.21",
        # The published configurations; KerasHub brings it too.
        "pyyaml>=6,<7",
    ],
    extras_require={
        "train": TRAIN,
        "serving": SERVING,
        "plot": PLOT,
        # What `rt-keras benchmark` compares with. It also measures pytorch-fast-transformers where
        # that is installed; building it takes a C++ compiler and, beside an nvcc, a CUDA toolkit.
        "rivals": ["torch>=2.13,<3", "routing-transformer>=1.6.1,<2"],
        "tpu-check": TPU_CHECK,
        "test": [
            *TRAIN,
            *SERVING,
            *PLOT,
            "pytest>=8,<10",
            "pytest-xdist>=3.6,<4",
            "hypothesis>=6.100,<7",
            "ruff>=0.17,<0.18",
            "jsonschema>=4.20,<5",
            "nbclient>=0.10,<1",
            "ipykernel>=6.29,<8",
        ],
    },
    entry_points={"console_scripts": ["rt-keras = rt_keras.__main__:run"]},
    classifiers=[
        "License :: OSI Approved :: Apache Software License",
        "Programming Language :: Python :: 3.11",
        "Topic :: Scientific/Engineering :: Artificial Intelligence",
    ],
)
