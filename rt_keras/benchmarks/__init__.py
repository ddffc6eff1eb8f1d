"""Benchmarks of speed, memory and quality against the alternatives.

The commands of `rt-keras benchmark`:
- `attention.py`: time and memory of each kind of attention.
- `model.py`: training steps and their input pipeline.
- `decode.py`: generation.
- `input.py`: packing and reading text, and resuming training at a late step.
- `repetition.py`: recall of a passage that was read long ago.
- `quality/`: tasks that small models learn with different heads.
- `retrieval.py`: retrievers beside BM25.
- `answers.py`: answers from passages, beside controls.
- `pretrained/`: quality of a pretrained model with other heads.
- `compare.py`: comparison of two result files.
- `plot.py`: time and memory by length, with slopes.

Shared modules:
- `kinds.py`, `models.py`, `input_pipeline.py`: contenders of this package.
- `rivals.py`, `rival_models.py`: contenders of other packages.
- `operations.py`: operation counts of attention, and the speed of the machine.
- `workers.py`, `timing.py`, `memory.py`: processes that take turns, their time and memory.
- `machine.py`: a description of the machine.
- `options.py`: options, results and table columns.
"""
