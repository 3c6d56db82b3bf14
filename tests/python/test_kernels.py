"""The PTX of the kernels is what the pinned compiler makes of their texts."""

import subprocess
import sys
from pathlib import Path

KERNELS = Path(__file__).resolve().parents[2] / "tier-store/device/kernels"


def compile_kernels(folder, *arguments):
    """Runs the script on the texts in a folder."""
    command = [sys.executable, folder / "compile.py", *arguments]
    return subprocess.run(command, capture_output=True, text=True, timeout=120)


def copied(folder):
    """A copy of the kernels."""
    for file in KERNELS.iterdir():
        (folder / file.name).write_bytes(file.read_bytes())
    return folder


def test_ptx_is_made_of_the_texts():
    run = compile_kernels(KERNELS, "--check")
    assert run.returncode == 0, run.stderr


def test_another_text_is_noticed(tmp_path):
    folder = copied(tmp_path)
    text = (folder / "scan.c").read_text()
    (folder / "scan.c").write_text(text.replace("first <= span", "first < span"))
    run = compile_kernels(folder, "--check")
    assert run.returncode == 1 and "is not what the compiler makes of scan.c" in run.stderr
    assert compile_kernels(folder).returncode == 0
    assert compile_kernels(folder, "--check").returncode == 0


def test_errors_of_the_compiler_are_shown(tmp_path):
    folder = copied(tmp_path)
    (folder / "scan.c").write_text("KERNEL(scan, 1, Program) { nothing; }")
    run = compile_kernels(folder)
    assert run.returncode == 1 and "error" in run.stderr and "KERNEL" in run.stderr, run.stderr
