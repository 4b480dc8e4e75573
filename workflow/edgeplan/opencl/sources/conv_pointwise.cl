/* Convolution of 1 x 1 windows, stride 1, without padding: as `conv_direct`, of pixels that lie side by side. The
   last of them, at least R, are computed once more than they are written. */
__kernel void conv_pointwise(
    __global float *arena, __global const float *weights, int input, int output, int in_blocks, int pixels, int run,
    int channels, int tiles, int tiles_of_group, POSTS_PARAMETERS)
{
    int begin = (get_global_id(2) * get_global_size(0) + get_global_id(0)) * run * R, end = min(begin + run * R, pixels);
    int tile = get_global_id(1), plane = pixels * B;
    if (tile >= tiles)
        return;
    __global const float *from = arena + input + tile / tiles_of_group * in_blocks * plane;
    __global const float *bias = weights + B + tile * T;
    __global const float *w = weights + B + tiles * T + tile * in_blocks * B * T;
    posts_t given = POSTS_GIVEN;
    bounding(&given);
    for (int pixel = begin; pixel < end; pixel += R) {
        int first_pixel = min(pixel, pixels - R);
        FLOATV sum[R][N];
        __global const float *at = from + first_pixel * B, *k = w;
#pragma unroll
        for (int r = 0; r < R; ++r)
#pragma unroll
            for (int n = 0; n < N; ++n)
                sum[r][n] = VLOAD(bias + n * V);
        for (int block = 0; block < in_blocks; ++block, at += plane) {
#pragma unroll
            for (int r = 0; r < R; r += 2)
                SOON(at + plane + r * B, 3);
            for (int i = 0; i < B; ++i, k += T) {
                FLOATV factor[N];
#pragma unroll
                for (int n = 0; n < N; ++n)
                    factor[n] = VLOAD(k + n * V);
#pragma unroll
                for (int r = 0; r < R; ++r) {
                    FLOATV x = at[r * B + i];
#pragma unroll
                    for (int n = 0; n < N; ++n)
                        sum[r][n] += x * factor[n];
                }
            }
        }
        write_tile(&given, arena, output, sum, first_pixel, pixel - first_pixel, end - first_pixel, pixels, tile * T, channels);
    }
}
