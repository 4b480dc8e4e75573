/* Convolution, blocked to blocked, for GPUs: a work group computes GP pixels by GC channels, from tiles in local memory. A work
   item computes R pixels that follow each other by a vector of V channels (V is 4, N is 1). Local size: GC / V, GP / R.
   Weights: B zeros; bias [tiles][GC]; [tiles][window][channels in][GC]. */
#define ITEMS (GC / V * GP / R)
#define PIXEL_LOADS ((GP * B / V + ITEMS - 1) / ITEMS)
#define WEIGHT_LOADS ((GC * B / V + ITEMS - 1) / ITEMS)
#define PITCH (GP + 4)

__kernel void conv_tiled(
    __global float *arena, __global const float *weights, int input, int output, int in_height, int in_width, int in_blocks,
    int out_width, int pixels, int channels, int tiles, int tiles_of_group, int kernel_height, int kernel_width, int stride_y,
    int stride_x, int dilation_y, int dilation_x, int pad_y, int pad_x, POSTS_PARAMETERS)
{
    __local __attribute__((aligned(16))) float near[B * PITCH], factors[B * GC] __attribute__((aligned(16)));
    int column = get_local_id(0), row = get_local_id(1), item = row * (GC / V) + column;
    int tile = get_group_id(0), begin = get_group_id(1) * GP, plane = in_height * in_width * B;
    __global const float *from = arena + input + tile / tiles_of_group * in_blocks * plane;
    __global const float *w = weights + B + tiles * GC + tile * kernel_height * kernel_width * in_blocks * B * GC;
    int top[PIXEL_LOADS], left[PIXEL_LOADS];
#pragma unroll
    for (int l = 0; l < PIXEL_LOADS; ++l) {
        int pixel = begin + (item + l * ITEMS) / (B / V), y = pixel / out_width;
        top[l] = pixel < pixels ? y * stride_y - pad_y : -(1 << 28); /* behind the last one: outside everywhere */
        left[l] = (pixel - y * out_width) * stride_x - pad_x;
    }
    FLOATV sum[R][N], soon[PIXEL_LOADS], soon_factors[WEIGHT_LOADS];
#pragma unroll
    for (int r = 0; r < R; ++r)
        sum[r][0] = ALIGNED(weights + B + tile * GC + column * V);
    int steps = kernel_height * kernel_width * in_blocks, block = 0, ky = 0, kx = 0;
    for (int step = -1; step < steps; ++step) {
        if (step >= 0) {
#pragma unroll
            for (int l = 0; l < PIXEL_LOADS; ++l) {
                int which = item + l * ITEMS, at = which / (B / V), lane = which % (B / V) * V;
                if (which < GP * B / V) {
                    near[lane * PITCH + at] = soon[l].x;
                    near[(lane + 1) * PITCH + at] = soon[l].y;
                    near[(lane + 2) * PITCH + at] = soon[l].z;
                    near[(lane + 3) * PITCH + at] = soon[l].w;
                }
            }
#pragma unroll
            for (int l = 0; l < WEIGHT_LOADS; ++l)
                if (item + l * ITEMS < GC * B / V)
                    VSTORE(soon_factors[l], factors + (item + l * ITEMS) * V);
            barrier(CLK_LOCAL_MEM_FENCE);
        }
        if (step + 1 < steps) {
#pragma unroll
            for (int l = 0; l < PIXEL_LOADS; ++l) {
                int which = item + l * ITEMS, y = top[l] + ky * dilation_y, x = left[l] + kx * dilation_x;
                int inside = (uint)y < (uint)in_height && (uint)x < (uint)in_width && which < GP * B / V;
                soon[l] = inside ? ALIGNED(from + block * plane + (y * in_width + x) * B + which % (B / V) * V) : (FLOATV)(0.0f);
            }
#pragma unroll
            for (int l = 0; l < WEIGHT_LOADS; ++l)
                if (item + l * ITEMS < GC * B / V)
                    soon_factors[l] = ALIGNED(w + (item + l * ITEMS) * V);
            w += B * GC;
            if (++block == in_blocks) {
                block = 0;
                if (++kx == kernel_width) {
                    kx = 0;
                    ++ky;
                }
            }
        }
        if (step >= 0) {
            ADD_TILES(B, GC, [0]);
            barrier(CLK_LOCAL_MEM_FENCE);
        }
    }
    posts_t given = POSTS_GIVEN;
    bounding(&given);
    int pixel = begin + row * R;
    write_tile(&given, arena, output, sum, pixel, 0, pixels - pixel, pixels, tile * GC + column * V, channels);
}
