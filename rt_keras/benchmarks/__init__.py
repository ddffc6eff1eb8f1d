"""Speed and memory, side by side with what a user would pick instead.

- `attention.py`: the command `rt-keras benchmark attention`.
- `kinds.py`: the kinds of attention that it compares, compiled and ready to run.
- `timing.py`: times of functions that take turns.
- `memory.py`: peak memory of a function in a process of its own.
- `machine.py`: the machine, in words.
- `plot.py`: time and memory against the length, with slopes.
"""
