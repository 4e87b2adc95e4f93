// Convolutions of stacked copies in half precision on Hopper's matrix units (sm_90a).
//
// Macros give the shape: HEIGHT x WIDTH images of INS channels, a kernel of SIZE x SIZE, and OUT_H x
// OUT_W outputs of 64 channels. A block has the pixels of eight images in shared
// memory and multiplies them where they are, for every position of the kernel: Triton would
// fetch each pixel once per position.
//
// A product takes 64 rows from registers: weights or gradients, one row per channel of outputs. Its
// columns are pixels, of which shared memory has those of eight images side by side, then the next
// pixel; so a step to the side is an offset, and a row of pixels is one operand.

typedef unsigned char u8;
typedef unsigned short u16;
typedef unsigned int u32;
typedef unsigned long long u64;

constexpr float LARGEST = 65504.0f;

struct alignas(64) TensorMap { u64 opaque[16]; };

// ---- instructions ------------------------------------------------------------------------------

__device__ __forceinline__ u32 shared_address(const void* p) {
  return static_cast<u32>(__cvta_generic_to_shared(p));
}

// A barrier that counts bytes which the copy engine has brought.
__device__ __forceinline__ void barrier_begin(u32 barrier) {
  asm volatile("mbarrier.init.shared::cta.b64 [%0], 1;" :: "r"(barrier) : "memory");
}
__device__ __forceinline__ void barriers_begun() {
  asm volatile("fence.mbarrier_init.release.cluster;" ::: "memory");
}
__device__ __forceinline__ void barrier_expect(u32 barrier, u32 bytes) {
  asm volatile("mbarrier.arrive.expect_tx.shared::cta.b64 _, [%0], %1;" :: "r"(barrier), "r"(bytes) : "memory");
}
__device__ __forceinline__ void barrier_wait(u32 barrier, u32 phase) {
  asm volatile(
      "{.reg .pred p;\n"
      "again: mbarrier.try_wait.parity.shared::cta.b64 p, [%0], %1;\n"
      "@!p bra again;}" :: "r"(barrier), "r"(phase) : "memory");
}

// A row of pixels of eight images, all 64 channels: [pixel][image][channel], swizzled.
__device__ __forceinline__ void copy_row(u32 to, const TensorMap* map, u32 barrier, int image, int row, int copy) {
  asm volatile(
      "cp.async.bulk.tensor.5d.shared::cluster.global.mbarrier::complete_tx::bytes [%0], [%1, {%2, %3, %2, %4, %5}], [%6];"
      :: "r"(to), "l"(map), "r"(0), "r"(image), "r"(row), "r"(copy), "r"(barrier) : "memory");
}
// Bytes that lie side by side: a multiple of sixteen.
__device__ __forceinline__ void copy_bytes(u32 to, const void* from, u32 bytes, u32 barrier) {
  asm volatile("cp.async.bulk.shared::cluster.global.mbarrier::complete_tx::bytes [%0], [%1], %2, [%3];"
               :: "r"(to), "l"(from), "r"(bytes), "r"(barrier) : "memory");
}

// What threads have written to shared memory becomes visible to the matrix units.
__device__ __forceinline__ void publish() {
  asm volatile("fence.proxy.async.shared::cta;" ::: "memory");
  __syncthreads();
}
__device__ __forceinline__ void products_begin() { asm volatile("wgmma.fence.sync.aligned;" ::: "memory"); }
__device__ __forceinline__ void products_end() { asm volatile("wgmma.commit_group.sync.aligned;" ::: "memory"); }
template <int PENDING> __device__ __forceinline__ void products_wait() {
  asm volatile("wgmma.wait_group.sync.aligned %0;" :: "n"(PENDING) : "memory");
}
// An operand in shared memory: the bytes from one group of eight to the next, each way.
__device__ __forceinline__ u64 operand(u32 address, u32 leading, u32 stride) {
  return static_cast<u64>((address & 0x3FFFF) >> 4) | static_cast<u64>(leading >> 4) << 16 |
         static_cast<u64>(stride >> 4) << 32;
}
#define SWIZZLED (1ull << 62)
#define PIXEL (8 * 64 * 2)  // bytes of a pixel of eight images, as the copy engine brings it

// Four matrices of eight by eight halves, whose rows become columns: as matrix units take them for
// products that sum over pixels. Each thread gives the address of one row.
__device__ __forceinline__ uint4 turned(u32 address) {
  uint4 c;
  asm volatile("ldmatrix.sync.aligned.m8n8.x4.trans.shared.b16 {%0, %1, %2, %3}, [%4];"
               : "=r"(c.x), "=r"(c.y), "=r"(c.z), "=r"(c.w) : "r"(address) : "memory");
  return c;
}

__device__ __forceinline__ float larger(float a, float b) {  // NaN wins
  float c;
  asm("max.NaN.f32 %0, %1, %2;" : "=f"(c) : "f"(a), "f"(b));
  return c;
}
// As far as fp16 reaches; NaN stays NaN.
__device__ __forceinline__ float clipped(float value) {  // of one that is not negative
  float c;
  asm("min.NaN.f32 %0, %1, %2;" : "=f"(c) : "f"(value), "f"(LARGEST));
  return c;
}
__device__ __forceinline__ u32 halves(float low, float high) {
  u32 c;
  asm("cvt.rn.f16x2.f32 %0, %1, %2;" : "=r"(c) : "f"(high), "f"(low));
  return c;
}

// ---- weights -------------------------------------------------------------------------------------

// Of one kernel position, for products with CHANNELS of the pixels, as threads hold them: a
// thread's two rows of a product are two channels that follow each other (see hopper.py).
template <int CHANNELS> struct Weights {
  uint4 part[CHANNELS / 16];
  __device__ __forceinline__ void read(const uint4* weight, int tap) {
#pragma unroll
    for (int k = 0; k < CHANNELS / 16; k++)
      part[k] = __ldg(weight + (tap * (CHANNELS / 16) + k) * 128 + threadIdx.x);
  }
};

// ---- what becomes of sums ------------------------------------------------------------------------

#ifdef VALUE
// Bias, 2x2 pooling and ReLU of MINE rows of COLUMNS outputs, by way of shared memory. VALUE is what
// pooled values are stored as: u16 (for fp16) or float.
template <int MINE> struct Pooled {
  static constexpr int ACROSS = COLUMNS / 2, COUNT = MINE / 2 * ACROSS;
  static constexpr int STRIDE = COUNT * 64 * sizeof(VALUE) + 16, PLACES = COUNT * 64 + 16;
  static constexpr int BYTES = 8 * (STRIDE + PLACES);
  static_assert(MINE % 2 == 0 && COLUMNS % 2 == 0, "whole windows");

  static __device__ __forceinline__ void keep(u16* to, float a, float b) {
    *reinterpret_cast<u32*>(to) = halves(a, b);
  }
  static __device__ __forceinline__ void keep(float* to, float a, float b) {
    *reinterpret_cast<float2*>(to) = make_float2(a, b);
  }

  // `y` and `place` are where the first image's first window goes; `images` of the eight exist.
  static __device__ __forceinline__ void write(const float (*total)[4 * COLUMNS], float2 bias, VALUE* y, u8* place,
                                               int* saturated, int images, u8* memory) {
    u8* values = memory;
    u8* places = memory + 8 * STRIDE;
    const int warp = threadIdx.x / 32, lane = threadIdx.x % 32, channel = warp * 16 + lane / 4 * 2;
    bool beyond = false;
#pragma unroll
    for (int side = 0; side < 2; side++) {
      const int image = lane % 4 * 2 + side;
#pragma unroll
      for (int window = 0; window < COUNT; window++) {
        float value[2];
        int from[2];
#pragma unroll
        for (int half = 0; half < 2; half++) {
          const int row = window / ACROSS * 2, i = window % ACROSS * 8 + half * 2 + side;
          const float a = total[row][i], b = total[row][i + 4];
          const float c = total[row + 1][i], d = total[row + 1][i + 4];
          const float above = larger(a, b), below = larger(c, d);
          const float largest = larger(above, below) + (half ? bias.y : bias.x);
          from[half] = largest > 0.0f ? below > above ? (d > c ? 3 : 2) : (b > a ? 1 : 0) : 4;
          value[half] = clipped(larger(largest, 0.0f));
          beyond |= largest > LARGEST && image < images;
        }
        const int at = window * 64 + channel;
        keep(reinterpret_cast<VALUE*>(values + image * STRIDE) + at, value[0], value[1]);
        *reinterpret_cast<u16*>(places + image * PLACES + at) = static_cast<u16>(from[0] | from[1] << 8);
      }
    }
    if (beyond) *saturated = 1;
    __syncthreads();
    copy_out<64 * sizeof(VALUE)>(reinterpret_cast<u8*>(y), values, STRIDE, images);
    copy_out<64>(place, places, PLACES, images);
  }

  template <int BYTES_EACH> static __device__ __forceinline__ void copy_out(u8* to, const u8* from, int stride, int images) {
    constexpr int PIECES = BYTES_EACH / 16;
    for (int i = threadIdx.x; i < images * COUNT * PIECES; i += 128) {
      const int piece = i % PIECES, window = i / PIECES % COUNT, image = i / (PIECES * COUNT);
      const int there = image * (OUT_H / 2 * (OUT_W / 2)) + window / ACROSS * (OUT_W / 2) + window % ACROSS;
      *reinterpret_cast<uint4*>(to + static_cast<u64>(there) * BYTES_EACH + piece * 16) =
          *reinterpret_cast<const uint4*>(from + image * stride + window * BYTES_EACH + piece * 16);
    }
  }
};

__device__ __forceinline__ float2 bias_of(const float* bias) {
  return __ldg(reinterpret_cast<const float2*>(bias) + threadIdx.x / 32 * 8 + threadIdx.x % 32 / 4);
}
#endif
