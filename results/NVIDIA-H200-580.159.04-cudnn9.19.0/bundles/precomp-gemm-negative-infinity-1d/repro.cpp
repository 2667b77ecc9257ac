// Standalone reproducer of a wrong result of cuDNN. Needs cuDNN and CUDA alone.
//
//   fwd c=8 k=8 in=6 ker=5 layout=nhwc type=fp16 fill=inf:375720908 via=legacy:1/tensor_op
//
// Seen on NVIDIA H200, driver 580.159.04, cuDNN 9.19.0.
// Build:  nvcc -o repro repro.cpp -lcudnn
//    or:  g++ -o repro repro.cpp -I$CUDA/include -L$CUDA/lib64 -lcudnn -lcudart
// Run in this folder. Exit code: 0 right, 1 wrong, 2 this cuDNN declines the
// candidate, 3 could not run.
#include <cuda_runtime.h>
#include <cudnn.h>

#include <cmath>
#include <cstdint>
#include <cstdio>
#include <cstdlib>
#include <cstring>
#include <string>
#include <vector>

// Ends the program unless a call succeeded. A refusal is no fault.
#define CUDNN(call)                                                            \
  do {                                                                         \
    int status_ = int(call);                                                   \
    if (status_ != 0) fail(#call, status_);                                    \
  } while (0)
#define CUDA(call)                                                             \
  do {                                                                         \
    cudaError_t status_ = (call);                                              \
    if (status_ != cudaSuccess) {                                              \
      std::printf("%s: %s\n", #call, cudaGetErrorString(status_));             \
      std::exit(3);                                                            \
    }                                                                          \
  } while (0)

static bool executing = false;

static void fail(const char *call, int status) {
  std::printf("%s: %s (%d)\n", call, cudnnGetErrorString(cudnnStatus_t(status)), status);
  // NOT_SUPPORTED is 9 in cuDNN 8 and 3000 to 3999 in cuDNN 9.
  bool refused = status == 9 || (status >= 3000 && status < 4000);
  // A plan that was accepted must run: that failure is the fault itself.
  std::exit(refused && !executing ? 2 : executing ? 1 : 3);
}

struct Tensor {
  const char *file;                // logical (row-major) order
  cudnnDataType_t type;
  std::vector<int64_t> dims;       // 2 spatial dimensions
  std::vector<int64_t> strides;    // elements, in device memory
  size_t size() const {
    size_t n = 1;
    for (int64_t d : dims) n *= size_t(d);
    return n;
  }
};

static size_t width(cudnnDataType_t type) {
  return type == CUDNN_DATA_DOUBLE ? 8 : type == CUDNN_DATA_FLOAT ? 4 : 2;
}

static Tensor first = { "x.npy", CUDNN_DATA_HALF, {1, 8, 1, 6}, {48, 1, 48, 8} };
static Tensor second = { "w.npy", CUDNN_DATA_HALF, {8, 8, 1, 5}, {40, 1, 40, 8} };
static Tensor result = { "prior.npy", CUDNN_DATA_HALF, {1, 8, 1, 2}, {16, 1, 16, 8} };

// x.npy
static const uint16_t first_bits[] = { 0x3632, 0xbf89, 0xa681, 0x3b64, 0xa6d0, 0xbccf, 0x3371, 0x7c00, 0x39f4, 0xb66e, 0x3877, 0x4005, 0xadc3, 0x3845, 0x3580, 0xbace, 0xbc68, 0xb568, 0xb211, 0xa901, 0x3d57, 0x34d4, 0x323c, 0x33ad, 0xb6d3, 0xb3d0, 0xb89e, 0x3cb0, 0x3868, 0x350b, 0x34dd, 0x33d6, 0x3fc2, 0xb81f, 0xb2b6, 0x3ae7, 0x3209, 0x3e89, 0xbc7e, 0x3bf2, 0x3a3b, 0xbc23, 0x36de, 0xb8ad, 0xb27b, 0xb250, 0x3c4f, 0x402d };

// w.npy
static const uint16_t second_bits[] = { 0xb4a7, 0xbb79, 0x3603, 0x3d7e, 0x37c2, 0x3a06, 0xbcd7, 0xb9f9, 0xba69, 0x3b31, 0x3b54, 0xbe60, 0xaa84, 0x3870, 0x349c, 0x3b56, 0xba1b, 0x38a3, 0x40c8, 0x4252, 0x3c9d, 0x39e2, 0x320d, 0xba10, 0x3ed8, 0x3c34, 0x3535, 0xc0d8, 0x4062, 0xb465, 0x3798, 0xb9fb, 0x3f08, 0xbb2e, 0xb9f8, 0xb9d6, 0xb14d, 0xb038, 0x357a, 0x3eda, 0xba3e, 0xace8, 0xb1eb, 0xbc0c, 0xade5, 0x3c0e, 0xbb6f, 0x3c53, 0xb1ce, 0xb825, 0xc0fa, 0x414e, 0x394b, 0xaca2, 0xb77c, 0x38e0, 0xba46, 0xb97f, 0xb9d1, 0xc056, 0x3a60, 0xbc5f, 0xa9d9, 0xb402, 0xb918, 0x2da5, 0x369b, 0xb70f, 0xbeb9, 0x3e8f, 0xb80f, 0xb962, 0xb718, 0x32e1, 0xbc77, 0xbbf2, 0xbaf4, 0xbd34, 0x3d66, 0xb531, 0xbd1f, 0xb983, 0xb1db, 0xc039, 0x3cda, 0x3db0, 0xb5ab, 0xbb2d, 0xba21, 0x398d, 0xbb8b, 0xb2ec, 0xbc58, 0xb9cf, 0x326e, 0x2d50, 0xbdc6, 0xb803, 0x3d28, 0x3cb5, 0xb137, 0x3c55, 0x3488, 0x3930, 0x34c3, 0x342e, 0xb68b, 0x4312, 0x33d2, 0xb815, 0xae21, 0xbcb8, 0xc15a, 0x378b, 0xbdfe, 0x382f, 0x31cf, 0xb713, 0x38c8, 0xaf7f, 0x397d, 0x23cd, 0x257d, 0x3cf6, 0x3977, 0xbac9, 0x3257, 0xbac7, 0x2d14, 0x3b88, 0x38f4, 0xbe02, 0xbc83, 0x3bda, 0x357b, 0xb393, 0x408f, 0xbc89, 0x3829, 0x3805, 0x35dd, 0x35d1, 0x32c1, 0x3c0c, 0x30d0, 0x4047, 0xb567, 0x39d9, 0x4202, 0x3595, 0xba79, 0x3858, 0xc22e, 0xb9e6, 0x3c9a, 0x3220, 0xb9cc, 0x3786, 0xbe82, 0xb512, 0x354b, 0xab3a, 0x3266, 0x2edb, 0x363e, 0x2a72, 0xace3, 0x3471, 0x2e30, 0x2c54, 0xb9c2, 0xb912, 0xb472, 0xb4a5, 0x3ad1, 0xbd16, 0x2cf9, 0xba8a, 0x3c88, 0x2fdd, 0x3bff, 0x3714, 0xc020, 0xc090, 0x416a, 0x35d4, 0x4056, 0x3908, 0xb81c, 0xbe72, 0xafab, 0x34ac, 0xb62a, 0xb9a2, 0x3a64, 0x3967, 0x364d, 0x3cb1, 0x2c5a, 0xc051, 0xbc1c, 0x336a, 0xbe4c, 0xbc6b, 0x323b, 0xba71, 0xbe54, 0x399c, 0xbac4, 0xb89b, 0xbc3b, 0x37b2, 0x3444, 0xbcd1, 0xbdf8, 0xbbd1, 0x31e9, 0xbd75, 0x3a85, 0xb721, 0xbf96, 0xbb54, 0xbd69, 0xbe2b, 0x3dcd, 0xb390, 0x3893, 0xbe9b, 0xbede, 0x3f17, 0xbbe9, 0x38a4, 0x409b, 0xb897, 0x3aa0, 0x3797, 0x2f5c, 0xc002, 0xa8fb, 0x3691, 0x3999, 0x3872, 0x2f20, 0x3d81, 0x3c94, 0x3c85, 0xbd79, 0x389f, 0x394d, 0x2503, 0xb467, 0x3db0, 0x3eb9, 0xbdb0, 0x3cc9, 0xb995, 0xbd8f, 0xb2cb, 0xb42a, 0xb914, 0x3524, 0xb718, 0xbac5, 0xbd62, 0xacc2, 0xb8fd, 0x348b, 0x365f, 0x3826, 0xb42a, 0xb6da, 0xbc47, 0xb499, 0x351a, 0x3c79, 0x328a, 0xaf25, 0xb837, 0x370b, 0xbcf5, 0x3bf4, 0xc09e, 0x3dd6, 0xba09, 0x3cd3, 0x3a03, 0x412f, 0xc07c, 0x354a, 0x3a63, 0x3d3c, 0x3457, 0x38ac, 0xb162, 0xbdad, 0x3943, 0x3c2a, 0x39ea, 0xbc54, 0x34b6, 0xbc24, 0xc166, 0xa55e, 0x3ee5, 0xb62d, 0x4195, 0x2ed0, 0xbc8b, 0x3761, 0x3e06, 0xbd6f, 0x394a, 0x3861, 0x26e3, 0xb80a, 0xb4bd, 0x2f19, 0xa5fa, 0xb81b, 0xb3db };

// y_expected.npy
static const double expected_values[] = { -INFINITY, INFINITY, -INFINITY, INFINITY, -INFINITY, INFINITY, INFINITY, -INFINITY, -INFINITY, INFINITY, -INFINITY, -INFINITY, -INFINITY, INFINITY, INFINITY, INFINITY };

// y_bound.npy
static const double bound_values[] = { 0.0, 0.0, 0.0, 0.0, 0.0, 0.0, 0.0, 0.0, 0.0, 0.0, 0.0, 0.0, 0.0, 0.0, 0.0, 0.0 };

// The payload of a .npy file (version 1), or of an array above.
static std::vector<char> load(const char *name, size_t bytes) {
  if (std::strcmp(name, "x.npy") == 0)
    return std::vector<char>((const char *)first_bits, (const char *)first_bits + bytes);
  if (std::strcmp(name, "w.npy") == 0)
    return std::vector<char>((const char *)second_bits, (const char *)second_bits + bytes);
  if (std::strcmp(name, "y_expected.npy") == 0)
    return std::vector<char>((const char *)expected_values, (const char *)expected_values + bytes);
  if (std::strcmp(name, "y_bound.npy") == 0)
    return std::vector<char>((const char *)bound_values, (const char *)bound_values + bytes);
  std::FILE *file = std::fopen(name, "rb");
  unsigned char head[10];
  if (!file || std::fread(head, 1, 10, file) != 10) {
    std::printf("%s is missing or cut short: run in the folder of the bundle\n", name);
    std::exit(3);
  }
  std::vector<char> data(bytes);
  std::fseek(file, 10 + head[8] + 256 * head[9], SEEK_SET);
  if (std::fread(data.data(), 1, bytes, file) != bytes) {
    std::printf("%s is cut short\n", name);
    std::exit(3);
  }
  std::fclose(file);
  return data;
}

// Offset in device memory of the element at logical offset i.
static size_t place(const Tensor &t, size_t i) {
  size_t offset = 0;
  for (size_t d = t.dims.size(); d-- > 0;) {
    offset += i % size_t(t.dims[d]) * size_t(t.strides[d]);
    i /= size_t(t.dims[d]);
  }
  return offset;
}

static void *upload(const Tensor &t) {
  size_t bytes = t.size() * width(t.type), w = width(t.type);
  std::vector<char> logical = load(t.file, bytes), memory(bytes);
  for (size_t i = 0; i < t.size(); i++)
    std::memcpy(&memory[place(t, i) * w], &logical[i * w], w);
  void *device;
  CUDA(cudaMalloc(&device, bytes));
  CUDA(cudaMemcpy(device, memory.data(), bytes, cudaMemcpyHostToDevice));
  return device;
}

static double decode(const char *p, cudnnDataType_t type) {
  if (type == CUDNN_DATA_DOUBLE) { double v; std::memcpy(&v, p, 8); return v; }
  if (type == CUDNN_DATA_FLOAT) { float v; std::memcpy(&v, p, 4); return v; }
  uint16_t b; std::memcpy(&b, p, 2);
  if (type == CUDNN_DATA_BFLOAT16) {
    uint32_t wide = uint32_t(b) << 16; float v; std::memcpy(&v, &wide, 4); return v;
  }
  int e = b >> 10 & 31, m = b & 1023;
  double v = e == 31 ? (m ? NAN : INFINITY) : e ? std::ldexp(1024 + m, e - 25) : std::ldexp(m, -24);
  return b >> 15 ? -v : v;
}

// Compares with the exact values; prints the worst outputs; the exit code.
static int judge(void *device) {
  size_t n = result.size(), w = width(result.type);
  std::vector<char> memory(n * w);
  CUDA(cudaMemcpy(memory.data(), device, n * w, cudaMemcpyDeviceToHost));
  std::vector<char> exact = load("y_expected.npy", n * 8), bound = load("y_bound.npy", n * 8);
  size_t wrong = 0;
  for (size_t i = 0; i < n; i++) {
    double a = decode(&memory[place(result, i) * w], result.type), e, b;
    std::memcpy(&e, &exact[i * 8], 8);
    std::memcpy(&b, &bound[i * 8], 8);
    bool right = std::isnan(e) ? std::isnan(a) : a == e || std::fabs(a - e) <= b;
    if (right) continue;
    if (wrong++ < 10)
      std::printf("output %zu: expected %.17g, actual %.9g, off by %.3g, allowed %.3g\n", i, e, a, std::fabs(a - e), b);
  }
  std::printf("%zu of %zu outputs are wrong\n", wrong, n);
  return wrong ? 1 : 0;
}

static void *workspace_of(size_t bytes) {
  void *device = nullptr;
  if (bytes == 0) return device;
  CUDA(cudaMalloc(&device, bytes));
  CUDA(cudaMemset(device, 0xff, bytes));  // NaN in every floating-point type
  return device;
}

static std::vector<int> ints(const std::vector<int64_t> &list) {
  return std::vector<int>(list.begin(), list.end());
}

static void describe(cudnnTensorDescriptor_t desc, const Tensor &t) {
  CUDNN(cudnnSetTensorNdDescriptor(desc, t.type, int(t.dims.size()), ints(t.dims).data(), ints(t.strides).data()));
}

static void run(cudnnHandle_t handle, void *x, void *w, void *y) {
  cudnnTensorDescriptor_t x_desc, y_desc;
  cudnnFilterDescriptor_t w_desc;
  cudnnConvolutionDescriptor_t conv;
  CUDNN(cudnnCreateTensorDescriptor(&x_desc));
  CUDNN(cudnnCreateTensorDescriptor(&y_desc));
  CUDNN(cudnnCreateFilterDescriptor(&w_desc));
  CUDNN(cudnnCreateConvolutionDescriptor(&conv));
  describe(x_desc, first);
  describe(y_desc, result);
  CUDNN(cudnnSetFilterNdDescriptor(w_desc, second.type, CUDNN_TENSOR_NHWC, int(second.dims.size()), ints(second.dims).data()));
  int pad[] = { 0, 0 }, stride[] = { 1, 1 }, dilation[] = { 1, 1 };
  CUDNN(cudnnSetConvolutionNdDescriptor(conv, 2, pad, stride, dilation, CUDNN_CROSS_CORRELATION, CUDNN_DATA_FLOAT));
  CUDNN(cudnnSetConvolutionGroupCount(conv, 1));
  CUDNN(cudnnSetConvolutionMathType(conv, CUDNN_TENSOR_OP_MATH));
  auto algorithm = cudnnConvolutionFwdAlgo_t(1);
  size_t bytes = 0;
  CUDNN(cudnnGetConvolutionForwardWorkspaceSize(handle, x_desc, w_desc, conv, y_desc, algorithm, &bytes));
  void *workspace = workspace_of(bytes);
  float alpha = 1.0, beta = 0.0;
  CUDNN(cudnnConvolutionForward(handle, &alpha, x_desc, x, w_desc, w, conv, algorithm, workspace, bytes, &beta, y_desc, y));
  executing = true;
  CUDA(cudaDeviceSynchronize());
}

int main() {
  std::printf("cuDNN %zu\n", cudnnGetVersion());
  cudnnHandle_t handle;
  CUDNN(cudnnCreate(&handle));
  void *x = upload(first), *w = upload(second), *y;
  CUDA(cudaMalloc(&y, result.size() * width(result.type)));
  CUDA(cudaMemset(y, 0xff, result.size() * width(result.type)));
  run(handle, x, w, y);
  return judge(y);
}
