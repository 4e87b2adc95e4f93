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

#ifdef MAKE_CONVOLVE
// ---- convolution, bias, ReLU and pooling: 64 channels of inputs ------------------------------------
// A block makes ROWS rows of outputs. COLUMNS is OUT_W.

constexpr int TAPS = SIZE * SIZE, ROW = WIDTH * PIXEL;

template <int MINE>  // rows of this block
__device__ __forceinline__ void convolve_rows(const TensorMap* x, const uint4* weight, const float* bias, VALUE* y,
                                              u8* place, int* saturated, int group, int top, int copy, int images,
                                              u8* memory) {
  const u32 pixels = shared_address(memory), barriers = pixels + (ROWS + SIZE - 1) * ROW;
  if (threadIdx.x == 0) {
    for (int high = 0; high < SIZE; high++) barrier_begin(barriers + high * 8);
    barriers_begun();
    for (int high = 0; high < SIZE; high++) {  // the rows that a row of the kernel needs first
      const int first = high ? MINE - 1 + high : 0, end = MINE + high;
      barrier_expect(barriers + high * 8, (end - first) * ROW);
      for (int row = first; row < end; row++)
        copy_row(pixels + row * ROW, x, barriers + high * 8, group * 8, top + row, copy);
    }
  }
  constexpr int HELD = 3;
  Weights<64> held[HELD];
#pragma unroll
  for (int tap = 0; tap < HELD; tap++) held[tap].read(weight, min(tap, TAPS - 1));
  const float2 added = bias_of(bias);
  float total[MINE][4 * COLUMNS];
#pragma unroll
  for (int row = 0; row < MINE; row++)
#pragma unroll
    for (int i = 0; i < 4 * COLUMNS; i++) total[row][i] = 0.0f;
  const u64 start = operand(pixels, 16, PIXEL) | SWIZZLED;
  __syncthreads();  // barriers have begun
  auto position = [&](const Weights<64>& by, int tap) {
    const int high = tap / SIZE, broad = tap % SIZE;
    if (broad == 0) barrier_wait(barriers + high * 8, 0);
    const u64 from = start + (high * WIDTH + broad) * (PIXEL >> 4);
    products_begin();
#pragma unroll
    for (int k = 0; k < 4; k++)
#pragma unroll
      for (int row = 0; row < MINE; row++) multiply(total[row], by.part[k], from + ((row * ROW + k * 32) >> 4));
    products_end();
  };
  // While one position is multiplied, new weights replace those of the position before.
#pragma unroll 1
  for (int tap = 0; tap < TAPS / HELD * HELD; tap += HELD)
#pragma unroll
    for (int i = 0; i < HELD; i++) {
      position(held[i], tap + i);
      products_wait<1>();
      if (tap + i > 0) held[(i + HELD - 1) % HELD].read(weight, min(tap + i + HELD - 1, TAPS - 1));
    }
#pragma unroll
  for (int i = 0; i < TAPS % HELD; i++) position(held[i], TAPS / HELD * HELD + i);
  products_wait<0>();
  __syncthreads();  // pixels are not needed any more
  Pooled<MINE>::write(total, added, y, place, saturated, images, memory);
}

extern "C" __global__ void __launch_bounds__(128, 2)
convolve(const __grid_constant__ TensorMap x, const uint4* weight, const float* bias, VALUE* y, u8* place,
         int* saturated, int samples) {
  extern __shared__ __align__(1024) u8 memory[];
  const int groups = (samples + 7) / 8;
  constexpr int TILES = (OUT_H + ROWS - 1) / ROWS;
  const int group = blockIdx.x % groups, tile = blockIdx.x / groups % TILES, copy = blockIdx.x / groups / TILES;
  const int top = tile * ROWS, images = min(8, samples - group * 8);
  weight += static_cast<u64>(copy) * (TAPS * 4 * 128);
  const u64 image = static_cast<u64>(copy) * samples + group * 8;
  const u64 pooled = (image * (OUT_H / 2) + top / 2) * (OUT_W / 2) * 64;
  bias += copy * 64;
  if (top + ROWS <= OUT_H)
    convolve_rows<ROWS>(&x, weight, bias, y + pooled, place + pooled, saturated + copy, group, top, copy, images, memory);
  else if constexpr (OUT_H % ROWS != 0)
    convolve_rows<OUT_H % ROWS>(&x, weight, bias, y + pooled, place + pooled, saturated + copy, group, top, copy, images, memory);
}
#endif

#if defined(MAKE_FIRST) || defined(MAKE_FIRST_WEIGHTS)
// ---- images of few channels -----------------------------------------------------------------------
// INS channels times SIZE rows of the kernel are at most sixteen numbers: all that a column of
// the kernel sees from a pixel down. A block has ROWS rows of outputs, two at a time, for which
// it writes these numbers to shared memory: eight images side by side as above, but without a swizzle.

constexpr int RAW_ROWS = ROWS + SIZE - 1;
constexpr int RAW_IMAGE = INS * RAW_ROWS * WIDTH * 2 + 16, RAW = 8 * RAW_IMAGE;  // 16 more, so that banks differ
constexpr int PLANE = 2 * WIDTH * 128, LINES = 2 * PLANE;  // half of the numbers of two rows, and all
static_assert(ROWS % 2 == 0 && OUT_H % ROWS == 0 && WIDTH % 8 == 0 && INS * SIZE <= 16, "shape");

// Of eight images, `images` of which exist, the rows that a block needs, as they are.
__device__ __forceinline__ void read_raw(u8* raw, const u16* x, int images, u32 barrier) {
  if (threadIdx.x == 0) {
    constexpr int BYTES = RAW_ROWS * WIDTH * 2;
    barrier_expect(barrier, images * INS * BYTES);
    for (int i = 0; i < images * INS; i++)
      copy_bytes(shared_address(raw) + i / INS * RAW_IMAGE + i % INS * BYTES,
                 x + static_cast<u64>(i) * (HEIGHT * WIDTH), BYTES, barrier);
  }
  for (int i = threadIdx.x; i < (8 - images) * (RAW_IMAGE / 16); i += 128)
    reinterpret_cast<uint4*>(raw + images * RAW_IMAGE)[i] = make_uint4(0, 0, 0, 0);
}

// The numbers of two rows of pixels. LAST is what the sixteenth is.
template <u32 LAST> __device__ __forceinline__ void unroll(const u8* raw, u8* lines, int row) {
  for (int i = threadIdx.x; i < WIDTH * 8; i += 128) {
    const int image = i % 8, column = i / 8;
    const u16* from = reinterpret_cast<const u16*>(raw + image * RAW_IMAGE) + row * WIDTH + column;
    u16 seen[SIZE + 1][INS];
#pragma unroll
    for (int down = 0; down <= SIZE; down++)
#pragma unroll
      for (int channel = 0; channel < INS; channel++)
        seen[down][channel] = from[(channel * RAW_ROWS + down) * WIDTH];
#pragma unroll
    for (int two = 0; two < 2; two++) {
      u32 packed[8];
#pragma unroll
      for (int pair = 0; pair < 8; pair++) {
        u32 value = 0;
#pragma unroll
        for (int side = 0; side < 2; side++) {
          const int n = pair * 2 + side;
          if (n == 15 && LAST) value |= LAST << 16 * side;
          else if (n < INS * SIZE) value |= static_cast<u32>(seen[two + n / INS][n % INS]) << 16 * side;
        }
        packed[pair] = value;
      }
      u8* to = lines + (two * WIDTH + column) * 128 + image * 16;
      *reinterpret_cast<uint4*>(to) = make_uint4(packed[0], packed[1], packed[2], packed[3]);
      *reinterpret_cast<uint4*>(to + PLANE) = make_uint4(packed[4], packed[5], packed[6], packed[7]);
    }
  }
}

#endif

#ifdef MAKE_FIRST
// Convolution, bias, ReLU and pooling. Numbers are written while the matrix units are at work on the two
// rows before.

constexpr int STRIPS = OUT_W / COLUMNS, STAGED = RAW + 2 * LINES, BARRIER = STAGED + Pooled<2>::BYTES;
static_assert(OUT_W % COLUMNS == 0, "whole strips");

extern "C" __global__ void __launch_bounds__(128, 3)
first(const u16* x, const uint4* weight, const float* bias, VALUE* y, u8* place, int* saturated, int samples) {
  extern __shared__ __align__(1024) u8 memory[];
  const int groups = (samples + 7) / 8;
  constexpr int TILES = OUT_H / ROWS;
  const int group = blockIdx.x % groups, tile = blockIdx.x / groups % TILES, copy = blockIdx.x / groups / TILES;
  const int top = tile * ROWS, images = min(8, samples - group * 8);
  const u64 image = static_cast<u64>(copy) * samples + group * 8;
  const u32 base = shared_address(memory);
  if (threadIdx.x == 0) {
    barrier_begin(base + BARRIER);
    barriers_begun();
  }
  read_raw(memory, x + (image * INS * HEIGHT + top) * WIDTH, images, base + BARRIER);
  Weights<16> held[SIZE];
#pragma unroll
  for (int tap = 0; tap < SIZE; tap++) held[tap].read(weight + static_cast<u64>(copy) * (SIZE * 128), tap);
  const float2 added = bias_of(bias + copy * 64);
  __syncthreads();
  barrier_wait(base + BARRIER, 0);
  unroll<0>(memory, memory + RAW, 0);
#pragma unroll 1
  for (int row = 0; row < ROWS; row += 2) {
    publish();
    const u64 lines = operand(base + RAW + row / 2 % 2 * LINES, PLANE, 128);
#pragma unroll 1
    for (int strip = 0; strip < STRIPS; strip++) {
      float total[2][4 * COLUMNS];
#pragma unroll
      for (int two = 0; two < 2; two++)
#pragma unroll
        for (int i = 0; i < 4 * COLUMNS; i++) total[two][i] = 0.0f;
      products_begin();
#pragma unroll
      for (int tap = 0; tap < SIZE; tap++)
#pragma unroll
        for (int two = 0; two < 2; two++)
          multiply(total[two], held[tap].part[0], lines + (two * WIDTH + strip * COLUMNS + tap) * (128 >> 4));
      products_end();
      if (strip == 0 && row + 2 < ROWS) unroll<0>(memory, memory + RAW + (row / 2 + 1) % 2 * LINES, row + 2);
      products_wait<0>();
      const u64 at = ((image * (OUT_H / 2) + (top + row) / 2) * (OUT_W / 2) + strip * (COLUMNS / 2)) * 64;
      Pooled<2>::write(total, added, y + at, place + at, saturated + copy, images, memory + STAGED);
      __syncthreads();  // before the next values are staged
    }
  }
}
#endif

#ifdef MAKE_FIRST_WEIGHTS
// The gradients of the weights and the bias, straight from that of the pooled outputs. Two pixels of
// eight images are one product, with all positions of the kernel: these are pixels that follow each other.
// The sixteenth number is one, so that the bias has its part in the product.

constexpr int WINDOWS = OUT_W / 2, PLACED = WINDOWS * PIXEL, LINED = PLACED + WINDOWS * PIXEL;
constexpr int RAWS = LINED + LINES, BARRIERS = RAWS + RAW;
static_assert(INS * SIZE < 16, "no room for the bias");

// Places of 8 channels, each as a half with the bit of its corner, or none.
__device__ __forceinline__ uint4 corners(uint2 places) {
  u32 found[4];
#pragma unroll
  for (int pair = 0; pair < 4; pair++) {
    const u32 two = (pair < 2 ? places.x : places.y) >> pair % 2 * 16;
    found[pair] = (1u << (two & 7) & 15) | (1u << (two >> 8 & 7) & 15) << 16;
  }
  return make_uint4(found[0], found[1], found[2], found[3]);
}
// Both halves of `value` where its place is this corner.
__device__ __forceinline__ u32 of_corner(u32 value, u32 place, int corner) {
  return value & (place >> corner & 0x00010001) * 0xFFFF;
}

extern "C" __global__ void __launch_bounds__(128, 3)
first_weights(const u16* x, const __grid_constant__ TensorMap dy, const u8* place, float* parts, float* sums,
              int samples) {
  extern __shared__ __align__(1024) u8 memory[];
  const int groups = (samples + 7) / 8;
  constexpr int TILES = OUT_H / ROWS;
  const int group = blockIdx.x % groups, tile = blockIdx.x / groups % TILES, copy = blockIdx.x / groups / TILES;
  const int top = tile * ROWS, images = min(8, samples - group * 8);
  const u64 image = static_cast<u64>(copy) * samples + group * 8;
  const u32 base = shared_address(memory), barriers = base + BARRIERS;
  const int warp = threadIdx.x / 32, lane = threadIdx.x % 32;

  auto read = [&](int row) {  // of the gradient
    barrier_expect(barriers + 8, WINDOWS * PIXEL);
    copy_row(base, &dy, barriers + 8, group * 8, top / 2 + row, copy);
  };
  if (threadIdx.x == 0) {
    barrier_begin(barriers);
    barrier_begin(barriers + 8);
    barriers_begun();
    read(0);
  }
  read_raw(memory + RAWS, x + (image * INS * HEIGHT + top) * WIDTH, images, barriers);

  // Of the places, a thread has those of eight channels of an image, of every second window.
  constexpr int EACH = (WINDOWS + 1) / 2;
  const int eighth = threadIdx.x % 8, mine = threadIdx.x / 8 % 8;
  place += (((image + mine) * (OUT_H / 2) + top / 2) * WINDOWS) * 64 + eighth * 8;
  uint2 places[EACH];
  auto read_places = [&](int row) {
#pragma unroll
    for (int i = 0; i < EACH; i++) {
      const int window = threadIdx.x / 64 + 2 * i;
      places[i] = make_uint2(0x04040404, 0x04040404);
      if (window < WINDOWS && mine < images)
        places[i] = __ldg(reinterpret_cast<const uint2*>(place + (row * WINDOWS + window) * 64));
    }
  };
  read_places(0);

  float total[2][4 * SIZE];
#pragma unroll
  for (int plane = 0; plane < 2; plane++)
#pragma unroll
    for (int i = 0; i < 4 * SIZE; i++) total[plane][i] = 0.0f;
  // Of four matrices: two groups of eight channels of the gradient, then of the places.
  const u32 here = lane % 8 * 128 + (((2 * warp + lane / 8 % 2) ^ lane % 8) * 16);
  const u64 lines = operand(base + LINED, 128, 128);
  __syncthreads();
  barrier_wait(barriers, 0);
#pragma unroll 1
  for (int row = 0; row < ROWS / 2; row++) {
    unroll<0x3C00>(memory + RAWS, memory + LINED, 2 * row);
#pragma unroll
    for (int i = 0; i < EACH; i++) {
      const int window = threadIdx.x / 64 + 2 * i;
      u8* to = memory + PLACED + window * PIXEL + mine * 128 + (eighth ^ mine) * 16;
      if (window < WINDOWS) *reinterpret_cast<uint4*>(to) = corners(places[i]);
    }
    publish();
    if (row + 1 < ROWS / 2) read_places(row + 1);
    barrier_wait(barriers + 8, row % 2);
    const u32 from = here + base + (lane < 16 ? 0 : PLACED);
    uint4 gradient[2][2];
#pragma unroll
    for (int window = 0; window < WINDOWS; window++) {
      const uint4 found = turned(from + window * PIXEL);
#pragma unroll
      for (int line = 0; line < 2; line++)
        gradient[window % 2][line] =
            make_uint4(of_corner(found.x, found.z, 2 * line), of_corner(found.y, found.w, 2 * line),
                       of_corner(found.x, found.z, 2 * line + 1), of_corner(found.y, found.w, 2 * line + 1));
      products_begin();
#pragma unroll
      for (int line = 0; line < 2; line++)
#pragma unroll
        for (int plane = 0; plane < 2; plane++)
          multiply(total[plane], gradient[window % 2][line],
                   lines + ((plane * PLANE + (line * WIDTH + 2 * window) * 128) >> 4));
      products_end();
      products_wait<1>();
    }
    products_wait<0>();
    __syncthreads();
    if (threadIdx.x == 0 && row + 1 < ROWS / 2) read(row + 1);
  }
  const u64 slot = static_cast<u64>(copy) * (groups * TILES) + tile * groups + group;
#pragma unroll
  for (int i = 0; i < 4 * SIZE; i += 2) {
    const int out = warp * 16 + lane / 4 + i % 4 / 2 * 8, tap = i / 4, n = lane % 4 * 2;
    float* to = parts + ((slot * 64 + out) * SIZE + tap) * 16 + n;
    *reinterpret_cast<float2*>(to) = make_float2(total[0][i], total[0][i + 1]);
    if (n == 6 && tap == 0) sums[slot * 64 + out] = total[1][i + 1];
    *reinterpret_cast<float2*>(to + 8) = make_float2(total[1][i], n == 6 ? 0.0f : total[1][i + 1]);
  }
}
#endif

#ifdef MAKE_WEIGHTS
// ---- the gradient of the weights: 64 channels of inputs --------------------------------------------
// A block has two rows of the kernel, one for each half of its threads, and sums over all pixels of its
// share of the images, two rows of outputs at a time, while the next are copied. If there is a
// single row left, the halves take turns at it. Two pixels of eight images are one product.

constexpr int TAPS = SIZE * SIZE, ROWS = 2, STRIPS = OUT_H / ROWS, STAGES = 3;
constexpr int X_BYTES = (ROWS + 1) * WIDTH * PIXEL, STAGE = X_BYTES + ROWS * OUT_W * PIXEL;
static_assert(OUT_H % ROWS == 0 && OUT_W % 2 == 0, "whole pairs");

extern "C" __global__ void __launch_bounds__(256, 1)
weights(const __grid_constant__ TensorMap x, const __grid_constant__ TensorMap wide, float* parts, int samples,
        int copies, int share) {
  extern __shared__ __align__(1024) u8 memory[];
  constexpr int PAIRS = (SIZE + 1) / 2;
  // Blocks with two rows come first: they take longer.
  const int copy = blockIdx.x % copies, pair = blockIdx.x / copies % PAIRS, number = blockIdx.x / copies / PAIRS;
  const int shares = gridDim.x / copies / PAIRS;
  const bool single = pair * 2 + 1 == SIZE;
  const int half = __shfl_sync(0xFFFFFFFF, threadIdx.x / 128, 0), high = pair * 2 + (single ? 0 : half);
  const int groups = (samples + 7) / 8, first_group = number * share;
  const int stages = (min(groups, first_group + share) - first_group) * STRIPS;
  const u32 base = shared_address(memory), barriers = base + STAGES * STAGE;

  auto read = [&](int stage) {
    if (stage >= stages || threadIdx.x != 0) return;
    const int image = (first_group + stage / STRIPS) * 8, top = stage % STRIPS * ROWS;
    const int rows = single ? ROWS : ROWS + 1;
    const u32 to = base + stage % STAGES * STAGE, barrier = barriers + stage % STAGES * 8;
    barrier_expect(barrier, (rows * WIDTH + ROWS * OUT_W) * PIXEL);
    for (int row = 0; row < rows; row++)
      copy_row(to + row * WIDTH * PIXEL, &x, barrier, image, top + pair * 2 + row, copy);
    for (int row = 0; row < ROWS; row++)
      copy_row(to + X_BYTES + row * OUT_W * PIXEL, &wide, barrier, image, top + row, copy);
  };
  if (threadIdx.x == 0) {
    for (int stage = 0; stage < STAGES; stage++) barrier_begin(barriers + stage * 8);
    barriers_begun();
  }
  __syncthreads();
#pragma unroll
  for (int stage = 0; stage < STAGES - 1; stage++) read(stage);

  float total[SIZE][32];
#pragma unroll
  for (int tap = 0; tap < SIZE; tap++)
#pragma unroll
    for (int i = 0; i < 32; i++) total[tap][i] = 0.0f;
  const int warp = threadIdx.x / 32 % 4, lane = threadIdx.x % 32;
  // Of four matrices: two groups of eight channels of the first pixel, then of the second.
  const u32 mine = X_BYTES + lane / 16 * PIXEL + lane % 8 * 128 + (((2 * warp + lane / 8 % 2) ^ lane % 8) * 16);
#pragma unroll 1
  for (int stage = 0; stage < stages; stage++) {
    barrier_wait(barriers + stage % STAGES * 8, stage / STAGES % 2);
    __syncthreads();  // all are done with the stage before
    read(stage + STAGES - 1);
    if (single && stage % 2 != half) continue;
    const u32 from = base + stage % STAGES * STAGE;
    const u64 images = operand(from + (high - pair * 2) * WIDTH * PIXEL, 16, PIXEL) | SWIZZLED;
    uint4 gradient[2];
    gradient[0] = turned(from + mine);
#pragma unroll
    for (int two = 0; two < ROWS * OUT_W / 2; two++) {
      const int row = two / (OUT_W / 2), column = two % (OUT_W / 2) * 2;
      products_begin();
#pragma unroll
      for (int tap = 0; tap < SIZE; tap++)
        multiply(total[tap], gradient[two % 2], images + (row * WIDTH + column + tap) * (PIXEL >> 4));
      products_end();
      if (two + 1 < ROWS * OUT_W / 2) {
        products_wait<1>();
        gradient[(two + 1) % 2] = turned(from + mine + (two + 1) * 2 * PIXEL);
      }
    }
    products_wait<0>();
  }
  if (single) {  // the second half's sums are added to the first's
    float* sums = reinterpret_cast<float*>(memory) + threadIdx.x % 128;
    __syncthreads();
#pragma unroll
    for (int i = 0; i < SIZE * 32; i++)
      if (half == 1) sums[i * 128] = total[i / 32][i % 32];
    __syncthreads();
    if (half == 1) return;
#pragma unroll
    for (int i = 0; i < SIZE * 32; i++) total[i / 32][i % 32] += sums[i * 128];
  }
  parts += ((static_cast<u64>(copy) * shares + number) * 64 * TAPS + high * SIZE) * 64;
#pragma unroll
  for (int tap = 0; tap < SIZE; tap++)
#pragma unroll
    for (int i = 0; i < 32; i += 2) {
      const int out = warp * 16 + lane / 4 + i % 4 / 2 * 8, in = i / 4 * 8 + lane % 4 * 2;
      *reinterpret_cast<float2*>(parts + (static_cast<u64>(out) * TAPS + tap) * 64 + in) =
          make_float2(total[tap][i], total[tap][i + 1]);
    }
}
#endif
