// See hopper_raw.cu, which comes before this.

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
