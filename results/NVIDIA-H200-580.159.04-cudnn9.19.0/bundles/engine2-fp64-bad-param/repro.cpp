// Standalone reproducer of a wrong result of cuDNN. Needs cuDNN and CUDA alone.
//
//   fwd c=4 k=8 in=5 ker=3 type=fp64 fill=positive:2144929697 via=engine:2/2=8/3=1
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

static Tensor first = { "x.npy", CUDNN_DATA_DOUBLE, {1, 4, 1, 5}, {20, 5, 5, 1} };
static Tensor second = { "w.npy", CUDNN_DATA_DOUBLE, {8, 4, 1, 3}, {12, 3, 3, 1} };
static Tensor result = { "prior.npy", CUDNN_DATA_DOUBLE, {1, 8, 1, 3}, {24, 3, 3, 1} };

// x.npy
static const uint64_t first_bits[] = { 0x3fef7fa7d2d32c23, 0x3fd6df035c0cf94e, 0x3fe32c382cf308c8, 0x3fca35a0f8524e2c, 0x3fd9dff184c0e8fe, 0x3fb49410289ed118, 0x3fe42ac3ca41b5d5, 0x3fc6467ad3334720, 0x3fdc36e02f14d636, 0x3fe1659116f7a83c, 0x3fea0bf08fdd0ad3, 0x3fe81d86360d444b, 0x3fe24e766d2738c4, 0x3fc7f3e6d3af1344, 0x3fef1d7cb54a607d, 0x3fececb9c2bf02bf, 0x3fe7c5332db01592, 0x3fcbe81ef7010d58, 0x3fec69a17c2e4fe4, 0x3fe1b3f01f68f266 };

// w.npy
static const uint64_t second_bits[] = { 0x3f8f31b7d9f45280, 0x3fe786468ed485ef, 0x3fe9a3da3264a666, 0x3feda027fed6866c, 0x3fb7943f9d8ef598, 0x3fc722d66d285278, 0x3fe519c8707e8884, 0x3fc7bc3a167bed60, 0x3feec89633557ce4, 0x3fd2f4095e56e2ae, 0x3fc5ac5e25735e5c, 0x3fea3a1b94e0a8be, 0x3fd43a1294d32ab6, 0x3fe73529b71862df, 0x3fe73a222d8d223d, 0x3fee64f932b4b033, 0x3fe5a6a2484a9312, 0x3fe960d6ea72ffe6, 0x3fd7297ab8ca3ba2, 0x3fedd2a22a7078c0, 0x3fc6cbbaa0c7de3c, 0x3fe8afe4d2116da2, 0x3fcca57fdf01e204, 0x3fd3967f235df5ca, 0x3fda92a8315d36b4, 0x3fdac57322d0baa6, 0x3fe1f0ee4514d58c, 0x3fe9c5df4b3b8dff, 0x3fe7b8b59c3c7b9f, 0x3fb40abced34dc90, 0x3fdd053f93d33b18, 0x3fea804abeae66ee, 0x3fb5549b3da59b80, 0x3feeaadb670ce73e, 0x3fec07bfe3b5b6cb, 0x3f843276a011d980, 0x3fee42648af0f66a, 0x3fd74d54f8f15c6c, 0x3fe01a21920960b6, 0x3fee0b49eb830c51, 0x3fe3b8b05d8002be, 0x3fec4f8d56f2fd9b, 0x3fdd64bc5a1aa6b8, 0x3fe37a5a8026f04a, 0x3fe5005e3747e13d, 0x3fc9679a01816ff8, 0x3fe9839babaa7762, 0x3fd7eb9f890489d0, 0x3fbb2560553a1ba0, 0x3feb0ac519901377, 0x3fd76eec5371f210, 0x3fa6033c96af92c0, 0x3fe14aeb5c9e60f9, 0x3fecf9e2149e0f26, 0x3fc377e5b23c3788, 0x3fe2561c1987b1d3, 0x3fd6c80bc7a585e8, 0x3fe6b474833c1d2e, 0x3fc259ed8efba9a4, 0x3fcbe15730ea6fd0, 0x3fdb8b5e13a6f9e0, 0x3fd377aedc91ade2, 0x3fdbeb558eb9e566, 0x3fef3a692a1e9e65, 0x3fed069bde775e9e, 0x3feebe1ea2671356, 0x3fdba2b88fe2f5ea, 0x3fd1d950a6f80c0a, 0x3fee5a98c73bed3a, 0x3fd6d46ffc753018, 0x3fe28bc52dfebd3b, 0x3fdd3d49903e5470, 0x3fed5238910983b4, 0x3feeb3039d474e31, 0x3fec70ef65a778e0, 0x3fd69fc16249194e, 0x3fec7b908d6e2280, 0x3fd6f5f891edd6ec, 0x3fda149d64e550ae, 0x3fec7c85807ebb0a, 0x3fea43063f87d8a0, 0x3fe3852ca8aef503, 0x3fe2d2fb0e95aede, 0x3fe53e5f2177f06f, 0x3fe56ec4a834e495, 0x3fb192729c012de0, 0x3fe9199c6ab79d9d, 0x3febe001594ff7ca, 0x3fbfed158176edc0, 0x3fe35c760280cca8, 0x3fd266dec9b441b4, 0x3fe95c8984bbd660, 0x3fce6d325052d404, 0x3fd5036df6110584, 0x3feccf234278fd45, 0x3fe331ba0cbc2510 };

// y_expected.npy
static const double expected_values[] = { 2.7206385302905596, 3.0567718984660885, 2.7992090242870407, 3.6750149091154847, 3.4948870481419236, 2.616865808258483, 3.9995818641959078, 2.927606420982424, 2.558157835410926, 4.04136335237946, 3.218336879048517, 3.733363122306597, 2.6819390109714925, 2.4002600092297794, 2.065434059892051, 3.567837656551268, 3.0812178333890623, 3.655159052784023, 5.034214963070341, 3.760828213609739, 3.9739734952448815, 3.471270397625914, 2.965816921127263, 3.014669496141754 };

// y_bound.npy
static const double bound_values[] = { 4.008515212134557e-15, 4.4834449283802335e-15, 4.316711539336863e-15, 5.355463483476315e-15, 5.271314042884362e-15, 4.151261963679626e-15, 5.778980346214145e-15, 4.531634777919036e-15, 3.8185837676312194e-15, 6.462531790362504e-15, 4.674893865199616e-15, 5.408256002926485e-15, 4.053068340801275e-15, 3.6826876674187165e-15, 3.2373400706253476e-15, 5.1993752842094475e-15, 4.725651744938093e-15, 5.417770088568263e-15, 7.619883739526237e-15, 5.622296683224585e-15, 5.801775395614296e-15, 5.183310518391122e-15, 4.503377228947902e-15, 4.548441969548876e-15 };

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
  cudnnDataType_t compute = CUDNN_DATA_DOUBLE;
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
  double alpha = 1.0, beta = 0.0;
  set(op, CUDNN_ATTR_OPERATION_CONVOLUTION_FORWARD_ALPHA, CUDNN_TYPE_DOUBLE, 1, &alpha);
  set(op, CUDNN_ATTR_OPERATION_CONVOLUTION_FORWARD_BETA, CUDNN_TYPE_DOUBLE, 1, &beta);
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
  set_int64(engine, CUDNN_ATTR_ENGINE_GLOBAL_INDEX, { 2 });
  CUDNN(cudnnBackendFinalize(engine));
  std::vector<Desc> choices;
  const int64_t knobs[][2] = { {2, 8}, {3, 1} };  // knob type, value
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
