// Standalone reproducer of a wrong result of cuDNN. Needs cuDNN and CUDA alone.
//
//   fwd c=8 k=13 in=2 ker=1 layout=nhwc alpha=-1 fill=overflow:2992540172 via=engine:72
//
// Seen on NVIDIA H200, driver 580.159.04, cuDNN 9.19.0.
// Build:  nvcc -o repro repro.cpp -lcudnn
//    or:  g++ -o repro repro.cpp -I$CUDA/include -L$CUDA/lib64 -lcudnn -lcudart
// Run in this folder. Runs twice, with the workspace full of NaNs and of zeros.
// Exit code: 0 right, 1 wrong, 2 this cuDNN declines the candidate, 3 could not
// run.
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

static Tensor first = { "x.npy", CUDNN_DATA_FLOAT, {1, 8, 1, 2}, {16, 1, 16, 8} };
static Tensor second = { "w.npy", CUDNN_DATA_FLOAT, {13, 8, 1, 1}, {8, 1, 8, 8} };
static Tensor result = { "prior.npy", CUDNN_DATA_FLOAT, {1, 13, 1, 2}, {26, 1, 26, 13} };

// x.npy
static const uint32_t first_bits[] = { 0x0, 0x5e20e5a4, 0x0, 0xde5a1fa4, 0x0, 0x5ee0de1d, 0x0, 0xdf8bb961, 0x0, 0x5e4e14df, 0x0, 0x5e92065b, 0x0, 0xdeca4271, 0x0, 0xde2200eb };

// w.npy
static const uint32_t second_bits[] = { 0x0, 0x0, 0x0, 0x0, 0x0, 0x0, 0x0, 0x0, 0x0, 0x0, 0x0, 0x0, 0x0, 0x0, 0x0, 0x0, 0x0, 0x0, 0x0, 0x0, 0x0, 0x0, 0x0, 0x0, 0x0, 0x0, 0x0, 0x0, 0x0, 0x0, 0x0, 0x0, 0x0, 0x0, 0x0, 0x0, 0x0, 0x0, 0x0, 0x0, 0x0, 0x0, 0x0, 0x0, 0x0, 0x0, 0x0, 0x0, 0x0, 0x0, 0x0, 0x0, 0x0, 0x0, 0x0, 0x0, 0x0, 0x0, 0x0, 0x0, 0x0, 0x0, 0x0, 0x0, 0x0, 0x0, 0x0, 0x0, 0x0, 0x0, 0x0, 0x0, 0x0, 0x0, 0x0, 0x0, 0x0, 0x0, 0x0, 0x0, 0x0, 0x0, 0x0, 0x0, 0x0, 0x0, 0x0, 0x0, 0x0, 0x0, 0x0, 0x0, 0x0, 0x0, 0x0, 0x0, 0x5e134ea0, 0xded9303d, 0x5e1a9163, 0xdedf5561, 0x5e05cea5, 0x5f304891, 0xde07b552, 0xdedbc19f };

// y_expected.npy
static const double expected_values[] = { 0.0, 0.0, 0.0, 0.0, 0.0, 0.0, 0.0, 0.0, 0.0, 0.0, 0.0, 0.0, 0.0, 0.0, 0.0, 0.0, 0.0, 0.0, 0.0, 0.0, 0.0, 0.0, 0.0, 0.0, 0.0, -3.3972341053674985e38 };

// y_bound.npy
static const double bound_values[] = { 4.70197908484731e-38, 4.70197908484731e-38, 4.70197908484731e-38, 4.70197908484731e-38, 4.70197908484731e-38, 4.70197908484731e-38, 4.70197908484731e-38, 4.70197908484731e-38, 4.70197908484731e-38, 4.70197908484731e-38, 4.70197908484731e-38, 4.70197908484731e-38, 4.70197908484731e-38, 4.70197908484731e-38, 4.70197908484731e-38, 4.70197908484731e-38, 4.70197908484731e-38, 4.70197908484731e-38, 4.70197908484731e-38, 4.70197908484731e-38, 4.70197908484731e-38, 4.70197908484731e-38, 4.70197908484731e-38, 4.70197908484731e-38, 4.70197908484731e-38, 6.642554565980158e35 };

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

// Device memory between two guards that nobody has any business with.
struct Buffer {
  static constexpr size_t guard = 4096;
  const char *name;
  std::vector<char> content;       // what was put there
  char *base = nullptr;
  Buffer(const char *name, std::vector<char> bytes) : name(name), content(std::move(bytes)) {
    size_t all = content.size() + 2 * guard;
    CUDA(cudaMalloc(&base, all));
    CUDA(cudaMemset(base, 0xa5, all));
    CUDA(cudaMemcpy(data(), content.data(), content.size(), cudaMemcpyHostToDevice));
  }
  ~Buffer() { cudaFree(base); }
  Buffer(const Buffer &) = delete;
  char *data() const { return base + guard; }
  std::vector<char> read() const {
    std::vector<char> now(content.size() + 2 * guard);
    CUDA(cudaMemcpy(now.data(), base, now.size(), cudaMemcpyDeviceToHost));
    return now;
  }
  // 1 when a guard was written, or the content of an input.
  int damaged(bool input) const {
    std::vector<char> now = read();
    size_t outside = 0;
    for (size_t i = 0; i < guard; i++)
      outside += (now[i] != char(0xa5)) + (now[now.size() - 1 - i] != char(0xa5));
    if (outside) std::printf("%zu bytes outside %s were written\n", outside, name);
    bool changed = input && std::memcmp(&now[guard], content.data(), content.size()) != 0;
    if (changed) std::printf("%s was changed\n", name);
    return outside || changed;
  }
};

static std::vector<char> in_memory(const Tensor &t) {
  size_t bytes = t.size() * width(t.type), w = width(t.type);
  std::vector<char> logical = load(t.file, bytes), memory(bytes);
  for (size_t i = 0; i < t.size(); i++)
    std::memcpy(&memory[place(t, i) * w], &logical[i * w], w);
  return memory;
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
static int judge(const std::vector<char> &memory) {
  size_t n = result.size(), w = width(result.type);
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

static int workspace_fill = 0xff;  // NaN in every floating-point type
static int workspace_damaged = 0;
static std::vector<char> workspace_of(size_t bytes) {
  return std::vector<char>(bytes, char(workspace_fill));
}

using Desc = cudnnBackendDescriptor_t;

static Desc make(cudnnBackendDescriptorType_t type) {
  Desc desc;
  CUDNN(cudnnBackendCreateDescriptor(type, &desc));
  return desc;
}

static void set(Desc desc, cudnnBackendAttributeName_t name, cudnnBackendAttributeType_t type, int64_t count, const void *values) {
  CUDNN(cudnnBackendSetAttribute(desc, name, type, count, values));
}

static void set_int64(Desc desc, cudnnBackendAttributeName_t name, std::vector<int64_t> values) {
  set(desc, name, CUDNN_TYPE_INT64, int64_t(values.size()), values.data());
}

static void set_desc(Desc desc, cudnnBackendAttributeName_t name, Desc value) {
  set(desc, name, CUDNN_TYPE_BACKEND_DESCRIPTOR, 1, &value);
}

static Desc tensor(const Tensor &t, int64_t id) {
  Desc desc = make(CUDNN_BACKEND_TENSOR_DESCRIPTOR);
  set(desc, CUDNN_ATTR_TENSOR_DATA_TYPE, CUDNN_TYPE_DATA_TYPE, 1, &t.type);
  set_int64(desc, CUDNN_ATTR_TENSOR_DIMENSIONS, t.dims);
  set_int64(desc, CUDNN_ATTR_TENSOR_STRIDES, t.strides);
  set_int64(desc, CUDNN_ATTR_TENSOR_UNIQUE_ID, {id});
  set_int64(desc, CUDNN_ATTR_TENSOR_BYTE_ALIGNMENT, {16});
  CUDNN(cudnnBackendFinalize(desc));
  return desc;
}

static Desc convolution() {
  Desc desc = make(CUDNN_BACKEND_CONVOLUTION_DESCRIPTOR);
  cudnnDataType_t compute = CUDNN_DATA_FLOAT;
  cudnnConvolutionMode_t mode = CUDNN_CROSS_CORRELATION;
  set_int64(desc, CUDNN_ATTR_CONVOLUTION_SPATIAL_DIMS, { 2 });
  set(desc, CUDNN_ATTR_CONVOLUTION_COMP_TYPE, CUDNN_TYPE_DATA_TYPE, 1, &compute);
  set(desc, CUDNN_ATTR_CONVOLUTION_CONV_MODE, CUDNN_TYPE_CONVOLUTION_MODE, 1, &mode);
  set_int64(desc, CUDNN_ATTR_CONVOLUTION_PRE_PADDINGS, { 0, 0 });
  set_int64(desc, CUDNN_ATTR_CONVOLUTION_POST_PADDINGS, { 0, 0 });
  set_int64(desc, CUDNN_ATTR_CONVOLUTION_FILTER_STRIDES, { 1, 1 });
  set_int64(desc, CUDNN_ATTR_CONVOLUTION_DILATIONS, { 1, 1 });
  CUDNN(cudnnBackendFinalize(desc));
  return desc;
}

static Desc graph(cudnnHandle_t handle) {
  Desc op = make(CUDNN_BACKEND_OPERATION_CONVOLUTION_FORWARD_DESCRIPTOR);
  set_desc(op, CUDNN_ATTR_OPERATION_CONVOLUTION_FORWARD_X, tensor(first, 'x'));
  set_desc(op, CUDNN_ATTR_OPERATION_CONVOLUTION_FORWARD_W, tensor(second, 'w'));
  set_desc(op, CUDNN_ATTR_OPERATION_CONVOLUTION_FORWARD_Y, tensor(result, 'y'));
  set_desc(op, CUDNN_ATTR_OPERATION_CONVOLUTION_FORWARD_CONV_DESC, convolution());
  float alpha = -1.0, beta = 0.0;
  set(op, CUDNN_ATTR_OPERATION_CONVOLUTION_FORWARD_ALPHA, CUDNN_TYPE_FLOAT, 1, &alpha);
  set(op, CUDNN_ATTR_OPERATION_CONVOLUTION_FORWARD_BETA, CUDNN_TYPE_FLOAT, 1, &beta);
  CUDNN(cudnnBackendFinalize(op));
  Desc desc = make(CUDNN_BACKEND_OPERATIONGRAPH_DESCRIPTOR);
  set(desc, CUDNN_ATTR_OPERATIONGRAPH_HANDLE, CUDNN_TYPE_HANDLE, 1, &handle);
  set_desc(desc, CUDNN_ATTR_OPERATIONGRAPH_OPS, op);
  CUDNN(cudnnBackendFinalize(desc));
  return desc;
}

static Desc engine_config(cudnnHandle_t handle) {
  Desc engine = make(CUDNN_BACKEND_ENGINE_DESCRIPTOR);
  set_desc(engine, CUDNN_ATTR_ENGINE_OPERATION_GRAPH, graph(handle));
  set_int64(engine, CUDNN_ATTR_ENGINE_GLOBAL_INDEX, { 72 });
  CUDNN(cudnnBackendFinalize(engine));
  std::vector<Desc> choices;
  const int64_t knobs[][2] = { {-1, 0} };  // knob type, value
  for (auto &knob : knobs) {
    if (knob[0] < 0) continue;
    Desc choice = make(CUDNN_BACKEND_KNOB_CHOICE_DESCRIPTOR);
    cudnnBackendKnobType_t type = cudnnBackendKnobType_t(knob[0]);
    set(choice, CUDNN_ATTR_KNOB_CHOICE_KNOB_TYPE, CUDNN_TYPE_KNOB_TYPE, 1, &type);
    set_int64(choice, CUDNN_ATTR_KNOB_CHOICE_KNOB_VALUE, {knob[1]});
    CUDNN(cudnnBackendFinalize(choice));
    choices.push_back(choice);
  }
  Desc config = make(CUDNN_BACKEND_ENGINECFG_DESCRIPTOR);
  set_desc(config, CUDNN_ATTR_ENGINECFG_ENGINE, engine);
  if (!choices.empty())
    set(config, CUDNN_ATTR_ENGINECFG_KNOB_CHOICES, CUDNN_TYPE_BACKEND_DESCRIPTOR, int64_t(choices.size()), choices.data());
  CUDNN(cudnnBackendFinalize(config));
  return config;
}

static void run(cudnnHandle_t handle, void *x, void *w, void *y) {
  Desc plan = make(CUDNN_BACKEND_EXECUTION_PLAN_DESCRIPTOR);
  set(plan, CUDNN_ATTR_EXECUTION_PLAN_HANDLE, CUDNN_TYPE_HANDLE, 1, &handle);
  set_desc(plan, CUDNN_ATTR_EXECUTION_PLAN_ENGINE_CONFIG, engine_config(handle));
  CUDNN(cudnnBackendFinalize(plan));
  int64_t bytes = 0, count = 0;
  CUDNN(cudnnBackendGetAttribute(plan, CUDNN_ATTR_EXECUTION_PLAN_WORKSPACE_SIZE, CUDNN_TYPE_INT64, 1, &count, &bytes));
  Buffer room("the workspace", workspace_of(size_t(bytes)));
  void *workspace = bytes ? room.data() : nullptr;
  Desc pack = make(CUDNN_BACKEND_VARIANT_PACK_DESCRIPTOR);
  void *pointers[] = {x, w, y};
  set_int64(pack, CUDNN_ATTR_VARIANT_PACK_UNIQUE_IDS, {'x', 'w', 'y'});
  set(pack, CUDNN_ATTR_VARIANT_PACK_DATA_POINTERS, CUDNN_TYPE_VOID_PTR, 3, pointers);
  set(pack, CUDNN_ATTR_VARIANT_PACK_WORKSPACE, CUDNN_TYPE_VOID_PTR, 1, &workspace);
  CUDNN(cudnnBackendFinalize(pack));
  executing = true;
  CUDNN(cudnnBackendExecute(handle, plan, pack));
  CUDA(cudaDeviceSynchronize());
  workspace_damaged = room.damaged(false);
}

// One run with the workspace full of `fill`; the result's bytes in `bytes`.
static int once(cudnnHandle_t handle, int fill, std::vector<char> &bytes) {
  std::printf("workspace filled with %#x:\n", unsigned(fill));
  workspace_fill = fill;
  Buffer x("x", in_memory(first)), w("w", in_memory(second));
  // NaN: what is not written shows.
  Buffer y("y", std::vector<char>(result.size() * width(result.type), char(0xff)));
  run(handle, x.data(), w.data(), y.data());
  bytes = y.read();
  bytes = std::vector<char>(bytes.begin() + Buffer::guard, bytes.end() - Buffer::guard);
  int wrong = workspace_damaged | x.damaged(true) | w.damaged(true) | y.damaged(false);
  return wrong | judge(bytes);
}

int main() {
  std::printf("cuDNN %zu\n", cudnnGetVersion());
  cudnnHandle_t handle;
  CUDNN(cudnnCreate(&handle));
  std::vector<char> with_nan, with_zero;
  int wrong = once(handle, 0xff, with_nan) | once(handle, 0x00, with_zero);
  bool same = with_nan == with_zero;
  if (!same) std::printf("the two runs differ\n");
  return wrong || !same ? 1 : 0;
}
