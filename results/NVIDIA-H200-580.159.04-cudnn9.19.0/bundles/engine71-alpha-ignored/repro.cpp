// Standalone reproducer of a wrong result of cuDNN. Needs cuDNN and CUDA alone.
//
//   fwd c=8 k=8 in=6x1 ker=1x1 layout=nhwc type=fp16 alpha=2 fill=ints:1 via=engine:71
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

static Tensor first = { "x.npy", CUDNN_DATA_HALF, {1, 8, 6, 1}, {48, 1, 8, 8} };
static Tensor second = { "w.npy", CUDNN_DATA_HALF, {8, 8, 1, 1}, {8, 1, 8, 8} };
static Tensor result = { "prior.npy", CUDNN_DATA_HALF, {1, 8, 6, 1}, {48, 1, 8, 8} };

// x.npy
static const uint16_t first_bits[] = { 0xcc40, 0x5240, 0xd4c0, 0x4c40, 0x5340, 0x4200, 0xd650, 0x56c0, 0xd610, 0x5480, 0xc880, 0xcdc0, 0x5630, 0xd1e0, 0xd7a0, 0xd500, 0xd0c0, 0x55f0, 0xd500, 0xcec0, 0xd0c0, 0x5808, 0x5480, 0xd720, 0xce80, 0x4e40, 0x5400, 0x5060, 0x5560, 0x3c00, 0x54f0, 0x4200, 0xd490, 0x57f0, 0xd4e0, 0x5000, 0x5580, 0xd420, 0x5320, 0x4f40, 0x4c00, 0x57e0, 0x55a0, 0x57a0, 0xc880, 0xd0e0, 0xcdc0, 0x5520 };

// w.npy
static const uint16_t second_bits[] = { 0xd818, 0xd760, 0xd540, 0x5540, 0xd510, 0xcec0, 0x5260, 0xd700, 0x5560, 0x5670, 0x54e0, 0xd120, 0xd610, 0x5320, 0x5320, 0xd6a0, 0xbc00, 0x5140, 0x5300, 0x5100, 0x4f40, 0x5040, 0x4000, 0x5580, 0xd750, 0xd5a0, 0xcdc0, 0x4b80, 0xd040, 0x5770, 0xd700, 0x5710, 0x4800, 0xd040, 0x53c0, 0xc880, 0x5180, 0x5700, 0xd7a0, 0x5690, 0x56e0, 0xd240, 0xd690, 0x5000, 0x54c0, 0x55d0, 0xc200, 0x5590, 0x4c00, 0x5410, 0x5800, 0xd760, 0xd740, 0x54e0, 0x52a0, 0x54d0, 0xc800, 0x4c80, 0xd320, 0x4dc0, 0x55f0, 0xd1a0, 0x56b0, 0x4900 };

// y_expected.npy
static const double expected_values[] = { -13020.0, -INFINITY, 58320.0, 12832.0, 2472.0, -37876.0, 3276.0, -12166.0, -61302.0, 13960.0, -22586.0, 20380.0, 16294.0, 24410.0, -27308.0, 11292.0, -3668.0, 16752.0, 36402.0, 11582.0, 3188.0, 3148.0, -41238.0, -6496.0, 33148.0, 32710.0, -35582.0, -604.0, -23106.0, 9176.0, 6684.0, 34812.0, 10374.0, 43422.0, 20622.0, -4342.0, INFINITY, 16440.0, -58886.0, -32260.0, -60000.0, INFINITY, -9748.0, 0.0, 40632.0, 18020.0, 32716.0, 8964.0 };

// y_bound.npy
static const double bound_values[] = { 188.0000000000001, 0.0, 176.0000000000001, 160.00000000000009, 118.00000000000007, 148.00000000000009, 174.0000000000001, 158.00000000000009, 170.0000000000001, 144.00000000000009, 106.00000000000006, 132.00000000000009, 94.00000000000006, 86.00000000000006, 76.00000000000004, 84.00000000000006, 50.00000000000003, 80.00000000000004, 178.0000000000001, 158.00000000000009, 154.00000000000009, 142.00000000000009, 118.00000000000007, 132.00000000000009, 164.0000000000001, 122.00000000000007, 130.00000000000009, 125.50000000000007, 82.00000000000006, 136.00000000000009, 148.00000000000009, 132.00000000000009, 158.00000000000009, 130.00000000000009, 114.00000000000007, 102.00000000000006, 0.0, 136.00000000000009, 186.0000000000001, 196.0000000000001, 128.00000000000009, 0.0, 100.00000000000006, 64.25000000000004, 104.00000000000006, 84.00000000000006, 84.00000000000006, 92.00000000000006 };

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
  float alpha = 2.0, beta = 0.0;
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
  set_int64(engine, CUDNN_ATTR_ENGINE_GLOBAL_INDEX, { 71 });
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
  void *workspace = workspace_of(size_t(bytes));
  Desc pack = make(CUDNN_BACKEND_VARIANT_PACK_DESCRIPTOR);
  void *pointers[] = {x, w, y};
  set_int64(pack, CUDNN_ATTR_VARIANT_PACK_UNIQUE_IDS, {'x', 'w', 'y'});
  set(pack, CUDNN_ATTR_VARIANT_PACK_DATA_POINTERS, CUDNN_TYPE_VOID_PTR, 3, pointers);
  set(pack, CUDNN_ATTR_VARIANT_PACK_WORKSPACE, CUDNN_TYPE_VOID_PTR, 1, &workspace);
  CUDNN(cudnnBackendFinalize(pack));
  executing = true;
  CUDNN(cudnnBackendExecute(handle, plan, pack));
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
