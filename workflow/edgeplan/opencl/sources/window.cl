/* Kernels on images in blocks that look at neighbours. A work item computes a block of channels of a pixel. */

#define IMAGE \
    __global const float *from, int input, __global float *to, int output, int in_height, int in_width, int height, \
    int width, int channels
#define ITEM \
    int x = get_global_id(0), y = get_global_id(1), z = get_global_id(2), in_plane = in_height * in_width * B; \
    if (x >= width || y >= height || z >= (channels + B - 1) / B) \
        return; \
    from += input + z * in_plane; \
    to += output + ((z * height + y) * width + x) * B;

/* kind: 0 the largest, 1 the mean of what lies inside, 2 the sum over the size of the window */
__kernel void pool(
    IMAGE, int kernel_height, int kernel_width, int stride_y, int stride_x, int dilation_y, int dilation_x, int pad_y,
    int pad_x, int kind)
{
    ITEM
    int top = y * stride_y - pad_y, left = x * stride_x - pad_x, count = 0;
    FLOATV found[B / V];
    for (int v = 0; v < B / V; ++v)
        found[v] = kind ? 0.0f : -FLT_MAX;
    for (int ky = 0; ky < kernel_height; ++ky)
        for (int kx = 0; kx < kernel_width; ++kx) {
            int row = top + ky * dilation_y, column = left + kx * dilation_x;
            if ((uint)row >= (uint)in_height || (uint)column >= (uint)in_width)
                continue;
            ++count;
            for (int v = 0; v < B / V; ++v) {
                FLOATV value = VLOAD(from + (row * in_width + column) * B + v * V);
                found[v] = kind ? found[v] + value : fmax(found[v], value);
            }
        }
    float share = kind == 0 ? 1.0f : 1.0f / (kind == 1 ? max(count, 1) : kernel_height * kernel_width);
    for (int v = 0; v < B / V; ++v)
        VSTORE(found[v] * share, to + v * V);
}

/* x (bias + alpha sum of squares of `half` channels on each side) ^ -beta */
__kernel void lrn(IMAGE, int half_size, float alpha, float beta, float bias)
{
    ITEM
    float near[3 * B];
    from += (y * in_width + x) * B;
    for (int i = 0; i < 3 * B; i += V) {
        int block = z + i / B - 1;
        VSTORE((uint)block < (uint)((channels + B - 1) / B) ? VLOAD(from + (i / B - 1) * in_plane + i % B) : (FLOATV)(0.0f), near + i);
    }
    for (int i = 0; i < B; i += V) {
        FLOATV sum = 0.0f;
        for (int k = i - half_size; k <= i + half_size; ++k) {
            FLOATV value = VLOAD(near + B + k);
            sum += value * value;
        }
        FLOATV scale = bias + alpha * sum;
        scale = beta == 0.75f ? 1.0f / (sqrt(scale) * sqrt(sqrt(scale))) : pow(scale, (FLOATV)(-beta));
        VSTORE(first(VLOAD(near + B + i) * scale, channels - z * B - i), to + i);
    }
}

/* Where pixel i of `size` lies in the input, between its first pixel and its last. */
float centre(int i, int in_size, int size) { return ((float)i + 0.5f) * (float)in_size / (float)size - 0.5f; }

__kernel void resize(IMAGE, int linear)
{
    ITEM
    float at_y = centre(y, in_height, height), at_x = centre(x, in_width, width);
    int top = clamp((int)floor(linear ? at_y : at_y + 0.5f), 0, in_height - 1);
    int left = clamp((int)floor(linear ? at_x : at_x + 0.5f), 0, in_width - 1);
    int bottom = min(top + 1, in_height - 1), right = min(left + 1, in_width - 1);
    float down = clamp(at_y - (float)top, 0.0f, 1.0f), across = clamp(at_x - (float)left, 0.0f, 1.0f);
    for (int v = 0; v < B; v += V) {
        FLOATV value = VLOAD(from + (top * in_width + left) * B + v);
        if (linear) {
            FLOATV upper = value + across * (VLOAD(from + (top * in_width + right) * B + v) - value);
            FLOATV lower = VLOAD(from + (bottom * in_width + left) * B + v);
            lower += across * (VLOAD(from + (bottom * in_width + right) * B + v) - lower);
            value = upper + down * (lower - upper);
        }
        VSTORE(value, to + v);
    }
}
