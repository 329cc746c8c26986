"""`python -m understudy_cli`."""

import sys

from understudy_cli.entry import main

if __name__ == "__main__":
    sys.exit(main())
