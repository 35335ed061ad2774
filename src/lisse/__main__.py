"""``python -m lisse``: the command line, also where the ``lisse`` script is not on the path."""

from lisse.cli import main

if __name__ == "__main__":
    main()
