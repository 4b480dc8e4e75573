"""This module runs the command line as `python -m edgeplan`."""

from edgeplan.cli import main

if __name__ == "__main__":
    main()
