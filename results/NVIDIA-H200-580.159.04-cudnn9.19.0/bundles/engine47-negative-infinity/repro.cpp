// Standalone reproducer of a wrong result of cuDNN. Needs cuDNN and CUDA alone.
//
//   fwd n=2 c=12 k=8 in=2x3x1 ker=1x3x3 pad=0x0x1 layout=nhwc type=fp16 fill=overflow:4101717166 via=engine:47
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
  std::vector<int64_t> dims;       // 3 spatial dimensions
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

static Tensor first = { "x.npy", CUDNN_DATA_HALF, {2, 12, 2, 3, 1}, {72, 1, 36, 12, 12} };
static Tensor second = { "w.npy", CUDNN_DATA_HALF, {8, 12, 1, 3, 3}, {108, 1, 108, 36, 12} };
static Tensor result = { "prior.npy", CUDNN_DATA_HALF, {2, 8, 2, 1, 1}, {16, 1, 8, 8, 8} };

// x.npy
static const uint16_t first_bits[] = { 0xd556, 0xd6dc, 0x51ec, 0x5678, 0xd384, 0x557e, 0xd288, 0xd89d, 0xd538, 0x5541, 0x5629, 0xd742, 0x51d9, 0x50c9, 0xd686, 0x52d7, 0x51a0, 0x5073, 0x4dbe, 0x59a8, 0xcc45, 0x523c, 0xd6bf, 0x59e8, 0x5132, 0xd2be, 0xd419, 0x52d9, 0x5121, 0x5847, 0xd862, 0x58fd, 0xd40e, 0x50b5, 0xd163, 0xcede, 0x5282, 0x45b7, 0xd53b, 0xd92e, 0x5171, 0x5613, 0xd2e9, 0xd81e, 0xc906, 0x3ca7, 0xbdac, 0xd43f, 0x443e, 0xcd24, 0x54ca, 0x5451, 0xcfc0, 0xd2e9, 0xd40d, 0xc84d, 0x555d, 0x4c82, 0x50d4, 0x4f15, 0x586a, 0x51e7, 0xd3e1, 0x5962, 0xd210, 0x5604, 0x510b, 0xc565, 0x52f7, 0x50a4, 0x54e1, 0xd5a2, 0xd366, 0x541b, 0x5187, 0xd1df, 0x57bf, 0xd73b, 0x4f1c, 0xd915, 0xd2fb, 0xd476, 0xc0d1, 0xd895, 0xd8c5, 0xd594, 0x5443, 0x54c9, 0xd4c1, 0xd450, 0x51b6, 0x510d, 0x3c39, 0xb6fa, 0xd4a8, 0x5189, 0x5a20, 0xd8a1, 0x5436, 0x3b64, 0xcf95, 0xccf5, 0xd763, 0x5175, 0xd837, 0xd3a1, 0x5440, 0x580c, 0x5295, 0xd179, 0x444d, 0x5320, 0x5635, 0xd282, 0xce8c, 0xd931, 0xda2d, 0xd414, 0x5583, 0x51f8, 0x5546, 0x4e0a, 0x52d2, 0xcf45, 0x56b1, 0xd2fc, 0xd41d, 0x4c7f, 0xcb90, 0x5261, 0x4293, 0x413f, 0x51e3, 0x4bcd, 0x43b8, 0xcf2e, 0xcfe4, 0x5814, 0x5224, 0x4c39, 0x56c4, 0xd4c0, 0xd5c7, 0xcfe5 };

// w.npy
static const uint16_t second_bits[] = { 0xd55d, 0x56f7, 0xd904, 0x4bed, 0x569d, 0x4fd8, 0x58c6, 0xd7a3, 0xd2d5, 0x4b2f, 0xd28f, 0x5038, 0x595b, 0xd370, 0x5143, 0xcf72, 0xd0bb, 0x503e, 0x447d, 0xb988, 0x55ea, 0xc455, 0x5853, 0x5596, 0xcbb2, 0x565b, 0xd46b, 0xcc64, 0x4fd0, 0x4e22, 0x53e9, 0x5008, 0xc6c2, 0xd4d4, 0xd564, 0xcdb8, 0x543c, 0xd4ac, 0x48ec, 0x4c7a, 0xc854, 0x489f, 0xc4dd, 0xd193, 0x5407, 0xd399, 0x5638, 0xd7e8, 0x4fa2, 0x54ed, 0x4833, 0xd8d8, 0xd59e, 0x57c6, 0x52dd, 0x55a6, 0x56f3, 0xdab2, 0x50d1, 0x5511, 0xd841, 0x5549, 0x4acf, 0x5829, 0x55d2, 0xd65f, 0x4e43, 0xd7a3, 0x5038, 0xd340, 0x55a4, 0x5828, 0x4c92, 0xd6c2, 0xd002, 0xd4ad, 0x5469, 0xd1f3, 0x5457, 0x4f54, 0xd8df, 0x54f5, 0xd149, 0x5928, 0xda0a, 0xd51e, 0x5282, 0xd677, 0x416d, 0x47a2, 0xd1d0, 0x4bca, 0x55ba, 0x55bf, 0x58ef, 0x53fc, 0x4d8e, 0xcc03, 0xd01a, 0xd277, 0x55a7, 0x532d, 0x5396, 0xd9e0, 0xd2e1, 0x573f, 0x44ed, 0x5031, 0xd3e8, 0x57a6, 0x5090, 0xd03a, 0x5165, 0xd84c, 0xda71, 0xd59e, 0xcfc2, 0x54f8, 0x4d5a, 0x43fd, 0xd0a6, 0x4b4b, 0xcc04, 0x56b6, 0x5093, 0x542b, 0x5470, 0x544b, 0x54a0, 0xd80e, 0xd3c9, 0xccae, 0xcb51, 0x4c71, 0x4867, 0xd9a3, 0xcfa6, 0xd82c, 0x4d87, 0x5151, 0xd346, 0x4c75, 0xd4cf, 0xc8a1, 0x53e7, 0xd309, 0x58dc, 0x586c, 0x497a, 0xd25c, 0x535c, 0x4a97, 0x5581, 0x5774, 0xd774, 0xd5ab, 0x5871, 0xd2fa, 0xd43b, 0xd41b, 0x521c, 0xd21d, 0xd326, 0xd874, 0x52b2, 0xd52b, 0x5958, 0xcad0, 0xd0fa, 0xcbbd, 0xd418, 0xd753, 0xced4, 0x562e, 0xcdba, 0x54f1, 0x4d20, 0x4bd9, 0xd3d2, 0x52b8, 0xd31c, 0xd257, 0xcc1d, 0xd464, 0xd9e4, 0x58c4, 0xd1aa, 0xd1db, 0x581e, 0xd5dd, 0xd2ed, 0xd30c, 0xd0c9, 0x449c, 0xcd87, 0x54a6, 0x5083, 0xccfe, 0xd87f, 0xd4b1, 0xd80b, 0xda3d, 0x4de6, 0x550a, 0x517d, 0x530a, 0x509b, 0x517d, 0xc357, 0x5024, 0x5172, 0xd5e2, 0xd335, 0xd338, 0x4ffc, 0xd306, 0xd5bd, 0xcd7b, 0xd23f, 0x5077, 0x5369, 0x5569, 0x508d, 0x5223, 0xd59e, 0x5482, 0xd05e, 0x4da2, 0x515d, 0xd450, 0x5008, 0xced1, 0x4e73, 0x527f, 0xd178, 0xd244, 0xd10d, 0x511c, 0xd42c, 0xd9c7, 0xd4a4, 0x4caa, 0x4d59, 0x51e7, 0xcc3d, 0x498d, 0xcea2, 0x54a9, 0xcda8, 0x50c2, 0x4bf7, 0x5866, 0x583f, 0x55b9, 0x5927, 0xd9bf, 0xd897, 0xd00f, 0x541f, 0x509e, 0xd9bc, 0xc52a, 0x5582, 0xce4e, 0x58d9, 0x597c, 0x4d12, 0xd8cf, 0x4ede, 0x46b6, 0x4ce9, 0x50c3, 0xd016, 0x4b56, 0x55f1, 0x5136, 0x481c, 0x4caf, 0xcbf1, 0x53a0, 0x4982, 0x5601, 0x4abe, 0xd08f, 0xd0c3, 0x5473, 0x47b1, 0x57ce, 0xd80c, 0x57be, 0xd020, 0x5228, 0xcebf, 0x5394, 0xd378, 0x51ac, 0xd1a0, 0x58b2, 0xd355, 0xce04, 0x500a, 0xd197, 0xbea2, 0xd311, 0x59dc, 0x53d5, 0xcf1c, 0x584b, 0x571f, 0x46ab, 0xcdb7, 0x4e5d, 0xd4c6, 0xd164, 0xc17a, 0xda6b, 0x5352, 0xc853, 0x52f7, 0x4f8d, 0xd53f, 0xccb1, 0xd512, 0xd210, 0xc570, 0x5582, 0x53cf, 0x5830, 0x53fb, 0x5401, 0xd6d3, 0xd581, 0x4f2a, 0xcc33, 0x5814, 0x5435, 0x4df3, 0xd473, 0x5985, 0x5003, 0xd3f6, 0x5695, 0xd476, 0xd6f4, 0x4c3a, 0x545f, 0xd6a5, 0xd0a1, 0xd4f5, 0x5249, 0xd46b, 0x4f95, 0x4c17, 0xd0b2, 0xd20a, 0xcdca, 0x4f1f, 0xd385, 0x5172, 0xcf3b, 0x55e8, 0x2f08, 0xcd3a, 0x52e5, 0xcad5, 0x4966, 0xccd9, 0xd6de, 0x509a, 0xccea, 0xd936, 0x5759, 0x5517, 0x58ea, 0x55da, 0xd01f, 0xd547, 0xd28b, 0xcf67, 0x4f22, 0x4f1b, 0xd19f, 0xd392, 0x5148, 0xcd7d, 0x4ec9, 0x3d07, 0x449a, 0x5932, 0x5587, 0x546e, 0xd2c8, 0x5179, 0x48c2, 0xd2a3, 0xd37f, 0xd345, 0xd17a, 0x5787, 0xd93a, 0x4984, 0xcc76, 0xd3d7, 0x4e4c, 0xd3de, 0x4e5a, 0xd4d5, 0xd1a0, 0xd1b1, 0xcd1f, 0x5115, 0x586a, 0xcb88, 0x5007, 0x52b4, 0xd366, 0x5488, 0xd895, 0x4dfd, 0x57d0, 0xbd17, 0x5239, 0xd5f1, 0x58ae, 0xd68a, 0x48b3, 0xd1c3, 0xc1f6, 0x59f7, 0xc91a, 0x541c, 0xc0df, 0xd4e5, 0x4d04, 0x569a, 0x508b, 0x5476, 0xdb1a, 0x59d0, 0x57e9, 0xc042, 0x4e74, 0x546f, 0x5421, 0x599c, 0x56d5, 0x56a7, 0x5885, 0x493f, 0x5047, 0xd1b7, 0x5826, 0xd5a3, 0x532f, 0xd5df, 0x5896, 0x4a8e, 0x5837, 0x570d, 0xd79c, 0x5318, 0x5239, 0x4909, 0x4e1a, 0xd487, 0x45be, 0x4c9b, 0x565c, 0x4b1a, 0x5194, 0x4d33, 0xc4c9, 0xd21a, 0xd73f, 0xd459, 0xd6ae, 0x512a, 0xd385, 0x4ece, 0x49ca, 0xd897, 0xd85c, 0x4f87, 0x508a, 0x54bb, 0x4ec2, 0x50de, 0x52af, 0x50b1, 0x53fd, 0x5680, 0xd774, 0xd2eb, 0xceae, 0x4720, 0xd4b0, 0xd144, 0xd761, 0x4bcc, 0xd534, 0x54f5, 0xd34b, 0xd326, 0x4d26, 0xc780, 0xd273, 0xca6b, 0xd5d6, 0x5404, 0xcc7a, 0xd03d, 0x4526, 0xc2fd, 0x5032, 0xd098, 0x544d, 0x541d, 0xb3fd, 0x5556, 0x55f1, 0x4898, 0x504f, 0xd12e, 0xcc77, 0xd70b, 0xd3c3, 0x3f90, 0xd679, 0xd579, 0x50f1, 0xcbf0, 0xd1b0, 0x48c5, 0x4ef2, 0xd6e3, 0xc896, 0x581d, 0xd47b, 0xd494, 0xd66f, 0x5846, 0x4e80, 0x586f, 0x58ba, 0x4d57, 0x5634, 0x4caa, 0xd89c, 0xd8b3, 0xd3a6, 0x14fb, 0xce11, 0x42f9, 0xc79b, 0xd0f7, 0xd162, 0xd2bd, 0xd407, 0xd511, 0xce39, 0x5368, 0xd02d, 0xd217, 0xd8ee, 0xbfa4, 0xcad6, 0x4c2f, 0x492b, 0x538b, 0xc7a8, 0xc993, 0xd250, 0x546c, 0xd1c6, 0x515e, 0x574d, 0x48ca, 0x47c1, 0x54db, 0x5433, 0x564a, 0xd08a, 0xd2a6, 0x5492, 0x5774, 0xd2e1, 0xd2d0, 0x5701, 0xd6d9, 0x542b, 0x5801, 0xca91, 0x3ebf, 0x52dd, 0xd16e, 0xd346, 0xc5c9, 0x55d0, 0xd2aa, 0x4f85, 0x40a2, 0x57a3, 0xd0ba, 0xd808, 0xd803, 0xd96d, 0x51c0, 0x3aa4, 0x57b6, 0x5376, 0x35fe, 0xd354, 0x488e, 0x556f, 0x53d7, 0xd335, 0x5076, 0x565d, 0x5719, 0x4794, 0x5489, 0x5694, 0x555e, 0xd5f5, 0x5864, 0xd038, 0x454c, 0x4f2b, 0xd257, 0xd345, 0xd63b, 0x54b1, 0xd696, 0x51ae, 0xbffe, 0x4aa4, 0xd207, 0x5817, 0x57c4, 0xca6f, 0xc605, 0xc7fa, 0xd264, 0xd4f1, 0x57d5, 0x4cd6, 0xd52e, 0x5850, 0xdb2a, 0xd70f, 0xc004, 0x4a16, 0x4888, 0x5822, 0xcff1, 0xc4c4, 0xcc27, 0xc17e, 0xcca5, 0xd22c, 0x5198, 0xd842, 0xc816, 0xcdad, 0xc74c, 0xd27f, 0x56f7, 0x4d4b, 0x55d9, 0x538d, 0xce27, 0xd94e, 0x4cfb, 0xd46e, 0x57c5, 0xd2b6, 0xcc50, 0x520a, 0x437c, 0xd1c4, 0x5073, 0xc5e1, 0x57ae, 0x4c8c, 0x5099, 0xd9c9, 0xd662, 0x5559, 0x4d74, 0x544b, 0xd0e9, 0xd22c, 0xd8ef, 0x5506, 0x5593, 0xd4c9, 0x59b1, 0xd4b8, 0x4c67, 0xd684, 0xc8d4, 0xd9f6, 0xd5e2, 0xce46, 0x548d, 0x4cdb, 0x5507, 0x425a, 0x5889, 0x536c, 0xd46b, 0x584b, 0xd0ac, 0x54eb, 0xc730, 0xd5a8, 0x5379, 0x57bd, 0xd576, 0x50ba, 0xd0ec, 0x53ea, 0xc9b7, 0x51a2, 0xccc7, 0xd352, 0x4931, 0xd282, 0xcce1, 0xd6e6, 0xd1fb, 0x484d, 0xd0d9, 0xd46b, 0x52c3, 0x4d78, 0xcd5c, 0x5581, 0x5095, 0xd83f, 0xd370, 0x52f3, 0xcd28, 0x5110, 0xcef9, 0xd92b, 0x4c34, 0xd3e1, 0x5222, 0x5799, 0xcfb2, 0x4e05, 0xcc4d, 0xd783, 0xcd25, 0xd807, 0xccfa, 0xd16a, 0xc05c, 0x4d16, 0x3990, 0x5302, 0x51a3, 0x4c00, 0x5610, 0xd562, 0x5056, 0xd402, 0xd54b, 0x5434, 0x554c, 0xd575, 0x48be, 0xd075, 0xd4a6, 0x51d9, 0xd7fe, 0xd2f6, 0x4cdd, 0x52f2, 0xd2e0, 0xd542, 0xd643, 0xd2c9, 0x4f36, 0xd3d7, 0x31d5, 0x53cb, 0xce4a, 0xd0f6, 0xcc42, 0x5480, 0xd31a, 0x4efd, 0xd8eb, 0x5774, 0x570e, 0xd1b8, 0x50be, 0xd38d, 0xd857, 0xd5cd, 0x5238, 0xd8c4, 0xc96d, 0xd1ca, 0xd76f, 0x5803, 0x4c0a, 0xcfe1, 0x51ca, 0x4c72, 0x5521, 0xd2ad, 0xd170, 0x4f1f, 0x573e, 0x5884, 0xcc8b, 0x50de, 0x4daa, 0xca96, 0x56d1, 0xd2c8, 0xd44a, 0x4489, 0x51cc, 0xd4b1, 0xd426, 0xc55c, 0xd80a, 0x5337, 0xd372, 0x55bd, 0x5871, 0x538c, 0x4d3e, 0x54c6, 0x5095, 0x57bd, 0xd065, 0x4e6d, 0x5427, 0x4d76, 0x555e, 0x4fbe, 0xc739, 0xd409, 0xcc5a, 0x5765, 0x54d2, 0x4ea5, 0xd5f4, 0x55e4, 0x579c, 0x58fd, 0x5518, 0x4fdf, 0x4013, 0xccd0, 0xb6bc, 0xd2b1, 0x57b9, 0x5836 };

// y_expected.npy
static const double expected_values[] = { 22698.314208984375, -INFINITY, -35237.320251464844, -2384.9533081054688, INFINITY, 14889.089340209961, 24996.65821838379, -39800.29039001465, -36887.69779109955, 24359.0418548584, -25901.488131284714, 65087.28230637312, -4295.580871582031, -20724.384887695313, 2886.519287109375, -8446.902252197266, -6147.05810546875, -2152.5418586730957, -46942.95895385742, 27801.423309326172, INFINITY, -7533.847038269043, INFINITY, 13049.153260231018, -1206.9008388519287, 17398.279890298843, 5703.788316547871, 62249.61595618725, -8495.896362304688, -16998.580688476563, -26896.748077392578, -26445.4139251709 };

// y_bound.npy
static const double bound_values[] = { 5.6857910156250036, 0.0, 5.3202514648437536, 1.0466918945312507, 0.0, 1.0893402099609382, 4.658218383789065, 7.709609985351567, 8.302208900451665, 7.041854858398442, 2.5118687152862567, 0.7176936268806462, 0.4191284179687502, 4.384887695312503, 1.4807128906250009, 1.0977478027343757, 0.9418945312500006, 1.4581413269042978, 1.0410461425781257, 6.5766906738281286, 0.0, 2.1529617309570326, 0.0, 1.153260231018067, 1.0991611480712897, 6.279890298843387, 0.21168345212936412, 9.615956187248235, 0.10363769531250006, 6.5806884765625036, 0.7480773925781254, 2.5860748291015643 };

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
  set_int64(desc, CUDNN_ATTR_CONVOLUTION_SPATIAL_DIMS, { 3 });
  set(desc, CUDNN_ATTR_CONVOLUTION_COMP_TYPE, CUDNN_TYPE_DATA_TYPE, 1, &compute);
  set(desc, CUDNN_ATTR_CONVOLUTION_CONV_MODE, CUDNN_TYPE_CONVOLUTION_MODE, 1, &mode);
  set_int64(desc, CUDNN_ATTR_CONVOLUTION_PRE_PADDINGS, { 0, 0, 1 });
  set_int64(desc, CUDNN_ATTR_CONVOLUTION_POST_PADDINGS, { 0, 0, 1 });
  set_int64(desc, CUDNN_ATTR_CONVOLUTION_FILTER_STRIDES, { 1, 1, 1 });
  set_int64(desc, CUDNN_ATTR_CONVOLUTION_DILATIONS, { 1, 1, 1 });
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
