from __future__ import annotations

import subprocess
import sys

from schedopt.checking import Violation


def test_the_check_shares_no_code_with_the_account() -> None:
    code = (
        "import sys, schedopt.checking; "
        "print([name for name in sys.modules if name.startswith('schedopt.account')])"
    )
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert done.stdout.strip() == "[]"


def test_a_violation_is_one_line() -> None:
    assert str(Violation("overlap", "GPU 3", "two at a time")) == "overlap: GPU 3: two at a time"
