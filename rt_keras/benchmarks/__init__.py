"""Speed, memory and learning, beside what a user would pick instead.

The commands of `rt-keras benchmark`:
- `attention.py`: time and memory of every kind of attention.
- `model.py`: whole training steps, and their input pipeline.
- `decode.py`: generation.
- `input.py`: text that is packed and read, and training that starts at a late step.
- `quality/`: what models with different heads learn.
- `approximate/`: what trained models lose when other heads take the place of full attention.
- `pretrained/`: what other heads cost a pretrained language model.
- `compare.py`: two files of figures.
- `plot.py`: time and memory against the length, with slopes.

What they share:
- `kinds.py`, `models.py`, `input_pipeline.py`: what of ours is measured, ready to run.
- `rivals.py`, `rival_models.py`: the same of other packages.
- `operations.py`: the operations that attention needs, and the speed of the machine.
- `workers.py`, `timing.py`, `memory.py`: processes that take turns, their time and memory.
- `machine.py`: a description of the machine.
- `options.py`: options that several commands have.
"""
