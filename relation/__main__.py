"""`python -m relation`: see `python -m relation --help`."""

import sys

from relation.cli import main

sys.exit(main())
