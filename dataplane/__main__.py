"""`python -m dataplane`: the same as the `dataplane` command."""

from dataplane.cli import main

if __name__ == "__main__":
    main()
