"""Compile ``src/ndfeed/cuda/kernels.cu`` into ``kernels.ptx``, which the driver of any GPU takes.

    pip install nvidia-cuda-nvrtc-cu11
    python tests/cuda/compile_kernels.py

An old compiler, so that old drivers take what it makes: PTX 7.8 for sm_70 and later, since CUDA
11.8. Its first line has a digest of the source, which a test compares.
"""

import ctypes
import hashlib
import importlib.util
from pathlib import Path

FOLDER = Path(__file__).parents[2] / "src" / "ndfeed" / "cuda"
SOURCE, COMPILED = FOLDER / "kernels.cu", FOLDER / "kernels.ptx"


def digest():
    """The first line of what was compiled from the source as it is."""
    return f"// of kernels.cu {hashlib.blake2b(SOURCE.read_bytes(), digest_size=16).hexdigest()}"


def compiled():
    """What NVRTC makes of the source."""
    (folder,) = importlib.util.find_spec("nvidia.cuda_nvrtc").submodule_search_locations
    library = ctypes.CDLL(str(next(Path(folder, "lib").glob("libnvrtc.so*"))))
    program, size = ctypes.c_void_p(), ctypes.c_size_t()
    source = SOURCE.read_bytes()
    assert not library.nvrtcCreateProgram(
        ctypes.byref(program), source, b"kernels.cu", 0, None, None
    )
    options = (ctypes.c_char_p * 1)(b"--gpu-architecture=compute_70")
    failed = library.nvrtcCompileProgram(program, 1, options)
    what = "ProgramLog" if failed else "PTX"
    getattr(library, f"nvrtcGet{what}Size")(program, ctypes.byref(size))
    text = ctypes.create_string_buffer(size.value)
    getattr(library, f"nvrtcGet{what}")(program, text)
    assert not failed, text.value.decode()
    return text.value.decode()


if __name__ == "__main__":
    COMPILED.write_text(f"{digest()}\n{compiled()}")
