"""Kernels in CUDA C++, compiled by NVRTC, which comes with torch."""

import ctypes
import logging
from collections.abc import Iterable, Mapping, Sequence
from contextlib import suppress
from ctypes import POINTER, Structure, byref, c_float, c_int, c_size_t, c_uint32, c_uint64, c_void_p
from functools import cache
from hashlib import sha256
from pathlib import Path
from typing import Any

import torch
from torch import Tensor

from paceline.core.errors import ConfigError
from paceline.core.system.files import found, stored
from paceline.runner.cuda.kernels.dry_run import present
from paceline.runner.weights.renewal import AddressHolder

MARKER = "// multiply\n"


def multiply(
    name: str,
    columns: int,
    is_held: bool = False,
    is_transposed: bool = False,
    is_fp8: bool = False,
) -> str:
    """sums[64 rows, columns] (+)= rows[64, 16] by lines of shared memory; rows[64, 32] of fp8.

    Rows are in shared memory too, or in registers. A line is a column of the sums; transposed, it
    is one of the 16 that are summed over. Lines of fp8 cannot be transposed.
    """
    count = columns // 2  # of a thread
    sums = ", ".join(f"%{i}" for i in range(count))
    given = ", ".join(f'"+f"(sums[{i}])' for i in range(count))
    if is_held:
        kind, parts, flags = "const u32 (&rows)[4]", 4, f"1, 1, {int(is_transposed)}"
        rows = "{" + ", ".join(f"%{count + i}" for i in range(parts)) + "}"
        given += " : " + ", ".join(f'"r"(rows[{i}])' for i in range(parts))
    else:
        kind, parts, flags = "u64 rows", 1, f"1, 1, 0, {int(is_transposed)}"
        rows = f"%{count}"
        given += ' : "l"(rows)'
    lines, is_sum = count + parts, count + parts + 1
    depth, types = ("k32", "e4m3.e4m3") if is_fp8 else ("k16", "bf16.bf16")
    flags = "1, 1" if is_fp8 else flags
    return f"""
__device__ __forceinline__ void {name}(float (&sums)[{count}], {kind}, u64 lines, int is_sum) {{
  asm volatile(
      "{{.reg .pred p; setp.ne.b32 p, %{is_sum}, 0;"
      "wgmma.mma_async.sync.aligned.m64n{columns}{depth}.f32.{types}"
      " {{{sums}}}, {rows}, %{lines}, p, {flags};}}"
      : {given}, "l"(lines), "r"(is_sum));
}}
"""


log = logging.getLogger(__name__)
SHARED_BYTES = 225 << 10  # of shared memory, without barriers and a few numbers
ALIGNED = 1024  # buffers in shared memory start at multiples of it
CAPABILITY = (9, 0)
FLAGS = [b"--gpu-architecture=sm_90a", b"--std=c++17"]
# Constants of the driver API.
KINDS = {torch.bfloat16: 9, torch.float8_e4m3fn: 0, torch.uint8: 0}  # fp8 is copied as bytes
SWIZZLE_128, PROMOTE_256, SHARED_MEMORY, CLUSTER, MAY_START_EARLY = 3, 3, 8, 4, 6
MAP_BYTES, MAP_ALIGNED = 128, 64


class LaunchAttribute(Structure):
    _fields_ = [("id", c_int), ("_", c_int), ("value", c_uint32 * 16)]


class LaunchConfig(Structure):
    _fields_ = [
        *((name, c_uint32 * 3) for name in ("grid", "block")),
        ("shared", c_uint32),
        ("stream", c_void_p),
        ("attributes", POINTER(LaunchAttribute)),
        ("attribute_count", c_uint32),
    ]


class TensorMap(AddressHolder):
    """A tensor map for the TMA: a tensor in bfloat16, fp8 or bytes, and the box that one copy
    fetches. What is outside the tensor is zero.

    Rows of a box are swizzled, so that eight of them can be read at once; or they are adjacent.
    """

    def __init__(self, tensor: Tensor, box: Sequence[int], is_swizzled: bool = True) -> None:
        kind = KINDS[tensor.dtype]
        assert tensor.stride(-1) == 1
        self._memory = ctypes.create_string_buffer(MAP_BYTES + MAP_ALIGNED)
        start = ctypes.addressof(self._memory)
        self.address = -(-start // MAP_ALIGNED) * MAP_ALIGNED
        encode, rank = _driver().cuTensorMapEncodeTiled, tensor.ndim
        encode.argtypes = [c_void_p, c_int, c_uint32, *[c_void_p] * 5, *[c_int] * 4]
        strides = [stride * tensor.element_size() for stride in tensor.stride()[-2::-1]]
        where = (
            tensor.data_ptr(),
            (c_uint64 * rank)(*reversed(tensor.shape)),
            (c_uint64 * (rank - 1))(*strides),
            (c_uint32 * rank)(*reversed(box)),
            (c_uint32 * rank)(*[1] * rank),
        )
        how = (0, SWIZZLE_128 if is_swizzled else 0, PROMOTE_256, 0)
        _expect(encode(self.address, kind, rank, *where, *how), "a tensor map")


Argument = Tensor | TensorMap | int | float


class Kernel:
    """A CUDA function that may start before the previous kernel has ended."""

    def __init__(self, source: str, name: str, threads: int, shared: int, cluster: int = 1) -> None:
        """`shared` bytes of shared memory; programs start in clusters of `cluster`."""
        self._source, self._name = source, name
        self._function: c_void_p | None = None  # None: it is not loaded yet
        self._threads, self._shared = threads, shared
        self._attributes = (LaunchAttribute * 2)()
        self._attributes[0].id, self._attributes[1].id = CLUSTER, MAY_START_EARLY
        self._attributes[0].value[:3] = cluster, 1, 1
        self._attributes[1].value[0] = 1

    @property
    def is_loaded(self) -> bool:
        return self._function is not None

    def load(self) -> c_void_p:
        """Compile it, unless that was done, and load it. ConfigError if it cannot be."""
        module, function = c_void_p(), c_void_p()
        _expect(_driver().cuModuleLoadData(byref(module), _compiled(self._source)), "a module")
        found = _driver().cuModuleGetFunction(byref(function), module, self._name.encode())
        _expect(found, f"a function {self._name}")
        set_ = _driver().cuFuncSetAttribute(function, SHARED_MEMORY, self._shared)
        _expect(set_, f"{self._shared} bytes of shared memory")
        self._function = function
        return function

    def launch(
        self, programs: int, arguments: Sequence[Argument], shared: int | None = None
    ) -> None:
        """With `shared` bytes of shared memory, if fewer than the most will do."""
        if present() is not None:
            expect([self])
            return
        function = self._function
        if function is None:
            function = self.load()
        values: list[Any] = []
        for argument in arguments:
            if isinstance(argument, TensorMap):
                values.append((ctypes.c_char * MAP_BYTES).from_address(argument.address))
            elif isinstance(argument, Tensor):
                values.append(c_void_p(argument.data_ptr()))
            else:
                values.append(c_float(argument) if isinstance(argument, float) else c_int(argument))
        pointers = (c_void_p * len(values))(*map(ctypes.addressof, values))
        launch = LaunchConfig(
            (programs, 1, 1),
            (self._threads, 1, 1),
            self._shared if shared is None else shared,
            torch.cuda.current_stream().cuda_stream,
            self._attributes,
            len(self._attributes),
        )
        status = _driver().cuLaunchKernelEx(byref(launch), function, pointers, None)
        if status:
            raise RuntimeError(f"a CUDA kernel cannot be launched: {_error_text(status)}")


def expect(kernels: Iterable[Kernel]) -> None:
    """In a dry run, have kernels loaded, also those that only other numbers of rows need."""
    if (dry := present()) is not None:
        for kernel in kernels:
            if not kernel.is_loaded:
                dry.load(id(kernel), kernel.load)


def source_of(name: str, sizes: Mapping[str, int | str], instructions: str, *parts: str) -> str:
    """Return the source of a kernel: its sizes, the common parts, its code and instructions."""
    defined = "".join(f"#define {size} {value}\n" for size, value in sizes.items())
    folder = Path(__file__).parent
    texts = [
        (folder / f"{part}.cu").read_text(encoding="utf-8") for part in ("common", *parts, name)
    ]
    return defined + "".join(texts).replace(MARKER, instructions)


@cache
def can_compile(device: torch.device) -> bool:
    """Whether the GPU supports our kernels, and NVRTC and the driver can compile and load them."""
    if device.type != "cuda" or torch.cuda.get_device_capability(device) != CAPABILITY:
        return False
    torch.cuda.synchronize(device)  # creates a context, which the driver needs
    try:
        Kernel('extern "C" __global__ void probe() {}', "probe", 32, SHARED_BYTES).load()
    except (ConfigError, OSError) as error:
        log.info("CUDA kernels are not used: %s", error)
        return False
    return True


def _error_text(status: int) -> str:
    text = ctypes.c_char_p()
    _driver().cuGetErrorString(status, byref(text))
    return (text.value or b"?").decode()


def _expect(status: int, what: str) -> None:
    if status:
        raise ConfigError(f"the CUDA driver rejects {what}: {_error_text(status)}")


@cache
def _driver() -> ctypes.CDLL:
    return ctypes.CDLL("libcuda.so.1")


@cache
def _compiler() -> ctypes.CDLL:
    """NVRTC, from the CUDA toolkit or from the packages beside torch."""
    name = f"libnvrtc.so.{(torch.version.cuda or '0').partition('.')[0]}"
    beside = sorted(Path(torch.__file__).parents[1].glob(f"nvidia/*/lib/{name}"))
    for candidate in (name, *map(str, beside)):
        try:
            return ctypes.CDLL(candidate)
        except OSError:
            continue
    raise ConfigError(f"CUDA kernels need the compiler library {name}, which was not found")


def _compiled(source: str) -> bytes:
    """Compile, or read the result from the cache folder."""
    major, minor = c_int(), c_int()
    _compiler().nvrtcVersion(byref(major), byref(minor))
    by = f"{major.value}.{minor.value}".encode()
    digest = sha256(b"\n".join([source.encode(), by, *FLAGS])).hexdigest()[:16]
    path = Path("cuda") / f"{digest}.cubin"
    if there := found(path):
        return there.read_bytes()
    compiled = _compile(source)

    def write(path: Path) -> None:
        path.write_bytes(compiled)

    with suppress(OSError):  # a disk that is full: the next start compiles again
        stored(path, write)
    return compiled


def _compile(source: str) -> bytes:
    compiler, program, size = _compiler(), c_void_p(), c_size_t()
    made = compiler.nvrtcCreateProgram(byref(program), source.encode(), b"kernel.cu", 0, None, None)
    if made:
        raise ConfigError(f"NVRTC cannot create a program: error {made}")
    try:
        flags = (ctypes.c_char_p * len(FLAGS))(*FLAGS)
        if compiler.nvrtcCompileProgram(program, len(FLAGS), flags):
            compiler.nvrtcGetProgramLogSize(program, byref(size))
            message = ctypes.create_string_buffer(size.value)
            compiler.nvrtcGetProgramLog(program, message)
            raise ConfigError(f"a CUDA kernel does not compile: {message.value.decode()}")
        compiler.nvrtcGetCUBINSize(program, byref(size))
        found = ctypes.create_string_buffer(size.value)
        if compiler.nvrtcGetCUBIN(program, found) or not size.value:
            raise ConfigError("NVRTC compiled a kernel but returned no binary")
        return found.raw
    finally:
        compiler.nvrtcDestroyProgram(byref(program))
