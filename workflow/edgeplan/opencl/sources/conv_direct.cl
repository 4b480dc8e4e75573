/* Convolution, blocked to blocked. A work item computes N vectors of channels at R pixels that follow each other, also from one
   row to the next, and so on for `run` times R pixels. Weights: B zeros; bias [tiles][T]; [tiles][window][channels in][T]. */
__kernel void conv_direct(
    __global float *arena, __global const float *weights, int input, int output, int in_height, int in_width, int in_blocks,
    int out_width, int pixels, int run, int channels, int tiles, int tiles_of_group, int kernel_height, int kernel_width,
    int stride_y, int stride_x, int dilation_y, int dilation_x, int pad_y, int pad_x, POSTS_PARAMETERS)
{
    int begin = (get_global_id(2) * get_global_size(0) + get_global_id(0)) * run * R, end = min(begin + run * R, pixels);
    int tile = get_global_id(1), plane = in_height * in_width * B;
    if (tile >= tiles)
        return;
    __global const float *from = arena + input + tile / tiles_of_group * in_blocks * plane;
    __global const float *bias = weights + B + tile * T;
    __global const float *first_w = weights + B + tiles * T + tile * kernel_height * kernel_width * in_blocks * B * T;
    posts_t given = POSTS_GIVEN;
    bounding(&given);
    int out_y = begin / out_width, out_x = begin - out_y * out_width;
    for (int pixel = begin; pixel < end; pixel += R) {
        __global const float *w = first_w;
        int top[R], left[R];
        FLOATV sum[R][N];
#pragma unroll
        for (int r = 0; r < R; ++r) {
            top[r] = out_y * stride_y - pad_y;
            left[r] = out_x * stride_x - pad_x;
            int wraps = ++out_x == out_width;
            out_x = wraps ? 0 : out_x;
            out_y += wraps;
#pragma unroll
            for (int n = 0; n < N; ++n)
                sum[r][n] = VLOAD(bias + n * V);
        }
        for (int ky = 0; ky < kernel_height; ++ky)
            for (int kx = 0; kx < kernel_width; ++kx, w += in_blocks * B * T) {
                __global const float *at[R];
                int step[R], some = 0;
#pragma unroll
                for (int r = 0; r < R; ++r) {
                    int y = top[r] + ky * dilation_y, x = left[r] + kx * dilation_x;
                    int inside = (uint)y < (uint)in_height && (uint)x < (uint)in_width;
                    at[r] = inside ? from + (y * in_width + x) * B : weights;
                    step[r] = inside ? plane : 0;
                    some |= inside;
                }
                if (!some)
                    continue;
                __global const float *k = w;
                for (int block = 0; block < in_blocks; ++block) {
#pragma unroll
                    for (int r = 0; r < R; r += 2)
                        SOON(at[r] + step[r], 3);
                    for (int i = 0; i < B; ++i, k += T) {
                        FLOATV factor[N];
#pragma unroll
                        for (int n = 0; n < N; ++n)
                            factor[n] = VLOAD(k + n * V);
#pragma unroll
                        for (int r = 0; r < R; ++r) {
                            FLOATV x = at[r][i];
#pragma unroll
                            for (int n = 0; n < N; ++n)
                                sum[r][n] += x * factor[n];
                        }
                    }
#pragma unroll
                    for (int r = 0; r < R; ++r)
                        at[r] += step[r];
                }
            }
        write_tile(&given, arena, output, sum, pixel, 0, end - pixel, pixels, tile * T, channels);
    }
}
