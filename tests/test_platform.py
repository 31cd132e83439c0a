"""A system without the locks that dpfc needs is named at once."""

import subprocess
import sys


def test_windows_is_named_as_the_reason() -> None:
    program = "import sys; sys.modules['fcntl'] = None; import dpfc_cli"
    ended = subprocess.run([sys.executable, "-c", program], check=False, capture_output=True, text=True)
    assert ended.returncode == 1
    assert ended.stderr.splitlines()[-1].startswith("ImportError: dpfc runs on Linux and macOS. On Windows, install it")
    assert "No module named" not in ended.stderr
