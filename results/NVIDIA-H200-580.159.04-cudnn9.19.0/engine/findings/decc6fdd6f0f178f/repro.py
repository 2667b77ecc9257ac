#!/usr/bin/env python3
"""Standalone reproducer of a wrong result of cuDNN. Needs NumPy, CUDA's runtime
and cuDNN; no compiler.

  fwd c=1 k=1 in=3 ker=1 fill=overflow:0 via=engine:4

Seen on NVIDIA H200, driver 580.159.04, cuDNN 9.19.0.
Run in this folder: python3 repro.py [path of libcudnn.so.9 [of libcudart.so]]
Exit code: 0 right, 1 wrong, 2 this cuDNN declines the candidate, 3 could not run.
"""
import ctypes
import sys

import numpy as np

CUDNN_NAMES = ["libcudnn.so.9", "libcudnn.so.8", "libcudnn.so"]
CUDART_NAMES = ["libcudart.so.13", "libcudart.so.12", "libcudart.so"]
executing = False


def load(names):
    for name in names:
        try:
            return ctypes.CDLL(name, mode=ctypes.RTLD_GLOBAL)
        except OSError as error:
            last = error
    print(f"cannot load {names[0]}: {last}; give its path as an argument")
    sys.exit(3)


cudnn = load(sys.argv[1:2] or CUDNN_NAMES)
cudart = load(sys.argv[2:3] or CUDART_NAMES)
cudnn.cudnnGetVersion.restype = ctypes.c_size_t
cudnn.cudnnGetErrorString.restype = ctypes.c_char_p


def call(name, *arguments):
    """Calls cuDNN. A refusal is no fault; a failing execution is."""
    status = getattr(cudnn, name)(*arguments)
    if status == 0:
        return
    print(f"{name}: {cudnn.cudnnGetErrorString(status).decode()} ({status})")
    refused = status == 9 or 3000 <= status < 4000
    sys.exit(2 if refused and not executing else 1 if executing else 3)


def cuda(name, *arguments):
    status = getattr(cudart, name)(*arguments)
    if status != 0:
        print(f"{name}: CUDA error {status}")
        sys.exit(1 if executing else 3)


def device(array):
    """A copy of an array in device memory."""
    pointer = ctypes.c_void_p()
    if array.nbytes == 0:
        return pointer
    cuda("cudaMalloc", ctypes.byref(pointer), ctypes.c_size_t(array.nbytes))
    source = array.ctypes.data_as(ctypes.c_void_p)
    cuda("cudaMemcpy", pointer, source, ctypes.c_size_t(array.nbytes), 1)
    return pointer


class Tensor:
    def __init__(self, file, dtype, width, dims, strides):
        self.file, self.dtype, self.width = file, dtype, width
        self.dims, self.strides = dims, strides
        # NumPy of the raw bits; bfloat16 is not one of its types.
        self.bits = np.dtype({2: "u2", 4: "u4", 8: "u8"}[width])

    def in_memory(self, logical):
        """Logical order to the order of the strides."""
        memory = np.empty(logical.size, logical.dtype)
        strides = [s * self.width for s in self.strides]
        np.lib.stride_tricks.as_strided(memory, self.dims, strides)[...] = logical.reshape(self.dims)
        return memory

    def logical(self, memory):
        strides = [s * self.width for s in self.strides]
        return np.lib.stride_tricks.as_strided(memory, self.dims, strides).copy()

    def load(self):
        return self.in_memory(np.load(self.file).view(self.bits))

    def values(self, logical):
        """Bits as double precision."""
        if self.dtype == 9:
            return (logical.astype(np.uint32) << 16).view(np.float32).astype(np.float64)
        kind = {0: np.float32, 1: np.float64, 2: np.float16}[self.dtype]
        return logical.view(kind).astype(np.float64)


first = Tensor("x.npy", 0, 4, [1, 1, 1, 3], [3, 3, 3, 1])
second = Tensor("w.npy", 0, 4, [1, 1, 1, 1], [1, 1, 1, 1])
result = Tensor("prior.npy", 0, 4, [1, 1, 1, 3], [3, 3, 3, 1])


def i64(values):
    return (ctypes.c_int64 * len(values))(*values)


def ints(values):
    return (ctypes.c_int * len(values))(*values)


def workspace_of(size, fill):
    return device(np.full(size, fill, np.uint8))


# Numbers of cudnn_graph.h.
HANDLE, DATA_TYPE, INT64, FLOAT, DOUBLE, VOID_PTR, MODE, KNOB, DESCRIPTOR = 0, 1, 3, 4, 5, 6, 7, 9, 15


def make(kind, *attributes):
    """A descriptor of a kind with (attribute, type, array of ctypes) set."""
    d = ctypes.c_void_p()
    call("cudnnBackendCreateDescriptor", kind, ctypes.byref(d))
    for attribute, kind_of, array in attributes:
        count = ctypes.c_int64(len(array))
        call("cudnnBackendSetAttribute", d, attribute, kind_of, count, array)
    call("cudnnBackendFinalize", d)
    return d


def descriptors(*list_):
    return (ctypes.c_void_p * len(list_))(*list_)


def tensor(t, identifier):
    return make(17, (901, DATA_TYPE, ints([t.dtype])), (902, INT64, i64(t.dims)),
                (903, INT64, i64(t.strides)), (906, INT64, i64([identifier])), (900, INT64, i64([16])))


def graph(handle):
    conv = convolution()
    scalar = ctypes.c_float * 1
    operation = make(10,
                     (704, DESCRIPTOR, descriptors(tensor(first, 1))),
                     (703, DESCRIPTOR, descriptors(tensor(second, 2))),
                     (705, DESCRIPTOR, descriptors(tensor(result, 3))),
                     (702, DESCRIPTOR, descriptors(conv)),
                     (700, FLOAT, scalar(1.0)),
                     (701, FLOAT, scalar(0.0)))
    return make(15, (800, HANDLE, descriptors(handle)), (801, DESCRIPTOR, descriptors(operation)))


def run(handle, x, w, y, fill):
    global executing
    engine = make(2, (1300, DESCRIPTOR, descriptors(graph(handle))), (1301, INT64, i64([4])))
    knobs = [make(7, (600, KNOB, ints([k])), (601, INT64, i64([v]))) for k, v in []]
    choices = [(302, DESCRIPTOR, descriptors(*knobs))] if knobs else []
    config = make(3, (300, DESCRIPTOR, descriptors(engine)), *choices)
    plan = make(5, (400, HANDLE, descriptors(handle)), (401, DESCRIPTOR, descriptors(config)))
    size, count = ctypes.c_int64(), ctypes.c_int64()
    call("cudnnBackendGetAttribute", plan, 402, INT64, ctypes.c_int64(1), ctypes.byref(count), ctypes.byref(size))
    workspace = workspace_of(size.value, fill)
    pack = make(16, (1000, INT64, i64([1, 2, 3])), (1001, VOID_PTR, descriptors(x, w, y)),
                (1003, VOID_PTR, descriptors(workspace)))
    executing = True
    call("cudnnBackendExecute", handle, plan, pack)
    cuda("cudaDeviceSynchronize")


def convolution():
    return make(1, (106, INT64, i64([2])), (100, DATA_TYPE, ints([0])),
                (101, MODE, ints([1])), (105, INT64, i64([0, 0])),
                (104, INT64, i64([0, 0])), (103, INT64, i64([1, 1])),
                (102, INT64, i64([1, 1])))


def judge(logical):
    expected, bound = np.load("y_expected.npy").reshape(result.dims), np.load("y_bound.npy").reshape(result.dims)
    actual = result.values(logical)
    with np.errstate(invalid="ignore"):
        right = np.where(np.isnan(expected), np.isnan(actual), (actual == expected) | (abs(actual - expected) <= bound))
    for at in np.argwhere(~right)[:10]:
        at = tuple(at)
        print(f"output {list(map(int, at))}: expected {expected[at]!r}, actual {actual[at]!r}, allowed {bound[at]:.3g}")
    print(f"{(~right).sum()} of {right.size} outputs are wrong")
    return not right.all()


def once(handle, fill):
    """One run with the workspace full of `fill`: whether it is wrong, the bits."""
    print(f"workspace filled with {fill:#x}:")
    count = int(np.prod(result.dims))
    # NaN: what is not written shows.
    before = np.full(count, -1, np.int64).astype(result.bits)
    x, w, y = device(first.load()), device(second.load()), device(before)
    run(handle, x, w, y, fill)
    after = np.empty(count, result.bits)
    cuda("cudaMemcpy", after.ctypes.data_as(ctypes.c_void_p), y, ctypes.c_size_t(after.nbytes), 2)
    logical = result.logical(after)
    return judge(logical), logical


def main():
    print(f"cuDNN {cudnn.cudnnGetVersion()}")
    handle = ctypes.c_void_p()
    call("cudnnCreate", ctypes.byref(handle))
    with_nan, bits = once(handle, 0xFF)
    with_zero, other = once(handle, 0x00)
    same = np.array_equal(bits, other)
    if not same:
        print("the two runs differ")
    return 1 if with_nan or with_zero or not same else 0


sys.exit(main())
