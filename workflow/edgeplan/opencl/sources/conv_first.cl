/* Convolution of the model's input: NCHW to blocked, for few channels. A work item computes N vectors of channels at R pixels
   of a row, and so on for `run` times R pixels. Weights: B zeros; bias [tiles][T]; [tiles][channels in][window][T]. */

#define ADD_PRODUCTS(value) \
    { \
        FLOATV factor[N]; \
        _Pragma("unroll") for (int n = 0; n < N; ++n) factor[n] = VLOAD(w + n * V); \
        _Pragma("unroll") for (int r = 0; r < R; ++r) { \
            FLOATV of_all = value; \
            _Pragma("unroll") for (int n = 0; n < N; ++n) sum[r][n] += of_all * factor[n]; \
        } \
    }

__kernel void conv_first(
    __global float *arena, __global const float *weights, int input, int output, int in_height, int in_width, int in_channels,
    int out_height, int out_width, int run, int channels, int tiles, int kernel_height, int kernel_width, int stride_y,
    int stride_x, int dilation_y, int dilation_x, int pad_y, int pad_x, POSTS_PARAMETERS)
{
    int begin = get_global_id(0) * run * R, end = min(begin + run * R, out_width);
    int tile = get_global_id(1), out_y = get_global_id(2);
    if (tile >= tiles)
        return;
    __global const float *first_w = weights + B + tiles * T + tile * in_channels * kernel_height * kernel_width * T;
    posts_t given = POSTS_GIVEN;
    bounding(&given);
    for (int out_x = begin; out_x < end; out_x += R) {
        __global const float *w = first_w;
        int left = out_x * stride_x - pad_x;
        int whole = left >= 0 && left + (R - 1) * stride_x + (kernel_width - 1) * dilation_x < in_width;
        FLOATV sum[R][N];
#pragma unroll
        for (int r = 0; r < R; ++r)
#pragma unroll
            for (int n = 0; n < N; ++n)
                sum[r][n] = VLOAD(weights + B + tile * T + n * V);
        for (int c = 0; c < in_channels; ++c)
            for (int ky = 0; ky < kernel_height; ++ky) {
                int y = out_y * stride_y - pad_y + ky * dilation_y, x = left;
                if ((uint)y >= (uint)in_height) {
                    w += kernel_width * T;
                    continue;
                }
                __global const float *row = arena + input + (c * in_height + y) * in_width;
                if (whole) {
                    for (int kx = 0; kx < kernel_width; ++kx, x += dilation_x, w += T)
                        ADD_PRODUCTS(row[x + r * stride_x])
                } else {
                    for (int kx = 0; kx < kernel_width; ++kx, x += dilation_x, w += T)
                        ADD_PRODUCTS(*((uint)(x + r * stride_x) < (uint)in_width ? row + x + r * stride_x : weights))
                }
            }
        int pixel = out_y * out_width + out_x, size = out_height * out_width;
        write_tile(&given, arena, output, sum, pixel, 0, out_width - out_x, size, tile * T, channels);
    }
}
