"""`python -m rlvr_cli` is the same as `rlvr`."""

from rlvr_cli.cli.app import main

if __name__ == "__main__":
    main()
