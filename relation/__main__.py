"""`python -m relation`: see `python -m relation --help`."""

import sys
from importlib.util import find_spec

if not find_spec("pandas"):
    sys.exit("error: commands need more packages: `make setup`, or `pip install '.[pipeline]'`")
from relation.cli import main

sys.exit(main())
