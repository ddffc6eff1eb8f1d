"""What a training step costs on Cloud TPU, found without one; see `docs/guides/cloud_tpu.md`.

- `check.py`: lowers a configuration's training step and has it compiled.
- `step.py`: the training step as one function of static shapes.
- `compile.py`: a process that runs the TPU compiler.
- `kernels.py`: lowers a function with the kernels of TPUs.
"""
