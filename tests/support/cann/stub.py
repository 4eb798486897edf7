"""Libraries under the names of CANN's that define what torch_npu links against and do nothing; made by gcc from a generated file."""

import ctypes
import re
import shutil
from collections.abc import Iterable
from importlib.util import find_spec
from pathlib import Path

from tests.cluster import cache
from tests.cluster.errors import UnavailableError
from tests.cluster.shell import run
from tests.support.cann.wheel import torch_npu

_SYSTEM = ("libc.so.6", "libm.so.6", "libpthread.so.0", "libdl.so.2", "librt.so.1", "libgcc_s.so.1", "libstdc++.so.6")
# What torch_npu asks while it is imported; everything else answers 0, which is success.
_ANSWERS = {
    "aclGetRecentErrMsg": "const char* aclGetRecentErrMsg(void) { return NULL; }",
    "aclrtGetDevice": "int aclrtGetDevice(int* id) { *id = 0; return 0; }",
    "aclrtGetDeviceCount": "int aclrtGetDeviceCount(unsigned* count) { *count = 1; return 0; }",
    "aclrtGetSocName": 'const char* aclrtGetSocName(void) { return "Ascend910B3"; }',  # looked up by name, so the linker doesn't miss it
}


def cann_stub() -> Path:
    """The folder to put on LD_LIBRARY_PATH."""
    wheel = torch_npu()
    key = cache.content_key(wheel.name, Path(__file__))
    return cache.artefact("cann-stub", key, lambda draft: _build(draft, wheel))


def missing_symbols(wheel: Path) -> list[str]:
    """What torch_npu's libraries take from elsewhere and neither torch, nor Python, nor the system defines."""
    libraries = _libraries(wheel)
    found = _torch_libraries()
    wanted = _symbols(libraries, "U") - _symbols([*libraries, *found], "TDBRVWiu")
    system = [ctypes.pythonapi, *(ctypes.CDLL(name) for name in _SYSTEM)]
    return sorted(name for name in wanted if not any(hasattr(library, name) for library in system))


def needed_libraries(wheel: Path) -> set[str]:
    """Names of the shared libraries that torch_npu links against and that nobody has."""
    listed = run("readelf", "-d", *_libraries(wheel))
    names = set(re.findall(r"\(NEEDED\).*\[(.+)\]", listed))
    there = {path.name for path in [*_libraries(wheel), *_torch_libraries()]}
    return {name for name in names - there - set(_SYSTEM) if not name.startswith("ld-linux")}


def _build(folder: Path, wheel: Path) -> None:
    absent = [program for program in ("gcc", "nm", "readelf") if shutil.which(program) is None]
    if absent:
        raise UnavailableError(
            f"not installed: {', '.join(absent)}. Tests of NPU operators make a stand-in for CANN with gcc. Debian: `apt-get install gcc`"
        )
    folder.mkdir()
    names = sorted({*missing_symbols(wheel), *_ANSWERS})
    source = folder / "stub.c"
    source.write_text("#include <stddef.h>\n" + "".join(f"{_ANSWERS.get(name, f'int {name}(void) {{ return 0; }}')}\n" for name in names))
    # -fno-builtin: nothing here has the type that the compiler may know the name by.
    run("gcc", "-shared", "-fPIC", "-fno-builtin", "-o", folder / "libascendcl.so", source)
    empty = folder / "empty.c"
    empty.touch()
    for name in needed_libraries(wheel) - {"libascendcl.so"}:
        run("gcc", "-shared", "-o", folder / name, empty)


def _libraries(wheel: Path) -> list[Path]:
    return [*wheel.glob("torch_npu/lib/*.so"), *wheel.glob("torch_npu/_C*.so")]


def _torch_libraries() -> list[Path]:
    spec = find_spec("torch")  # not imported: this runs in a process that needs no torch
    assert spec is not None
    assert spec.origin is not None
    return [path for path in (Path(spec.origin).parent / "lib").glob("*.so*") if "cuda" not in path.name]


def _symbols(libraries: Iterable[Path], kinds: str) -> set[str]:
    """Names in the dynamic symbol tables whose kind, nm's letter, is one of these."""
    lines = run("nm", "-D", *libraries, env={"LC_ALL": "C"}).splitlines()
    words = (line.split() for line in lines)
    return {parts[-1].partition("@")[0] for parts in words if len(parts) >= 2 and parts[-2] in kinds}
