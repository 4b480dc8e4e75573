/* Depthwise convolution, blocked to blocked. A work item computes a vector of channels at R pixels of a row (N is 1).
   Weights: bias [channels]; [blocks][window][B]. */
__kernel void conv_depthwise(
    __global float *arena, __global const float *weights, int input, int output, int in_height, int in_width, int out_height,
    int out_width, int channels, int blocks, int kernel_height, int kernel_width, int stride_y, int stride_x, int dilation_y,
    int dilation_x, int pad_y, int pad_x, POSTS_PARAMETERS)
{
    int out_x = get_global_id(0) * R, out_y = get_global_id(1), channel = get_global_id(2) * V, block = channel / B;
    if (out_x >= out_width)
        return;
    __global const float *from = arena + input + block * in_height * in_width * B + channel % B;
    __global const float *w = weights + blocks * B + block * kernel_height * kernel_width * B + channel % B;
    FLOATV sum[R][1];
#pragma unroll
    for (int r = 0; r < R; ++r)
        sum[r][0] = VLOAD(weights + channel);
    for (int ky = 0; ky < kernel_height; ++ky) {
        int y = out_y * stride_y - pad_y + ky * dilation_y, x = out_x * stride_x - pad_x;
        if ((uint)y >= (uint)in_height)
            continue;
        __global const float *row = from + y * in_width * B, *factors = w + ky * kernel_width * B;
        for (int kx = 0; kx < kernel_width; ++kx, x += dilation_x) {
            FLOATV factor = VLOAD(factors + kx * B);
            if (x >= 0 && x + (R - 1) * stride_x < in_width) {
#pragma unroll
                for (int r = 0; r < R; ++r)
                    sum[r][0] += VLOAD(row + (x + r * stride_x) * B) * factor;
            } else {
#pragma unroll
                for (int r = 0; r < R; ++r) {
                    int at = x + r * stride_x;
                    if ((uint)at < (uint)in_width)
                        sum[r][0] += VLOAD(row + at * B) * factor;
                }
            }
        }
    }
    posts_t given = POSTS_GIVEN;
    bounding(&given);
    int pixel = out_y * out_width + out_x, size = out_height * out_width;
    write_tile(&given, arena, output, sum, pixel, out_width - out_x, size, channel, channels);
}
