// See hopper.cu, which comes before this.

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
