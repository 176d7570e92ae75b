"""Content-addressed kernel files: generated source in, machine code out.

Numba caches machine code beside a source file, so each distinct source becomes
a file named by its digest.  A second process finds the file and its compiled
code and compiles nothing.
"""

import hashlib
import os
import stat
import sys
import tempfile
import threading
import types
from collections.abc import Sequence
from dataclasses import dataclass
from functools import cache
from pathlib import Path
from typing import Any

import llvmlite
import numba

from fusion_search.codegen.rt import target

_PREFIX = "fusion_search_kernel_"
_lock = threading.RLock()
_modules: dict[tuple[str, str], types.ModuleType] = {}
_counts = {"compiled": 0, "cached": 0, "files": 0, "rewritten": 0}


@dataclass(frozen=True)
class LoaderStats:
    """What the loader did in this process.

    Attributes
    ----------
    compiled : int
        Kernels compiled by LLVM.
    cached : int
        Kernels loaded from the disk cache.
    files : int
        Kernel files executed.
    rewritten : int
        Files found with a foreign content and replaced.
    """

    compiled: int
    cached: int
    files: int
    rewritten: int


def stats() -> LoaderStats:
    """Return the counters of this process so far."""
    with _lock:
        return LoaderStats(**_counts)


def default_directory() -> Path:
    """Return the user's kernel directory, by the XDG rules."""
    base = os.environ.get("XDG_CACHE_HOME", "")
    root = Path(base) if os.path.isabs(base) else Path.home() / ".cache"
    return root / "fusion_search" / "kernels"


@cache
def _environment() -> str:
    """Return everything besides the source that machine code depends on."""
    digest = hashlib.sha256()
    # Helpers are inlined into the kernels but invisible to Numba's cache: the
    # text of this package is its version.
    for path in sorted(Path(__file__).parent.glob("*.py")):
        digest.update(path.name.encode() + b"\0" + path.read_bytes() + b"\0")
    parts = (
        numba.__version__,
        llvmlite.__version__,
        sys.version,
        target.cpu_name(),
        target.feature_flags(),
        digest.hexdigest(),
    )
    return "\0".join(parts)


def digest_of(source: str) -> str:
    """Return the digest that names the kernel file of `source`."""
    return hashlib.sha256((_environment() + "\0" + source).encode()).hexdigest()


def _prepare(directory: Path) -> None:
    """Create a private directory; refuse one that others can write to.

    The cache holds code that will be executed, so another user's directory
    cannot be used.
    """
    directory.mkdir(mode=0o700, parents=True, exist_ok=True)
    if not hasattr(os, "getuid"):
        return
    info = directory.stat()
    if info.st_uid != os.getuid():
        raise PermissionError(f"kernel directory {directory} belongs to another user")
    if info.st_mode & (stat.S_IWGRP | stat.S_IWOTH):
        directory.chmod(0o700)


def _ensure_file(path: Path, content: bytes) -> None:
    """Make `path` hold exactly `content`, atomically."""
    try:
        if not path.is_symlink() and path.read_bytes() == content:
            return
        _counts["rewritten"] += 1
        _drop_compiled(path)
    except FileNotFoundError:
        pass
    handle, temporary = tempfile.mkstemp(dir=path.parent, prefix=".tmp_", suffix=".py")
    try:
        with os.fdopen(handle, "wb") as stream:
            stream.write(content)
        os.replace(temporary, path)
    except BaseException:
        Path(temporary).unlink(missing_ok=True)
        raise


def _drop_compiled(path: Path) -> None:
    """Remove Numba's compiled code of one kernel file."""
    for entry in (path.parent / "__pycache__").glob(f"{path.stem}.*"):
        if entry.suffix in (".nbi", ".nbc"):
            entry.unlink(missing_ok=True)


def _execute(path: Path, source: str) -> types.ModuleType:
    module = types.ModuleType(path.stem)
    module.__file__ = str(path)
    # Numba pickles kernels by module name: a cached load without this entry
    # fails.
    sys.modules[path.stem] = module
    try:
        exec(compile(source, str(path), "exec"), module.__dict__)
    except BaseException:
        sys.modules.pop(path.stem, None)
        raise
    return module


def _load_module(source: str, directory: Path) -> types.ModuleType:
    name = _PREFIX + digest_of(source)[:40]
    key = (name, str(directory))
    module = _modules.get(key)
    if module is not None:
        return module
    _prepare(directory)
    path = directory / f"{name}.py"
    _ensure_file(path, source.encode())
    try:
        module = _execute(path, source)
    except Exception:  # noqa: BLE001
        # Compiled code cut short by a crash or a full disk raises anything at
        # all when unpickled.  A real error in the source comes back below.
        _drop_compiled(path)
        module = _execute(path, source)
    _modules[key] = module
    _counts["files"] += 1
    for value in vars(module).values():
        hits = getattr(value, "cache_hits", None)
        if hits is not None and hasattr(value, "address"):
            _counts["cached" if hits else "compiled"] += 1
    return module


def load(source: str, names: Sequence[str], directory: str | os.PathLike[str] | None = None) -> dict[str, int]:
    """Compile a kernel file, or load it from the disk cache.

    Parameters
    ----------
    source : str
        Python source that defines the kernels, each a
        ``@cfunc(KERNEL_SIGNATURE, cache=True, error_model="numpy")``.
    names : sequence of str
        Kernels wanted.
    directory : path-like, optional
        Kernel directory; by default the user's (`default_directory`).

    Returns
    -------
    dict of str to int
        Address of each kernel.  It stays valid until the process ends.

    Raises
    ------
    PermissionError
        If the directory belongs to another user.
    KeyError
        If the source does not define one of `names`.
    """
    where = Path(directory) if directory is not None else default_directory()
    with _lock:
        module = _load_module(source, where.absolute())
        namespace: dict[str, Any] = vars(module)
        return {name: int(namespace[name].address) for name in names}


@cache
def load_own(module: str, name: str) -> int:
    """Return the address of a kernel in a file of this package.

    Loaded like generated source: Numba's own cache looks at one file only and
    would keep machine code when a helper in another file changes.

    Parameters
    ----------
    module : str
        File name without its ending.
    name : str
        The kernel.
    """
    source = (Path(__file__).parent / f"{module}.py").read_text(encoding="utf-8")
    return load(source, [name])[name]
