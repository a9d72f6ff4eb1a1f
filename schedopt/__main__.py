"""``python -m schedopt``."""

from schedopt.cli import main

if __name__ == "__main__":
    main()
