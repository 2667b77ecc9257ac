// Standalone reproducer of a wrong result of cuDNN. Needs cuDNN and CUDA alone.
//
//   fwd c=15 k=45 in=1 ker=3 pad=1 g=15 type=fp16 compute=fp16 fill=inf:301542149 via=engine:22
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

static Tensor first = { "x.npy", CUDNN_DATA_HALF, {1, 15, 1, 1}, {15, 1, 1, 1} };
static Tensor second = { "w.npy", CUDNN_DATA_HALF, {45, 1, 1, 3}, {3, 3, 3, 1} };
static Tensor result = { "prior.npy", CUDNN_DATA_HALF, {1, 45, 1, 1}, {45, 1, 1, 1} };

// x.npy
static const uint16_t first_bits[] = { 0x3ae7, 0xc05b, 0x3d52, 0xfc00, 0xb80d, 0x3a7d, 0x33e2, 0xbd91, 0x391d, 0xba32, 0x3e48, 0x36fd, 0x3bff, 0xb52b, 0x3c0c };

// w.npy
static const uint16_t second_bits[] = { 0x271a, 0x3e5b, 0x37a3, 0x3941, 0x404b, 0xb258, 0xb85f, 0x3f79, 0x3d65, 0xbbb0, 0x375a, 0x3fce, 0x385d, 0xbe22, 0x2e22, 0x389b, 0x38a2, 0xbb4e, 0x3553, 0x3720, 0xb16e, 0xbae3, 0x3c77, 0xc036, 0xb5fb, 0x347b, 0x2682, 0xb99a, 0x3a3d, 0x3cc1, 0xbad5, 0x3771, 0x39a6, 0x32e7, 0xb447, 0xbdce, 0x3c80, 0xb8d2, 0xbc27, 0x345d, 0xb3c8, 0x3cf6, 0xb4b6, 0xbc74, 0x35a7, 0xb3bc, 0xbc6e, 0xbc1c, 0xbb86, 0x3446, 0x219b, 0x3978, 0x2d05, 0xbe82, 0x3116, 0x3c2b, 0x3982, 0x3eea, 0xb071, 0x3fbf, 0xbaf1, 0x3a9e, 0xb8ca, 0xb6a2, 0xb9bd, 0x41fe, 0xb1ca, 0x31f5, 0xb954, 0xb06d, 0xb9fc, 0x3bc3, 0xb894, 0xbf93, 0x3df4, 0xba9a, 0xbb3e, 0xb838, 0x3ef9, 0xae83, 0xbc79, 0xb9e9, 0x38e7, 0x3797, 0xb5b0, 0xbe42, 0xacfa, 0xbdbb, 0xc1d3, 0xbe55, 0x3878, 0xbb68, 0xc141, 0xb465, 0x4143, 0xbc2a, 0x370d, 0x39ca, 0xb6f6, 0xba40, 0x3580, 0xac82, 0x3ecb, 0xb4e3, 0x3985, 0xbf18, 0x38d8, 0xae5e, 0x3fb9, 0xb73f, 0x3a28, 0xbc62, 0x3996, 0xb6d5, 0xbcd7, 0x3cda, 0xb10a, 0xaeda, 0x29a3, 0xba42, 0xb906, 0x39e3, 0xbcb9, 0xb02c, 0x3d07, 0xa9de, 0xb92e, 0xb03b, 0x326a, 0xb92a, 0x3645, 0xb64d, 0x3bea, 0xb414, 0xb7d0 };

// y_expected.npy
static const double expected_values[] = { 1.370863437652588, 1.8519716262817383, 1.6118388175964355, -1.0006093978881836, 3.338909149169922, -1.261129379272461, 0.5923004150390625, 1.4846477508544922, 0.37246084213256836, -INFINITY, -INFINITY, INFINITY, 0.30509424209594727, 0.12312555313110352, 0.5637073516845703, -0.898158073425293, 0.21661925315856934, 0.06360962986946106, 0.2566821575164795, -0.034190207719802856, 0.20375800132751465, 0.9981751441955566, -0.2590566873550415, 1.0409832000732422, -1.21028470993042, -0.5786147117614746, -0.0650317370891571, -0.47455549240112305, 1.2115345001220703, 2.255178451538086, -1.453765869140625, 4.1312713623046875, 1.1363296508789063, 0.15013885498046875, -0.13339751958847046, 0.2644491195678711, -0.4526597261428833, 0.6979012489318848, 1.2122983932495117, -0.014223821461200714, -0.23767483234405518, -0.40595555305480957, -0.13375139236450195, 0.3964376449584961, -0.2578697204589844 };

// y_bound.npy
static const double bound_values[] = { 0.0007462501525878911, 0.0013856887817382821, 0.0005106925964355472, 0.0006093978881835941, 0.0010185241699218757, 0.0005893707275390628, 0.0005035400390625003, 0.0007038116455078129, 0.00014638900756835946, 0.0, 0.0, 0.0, 0.00016260147094726573, 7.867813110351568e-5, 0.00025749206542968766, 0.0002794265747070314, 6.651878356933598e-5, 5.003809928894046e-5, 0.00015377998352050792, 1.9997358322143568e-5, 0.00014472007751464852, 0.0006165504455566411, 0.00022065639495849623, 0.000944137573242188, 0.0006527900695800786, 0.0004897117614746097, 3.173947334289553e-5, 0.0002980232238769533, 0.0005970001220703128, 0.0012722015380859384, 0.0006408691406250004, 0.0023651123046875013, 0.0005874633789062503, 0.00012969970703125008, 9.673833847045904e-5, 0.00019931793212890636, 0.00026714801788330094, 0.0003409385681152346, 0.0005922317504882816, 1.0259449481964118e-5, 0.00012600421905517586, 0.00029444694519042985, 8.440017700195318e-5, 0.0002908706665039064, 0.0001869201660156251 };

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
  cudnnDataType_t compute = CUDNN_DATA_HALF;
  cudnnConvolutionMode_t mode = CUDNN_CROSS_CORRELATION;
  set_int64(desc, CUDNN_ATTR_CONVOLUTION_SPATIAL_DIMS, { 2 });
  set(desc, CUDNN_ATTR_CONVOLUTION_COMP_TYPE, CUDNN_TYPE_DATA_TYPE, 1, &compute);
  set(desc, CUDNN_ATTR_CONVOLUTION_CONV_MODE, CUDNN_TYPE_CONVOLUTION_MODE, 1, &mode);
  set_int64(desc, CUDNN_ATTR_CONVOLUTION_PRE_PADDINGS, { 0, 1 });
  set_int64(desc, CUDNN_ATTR_CONVOLUTION_POST_PADDINGS, { 0, 1 });
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
  float alpha = 1.0, beta = 0.0;
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
  set_int64(engine, CUDNN_ATTR_ENGINE_GLOBAL_INDEX, { 22 });
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
