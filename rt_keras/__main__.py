"""`python -m rt_keras` is `rt-keras`."""

import sys

from rt_keras.cli import main

sys.exit(main())
