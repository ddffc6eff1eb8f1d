"""Cost of a training step on Cloud TPU, computed without a TPU; see `docs/guides/cloud_tpu.md`.

- `check.py`: lowers and compiles a configuration's training step.
- `step.py`: the training step as one function of static shapes.
- `compile.py`: a process that runs the TPU compiler.
- `kernels.py`: lowers a function with the kernels of TPUs.
"""
