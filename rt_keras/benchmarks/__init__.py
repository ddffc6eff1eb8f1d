"""Benchmarks of speed, memory and quality against the alternatives.

The commands of `rt-keras benchmark`:
- `speed.py`: time and memory of attention, training steps and generation.
- `quality.py`: tasks that small models learn with different heads.
- `pretrained.py`: the cost of other heads in a pretrained language model.
- `hands.py`: what a person waits for with a pretrained language model.
- `compare.py`: trained configurations in one table.

Shared modules:
- `workers.py`: processes that take turns, their time and memory.
- `runs.py`: processes for measurements, files of figures, options and columns.
- `machine.py`: a description of the machine, and the memory of a process.
"""
