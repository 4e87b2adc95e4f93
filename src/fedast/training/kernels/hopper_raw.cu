// See hopper.cu, which comes before this.

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

