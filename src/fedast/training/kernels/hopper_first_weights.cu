// See hopper_raw.cu, which comes before this.

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
