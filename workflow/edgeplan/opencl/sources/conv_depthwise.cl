/* Depthwise convolution, blocked to blocked. A work item computes a vector of channels of `run` times R
   pixels of a row (N is 1).
   Weights: B zeros; bias [channels]; [blocks][window][B]. */

#define ADD_PRODUCTS(from) \
    { \
        FLOATV factor = VLOAD(factors); \
        _Pragma("unroll") for (int r = 0; r < R; ++r) sum[r][0] += VLOAD(from) * factor; \
    }

__kernel void conv_depthwise(
    __global float *arena, __global const float *weights, int input, int output, int in_height, int in_width, int out_height,
    int out_width, int run, int channels, int blocks, int kernel_height, int kernel_width, int stride_y, int stride_x,
    int dilation_y, int dilation_x, int pad_y, int pad_x, POSTS_PARAMETERS)
{
    int out_y = get_global_id(0), channel = get_global_id(1) * V, block = channel / B;
    if (out_y >= out_height || block >= blocks)
        return;
    int top = out_y * stride_y - pad_y;
    __global const float *from = arena + input + block * in_height * in_width * B + channel % B;
    __global const float *w = weights + B + blocks * B + block * kernel_height * kernel_width * B + channel % B;
    posts_t given = POSTS_GIVEN;
    bounding(&given);
    int begin = get_global_id(2) * run * R, end = min(begin + run * R, out_width);
    for (int out_x = begin; out_x < end; out_x += R) {
        int left = out_x * stride_x - pad_x;
        int whole = left >= 0 && left + (R - 1) * stride_x + (kernel_width - 1) * dilation_x < in_width;
        FLOATV sum[R][1], bias = VLOAD(weights + B + channel);
#pragma unroll
        for (int r = 0; r < R; ++r)
            sum[r][0] = bias;
        for (int ky = 0; ky < kernel_height; ++ky) {
            int y = top + ky * dilation_y;
            if ((uint)y >= (uint)in_height)
                continue;
            __global const float *row = from + y * in_width * B, *factors = w + ky * kernel_width * B;
            if (whole) {
                row += left * B;
                for (int kx = 0; kx < kernel_width; ++kx, row += dilation_x * B, factors += B)
                    ADD_PRODUCTS(row + r * stride_x * B)
            } else {
                for (int kx = 0, x = left; kx < kernel_width; ++kx, x += dilation_x, factors += B)
                    ADD_PRODUCTS((uint)(x + r * stride_x) < (uint)in_width ? row + (x + r * stride_x) * B : weights)
            }
        }
        int pixel = out_y * out_width + out_x, size = out_height * out_width;
        write_tile(&given, arena, output, sum, pixel, 0, out_width - out_x, size, channel, channels);
    }
}
