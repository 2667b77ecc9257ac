// Standalone reproducer of a wrong result of cuDNN. Needs cuDNN and CUDA alone.
//
//   fwd n=5 c=11 k=16 in=5 ker=5 fill=ints:530856868 via=engine:47
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

static Tensor first = { "x.npy", CUDNN_DATA_FLOAT, {5, 11, 1, 5}, {55, 5, 5, 1} };
static Tensor second = { "w.npy", CUDNN_DATA_FLOAT, {16, 11, 1, 5}, {55, 5, 5, 1} };
static Tensor result = { "prior.npy", CUDNN_DATA_FLOAT, {5, 16, 1, 1}, {16, 1, 1, 1} };

// x.npy
static const uint32_t first_bits[] = { 0x43110000, 0xc3540000, 0x42ac0000, 0xc30b0000, 0x42800000, 0xc30b0000, 0x42280000, 0x42ba0000, 0xc3110000, 0xc3790000, 0xc3140000, 0x43590000, 0x43220000, 0x434b0000, 0x42b60000, 0xc22c0000, 0xc2e60000, 0x42880000, 0x431e0000, 0xc36f0000, 0x42700000, 0x43730000, 0x41c80000, 0xc2fc0000, 0x43540000, 0x43150000, 0xc2be0000, 0xc3090000, 0x42c80000, 0x42080000, 0xc2ee0000, 0x436c0000, 0xc1980000, 0xc3230000, 0x42400000, 0xc2180000, 0xc3160000, 0x436a0000, 0xc32d0000, 0xc1300000, 0xc1c80000, 0xc3030000, 0xc1400000, 0x43560000, 0xc33f0000, 0x42820000, 0xc2b20000, 0x43450000, 0x43620000, 0xc30e0000, 0x43030000, 0xc24c0000, 0x42600000, 0xc29c0000, 0xc2780000, 0xc2140000, 0x43530000, 0x429c0000, 0x42d60000, 0x42c40000, 0x43610000, 0x43580000, 0x422c0000, 0x422c0000, 0x43710000, 0x42ca0000, 0x42ea0000, 0x42a40000, 0xc2920000, 0x42ac0000, 0xc3190000, 0x41e80000, 0x432f0000, 0xc3630000, 0xc36b0000, 0x42dc0000, 0x433d0000, 0x43160000, 0xc3340000, 0xc1f00000, 0xc34b0000, 0x433c0000, 0x43240000, 0x431c0000, 0x42c80000, 0xc37f0000, 0xc3700000, 0x431d0000, 0xc3110000, 0x434f0000, 0xc2fe0000, 0x42f00000, 0x42ce0000, 0x428a0000, 0xc3440000, 0x43240000, 0xc3540000, 0x41300000, 0xc2dc0000, 0xc32f0000, 0xc36c0000, 0xc2000000, 0xc31f0000, 0xc3430000, 0x437a0000, 0xc3030000, 0xc34b0000, 0xc2680000, 0x42800000, 0x42440000, 0xc3490000, 0x436d0000, 0x432d0000, 0xc2780000, 0x42bc0000, 0xc3380000, 0x436a0000, 0x435e0000, 0x43360000, 0x42d40000, 0xc28a0000, 0xc3210000, 0xc2580000, 0xc2840000, 0xc2640000, 0xc2e80000, 0xc2d40000, 0xc32e0000, 0xc3070000, 0x42b20000, 0x430e0000, 0xc3770000, 0xc3020000, 0xc31e0000, 0x41b00000, 0x42860000, 0xc2820000, 0x41980000, 0xc3780000, 0x434c0000, 0xc2380000, 0x42960000, 0xc1500000, 0xc27c0000, 0xc3390000, 0xc1a00000, 0x433b0000, 0xc2980000, 0xc36f0000, 0xc1980000, 0xc37a0000, 0x43680000, 0x42f00000, 0x434c0000, 0x436c0000, 0x43270000, 0xc3770000, 0xc2d00000, 0x42400000, 0xc2ea0000, 0x42d40000, 0xc3360000, 0xc3450000, 0x432d0000, 0x433f0000, 0xc2680000, 0xc2d60000, 0x435b0000, 0x429a0000, 0x430b0000, 0x42e60000, 0xc2c40000, 0x430b0000, 0xc37a0000, 0x42f40000, 0x43760000, 0xc2180000, 0x42ba0000, 0x43570000, 0x42680000, 0x43220000, 0x43430000, 0xc3360000, 0x42d20000, 0x43370000, 0x42b60000, 0x42cc0000, 0xc3350000, 0xc2380000, 0xc2840000, 0x42940000, 0xc37e0000, 0xc1880000, 0xc2960000, 0xc37f0000, 0xc1f80000, 0x431b0000, 0x43180000, 0x43470000, 0xc34d0000, 0x41200000, 0x433d0000, 0x432d0000, 0x41800000, 0xc2ec0000, 0xc2f00000, 0xc31d0000, 0x43150000, 0x42600000, 0xc1100000, 0xc29a0000, 0x429a0000, 0xc2d20000, 0xc3340000, 0xc3260000, 0x42e40000, 0x43710000, 0xc28e0000, 0xc3080000, 0x428c0000, 0xc32b0000, 0xc0e00000, 0x43000000, 0xc3040000, 0x432c0000, 0x421c0000, 0x43490000, 0x43560000, 0x43720000, 0x43080000, 0x42c60000, 0x43790000, 0xc3480000, 0xc3630000, 0x42600000, 0xc2740000, 0xc3380000, 0x435e0000, 0xc2ec0000, 0x43410000, 0x433f0000, 0x42ca0000, 0xc32c0000, 0xc3660000, 0x43670000, 0x435b0000, 0x42920000, 0xc1b00000, 0x42d40000, 0x43480000, 0x43400000, 0x425c0000, 0xc3340000, 0xc3010000, 0xc24c0000, 0xc3520000, 0x41100000, 0xc3220000, 0x42820000, 0x436a0000, 0x43670000, 0xc3250000, 0x42cc0000, 0xc31c0000, 0x430f0000, 0x43040000, 0x435a0000, 0xc37c0000, 0xc1d80000, 0x43420000, 0xc3740000, 0xc26c0000, 0x43390000, 0xc3320000, 0x43160000 };

// w.npy
static const uint32_t second_bits[] = { 0xc3640000, 0x40800000, 0xc2c20000, 0xc2940000, 0xc32c0000, 0xc3120000, 0xc3130000, 0x43720000, 0x43560000, 0x40a00000, 0x42380000, 0x41900000, 0xc36b0000, 0x434d0000, 0x43200000, 0xc3440000, 0x43200000, 0xc3680000, 0x41a00000, 0xc2940000, 0xc3430000, 0x42ca0000, 0x42140000, 0xc3040000, 0x43550000, 0x41f00000, 0x43340000, 0x41d00000, 0xc33a0000, 0xc1500000, 0xc1c00000, 0xc3240000, 0xc3740000, 0xc33e0000, 0x43330000, 0x43130000, 0x43490000, 0xc34c0000, 0xc3440000, 0x41a00000, 0x42820000, 0x43750000, 0x431c0000, 0x42d80000, 0x43000000, 0x42e40000, 0x43080000, 0x432b0000, 0xc3590000, 0xc0e00000, 0xc2ca0000, 0xc2be0000, 0xc0c00000, 0x43760000, 0x41980000, 0x42b40000, 0xc33a0000, 0x43750000, 0xc33d0000, 0xc3410000, 0xc35d0000, 0xc3260000, 0x42300000, 0xc2ea0000, 0x43390000, 0x41b00000, 0x42aa0000, 0xc2ca0000, 0xc3390000, 0x424c0000, 0xc34b0000, 0x436d0000, 0xc0800000, 0x41600000, 0x43090000, 0x43020000, 0x425c0000, 0xc35f0000, 0xc0a00000, 0xc2140000, 0x42940000, 0xc3620000, 0x43200000, 0xc3010000, 0x434f0000, 0xc1800000, 0xc0000000, 0x42e60000, 0xc30e0000, 0xc1200000, 0xc2d80000, 0x42e20000, 0xc2bc0000, 0xc2180000, 0xc2a80000, 0x42780000, 0xc33b0000, 0x43090000, 0x42b20000, 0xc2e80000, 0x43300000, 0xc2b40000, 0x42100000, 0xc3060000, 0xc3050000, 0x434c0000, 0xc21c0000, 0x41b80000, 0x43440000, 0x437e0000, 0x42860000, 0x41d00000, 0xc3580000, 0x41a80000, 0xc29a0000, 0x43240000, 0x42f60000, 0xc3300000, 0x432c0000, 0x43080000, 0x43500000, 0x41500000, 0x435d0000, 0xc24c0000, 0xc3610000, 0xc2820000, 0x428e0000, 0x433e0000, 0x433f0000, 0xc3030000, 0xc3310000, 0x43250000, 0xc2900000, 0xc3110000, 0xc0800000, 0xc2be0000, 0x42080000, 0xc2680000, 0xc2380000, 0xc3290000, 0xc3290000, 0x42e80000, 0xc3270000, 0x43290000, 0xc2140000, 0xc2c40000, 0xc2700000, 0xc35c0000, 0xc3610000, 0x43380000, 0x429a0000, 0x437e0000, 0x42d80000, 0x437c0000, 0xc3520000, 0x429a0000, 0x42200000, 0x42100000, 0xc2e20000, 0x43160000, 0xc28e0000, 0x42780000, 0x42d00000, 0xc27c0000, 0xc2a40000, 0x42be0000, 0xc2fc0000, 0x43020000, 0x43230000, 0x43770000, 0x424c0000, 0xc3500000, 0x41d80000, 0xc3730000, 0x43390000, 0xc33e0000, 0xc2d80000, 0xc3340000, 0x42e20000, 0xc3210000, 0x41c00000, 0xc3640000, 0xc2d80000, 0xc30e0000, 0x40c00000, 0xc34e0000, 0x42ae0000, 0xc3700000, 0xc3010000, 0xc2920000, 0xc35f0000, 0xc2860000, 0xc0800000, 0x41d80000, 0x424c0000, 0x42e80000, 0xc2ac0000, 0x42ee0000, 0xc3390000, 0x43600000, 0xc3060000, 0x43560000, 0xc2740000, 0xc1000000, 0xc3440000, 0x43500000, 0xc37e0000, 0xc34b0000, 0x43490000, 0x43620000, 0x427c0000, 0x43450000, 0xc3180000, 0xc2b40000, 0xc28e0000, 0x41a80000, 0x41b80000, 0x437e0000, 0x43100000, 0x42c20000, 0x42180000, 0x42e40000, 0xc37b0000, 0xc30b0000, 0xc26c0000, 0x429c0000, 0x43210000, 0xc2980000, 0xc3740000, 0x42d00000, 0x43400000, 0x42f00000, 0x43140000, 0x436b0000, 0x43290000, 0xc3380000, 0xc35c0000, 0xc2e00000, 0xc2740000, 0xc3780000, 0x43550000, 0x429e0000, 0xc3430000, 0x430f0000, 0x428c0000, 0xc2cc0000, 0xc3250000, 0x43060000, 0x42080000, 0xc2800000, 0xc2b20000, 0x42be0000, 0x43450000, 0xc2b00000, 0x43210000, 0xc3270000, 0x42f80000, 0xc31b0000, 0xc37d0000, 0x42be0000, 0xc2500000, 0x43280000, 0xc31c0000, 0xc3760000, 0xc2a00000, 0x430a0000, 0xc22c0000, 0x43670000, 0x42f00000, 0x432a0000, 0x42c60000, 0xc2800000, 0x43110000, 0xc28a0000, 0xc3680000, 0x434d0000, 0x42980000, 0xc30d0000, 0xc3780000, 0x42bc0000, 0xc3390000, 0xc3190000, 0xc33b0000, 0xc2dc0000, 0x42aa0000, 0xc3090000, 0x43580000, 0x42ce0000, 0x42900000, 0xc2280000, 0xc36e0000, 0x42340000, 0x43490000, 0x43070000, 0xc33e0000, 0xc3630000, 0x42580000, 0x43690000, 0x42a00000, 0xc1a80000, 0x41800000, 0x42b40000, 0x432a0000, 0x434c0000, 0xc2fa0000, 0x437a0000, 0xc37c0000, 0xc31f0000, 0x43400000, 0xc2f00000, 0xc3530000, 0x432a0000, 0xc1700000, 0x42e00000, 0x41e80000, 0x435c0000, 0xc3320000, 0x42c60000, 0xc29e0000, 0xc2aa0000, 0x42380000, 0xc3260000, 0x41500000, 0x41100000, 0x433f0000, 0xc1f00000, 0xc3180000, 0xc31c0000, 0xc32f0000, 0xc2f80000, 0xc3190000, 0xc1900000, 0x423c0000, 0xc3200000, 0xc3720000, 0x42a00000, 0x43530000, 0x42840000, 0xc35a0000, 0xc26c0000, 0x43500000, 0xc3240000, 0xc3300000, 0x42f60000, 0xc3400000, 0x43140000, 0x43410000, 0x42c80000, 0x43420000, 0xc3200000, 0xc2b40000, 0xc26c0000, 0x42800000, 0xc2b20000, 0xc2e60000, 0xc1f80000, 0x43600000, 0x431c0000, 0xc2000000, 0xc3590000, 0xc3150000, 0x436b0000, 0x42fe0000, 0xc2ec0000, 0x42d00000, 0xc3660000, 0xc2c60000, 0x43630000, 0x41880000, 0xc3710000, 0xc3150000, 0xc2ee0000, 0xc1c80000, 0xc0400000, 0x43010000, 0xc3190000, 0xc2a40000, 0x43090000, 0x42b00000, 0x436e0000, 0xc3180000, 0xc1700000, 0xc32c0000, 0x42d80000, 0xc3600000, 0x42a20000, 0xc3310000, 0x42a40000, 0xc3430000, 0xc3030000, 0x43010000, 0xc37c0000, 0x42180000, 0x43530000, 0xc3640000, 0xc2380000, 0x436b0000, 0x42880000, 0xc3630000, 0x435d0000, 0xc2180000, 0x430e0000, 0xc2a80000, 0xc3520000, 0xc33a0000, 0x42ca0000, 0x43640000, 0x41f80000, 0xc3230000, 0x43750000, 0xc2da0000, 0xc2100000, 0x431c0000, 0x43280000, 0xc34b0000, 0x43170000, 0x43590000, 0xc1e80000, 0x43530000, 0xc2ba0000, 0x43300000, 0xc3380000, 0xc25c0000, 0xc3370000, 0x41980000, 0xc33b0000, 0xc3790000, 0xc30d0000, 0x42e60000, 0x436d0000, 0xc26c0000, 0xc27c0000, 0x41700000, 0xc3790000, 0xc3370000, 0xc2b40000, 0x42f60000, 0xc2fc0000, 0xc2e80000, 0xc0a00000, 0x41e00000, 0x42fe0000, 0x42f20000, 0x41400000, 0x41d00000, 0x422c0000, 0xc1e80000, 0xc2340000, 0xc3220000, 0xc2580000, 0x420c0000, 0xc1400000, 0xc3530000, 0x41700000, 0xc32d0000, 0xc2d20000, 0x42ee0000, 0xc2fc0000, 0xc3230000, 0xc3390000, 0xc3510000, 0xc33c0000, 0xc3470000, 0xc28a0000, 0x434d0000, 0xc3610000, 0x42be0000, 0xc31d0000, 0xc2e40000, 0xc28a0000, 0xc3320000, 0x43370000, 0x42ba0000, 0xc3710000, 0x41000000, 0x43290000, 0x435b0000, 0x43720000, 0xc1e80000, 0x42da0000, 0x42960000, 0xc3750000, 0xc2b20000, 0xc1e00000, 0xc2820000, 0xc2da0000, 0x42300000, 0x436d0000, 0x43120000, 0x43690000, 0xc2ac0000, 0x434d0000, 0xc24c0000, 0x43490000, 0x41b00000, 0x430f0000, 0xc3690000, 0xc1300000, 0x43310000, 0xc2bc0000, 0xc36a0000, 0xc3570000, 0x43590000, 0xc1200000, 0x42b40000, 0x432d0000, 0xc3430000, 0x41500000, 0xc34d0000, 0xc1b00000, 0x43620000, 0xc2e60000, 0x43730000, 0x41b80000, 0x42500000, 0x41a80000, 0xc2da0000, 0xc3410000, 0xc34a0000, 0x429e0000, 0xc3710000, 0x42640000, 0xc31f0000, 0xc30f0000, 0x43420000, 0x42900000, 0xc3350000, 0x433e0000, 0x42fe0000, 0x430c0000, 0xc3130000, 0x43020000, 0x42fa0000, 0xc37a0000, 0xc3620000, 0x43100000, 0xc2c40000, 0xc3770000, 0xc2ea0000, 0x42820000, 0xc2440000, 0x43270000, 0x43650000, 0xc23c0000, 0x431d0000, 0xc2640000, 0xc2f80000, 0x42ae0000, 0x42b40000, 0xc2fa0000, 0x434e0000, 0x43750000, 0x43600000, 0x42d20000, 0x431d0000, 0x42ec0000, 0x434d0000, 0x43420000, 0x43130000, 0xc2680000, 0x42880000, 0xc2920000, 0xc30a0000, 0x42d80000, 0x41b80000, 0x42d80000, 0x43160000, 0xc3770000, 0x43700000, 0xc2e40000, 0x42ba0000, 0x430c0000, 0xc2a00000, 0xc3790000, 0x437e0000, 0x41300000, 0x43080000, 0x41a80000, 0x43590000, 0x43260000, 0xc33c0000, 0x43160000, 0xc2aa0000, 0xc2ea0000, 0xc3250000, 0x43300000, 0xc35f0000, 0x40000000, 0xc30d0000, 0xc3150000, 0x434c0000, 0x40c00000, 0xc3010000, 0xc1e00000, 0x42e40000, 0xc2900000, 0xc2ca0000, 0x435a0000, 0xc1d80000, 0xc27c0000, 0x42800000, 0x43070000, 0x428a0000, 0x43020000, 0x42e00000, 0xc0e00000, 0x433f0000, 0x43740000, 0xc3360000, 0x434f0000, 0xc2300000, 0xc37c0000, 0xc2140000, 0xc3400000, 0x42bc0000, 0x42e80000, 0xc36d0000, 0xc1100000, 0x43160000, 0x42fa0000, 0x42400000, 0xc3710000, 0x41f00000, 0x41600000, 0x43770000, 0x42180000, 0xc3080000, 0x42880000, 0x432a0000, 0x434f0000, 0xc3340000, 0xc2300000, 0xc3450000, 0xc1200000, 0x42640000, 0x43730000, 0x43290000, 0xc3700000, 0xc36b0000, 0x42e60000, 0x43680000, 0xc2c00000, 0xc3140000, 0xc0400000, 0x43570000, 0x436a0000, 0x42f40000, 0xc0000000, 0xc3170000, 0xc30d0000, 0xc3030000, 0xc30f0000, 0x434f0000, 0xc34d0000, 0xc2880000, 0x42c20000, 0xc2920000, 0xc3440000, 0x437a0000, 0xc29a0000, 0xc2280000, 0xc2ba0000, 0x43550000, 0xc26c0000, 0x42580000, 0xc2640000, 0xc2ea0000, 0xc2640000, 0xc33d0000, 0x43660000, 0xc2e60000, 0x41d80000, 0xc2f80000, 0xc1b80000, 0x42480000, 0xc2400000, 0x40a00000, 0xc3060000, 0x43150000, 0xc2100000, 0x42580000, 0x437c0000, 0x429e0000, 0x431d0000, 0x43720000, 0xc2cc0000, 0xc2c40000, 0xc2600000, 0xc3760000, 0x42d80000, 0xc3350000, 0x43620000, 0xc3710000, 0xc3030000, 0xc20c0000, 0x43660000, 0xc1c00000, 0xc36e0000, 0x43070000, 0xc22c0000, 0x43280000, 0x43340000, 0xc3780000, 0x41b80000, 0xc2080000, 0x41100000, 0x42180000, 0xc3220000, 0xc3470000, 0xc32b0000, 0x437b0000, 0xc33e0000, 0xc34f0000, 0x42240000, 0x43150000, 0xc2d20000, 0xc2dc0000, 0xc32d0000, 0xc20c0000, 0xc2940000, 0x42140000, 0x431d0000, 0x433e0000, 0x43330000, 0x43050000, 0x43020000, 0x41880000, 0x433f0000, 0x43770000, 0xc2e60000, 0x424c0000, 0xc2a60000, 0xc2b60000, 0x423c0000, 0x42380000, 0x430b0000, 0x42da0000, 0x41700000, 0xc2ce0000, 0x41100000, 0xc0a00000, 0x42d40000, 0xc2ac0000, 0x434d0000, 0xc2ba0000, 0x43710000, 0x43320000, 0xc2da0000, 0xc2c00000, 0x42600000, 0xc35f0000, 0xc34c0000, 0x42740000, 0x434d0000, 0x42040000, 0x436b0000, 0x430b0000, 0xc2be0000, 0x43360000, 0xc33d0000, 0xc33f0000, 0x430e0000, 0xc35c0000, 0xc1e00000, 0x42f20000, 0xc36a0000, 0xc31c0000, 0xc1c00000, 0xc33a0000, 0x43410000, 0xc2280000, 0xc3690000, 0xc30c0000, 0x42ee0000, 0x42d80000, 0x43080000, 0xc23c0000, 0xc3020000, 0xc1e80000, 0x43580000, 0x421c0000, 0x432b0000, 0x43180000, 0xc30d0000, 0x43590000, 0xc33f0000, 0x43720000, 0xc2f60000, 0x431f0000, 0xc1980000, 0x434c0000, 0xc32d0000, 0xc2ac0000, 0xc2960000, 0xc2c00000, 0xc2b60000, 0xc3130000, 0x43710000, 0x437b0000, 0xc2ce0000, 0xc3150000, 0x41d00000, 0x42380000, 0xc3770000, 0x41c80000, 0x42ba0000, 0x42ee0000, 0x43140000, 0xc2b00000, 0xc1500000, 0x41a00000, 0x431b0000, 0x43560000, 0x430c0000, 0xc3740000, 0xc1500000, 0x420c0000, 0xc37c0000, 0xc3060000, 0x42fc0000, 0x432f0000, 0x42f40000, 0xc1500000, 0x436a0000, 0xc29c0000, 0x434a0000, 0xc36b0000, 0x435a0000, 0xc3600000, 0xc2800000, 0x43110000, 0x43720000, 0x42ea0000, 0xc0a00000, 0xc3340000, 0x43760000, 0x43330000, 0xc2f80000, 0xc2ba0000, 0x432e0000, 0xc2820000, 0xc3450000, 0xc33f0000, 0x43700000, 0xc37f0000, 0x42c20000, 0xc30d0000, 0x429c0000, 0x43270000, 0x430c0000, 0xc2ea0000, 0xc2a40000, 0x43750000, 0x436c0000, 0x42f40000, 0xc2900000, 0x436b0000, 0xc2b60000, 0xc33b0000, 0x43230000, 0x42980000, 0xc31e0000, 0xc32e0000, 0xc3090000, 0x41100000, 0xc3310000, 0x42180000, 0x42d40000, 0x43730000, 0xc36d0000, 0xc2de0000, 0x434d0000, 0xc26c0000, 0xc1c00000, 0xc33b0000, 0x42d40000, 0xc29a0000, 0xc2f60000, 0xc1b80000, 0xc3200000 };

// y_expected.npy
static const double expected_values[] = { -114503.0, 87067.0, -1579.0, -77783.0, 235561.0, 59918.0, 66074.0, 231811.0, 68455.0, -86453.0, 264338.0, -43817.0, 82633.0, 64407.0, -18970.0, 438537.0, -54852.0, -32793.0, 27721.0, 156906.0, 138294.0, 208569.0, 214464.0, -101160.0, 138056.0, 127575.0, 111781.0, -202276.0, -91126.0, 203113.0, 289441.0, -15225.0, 318298.0, 286377.0, -159619.0, -53933.0, -84895.0, -427094.0, -120826.0, -164237.0, -38227.0, -108625.0, 152958.0, 62708.0, 147887.0, -188077.0, -48947.0, -16899.0, -234001.0, 228262.0, -105103.0, 142621.0, -111050.0, -259795.0, 83420.0, 149602.0, 12187.0, -70077.0, 53937.0, -72665.0, 71362.0, -21257.0, 240284.0, -58605.0, 79415.0, 112401.0, -6394.0, 107555.0, -117965.0, 3438.0, -317235.0, 55879.0, -176016.0, 36596.0, 69330.0, -54082.0, -62025.0, 424578.0, -156957.0, -18267.0 };

// y_bound.npy
static const double bound_values[] = { 6061.156250000004, 5222.359375000004, 5782.280761718754, 5884.703125000004, 6491.781250000004, 5682.417968750004, 5987.539062500004, 7347.250000000005, 5962.421875000004, 6055.218750000004, 5811.156250000004, 6639.800781250004, 5897.195312500004, 5737.070312500004, 6435.573242187504, 7364.062500000005, 6233.171875000004, 6084.044921875004, 6520.394531250004, 6801.921875000004, 7024.578125000004, 7204.578125000005, 7048.234375000004, 7742.539062500005, 6833.828125000004, 7250.453125000005, 6801.898437500004, 7441.703125000005, 6684.414062500004, 6407.140625000004, 6684.906250000004, 7838.336425781255, 6723.093750000004, 6106.968750000004, 6329.031250000004, 7068.300781250004, 6831.492187500004, 7170.250000000005, 6140.109375000004, 7415.156250000005, 5601.623046875004, 7213.460937500005, 7196.687500000005, 6474.382812500004, 6120.406250000004, 6876.062500000004, 6488.035156250004, 7896.792968750005, 6533.093750000004, 6066.828125000004, 5795.367187500004, 6448.171875000004, 6840.960937500004, 6286.218750000004, 6526.375000000004, 6417.109375000004, 6000.873535156254, 6371.601562500004, 6221.082031250004, 6389.093750000004, 5935.851562500004, 5722.289062500004, 5863.859375000004, 6557.082031250004, 7405.835937500005, 6563.687500000004, 6950.737670898441, 8080.179687500005, 7927.562500000005, 7494.75415039063, 8038.437500000005, 7754.644531250005, 6830.937500000004, 7774.421875000005, 7600.886718750005, 8395.937500000005, 7141.664062500004, 7278.312500000005, 6855.593750000004, 7891.574218750005 };

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
  set_int64(engine, CUDNN_ATTR_ENGINE_GLOBAL_INDEX, { 47 });
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
