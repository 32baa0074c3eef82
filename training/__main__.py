"""`python -m training` for one rank, `torchrun -m training` for several.

The environment is read here and nowhere else. Signals are noted, and the launcher is followed, from
the first moment: the imports that a rank needs take seconds.
"""

import os
import sys

from training.signals import StopRequest, die_with_parent

if __name__ == "__main__":
    if "TORCHELASTIC_RUN_ID" in os.environ:
        die_with_parent()
    with StopRequest() as stop:
        from training.rank import main

        sys.exit(main(sys.argv[1:], os.environ, stop))
