"""Speed and memory, side by side with what a user would pick instead; and learning.

Commands of `rt-keras benchmark`:
- `attention.py`: time and memory of every kind of attention.
- `model.py`: whole training steps, and the pipeline of their input.
- `decode.py`: generation.
- `recall.py`: which kinds of heads learn to repeat what lies far back.
- `compare.py`: two files of figures.
- `plot.py`: time and memory against the length, with slopes.

What they are made of:
- `kinds.py`, `models.py`, `input_pipeline.py`: what of ours is measured, ready to run.
- `rivals.py`, `rival_models.py`: other packages, likewise.
- `operations.py`: the operations that attention needs, and the rate of the machine.
- `workers.py`, `timing.py`, `memory.py`: processes that take turns, and what they take.
- `machine.py`: the machine, in words.
- `options.py`: what the commands have in common.
"""
