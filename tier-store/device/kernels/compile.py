"""Compiles the kernels to PTX with the pinned NVRTC, which needs neither a GPU nor a driver.

    pip install -r tests/python/requirements.txt
    python tier-store/device/kernels/compile.py           writes scan.ptx
    python tier-store/device/kernels/compile.py --check   fails if scan.ptx is not what the compiler makes of the texts

A newer NVRTC writes PTX that drivers of CUDA 13.0 refuse.
"""

import ctypes
import importlib.util
import sys
from pathlib import Path

FOLDER = Path(__file__).resolve().parent
SOURCE, PTX, HEADERS = FOLDER / "scan.c", FOLDER / "scan.ptx", ["kernel.h", "program.h"]
OPTIONS = [b"--gpu-architecture=compute_75", b"--std=c++17"]


def nvrtc():
    """The compiler's library, from the Python package."""
    spec = importlib.util.find_spec("nvidia.cu13")
    if spec is None:
        sys.exit("the package nvidia-cuda-nvrtc is missing: pip install -r tests/python/requirements.txt")
    folder = Path(list(spec.submodule_search_locations)[0]) / "lib"
    ctypes.CDLL(str(folder / "libnvrtc-builtins.so.13.0"))  # the other one looks for it by its name
    return ctypes.CDLL(str(folder / "libnvrtc.so.13"))


def compile_ptx():
    """PTX of the kernels. Ends the program with the compiler's messages if it refuses the text."""
    library = nvrtc()
    program = ctypes.c_void_p()
    names = (ctypes.c_char_p * len(HEADERS))(*[name.encode() for name in HEADERS])
    texts = (ctypes.c_char_p * len(HEADERS))(*[(FOLDER / name).read_bytes() for name in HEADERS])
    status = library.nvrtcCreateProgram(
        ctypes.byref(program), SOURCE.read_bytes(), SOURCE.name.encode(), len(HEADERS), texts, names
    )
    if status != 0:
        sys.exit(f"nvrtcCreateProgram: status {status}")
    status = library.nvrtcCompileProgram(program, len(OPTIONS), (ctypes.c_char_p * len(OPTIONS))(*OPTIONS))
    if status != 0:
        size = ctypes.c_size_t()
        library.nvrtcGetProgramLogSize(program, ctypes.byref(size))
        log = ctypes.create_string_buffer(size.value)
        library.nvrtcGetProgramLog(program, log)
        sys.exit(log.value.decode())
    size = ctypes.c_size_t()
    library.nvrtcGetPTXSize(program, ctypes.byref(size))
    ptx = ctypes.create_string_buffer(size.value)
    library.nvrtcGetPTX(program, ptx)
    return ptx.value


if __name__ == "__main__":
    made = compile_ptx()
    if "--check" in sys.argv:
        if made != PTX.read_bytes():
            sys.exit(f"{PTX} is not what the compiler makes of {SOURCE.name}: run {Path(__file__).name}")
    else:
        PTX.write_bytes(made)
