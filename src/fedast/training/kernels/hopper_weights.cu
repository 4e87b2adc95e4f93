// See hopper.cu, which comes before this.

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
