"""`python -m leafage`."""

import sys

from leafage.cli import main

sys.exit(main())
